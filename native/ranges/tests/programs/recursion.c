// SPDX-License-Identifier: MIT OR Apache-2.0
#include <stdio.h>
static int depth, deepest;
static long ackermann(long m, long n) {
  long result;
  depth++;
  if (depth > deepest)
    deepest = depth;
  if (m == 0)
    result = n + 1;
  else if (n == 0)
    result = ackermann(m - 1, 1);
  else
    result = ackermann(m - 1, ackermann(m, n - 1));
  depth--;
  return result;
}
int main(void) {
  int lines = 0;
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 6; j++)
      lines += (int)ackermann(i % 4, j);
  printf("%d %d\n", lines, deepest);
}
