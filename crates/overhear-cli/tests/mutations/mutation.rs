// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of a recording's files, chosen by a number: the same number makes the same changes.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::recordings::Files;

/// Pseudo-random numbers, the same in every run.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn of(seed: u64) -> Self {
        let mut chance = Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        // Neighbouring seeds have similar first numbers.
        for _ in 0..8 {
            chance.next();
        }
        chance
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }

    /// A number that a parser may not handle.
    fn number(&mut self) -> u64 {
        let power = 1 << self.below(64);
        match self.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => power - 1,
            3 => power,
            4 => self.next() % 1_000,
            _ => self.next(),
        }
    }

    /// A time that no real recording has, but a file can state.
    fn far_time(&mut self) -> u64 {
        (1 << (40 + self.below(23))) + self.next() % 1_000
    }
}

/// A recording whose files were changed.
pub(crate) struct Mutated {
    files: Files,
    /// Files whose length exceeds their content.
    sparse: Vec<(PathBuf, u64)>,
}

impl Mutated {
    pub(crate) fn new(recordings: &[Files], seed: u64) -> Self {
        let mut chance = Chance::of(seed);
        let files = recordings[chance.below(recordings.len())].clone();
        let other = &recordings[chance.below(recordings.len())];
        let mut mutated = Self {
            files,
            sparse: Vec::new(),
        };
        for _ in 0..=chance.below(4) {
            match chance.below(12) {
                0..=6 => mutated.change_stream(&mut chance, other),
                7..=9 => mutated.change_document(&mut chance),
                10 => mutated.change_bytes(&mut chance),
                _ => mutated.change_files(&mut chance),
            }
        }
        // Half of them have the correct checksums; otherwise the tests would find nothing except
        // the checksums.
        if chance.below(2) == 0 {
            mutated.seal();
        }
        mutated
    }

