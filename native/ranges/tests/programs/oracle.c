// SPDX-License-Identifier: MIT OR Apache-2.0
// Variables of every kind and type. With ORACLE, each assignment records its value by itself, and
// the program prints what the pass must have found.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef ORACLE
struct entry {
  const char *name;
  __int128 minimum, maximum;
  unsigned long updates;
};
static struct entry entries[64];
static void note(const char *name, __int128 value) {
  struct entry *entry = entries;
  while (entry->name && strcmp(entry->name, name))
    entry++;
  if (!entry->name)
    *entry = (struct entry){name, value, value, 0};
  if (value < entry->minimum)
    entry->minimum = value;
  if (value > entry->maximum)
    entry->maximum = value;
  entry->updates++;
}
static void print_long(__int128 value) {
  if (value < 0)
    printf("-%llu", (unsigned long long)-value);
  else
    printf("%llu", (unsigned long long)value);
}
#define SET(name, variable, value) ((variable) = (value), note(name, (variable)))
#else
#define SET(name, variable, value) ((variable) = (value))
#endif

enum colour { RED, GREEN = 7, BLUE = -2 };
struct inner {
  short deep;
};
struct record {
  int first;
  uint64_t wide;
  signed char tiny;
  unsigned bits : 5;
  int negative : 4;
  struct inner inner;
  struct {
    unsigned short unnamed;
  } part;
  int array[4];
};
typedef struct {
  long member;
} without_tag;

int global = 0;
static uint64_t counter;
struct record shared;
without_tag other;
_Atomic int atomic;

static int work(struct record *record, int seed) {
  static unsigned calls;
  SET("calls", calls, calls + 1);
  int64_t sum;
  SET("sum", sum, 0);
  uint8_t byte;
  enum colour colour;
  for (int i = 0; i < 40; i++) {
    for (int j = 0; j < 10; j++)
      SET("sum", sum, sum + (i - 20) * (int64_t)j * seed);
    SET("byte", byte, (uint8_t)(i * 7 + seed));
    SET("colour", colour, i % 3 == 0 ? GREEN : i % 3 == 1 ? BLUE : RED);
    SET("record.first", record->first, seed * i - 100);
    SET("record.wide", record->wide, i == 7 ? UINT64_MAX : (uint64_t)i << 40);
    SET("record.tiny", record->tiny, (signed char)(i * 11));
    SET("record.bits", record->bits, i % 29);
    SET("record.negative", record->negative, i % 16 - 8);
    SET("inner.deep", record->inner.deep, (short)(i * -31));
    SET("record.part.unnamed", record->part.unnamed, (unsigned short)(65535 - i));
    record->array[i % 4] = byte + colour;
    SET("without_tag.member", other.member, (long)sum * 3);
  }
  SET("global", global, (int)sum);
  SET("counter", counter, counter + (uint64_t)byte * 1000000007u);
  return record->array[2];
}

int main(void) {
  struct record own = {0};
  int total;
  SET("total", total, 0);
  for (int seed = -3; seed < 30; seed++) {
    int result = work(seed % 2 ? &own : &shared, seed);
    SET("total", total, total + result);
    SET("record.first", shared.first, seed);
  }
  atomic += 5;
  atomic -= 9;
#ifdef ORACLE
  for (struct entry *entry = entries; entry->name; entry++) {
    printf("%s ", entry->name);
    print_long(entry->minimum);
    printf(" ");
    print_long(entry->maximum);
    printf(" %lu\n", entry->updates);
  }
#else
  printf("%d %d %llu\n", total, global, (unsigned long long)counter);
#endif
}
