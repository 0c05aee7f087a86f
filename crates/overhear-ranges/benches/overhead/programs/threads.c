// SPDX-License-Identifier: MIT OR Apache-2.0
// `threads ROUNDS`: four threads with unequal work.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static int rounds;

static __attribute__((noinline)) unsigned mix(unsigned value) {
  unsigned low = value & 0xffff, high = value >> 16;
  for (int i = 0; i < 8; i++) {
    low = (low * 5 + high) & 0xffff;
    high = (high ^ (low >> 3)) & 0xffff;
  }
  return high << 16 | low;
}

static void *work(void *argument) {
  long part = (long)argument;
  unsigned value = (unsigned)part + 1;
  for (long round = 0; round < rounds * (part + 1); round++)
    for (int i = 0; i < 1000; i++)
      value = mix(value) + (unsigned)i;
  return (void *)(long)value;
}

int main(int count, char **arguments) {
  rounds = count > 1 ? atoi(arguments[1]) : 1;
  pthread_t threads[4];
  unsigned long sum = 0;
  for (long part = 0; part < 4; part++)
    if (pthread_create(&threads[part], NULL, work, (void *)part))
      return 1;
  for (int part = 0; part < 4; part++) {
    void *value;
    pthread_join(threads[part], &value);
    sum += (unsigned long)value;
  }
  printf("%lu\n", sum);
  return 0;
}
