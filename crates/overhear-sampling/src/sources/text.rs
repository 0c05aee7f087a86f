// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`TextFile`]: numbers in a file whose text the kernel forms at each read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::{CostClass, DataSource, Quantity, QuantityKind, SourceReadError};

/// The least size of the buffer for a file.
const LEAST_BUFFER: usize = 4096;

/// The largest file that is read.
const LARGEST_FILE: usize = 16 << 20;

/// Where a number stands in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The first number of the text.
    First,
    /// The word with this index after the key, in the line that begins with the key.
    Word { key: String, index: usize },
    /// `name=NUMBER` in the line that begins with the key.
    Assigned { key: String, name: String },
    /// `name=NUMBER`, the sum over all lines.
    Sum { name: String },
    /// The first number after the key, in the lines from that which begins with `section` on.
    Section { section: String, key: String },
}

/// A number of a file.
#[derive(Clone, Debug)]
pub(crate) struct Pick {
    pub(crate) place: Place,
    pub(crate) quantity: Quantity,
    /// What an integer is multiplied by, for its unit.
    pub(crate) scale: u64,
    /// The number at which a total begins again at zero; 0 if it does not.
    pub(crate) wraps_at: u64,
}

impl Pick {
    pub(crate) const fn new(place: Place, quantity: Quantity) -> Self {
        Self {
            place,
            quantity,
            scale: 1,
            wraps_at: 0,
        }
    }

    pub(crate) fn scaled(self, scale: u64) -> Self {
        Self { scale, ..self }
    }
}

/// The numbers of one file, which stays open.
#[derive(Debug)]
pub(crate) struct TextFile {
    // For messages.
    name: String,
    file: File,
    text: Vec<u8>,
    picks: Vec<Pick>,
    // The total and the last number of each pick that wraps around.
    wrapped: Vec<(u64, u64)>,
    quantities: Vec<Quantity>,
}

impl TextFile {
    /// Opens a file and looks for all numbers.
    pub(crate) fn open(path: &Path, picks: Vec<Pick>) -> Result<Self, SourceReadError> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| unreadable(&name, &error.to_string()))?;
        let mut opened = Self {
            quantities: picks.iter().map(|pick| pick.quantity.clone()).collect(),
            wrapped: vec![(0, 0); picks.len()],
            text: vec![0; LEAST_BUFFER],
            name,
            file,
            picks,
        };
        loop {
            let len = opened.fill()?;
            // Room for twice the text: it may grow.
            if 2 * len <= opened.text.len() || opened.text.len() >= LARGEST_FILE {
                break;
            }
            let size = (2 * len).next_power_of_two().max(2 * opened.text.len());
            opened.text.resize(size.min(LARGEST_FILE), 0);
        }
        opened.read(&mut vec![0; opened.picks.len()])?;
        Ok(opened)
    }

    /// Reads the text; returns its length.
    fn fill(&mut self) -> Result<usize, SourceReadError> {
        let mut len = 0;
        while len < self.text.len() {
            match self.file.read_at(&mut self.text[len..], len as u64) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(&self.name, &error.to_string())),
            }
        }
        Ok(len)
    }
}

impl DataSource for TextFile {
    fn quantities(&self) -> &[Quantity] {
        &self.quantities
    }

    fn cost(&self) -> CostClass {
        CostClass::File
    }

    fn read(&mut self, values: &mut [u64]) -> Result<(), SourceReadError> {
        let len = self.fill()?;
        let text = &self.text[..len];
        let places = self.picks.iter().zip(&mut self.wrapped);
        for (value, (pick, (total, last))) in values.iter_mut().zip(places) {
            let found = pick.place.find(text).and_then(|word| number(word, pick));
            let found = found.ok_or_else(|| {
                unreadable(
                    &self.name,
                    &format!("it has no number for `{}`", pick.quantity.name),
                )
            })?;
            *value = match pick.wraps_at {
                0 => found,
                range => {
                    let before = std::mem::replace(last, found);
                    let left = range.saturating_sub(before);
                    let added = found.checked_sub(before);
                    let added = added.unwrap_or_else(|| left.saturating_add(found));
                    *total = total.wrapping_add(added);
                    *total
                }
            };
        }
        Ok(())
    }
}

fn unreadable(name: &str, reason: &str) -> SourceReadError {
    SourceReadError {
        source_name: name.to_owned(),
        reason: reason.to_owned(),
    }
}

/// The value of a word: bits of a floating-point number for a real level. For the sum of several
/// lines, the word is the whole text.
fn number(word: &[u8], pick: &Pick) -> Option<u64> {
    if let Place::Sum { name } = &pick.place {
        let sum = lines(word).filter_map(|line| assigned(line, name));
        let sum: u64 = sum.filter_map(integer).sum();
        return Some(sum.wrapping_mul(pick.scale));
    }
    match pick.quantity.kind {
        QuantityKind::RealLevel => {
            let real: f64 = std::str::from_utf8(word).ok()?.parse().ok()?;
            Some(real.to_bits())
        }
        _ => Some(integer(word)?.wrapping_mul(pick.scale)),
    }
}

/// A whole number, negative ones as the bits of an `i64`; characters after it, such as a unit, do
/// not count.
fn integer(word: &[u8]) -> Option<u64> {
    let (is_negative, digits) = match word.split_first()? {
        (b'-', rest) => (true, rest),
        _ => (false, word),
    };
    let len = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    if len == 0 {
        return None;
    }
    let number = digits[..len].iter().fold(0_u64, |all, digit| {
        all.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'))
    });
    Some(if is_negative {
        number.wrapping_neg()
    } else {
        number
    })
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n')
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b':' | b'=' | b',')
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| is_space(byte))
        .filter(|word| !word.is_empty())
}

