// SPDX-License-Identifier: MIT OR Apache-2.0
// RUN: %clang -O1 -g -fpass-plugin=%plugin -S -emit-llvm %s -o - | %filecheck %s
// RUN: OVERHEAR_RANGES_ARGUMENTS=all %clang -O1 -g -fpass-plugin=%plugin -S -emit-llvm %s -o %t
// RUN: %filecheck --check-prefix=ALL %s < %t
int global;
int only_passed(int small) { return small + 1; }
int writes(int passed) { return global = passed; }
// CHECK-NOT: only_passed\09
// CHECK: F\09writes\09
// CHECK-SAME: \09passed\09writes\09
// ALL: F\09only_passed\09
// ALL-SAME: V\09p\09small\09only_passed\09
