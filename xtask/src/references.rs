// SPDX-License-Identifier: MIT OR Apache-2.0
//! Citations: every key that code or a document cites is in `docs/references.md`.
//!
//! A citation is a key, a comma and a place in the source, in brackets: a word like `section` with
//! a number. A key alone is not checked, because it looks like a link to an item.

/// The page that defines the keys.
pub(crate) const PAGE: &str = "docs/references.md";

/// First words of the place in a source; with one of these, brackets are a citation.
const PLACES: [&str; 13] = [
    "section",
    "sections",
    "chapter",
    "equation",
    "equations",
    "figure",
    "figures",
    "table",
    "tables",
    "page",
    "pages",
    "appendix",
    "footnote",
];

/// The keys that the page defines: `- **[KEY]** entry`.
pub(crate) fn keys(page: &str) -> Vec<&str> {
    let entries = page.lines().filter_map(|line| line.strip_prefix("- **["));
    entries
        .filter_map(|rest| Some(rest.split_once("]**")?.0))
        .collect()
}

/// Errors of the page itself.
pub(crate) fn page_breaches(page: &str) -> Vec<String> {
    let keys = keys(page);
    let twice = keys
        .iter()
        .enumerate()
        .filter(|(index, key)| keys[..*index].contains(key));
    twice
        .map(|(_, key)| format!("{PAGE} defines [{key}] twice."))
        .collect()
}

/// Citations of a file whose keys the page lacks, and sources that are named by number, as
/// messages.
pub(crate) fn breaches(name: &str, text: &str, keys: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let unknown = cited(line).filter(|key| !keys.contains(key));
        found.extend(
            unknown.map(|key| format!("{name}:{} cites [{key}], which {PAGE} lacks.", index + 1)),
        );
        if names_number(line) {
            found.push(format!(
                "{name}:{} names a source by a number; cite it by a key of {PAGE}.",
                index + 1
            ));
        }
    }
    found
}

/// Whether a line names a source in the old form: the word and three digits.
fn names_number(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    lower.match_indices("seed 0").any(|(at, begin)| {
        let digits = &lower.as_bytes()[at + begin.len()..];
        digits.len() >= 2 && digits[..2].iter().all(u8::is_ascii_digit)
    })
}

/// The keys that a line cites with a place.
fn cited(line: &str) -> impl Iterator<Item = &str> {
    line.split('[').skip(1).filter_map(|rest| {
        let (key, place) = rest.split_once(", ")?;
        let word = place
            .split(|letter: char| !letter.is_alphabetic())
            .next()
            .unwrap_or_default();
        let is_key = key.starts_with(|first: char| first.is_ascii_uppercase())
            && key
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || letter == '-' || letter == '.');
        // A citation that is broken after the comma is not found.
        (is_key && PLACES.contains(&word)).then_some(key)
    })
}

#[cfg(test)]
mod tests {
    use super::{breaches, keys, page_breaches};

    const PAGE: &str = "# References\n\n- **[Knuth-1998]** Sorting.\n- **[CTF-1.8]** Traces.\n";

    #[test]
    fn keys_are_read_from_entries() {
        assert_eq!(keys(PAGE), ["Knuth-1998", "CTF-1.8"]);
        assert_eq!(page_breaches(PAGE), Vec::<String>::new());
        let twice = format!("{PAGE}- **[CTF-1.8]** Again.\n");
        assert_eq!(
            page_breaches(&twice),
            ["docs/references.md defines [CTF-1.8] twice."]
        );
    }

    #[test]
    fn source_by_number_is_found() {
        let text = concat!("// Seed", " 003, section 4.\n// seed 0 of the generator\n");
        assert_eq!(
            breaches("a.rs", text, &keys(PAGE)),
            ["a.rs:1 names a source by a number; cite it by a key of docs/references.md."]
        );
    }

    #[test]
    fn unknown_key_is_found_and_other_brackets_are_not() {
        let text = concat!(
            "/// As in [Knuth-1998, section 6.4], and [Nobody-1066",
            ", table 3].\n",
            "let list = [FIRST, second]; // [a link](b.md), [`Type`], [CTF-1.8, figures 1 and 2]\n",
        );
        assert_eq!(
            breaches("a.rs", text, &keys(PAGE)),
            ["a.rs:1 cites [Nobody-1066], which docs/references.md lacks."]
        );
    }
}