/// The rest of a line that begins with the key.
fn after<'a>(line: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let start = line
        .iter()
        .position(|&byte| !matches!(byte, b' ' | b'\t'))?;
    let rest = line[start..].strip_prefix(key.as_bytes())?;
    rest.first()
        .is_none_or(|&byte| is_space(byte))
        .then_some(rest)
}

/// The value of `name=` in a line.
fn assigned<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    line.split(|byte| matches!(byte, b' ' | b'\t'))
        .find_map(|word| word.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

fn is_number(word: &[u8]) -> bool {
    let digit = match word.first() {
        Some(b'-') => word.get(1),
        first => first,
    };
    digit.is_some_and(u8::is_ascii_digit)
}

impl Place {
    /// The word at this place in a text; for a sum, the text.
    pub(crate) fn find<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        match self {
            Self::First => text
                .split(|byte| byte.is_ascii_whitespace() || is_space(*byte))
                .find(|word| is_number(word)),
            Self::Word { key, index } => {
                let rest = lines(text).find_map(|line| after(line, key))?;
                words(rest).nth(*index)
            }
            Self::Assigned { key, name } => {
                let rest = lines(text).find_map(|line| after(line, key))?;
                assigned(rest, name)
            }
            Self::Sum { .. } => Some(text),
            Self::Section { section, key } => {
                let mut lines = lines(text);
                lines.find(|line| after(line, section).is_some())?;
                let rest = lines.find_map(|line| after(line, key))?;
                words(rest).find(|word| is_number(word))
            }
        }
    }
}

/// All words that begin a line with a number, for messages.
pub(crate) fn keys_of(text: &str) -> Vec<String> {
    let keys = text.lines().filter_map(|line| {
        let key = words(line.as_bytes()).next()?;
        let rest = after(line.as_bytes(), std::str::from_utf8(key).ok()?)?;
        words(rest).any(is_number).then_some(key)
    });
    keys.map(|key| String::from_utf8_lossy(key).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Pick, Place, TextFile};
    use crate::{DataSource, Quantity, QuantityKind};

    fn found(text: &str, place: Place) -> Option<String> {
        let word = place.find(text.as_bytes())?;
        Some(String::from_utf8_lossy(word).into_owned())
    }

    #[test]
    fn places_are_found() {
        let word = |key: &str, index| Place::Word {
            key: key.to_owned(),
            index,
        };
        let stat = "cpu  10 20 30\ncpu0 1 2 3\nctxt 99\n";
        assert_eq!(found(stat, word("cpu", 1)).unwrap(), "20");
        assert_eq!(found(stat, word("cpu0", 2)).unwrap(), "3");
        assert_eq!(found(stat, word("ctxt", 1)), None);
        assert_eq!(
            found("MemFree:   77 kB\n", word("MemFree", 0)).unwrap(),
            "77"
        );
        let psi = "some avg10=0.12 avg60=0.00 total=8\nfull avg10=1.00 total=9\n";
        let assigned = |key: &str, name: &str| Place::Assigned {
            key: key.to_owned(),
            name: name.to_owned(),
        };
        assert_eq!(found(psi, assigned("full", "total")).unwrap(), "9");
        assert_eq!(found(psi, assigned("some", "avg10")).unwrap(), "0.12");
        assert_eq!(found("  abc -5\n", Place::First).unwrap(), "-5");
        let debug = "cpu#0, 2\n  .curr->pid : 11\ncpu#1, 2\n  .curr->pid : 12\n";
        let section = Place::Section {
            section: "cpu#1".to_owned(),
            key: ".curr->pid".to_owned(),
        };
        assert_eq!(found(debug, section).unwrap(), "12");
    }

    #[test]
    fn changed_file_is_read_again_and_a_wrapped_total_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("energy_uj");
        std::fs::write(&path, "900\n").unwrap();
        let mut energy = Pick::new(Place::First, Quantity::new("e", "uJ", QuantityKind::Count));
        energy.wraps_at = 1000;
        let level = Pick::new(Place::First, Quantity::new("l", "", QuantityKind::Level));
        let mut file = TextFile::open(&path, vec![energy, level.scaled(1024)]).unwrap();
        let mut values = [0; 2];
        let mut read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            file.read(&mut values)
                .map(|()| values)
                .map_err(|error| error.to_string())
        };
        assert_eq!(read("950"), Ok([950, 950 * 1024]));
        // It has passed 1000.
        assert_eq!(read("20"), Ok([1020, 20 * 1024]));
        assert_eq!(read("-3").map(|values| values[1].cast_signed()), Ok(-3072));
        let error = read("none").unwrap_err();
        assert!(
            error.ends_with("cannot be read: it has no number for `e`"),
            "{error}"
        );
    }

    #[test]
    fn sums_are_over_all_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("io.stat");
        std::fs::write(&path, "8:0 rbytes=5 wbytes=1\n8:16 rbytes=7 wbytes=2\n").unwrap();
        let name = "rbytes".to_owned();
        let quantity = Quantity::new("r", "B", QuantityKind::Count);
        let pick = Pick::new(Place::Sum { name }, quantity);
        let mut file = TextFile::open(&path, vec![pick]).unwrap();
        let mut values = [0];
        file.read(&mut values).unwrap();
        assert_eq!(values, [12]);
    }
}
