// SPDX-License-Identifier: MIT OR Apache-2.0
// Loads a library, calls it, unloads it, several times.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int count, char **arguments) {
  int total = 0;
  for (int round = 0; round < 5; round++) {
    void *library = dlopen(arguments[1], RTLD_NOW);
    if (!library) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    int (*work)(int) = (int (*)(int))dlsym(library, "library_work");
    for (int i = 0; i < 100; i++)
      total += work(i * 10 + round);
    dlclose(library);
  }
  printf("%d %d\n", total, count);
  // Long enough for a round of control after the library is gone.
  struct timespec pause = {0, 60000000};
  nanosleep(&pause, NULL);
}
