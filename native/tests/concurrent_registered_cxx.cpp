/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "concurrent_registered.c"
