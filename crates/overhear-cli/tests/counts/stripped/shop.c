/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls a function that the dynamic linker knows, one that only the compiler knows, and one of two
   of a name. */
#include <stdlib.h>

int sold(int number);
int again(int number);

__attribute__((noinline)) int priced(int number)
{
	__asm__ volatile("" : "+r"(number));
	return number + 1;
}

static __attribute__((noinline)) int weighed(int number)
{
	__asm__ volatile("" : "+r"(number));
	return number + 2;
}

static __attribute__((noinline)) int packed(int number)
{
	__asm__ volatile("" : "+r"(number));
	return number + 3;
}

int main(void)
{
	int sum = 0;

	for (int number = 0; number < 30; number++)
		sum += priced(number);
	for (int number = 0; number < 20; number++)
		sum += weighed(number);
	for (int number = 0; number < 10; number++)
		sum += packed(number) + again(number);
	for (int number = 0; number < 40; number++) {
		void *volatile memory = malloc(123457);

		free(memory);
	}
	return sum == 0;
}
