// SPDX-License-Identifier: MIT OR Apache-2.0
// Many threads in the same functions, more than once, and threads that end.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static int shared_low, shared_high;

static long step(long value, int thread) {
  long next = value;
  for (int i = 0; i < 50; i++)
    for (int j = 0; j < 20; j++)
      next = (next * 31 + j + thread) % 1000003;
  return next;
}

static void *run(void *argument) {
  int thread = (int)(long)argument;
  long value = thread;
  for (int round = 0; round < 300; round++)
    value = step(value, thread);
  if (thread == 0)
    shared_low = -5;
  if (thread == 7)
    shared_high = 70;
  return (void *)value;
}

int main(void) {
  unsigned long sum = 0;
  for (int wave = 0; wave < 3; wave++) {
    pthread_t threads[8];
    for (long i = 0; i < 8; i++)
      if (pthread_create(&threads[i], NULL, run, (void *)i))
        return 1;
    for (int i = 0; i < 8; i++) {
      void *result;
      pthread_join(threads[i], &result);
      sum += (unsigned long)result;
    }
  }
  printf("%lu %d %d\n", sum, shared_low, shared_high);
}
