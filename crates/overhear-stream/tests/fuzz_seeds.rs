// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the fuzzers run (`fuzz/subjects`), over their seeds and thousands of inputs near them.
//!
//! The fuzzers need a nightly toolchain and somebody who waits; this runs with every other test.
#![cfg(not(any(loom, miri)))]

use std::path::Path;

use arbitrary::{Arbitrary, Unstructured};

#[path = "../../../fuzz/subjects/clock.rs"]
mod clock;
#[path = "../../../fuzz/subjects/header.rs"]
mod header;
#[path = "../../../fuzz/subjects/queue.rs"]
mod queue;
#[path = "../../../fuzz/subjects/reader.rs"]
mod reader;

/// Inputs made of each seed.
const NEAR: usize = 400;
/// Inputs made of nothing, where a target has no seeds.
const FROM_NOTHING: usize = 2_000;

/// Chance, the same in every run.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let count = self.below(most + 1);
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// Changes some bytes: one after the other, a word by a number that counters like least, the length.
fn mutate(input: &mut Vec<u8>, chance: &mut Chance) {
    for _ in 0..=chance.below(4) {
        let at = chance.below(input.len());
        match chance.below(5) {
            0 if !input.is_empty() => input[at] ^= 1 << chance.below(8),
            1 if !input.is_empty() => input[at] = chance.next() as u8,
            2 => {
                let shift = chance.below(64);
                let word = [0, u64::MAX, 1 << shift, u64::MAX >> shift, 1 << 63 | 5];
                let word = word[chance.below(word.len())].to_le_bytes();
                let end = input.len().min(at + 8);
                input.splice(at..end, word);
            }
            3 => input.truncate(at),
            _ => {
                let more = chance.bytes(40);
                input.splice(at..at, more);
            }
        }
    }
}

/// Runs a target over its seeds and over what is near them.
fn fuzz<I: for<'a> Arbitrary<'a>>(target: &str, run: impl Fn(I)) {
    let one = |bytes: &[u8]| {
        if let Ok(input) = I::arbitrary_take_rest(Unstructured::new(bytes)) {
            run(input);
        }
    };
    let mut chance = Chance(0xD1B5_4A32_D192_ED03);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds");
    let Ok(seeds) = std::fs::read_dir(Path::new(folder).join(target)) else {
        for _ in 0..FROM_NOTHING {
            one(&chance.bytes(400));
        }
        return;
    };
    let mut count = 0;
    for seed in seeds {
        let seed = std::fs::read(seed.unwrap().path()).unwrap();
        one(&seed);
        for _ in 0..NEAR {
            let mut input = seed.clone();
            mutate(&mut input, &mut chance);
            one(&input);
        }
        count += 1;
    }
    assert!(count > 0, "{target} has a folder without seeds");
}

#[test]
fn readers_survive_the_fuzzers_seeds_and_what_is_near_them() {
    fuzz("reader", reader::run);
}

#[test]
fn queues_survive_the_fuzzers_seeds_and_what_is_near_them() {
    fuzz("queue", queue::run);
}

#[test]
fn clock_pages_may_hold_anything() {
    fuzz("clock", clock::run);
}

#[test]
fn headers_may_hold_anything() {
    fuzz("header", header::run);
}
