// SPDX-License-Identifier: MIT OR Apache-2.0
// `functions ROUNDS`: 400 functions of equal work, called in turn.
#include <stdio.h>
#include <stdlib.h>

#define FUNCTION(n)                                                                                \
  static unsigned function_##n(unsigned value) {                                                   \
    unsigned sum = value, step = n + 1;                                                            \
    for (int i = 0; i < 50; i++) {                                                                 \
      sum = sum * 31 + step;                                                                       \
      step = (step >> 1) ^ (sum & 0xff);                                                           \
    }                                                                                              \
    return sum;                                                                                    \
  }
#define TEN(X, n)                                                                                  \
  X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7) X(n##8) X(n##9)
#define HUNDRED(X, n)                                                                              \
  TEN(X, n##0) TEN(X, n##1) TEN(X, n##2) TEN(X, n##3) TEN(X, n##4)                                 \
  TEN(X, n##5) TEN(X, n##6) TEN(X, n##7) TEN(X, n##8) TEN(X, n##9)
#define ALL(X) HUNDRED(X, 1) HUNDRED(X, 2) HUNDRED(X, 3) HUNDRED(X, 4)
ALL(FUNCTION)

#define NAME(n) function_##n,
static unsigned (*const functions[])(unsigned) = {ALL(NAME)};

int main(int count, char **arguments) {
  int rounds = count > 1 ? atoi(arguments[1]) : 1;
  unsigned value = 1;
  for (int round = 0; round < rounds; round++)
    for (unsigned i = 0; i < sizeof functions / sizeof *functions; i++)
      value = functions[i](value);
  printf("%u\n", value);
  return 0;
}
