/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * <trace.h>: the POSIX trace interface. Only this file is in the folder, so that a program can have
 * the folder among its include folders without other headers of Overhear.
 */
#include "../trace.h"
