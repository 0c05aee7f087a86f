// SPDX-License-Identifier: MIT OR Apache-2.0
// setjmp, computed jumps, labels in assembly, varargs, arrays of variable length, tail calls.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

static jmp_buf place;
static int global;

static void leave(int value) {
  global = value;
  if (value % 3 == 0)
    longjmp(place, value + 1);
  global = -value;
}
__attribute__((noinline)) static int jumping(int n) {
  volatile int done = 0;
  for (volatile int i = 0; i < n; i++) {
    int result = setjmp(place);
    if (result == 0)
      leave(i);
    else
      done += result;
  }
  return done;
}
__attribute__((noinline)) static int computed(int n) {
  static void *labels[] = {&&one, &&two, &&three};
  int sum = 0, i = 0;
  goto *labels[n % 3];
one:
  sum += 1;
  if (++i > 500)
    return sum;
  goto *labels[(i + n) % 3];
two:
  sum += 2;
  if (++i > 500)
    return sum;
  goto *labels[(i * n) % 3];
three:
  sum += 3;
  if (++i > 500)
    return sum;
  goto *labels[(i ^ n) % 3];
}
__attribute__((noinline)) static int variable(int count, ...) {
  va_list list;
  int sum = 0;
  va_start(list, count);
  for (int i = 0; i < count; i++)
    sum += va_arg(list, int);
  va_end(list);
  return sum;
}
__attribute__((noinline)) static int sized(int n) {
  int sum = 0;
  for (int k = 0; k < 3; k++) {
    int array[n + k];
    for (int i = 0; i < n + k; i++)
      array[i] = i * k;
    sum += array[n + k - 1];
  }
  return sum;
}
static int odd(int n);
__attribute__((noinline)) static int even(int n) {
  int next = n - 1;
  if (next <= 0)
    return global;
  __attribute__((musttail)) return odd(next);
}
__attribute__((noinline)) static int odd(int n) {
  int next = n - 1;
  global = next;
  if (next <= 0)
    return global;
  __attribute__((musttail)) return even(next);
}
#ifdef __x86_64__
__attribute__((noinline)) static int labelled(int n) {
  int result = n;
  __asm__ volatile("label_of_ours_%=: addl $3,%0" : "+r"(result));
  return result * 2;
}
__attribute__((noinline)) static int branching(int n) {
  int result = n;
  __asm__ goto("testl %0,%0; jz %l1" ::"r"(result)::zero);
  result = result * 2;
  return result;
zero:
  result = 77;
  return result;
}
#else
static int labelled(int n) { return (n + 3) * 2; }
static int branching(int n) { return n ? n * 2 : 77; }
#endif
int main(void) {
  int total = 0;
  for (int round = 0; round < 200; round++) {
    total += jumping(20) + computed(round) + variable(4, 1, 2, 3, round) + sized(round % 9 + 1);
    total += even(round) + odd(round) + labelled(round) + branching(round % 4);
  }
  printf("%d %d\n", total, global);
}
