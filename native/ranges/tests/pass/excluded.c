// SPDX-License-Identifier: MIT OR Apache-2.0
// RUN: %clang -O1 -g -fpass-plugin=%plugin -S -emit-llvm %s -o - | %filecheck %s
int global;
__attribute__((no_profile_instrument_function)) void left_alone(int n) { global = n; }
// CHECK-NOT: @overhear
// CHECK-NOT: @__overhear
