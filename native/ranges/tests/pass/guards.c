// SPDX-License-Identifier: MIT OR Apache-2.0
// RUN: %clang -O1 -g -fpass-plugin=%plugin -S -emit-llvm %s -o - | %filecheck %s
int computed(int n) {
  static void *labels[] = {&&one, &&two};
  int sum = 0;
  goto *labels[n & 1];
one:
  sum += 1;
  return sum;
two:
  sum += 2;
  return sum;
}
// A function with computed jumps has one copy, with guards.
// CHECK: F\09computed\09computed\093\09g
// CHECK: define {{.*}} @computed(
// CHECK: call preserve_mostcc i32 @__overhear_ranges_pass
