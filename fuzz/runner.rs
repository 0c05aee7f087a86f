// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the fuzz targets on a stable toolchain: the seeds of a target, and inputs near them.
//!
//! Every change is drawn from the same numbers in each run, so a failure comes again. What is found
//! stays in `fuzz/seeds/TARGET` as a further seed.

use std::path::{Path, PathBuf};

/// Pseudo-random numbers, the same in every run.
pub(crate) struct Chance(u64);

impl Default for Chance {
    fn default() -> Self {
        Self(0xD1B5_4A32_D192_ED03)
    }
}

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(crate) fn bytes(&mut self, most: usize) -> Vec<u8> {
        let count = self.below(most + 1);
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// Texts that are difficult for parsers, allocators and printers.
const WORDS: [&str; 16] = [
    "0",
    "-1",
    "18446744073709551615",
    "9223372036854775808",
    "1e308",
    "0.5",
    "\"\"",
    "null",
    "[]",
    "{}",
    "[[",
    "\n",
    "\u{202e}",
    "\u{1b}[2J",
    "*",
    "?",
];

/// Changes some bytes: one after the other, words, pieces, the length.
fn mutate(input: &mut Vec<u8>, chance: &mut Chance) {
    for _ in 0..=chance.below(4) {
        let at = chance.below(input.len());
        let piece = at..input.len().min(at + 1 + chance.below(24));
        match chance.below(9) {
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
            4 => drop(input.drain(piece)),
            5 => {
                let copy = input[piece].to_vec();
                let to = chance.below(input.len() + 1);
                input.splice(to..to, copy);
            }
            6 => {
                let word = WORDS[chance.below(WORDS.len())];
                input.splice(piece, word.bytes());
            }
            // The digits of a number, where there is one.
            7 => {
                let is_digit = |byte: &u8| byte.is_ascii_digit();
                if let Some(begin) = input[at..].iter().position(is_digit).map(|it| at + it) {
                    let digits = input[begin..].iter().take_while(|it| is_digit(it)).count();
                    let word = WORDS[chance.below(6)];
                    input.splice(begin..begin + digits, word.bytes());
                }
            }
            _ => {
                let more = chance.bytes(40);
                input.splice(at..at, more);
            }
        }
    }
}

/// The folder of a target's seeds.
pub(crate) fn seeds_of(target: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds");
    Path::new(folder).join(target)
}

/// Runs a target over its seeds, and over `near` inputs near each.
pub(crate) fn near_seeds(target: &str, near: usize, mut run: impl FnMut(&[u8])) {
    let seeds = std::fs::read_dir(seeds_of(target)).expect("a folder of seeds");
    // In one order on every machine.
    let mut seeds: Vec<PathBuf> = seeds.map(|seed| seed.unwrap().path()).collect();
    seeds.sort();
    assert!(!seeds.is_empty(), "{target} has a folder without seeds");
    let mut chance = Chance::default();
    for seed in &seeds {
        let seed = std::fs::read(seed).unwrap();
        run(&seed);
        for _ in 0..near {
            let mut input = seed.clone();
            mutate(&mut input, &mut chance);
            Reproduced::by(&input, |input| run(input));
        }
    }
}

/// Runs a target over generated inputs.
#[allow(dead_code, reason = "some targets have seeds alone")]
pub(crate) fn from_nothing(count: usize, mut run: impl FnMut(&[u8])) {
    let mut chance = Chance::default();
    for _ in 0..count {
        let input = chance.bytes(400);
        Reproduced::by(&input, |input| run(input));
    }
}

/// Prints the input that a panic comes from.
struct Reproduced<'a>(&'a [u8]);

impl Reproduced<'_> {
    fn by(input: &[u8], run: impl FnOnce(&[u8])) {
        let reproduced = Reproduced(input);
        run(input);
        std::mem::forget(reproduced);
    }
}

impl Drop for Reproduced<'_> {
    fn drop(&mut self) {
        eprintln!("this input fails: {}", self.0.escape_ascii());
    }
}
