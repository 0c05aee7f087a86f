/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "laned_no_system_call.c"
