/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "heard_hot_path.c"
