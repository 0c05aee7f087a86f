// SPDX-License-Identifier: MIT OR Apache-2.0
// Children of fork that work, that end by _exit, abort and a signal, and that execute a program.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int by_parent, by_child;

static int work(int n) {
  int value = n;
  for (int i = 0; i < 300; i++)
    for (int j = 0; j < 30; j++)
      value = (value * 13 + i - j) % 7919;
  return value;
}
int main(int count, char **arguments) {
  if (count > 1) {
    by_child = -4000;
    return work(atoi(arguments[1])) & 63;
  }
  int sum = 0;
  for (int child = 0; child < 5; child++) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
      by_child = 1000 + child;
      int status = work(child) & 63;
      if (child == 0)
        _exit(status);
      if (child == 1)
        abort();
      if (child == 2)
        kill(getpid(), SIGKILL);
      if (child == 3)
        execl("/proc/self/exe", arguments[0], "3", (char *)NULL);
      exit(status);
    }
    int status;
    by_parent = work(child + 100);
    waitpid(pid, &status, 0);
    sum += WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  printf("%d %d %d\n", sum, by_parent, by_child);
}
