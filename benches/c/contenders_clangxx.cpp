/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define CONTENDERS_TABLE contenders_clangxx
#include "contenders.h"
