/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear_monitor, overhear. The same with the libraries in the other order: one of them
   provides all. */
#define FIRST_LIBRARY "liboverhear_monitor.so"
#include "both_libraries.c"
