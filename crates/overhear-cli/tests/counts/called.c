/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls a function a hundred times, with 0 to 99, and another one never. Before each call it passes
 * a static probe with the same number, where the processor is one of x86-64. */
#include <stdio.h>

#ifdef __x86_64__
/* One nop, and the note that <sys/sdt.h> would write: the number is in edi. */
#define TURN(number)                                                                                                   \
	__asm__ volatile("990: nop\n"                                                                                  \
			 ".pushsection .note.stapsdt,\"\",\"note\"\n"                                                  \
			 ".balign 4\n"                                                                                 \
			 ".4byte 992f-991f, 994f-993f, 3\n"                                                            \
			 "991: .asciz \"stapsdt\"\n"                                                                   \
			 "992: .balign 4\n"                                                                            \
			 "993: .8byte 990b\n"                                                                          \
			 ".8byte _.stapsdt.base\n"                                                                     \
			 ".8byte 0\n"                                                                                  \
			 ".asciz \"called\"\n"                                                                         \
			 ".asciz \"turn\"\n"                                                                           \
			 ".asciz \"-4@%%edi\"\n"                                                                       \
			 "994: .balign 4\n"                                                                            \
			 ".popsection\n"                                                                               \
			 ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                       \
			 ".weak _.stapsdt.base\n"                                                                      \
			 ".hidden _.stapsdt.base\n"                                                                    \
			 "_.stapsdt.base: .space 1\n"                                                                  \
			 ".size _.stapsdt.base,1\n"                                                                    \
			 ".popsection\n"                                                                               \
			 :                                                                                             \
			 : "D"(number))
#else
#define TURN(number)
#endif

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

	for (int number = 0; number < 100; number++) {
		TURN(number);
		sum += doubled(number);
	}
	printf("%ld\n", sum);
	return 0;
}