    /// Writes the recording into a new folder.
    pub(crate) fn write(&self, folder: &Path) {
        for (name, bytes) in &self.files {
            let file = folder.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, bytes).unwrap();
        }
        for (name, length) in &self.sparse {
            let file = File::options().write(true).open(folder.join(name));
            if let Ok(file) = file {
                file.set_len(*length).unwrap();
            }
        }
    }

    /// Bytes of all files, as programs read them.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes: u64 = self.files.values().map(|it| it.len() as u64).sum();
        bytes + self.sparse.iter().map(|(_, length)| length).sum::<u64>()
    }

    fn names(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
        let names = self.files.keys();
        let wanted = names.filter(|name| is_wanted(&name.file_name().unwrap().to_string_lossy()));
        wanted.cloned().collect()
    }

    fn change_stream(&mut self, chance: &mut Chance, other: &Files) {
        let streams = self.names(|name| name.starts_with("stream-"));
        let Some(name) = chance.one(&streams) else {
            return;
        };
        let others: Vec<_> = other
            .iter()
            .filter(|(name, _)| name.to_string_lossy().contains("stream-"))
            .map(|(_, bytes)| bytes)
            .collect();
        let foreign: Vec<u8> = match chance.one(&others) {
            Some(bytes) => chance
                .one(&packets(bytes))
                .map_or(Vec::new(), |packet| bytes[packet.clone()].to_vec()),
            None => Vec::new(),
        };
        let bytes = self.files.get_mut(name).unwrap();
        let all = packets(bytes);
        let Some(hit) = chance.one(&all).cloned() else {
            return;
        };
        let second = chance.one(&all).cloned().unwrap_or_else(|| hit.clone());
        match chance.below(9) {
            0 => {
                let offset = hit.start + chance.below(hit.len());
                bytes[offset] ^= 1 << chance.below(8);
            }
            1 => bytes.truncate(hit.start + chance.below(hit.len())),
            2 => {
                let [first, later] = match hit.start <= second.start {
                    true => [hit, second],
                    false => [second, hit],
                };
                let (one, two) = (bytes[first.clone()].to_vec(), bytes[later.clone()].to_vec());
                bytes.splice(later, one).for_each(drop);
                bytes.splice(first, two).for_each(drop);
            }
            3 => drop(bytes.drain(hit)),
            4 => {
                let copy = bytes[hit].to_vec();
                bytes
                    .splice(second.start..second.start, copy)
                    .for_each(drop);
            }
            5 => bytes.splice(hit.start..hit.start, foreign).for_each(drop),
            6 => {
                // Begin, end, a record's time, both times of a gap: often values that must be
                // equal.
                let far = chance.far_time();
                let trailer = hit.end.saturating_sub(48);
                let mut places = vec![hit.start + 16, hit.start + 24];
                places.extend([60, 64, 80].map(|head| hit.start + head));
                places.extend((trailer..hit.end.saturating_sub(8)).step_by(4));
                for _ in 0..=chance.below(4) {
                    put(bytes, places[chance.below(places.len())], far);
                }
            }
            7 => {
                // Sizes, discarded events, and the numbers of the trailer.
                let trailer = hit.end.saturating_sub(44);
                let places = [32, 40, 48].map(|offset| hit.start + offset);
                let places = [&places[..], &[trailer, trailer + 8, trailer + 32]].concat();
                put(bytes, places[chance.below(places.len())], chance.number());
            }
            _ => {
                // A record: its payload contains thread numbers and similar values.
                let at = hit.start + 60 + chance.below(hit.len().saturating_sub(100));
                put(bytes, at, chance.number());
            }
        }
    }

    fn change_document(&mut self, chance: &mut Chance) {
        let documents = self.names(|name| name.ends_with(".json"));
        let Some(name) = chance.one(&documents) else {
            return;
        };
        let bytes = self.files.get_mut(name).unwrap();
        let Ok(mut document) = serde_json::from_slice::<Value>(bytes) else {
            return;
        };
        let is_number = chance.below(4) > 0;
        let is_wanted = |value: &Value| match is_number {
            true => value.is_number(),
            false => !value.is_object(),
        };
        let mut count = 0;
        visit(&mut document, &mut |value| {
            count += usize::from(is_wanted(value))
        });
        let hit = chance.below(count);
        let new: Value = match chance.below(if is_number { 4 } else { 8 }) {
            0..=2 => chance.number().into(),
            3 => chance.far_time().into(),
            4 => (-1).into(),
            5 => "x".repeat(1 << chance.below(17)).into(),
            6 => Value::Null,
            _ => 1e300.into(),
        };
        let mut number = 0;
        visit(&mut document, &mut |value| {
            if is_wanted(value) {
                if number == hit {
                    *value = new.clone();
                }
                number += 1;
            }
        });
        *bytes = document.to_string().into_bytes();
    }

    fn change_bytes(&mut self, chance: &mut Chance) {
        let names = self.names(|_| true);
        let Some(name) = chance.one(&names) else {
            return;
        };
        let bytes = self.files.get_mut(name).unwrap();
        let offset = chance.below(bytes.len());
        let some = chance.below(100);
        match chance.below(4) {
            0 => bytes.truncate(offset),
            1 => bytes
                .splice(offset..offset, vec![chance.next() as u8; some])
                .for_each(drop),
            2 => drop(bytes.drain(offset..(offset + some).min(bytes.len()))),
            _ => {
                if let Some(byte) = bytes.get_mut(offset) {
                    *byte ^= 1 << chance.below(8);
                }
            }
        }
    }

    fn change_files(&mut self, chance: &mut Chance) {
        let names = self.names(|_| true);
        let streams = self.names(|name| name.starts_with("stream-"));
        let (Some(name), Some(stream)) = (chance.one(&names), chance.one(&streams)) else {
            return;
        };
        match chance.below(4) {
            0 => drop(self.files.remove(name)),
            1 => {
                let copy = self.files[name].clone();
                self.files.insert(stream.clone(), copy);
            }
            2 => {
                let copy = self.files[stream].clone();
                let number = chance.below(100);
                let new = stream.with_file_name(format!("stream-{number}"));
                self.files.insert(new, copy);
            }
            // Less than the address space of a command, or more.
            _ => {
                let length = 1_u64 << (12 + chance.below(22));
                let length = length.max(self.files[name].len() as u64);
                self.sparse.push((name.clone(), length));
            }
        }
    }

    /// Gives packets and documents the checksums of their bytes.
    fn seal(&mut self) {
        for (name, bytes) in &mut self.files {
            if name.to_string_lossy().contains("stream-") {
                for packet in packets(bytes) {
                    if let Some((covered, stored)) = bytes[packet].split_last_chunk_mut() {
                        *stored = crc32c::crc32c(covered).to_ne_bytes();
                    }
                }
            }
            let member = b",\"checksum\":\"crc32c:";
            let at = bytes.windows(member.len()).rposition(|it| it == member);
            if let Some(at) = at {
                let digits = format!("{:08x}", crc32c::crc32c(&bytes[..at]));
                let digits_at = at + member.len();
                if let Some(offset) = bytes.get_mut(digits_at..digits_at + digits.len()) {
                    offset.copy_from_slice(digits.as_bytes());
                }
            }
        }
    }
}

fn visit(value: &mut Value, call: &mut impl FnMut(&mut Value)) {
    call(value);
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| visit(item, call)),
        Value::Object(members) => members.values_mut().for_each(|item| visit(item, call)),
        _ => {}
    }
}

fn put(bytes: &mut [u8], at: usize, number: u64) {
    if let Some(offset) = bytes.get_mut(at..at + 8) {
        offset.copy_from_slice(&number.to_ne_bytes());
    }
}

/// The packets of a stream, as long as their sizes are plausible.
fn packets(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut all = Vec::new();
    let mut begin = 0;
    while let Some(bits) = bytes.get(begin + 40..begin + 48) {
        let bytes_of = u64::from_ne_bytes(bits.try_into().unwrap()) / 8;
        let end = begin.saturating_add(usize::try_from(bytes_of).unwrap_or(usize::MAX));
        if end > bytes.len() || end < begin + 60 {
            break;
        }
        all.push(begin..end);
        begin = end;
    }
    all
}
