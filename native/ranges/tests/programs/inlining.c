// SPDX-License-Identifier: MIT OR Apache-2.0
// Fields that small functions write, through pointers that only their callers know.
#include <stdio.h>
#include <stdlib.h>

struct inner {
  short low;
  short high;
};

struct outer {
  long first;
  struct inner inner;
  unsigned char last;
};

static inline void set_first(struct outer *outer, long value) { outer->first = value; }

static inline void set_inner(struct inner *inner, short value) {
  inner->low = -value;
  inner->high = value;
}

static inline int set_all(struct outer *outer, int round) {
  set_first(outer, round * 1000L);
  set_inner(&outer->inner, (short)round);
  outer->last = (unsigned char)(round * 3);
  return outer->last;
}

int main(void) {
  struct outer *outer = malloc(sizeof *outer);
  if (!outer)
    return 1;
  int sum = 0;
  for (int round = 1; round <= 100; round++)
    sum += set_all(outer, round);
  printf("%ld %d %d %d %d\n", outer->first, outer->inner.low, outer->inner.high, outer->last, sum);
  free(outer);
  return 0;
}
