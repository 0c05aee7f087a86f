/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "posix_rights.c"
