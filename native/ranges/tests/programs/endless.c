// SPDX-License-Identifier: MIT OR Apache-2.0
// A function that never returns, in a program that is killed.
#include <stdio.h>
#include <unistd.h>

static long rounds;
static int phase;

static int inner(int n) {
  int value = n;
  for (int i = 0; i < 100; i++)
    value = (value * 5 + i) % 1009;
  return value;
}
int main(void) {
  int last = 0;
  phase = 1;
  for (;;) {
    rounds++;
    last = inner(last);
    if (rounds == 2000000) {
      phase = 2;
      if (write(1, "ready\n", 6) != 6)
        return 1;
    }
  }
}
