// SPDX-License-Identifier: MIT OR Apache-2.0
// RUN: %clang -O1 -g0 -fpass-plugin=%plugin -c %s -o %t.o 2>&1 | %filecheck %s
int global;
void update(int n) { global = n; }
// CHECK: without_debug_information.c has no debug information, so none of its variables
// CHECK-SAME: is observed; compile it with -g
