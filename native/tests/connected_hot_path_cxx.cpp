/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "connected_hot_path.c"
