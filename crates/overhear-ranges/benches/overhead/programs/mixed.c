// SPDX-License-Identifier: MIT OR Apache-2.0
// Sorts, sums and compresses numbers: loops of all kinds, calls of short functions, recursion.
// `mixed ROUNDS [BURSTS]`: with bursts it sleeps 200 ms before each of them.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define VALUES 20000
static unsigned values[VALUES];
static unsigned char packed[2 * VALUES];
static unsigned long total;

static __attribute__((noinline)) int compare(unsigned a, unsigned b) {
  unsigned x = a >> 16, y = b >> 16;
  if (x != y)
    return x < y ? -1 : 1;
  x = a & 0xffff, y = b & 0xffff;
  return x < y ? -1 : x > y;
}

static void sort(unsigned *from, unsigned *to) {
  while (to - from > 1) {
    unsigned pivot = from[(to - from) / 2];
    unsigned *low = from, *high = to - 1;
    while (low <= high) {
      while (compare(*low, pivot) < 0)
        low++;
      while (compare(*high, pivot) > 0)
        high--;
      if (low <= high) {
        unsigned swapped = *low;
        *low++ = *high;
        *high-- = swapped;
      }
    }
    sort(from, high + 1);
    from = low;
  }
}

static int pack(void) {
  int used = 0;
  unsigned char last = 0;
  for (int i = 0; i < VALUES; i++) {
    unsigned char byte = (unsigned char)(values[i] >> 20);
    int run = 0;
    while (i + run + 1 < VALUES && (unsigned char)(values[i + run + 1] >> 20) == byte && run < 200)
      run++;
    packed[used++] = byte ^ last;
    packed[used++] = (unsigned char)run;
    last = byte;
    i += run;
  }
  return used;
}

int main(int count, char **arguments) {
  int rounds = count > 1 ? atoi(arguments[1]) : 1;
  int bursts = count > 2 ? atoi(arguments[2]) : 0;
  unsigned state = 1;
  for (int round = 0; round < rounds; round++) {
    if (bursts && round % (rounds / bursts) == 0) {
      struct timespec pause = {0, 200000000};
      nanosleep(&pause, NULL);
    }
    for (int i = 0; i < VALUES; i++) {
      state = state * 1664525u + 1013904223u;
      values[i] = state;
    }
    sort(values, values + VALUES);
    int used = pack();
    for (int i = 0; i < used; i++)
      total = total * 31 + packed[i];
  }
  printf("%lu\n", total);
  return 0;
}
