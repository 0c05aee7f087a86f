// SPDX-License-Identifier: MIT OR Apache-2.0
// RUN: %clang -O2 -g -fpass-plugin=%plugin -S -emit-llvm %s -o - | %filecheck %s
// RUN: %clang -O2 -g -fpass-plugin=%plugin -S -emit-llvm %s -o %t
// RUN: %filecheck --check-prefix=CALLS %s < %t
struct pair {
  int first;
  int second;
};
static void set(struct pair *pair, int value) {
  pair->first = value;
  pair->second = value + 1;
}
int unobserved;
__attribute__((no_profile_instrument_function)) static void excluded(int n) { unobserved = n; }
__attribute__((noinline)) static int stays(struct pair *pair) { return pair->second = 7; }
int use(struct pair *pairs, int n) {
  int sum = 0;
  for (int i = 0; i < n; i++) {
    set(&pairs[i], i);
    sum += stays(pairs);
    excluded(i);
  }
  return sum;
}
// What the optimiser inlines is a part of its caller, and has no decision of its own.
// CHECK: @overhear.ranges.text = 
// CHECK-NOT: F\09set\09
// CHECK-SAME: F\09use\09
// CHECK-NOT: F\09set\09
// CHECK-SAME: F\09stays\09
// An excluded function stays unobserved.
// CHECK-NOT: V\09g\09unobserved
// The first field is at the address of its struct, and yet it is observed.
// CHECK-SAME: V\09m\09pair.first\09
// CHECK-SAME: V\09m\09pair.second\09
// CHECK-NOT: V\09g\09unobserved
// CALLS-NOT: @set
// CALLS: call {{.*}} @stays(
// CALLS-NOT: @set
