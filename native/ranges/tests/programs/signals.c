// SPDX-License-Identifier: MIT OR Apache-2.0
// A timer's handler runs instrumented code while instrumented code runs.
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

static volatile sig_atomic_t ticks;
static volatile int handled;

static int spin(int n) {
  int value = 0;
  for (int i = 0; i < n; i++)
    for (int j = 0; j < 30; j++)
      value = (value * 17 + i + j) & 0xffff;
  return value;
}
static void handler(int signal) {
  int seen = spin(20);
  handled = seen + signal;
  ticks = ticks + 1;
}
int main(void) {
  struct sigaction action = {.sa_handler = handler};
  sigaction(SIGALRM, &action, NULL);
  struct itimerval timer = {{0, 200}, {0, 200}};
  setitimer(ITIMER_REAL, &timer, NULL);
  unsigned sum = 0;
  while (ticks < 50)
    sum = (unsigned)spin(1000);
  timer = (struct itimerval){{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &timer, NULL);
  printf("%u %d\n", sum, handled);
}
