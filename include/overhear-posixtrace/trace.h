/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <trace.h> of POSIX: programs that are written for the standard include this name. */
#ifndef OVERHEAR_POSIXTRACE_TRACE_H
#define OVERHEAR_POSIXTRACE_TRACE_H

#include "../overhear/trace.h"

#endif
