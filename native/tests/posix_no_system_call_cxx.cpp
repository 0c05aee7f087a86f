/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "posix_no_system_call.c"
