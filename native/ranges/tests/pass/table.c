// SPDX-License-Identifier: MIT OR Apache-2.0
// RUN: %clang -O2 -g -fpass-plugin=%plugin -S -emit-llvm %s -o - | %filecheck %s
struct point {
  int x;
  unsigned small : 3;
};
unsigned long long total;
static unsigned char state;
int constant = 4;
double real;
_Bool truth;
void update(struct point *p, int *through) {
  p->x = 3;
  p->small = 2;
  total += 1;
  state = (unsigned char)total;
  real = 1.0;
  truth = 1;
  // No variable is named here.
  *through = 7;
}
// Names, kinds, types and widths; what is not written or no integer is not there.
// CHECK: @overhear.ranges.object{{.*}} section "overhear_ranges_object"
// CHECK: @overhear.ranges.block{{.*}} section "overhear_ranges_block"
// CHECK: @overhear.ranges.text
// CHECK-SAME: F\09update\09update\0912\09d
// CHECK-SAME: V\09m\09point.x\09\09{{[^"]*}}table.c\094\09int\0932\09s
// CHECK-SAME: V\09m\09point.small\09\09{{[^"]*}}table.c\095\09unsigned int\093\09u
// CHECK-SAME: V\09g\09total\09\09{{[^"]*}}table.c\097\09unsigned long long\0964\09u
// CHECK-SAME: V\09g\09state\09\09{{[^"]*}}table.c\098\09unsigned char\098\09u
// CHECK-SAME: C\090\090*1\091*1\092*1\093*1\0A"
