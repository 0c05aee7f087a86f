// SPDX-License-Identifier: MIT OR Apache-2.0
static int library_global;
int library_work(int n) {
  int value = n;
  for (int i = 0; i < 20; i++)
    for (int j = 0; j < 5; j++)
      value = (value * 7 + j) % 9973;
  library_global = value - 5000;
  return value;
}
