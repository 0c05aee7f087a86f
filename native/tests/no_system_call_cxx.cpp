/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "no_system_call.c"
