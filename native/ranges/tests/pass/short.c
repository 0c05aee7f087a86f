// SPDX-License-Identifier: MIT OR Apache-2.0
// RUN: %clang -O2 -g -fpass-plugin=%plugin -S -emit-llvm %s -o - | %filecheck %s
int global;
struct large {
  long words[8];
};
// Only its entry is a pass: another function holds the copies, and continues it without a frame.
__attribute__((noinline)) int brief(int n) {
  global = n;
  return n * 2;
}
// CHECK-LABEL: define {{.*}} @brief(
// CHECK-NOT: @__overhear_ranges_pass
// CHECK: tail call {{.*}}@brief.overhear(
// CHECK-NOT: @__overhear_ranges_pass
// CHECK-LABEL: define {{.*}} @by_value(
// CHECK: call {{.*}}@by_value.overhear(ptr {{.*}}byval(%struct.large)
__attribute__((noinline)) long by_value(struct large large) {
  global = (int)large.words[7];
  return large.words[0];
}
// CHECK-LABEL: define internal {{.*}} @brief.overhear(
// CHECK: @__overhear_ranges_pass
