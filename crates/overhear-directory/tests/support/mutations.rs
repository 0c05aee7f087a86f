// SPDX-License-Identifier: MIT OR Apache-2.0
//! Invalid packets, the same in every run.
#![allow(dead_code, unreachable_pub, missing_docs)]

use serde_json::{json, Value};

/// Pseudo-random numbers, the same in every run.
pub struct Chance(u64);

impl Chance {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below this one.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// Values that are difficult for number parsers, allocators and printers.
pub fn nasty(chance: &mut Chance) -> Value {
    match chance.below(16) {
        0 => Value::Null,
        1 => json!(-1),
        2 => json!(u64::MAX),
        3 => json!(i64::MIN),
        4 => json!(1e308),
        5 => json!(0.5),
        6 => json!(""),
        7 => json!("\u{0}\u{1b}[2J\n"),
        8 => json!("x".repeat(20_000)),
        9 => json!([]),
        10 => json!({}),
        11 => json!(true),
        12 => json!(u64::from(u32::MAX) + 1),
        13 => json!(1_u64 << chance.below(64)),
        14 => json!({ "text": 65_535 }),
        _ => (0..100).fold(json!(1), |inner, _| json!([inner])),
    }
}

/// Changes one node somewhere in the tree.
pub fn mutate(value: &mut Value, chance: &mut Chance) {
    let children = match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if children == 0 || chance.below(8) == 0 {
        *value = nasty(chance);
        return;
    }
    let pick = chance.below(children);
    match value {
        Value::Array(items) => match chance.below(6) {
            0 => drop(items.remove(pick)),
            1 => items.push(items[pick].clone()),
            _ => mutate(&mut items[pick], chance),
        },
        Value::Object(fields) => {
            let key = fields.keys().nth(pick).cloned().unwrap_or_default();
            match chance.below(8) {
                0 => drop(fields.remove(&key)),
                1 => {
                    if let Some(value) = fields.remove(&key) {
                        fields.insert(format!("{key}_"), value);
                    }
                }
                _ => mutate(&mut fields[&key], chance),
            }
        }
        _ => {}
    }
}
