// SPDX-License-Identifier: MIT OR Apache-2.0
//! A function in a module, and one of a type that implements a trait.

mod till {
    #[inline(never)]
    pub fn price(number: i32) -> i32 {
        std::hint::black_box(number) + 1
    }
}

trait Weigh {
    fn weigh(&self) -> i32;
}

struct Basket(i32);

impl Weigh for Basket {
    #[inline(never)]
    fn weigh(&self) -> i32 {
        std::hint::black_box(self.0) + 2
    }
}

fn main() {
    let mut sum = 0;
    for number in 0..30 {
        sum += till::price(number);
    }
    for number in 0..20 {
        sum += Basket(number).weigh();
    }
    assert!(sum > 0);
}
