// SPDX-License-Identifier: MIT OR Apache-2.0
#include <stdio.h>
int library_work(int);
int main(void) {
  int total = 0;
  for (int i = 0; i < 1000; i++)
    total += library_work(i);
  printf("%d\n", total);
}
