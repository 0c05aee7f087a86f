// SPDX-License-Identifier: MIT OR Apache-2.0
// RUN: %clang -O1 -g0 -fpass-plugin=%plugin -c %s -o %t.o 2>&1 | %filecheck %s
int global;
void update(int n) { global = n; }
// CHECK: overhear ranges: {{.*}}without_debug_information.c has no debug information, so none of its variables is observed; compile it with -g
