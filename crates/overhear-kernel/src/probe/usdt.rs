// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of static probes (USDT), as the notes in a file describe them.

use std::path::Path;

use super::elf::{text_at, ElfFile};

/// The section of the notes, and their owner and kind.
const SECTION: &str = ".note.stapsdt";
const OWNER: &[u8] = b"stapsdt";
const KIND: u32 = 3;
/// Maximum number of arguments that are fetched; libbpf describes no more.
pub(crate) const MAX_ARGUMENTS: usize = 12;

/// An argument: it is fetched as a whole word, sign-extended if it has a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Argument {
    pub(crate) is_signed: bool,
}

/// A static probe of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StaticProbeNote {
    provider: String,
    name: String,
    arguments: Vec<Argument>,
}

/// The arguments of a static probe. If it has several places, each may have other arguments. Then
/// the result has the largest number of arguments of all places, and an argument has a sign if it
/// has one at any place.
///
/// # Errors
/// The static probes that the file has instead.
pub(super) fn arguments(
    path: &Path,
    provider: &str,
    name: &str,
) -> Result<Result<Vec<Argument>, Vec<String>>, String> {
    let elf = ElfFile::open(path)?;
    let notes = elf.notes(Some(SECTION)).into_iter();
    let own = notes.filter(|note| note.owner == OWNER && note.kind == KIND);
    let all: Vec<StaticProbeNote> = own
        .filter_map(|note| describe(&note.body, elf.word_bytes()))
        .collect();
    let is_it = |it: &&StaticProbeNote| it.provider == provider && it.name == name;
    let mut locations = all.iter().filter(is_it).peekable();
    if locations.peek().is_none() {
        let mut others: Vec<String> = all
            .iter()
            .map(|it| format!("{}:{}", it.provider, it.name))
            .collect();
        others.sort_unstable();
        others.dedup();
        return Ok(Err(others));
    }
    let mut arguments: Vec<Argument> = Vec::new();
    for location in locations {
        for (number, argument) in location.arguments.iter().enumerate() {
            match arguments.get_mut(number) {
                Some(known) => known.is_signed |= argument.is_signed,
                None => arguments.push(*argument),
            }
        }
    }
    Ok(Ok(arguments))
}

/// Reads a note: three addresses, then provider, name and arguments, each ended by a zero.
fn describe(body: &[u8], word_bytes: usize) -> Option<StaticProbeNote> {
    let texts = body.get(3 * word_bytes..)?;
    let provider = text_at(texts, 0);
    let name = text_at(texts, provider.len() + 1);
    let arguments = text_at(texts, provider.len() + name.len() + 2);
    Some(StaticProbeNote {
        provider,
        name,
        arguments: split(&arguments),
    })
}

/// The arguments of a text like `-4@%edi 8@[sp, 16]`: each one has its size before an `@`; a
/// negative size means that it has a sign.
fn split(text: &str) -> Vec<Argument> {
    let sizes = text.match_indices('@').map(|(at, _)| {
        let before = &text[..at];
        let begin = before
            .rfind(char::is_whitespace)
            .map_or(0, |space| space + 1);
        &before[begin..]
    });
    let argument = |size: &str| Argument {
        is_signed: size.starts_with('-'),
    };
    sizes.map(argument).collect()
}

#[cfg(test)]
mod tests {
    use super::{describe, split, Argument};

    #[test]
    fn arguments_have_signs_and_may_have_spaces() {
        let signs =
            |text: &str| -> Vec<bool> { split(text).iter().map(|it| it.is_signed).collect() };
        assert_eq!(signs(""), Vec::<bool>::new());
        assert_eq!(signs("-4@%edi 8@-16(%rbp) 4@$5"), [true, false, false]);
        assert_eq!(signs("8@[sp, 16] -8@x1"), [false, true]);
        assert_eq!(signs("8@%rdi"), [false]);
    }

    #[test]
    fn truncated_notes_are_read_partly() {
        let mut body = vec![0; 24];
        body.extend(*b"app\0phase\0-8@%rdi\0");
        let described = describe(&body, 8).unwrap();
        assert_eq!((&*described.provider, &*described.name), ("app", "phase"));
        assert_eq!(described.arguments, [Argument { is_signed: true }]);
        assert_eq!(describe(&body[..23], 8), None);
        for end in 24..body.len() {
            assert!(describe(&body[..end], 8).is_some());
        }
    }
}
