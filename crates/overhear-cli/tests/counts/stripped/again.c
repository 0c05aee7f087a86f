/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Has a local function of the same name as another source. */
int again(int number);

static __attribute__((noinline)) int packed(int number)
{
	__asm__ volatile("" : "+r"(number));
	return number + 4;
}

int again(int number)
{
	return packed(number) + packed(number + 1);
}
