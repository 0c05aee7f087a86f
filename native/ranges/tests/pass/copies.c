// SPDX-License-Identifier: MIT OR Apache-2.0
// RUN: %clang -O1 -g -fpass-plugin=%plugin -Xclang -disable-llvm-passes -S -emit-llvm %s -o %t.ll
// RUN: %opt -load-pass-plugin=%plugin -passes=overhear-ranges -S %t.ll | %filecheck %s
int global;
int outer(int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++)
      global = i ^ j;
  return global;
}
// The entry takes one from the credit, and leads to the runtime only if it is used up.
// CHECK-LABEL: define {{.*}} @outer(
// CHECK: overhear.entry:
// CHECK: %[[CREDIT:.*]] = sub i64 %{{.*}}, 1
// CHECK: icmp slt i64 %[[CREDIT]], 0
// A token leads to the monitored copy out of turn.
// CHECK: label %overhear.used, label %overhear.token
// CHECK-DAG: overhear.token:
// CHECK-DAG: overhear.spend:
// The convention keeps the registers of the caller.
// CHECK-DAG: call preserve_mostcc i32 @__overhear_ranges_pass(ptr @overhear.ranges.object, i32 0)
