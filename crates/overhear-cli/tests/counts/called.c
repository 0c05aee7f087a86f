/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls a function a hundred times, with 0 to 99, and another one never. */
#include <stdio.h>

__attribute__((noinline)) int doubled(int number)
{
	__asm__ volatile("" : "+r"(number));
	return 2 * number;
}

__attribute__((noinline, used)) int never(int number)
{
	__asm__ volatile("" : "+r"(number));
	return number;
}

int main(void)
{
	long sum = 0;

	for (int number = 0; number < 100; number++)
		sum += doubled(number);
	printf("%ld\n", sum);
	return 0;
}
