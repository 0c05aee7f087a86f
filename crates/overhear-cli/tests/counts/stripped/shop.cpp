// SPDX-License-Identifier: MIT OR Apache-2.0
// Functions of one name with other parameters, and a method.
namespace shop {

__attribute__((noinline)) int price(int number)
{
	__asm__ volatile("" : "+r"(number));
	return number + 1;
}

__attribute__((noinline)) int price(int number, int count)
{
	__asm__ volatile("" : "+r"(number));
	return number * count;
}

struct Basket {
	int sum = 0;

	__attribute__((noinline)) void put(int number)
	{
		__asm__ volatile("" : "+r"(number));
		sum += number;
	}
};

}

int main()
{
	shop::Basket basket;

	for (int number = 0; number < 30; number++)
		basket.sum += shop::price(number);
	for (int number = 0; number < 20; number++)
		basket.sum += shop::price(number, 2);
	for (int number = 0; number < 10; number++)
		basket.put(number);
	return basket.sum == 0;
}
