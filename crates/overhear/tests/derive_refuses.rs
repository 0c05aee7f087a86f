// SPDX-License-Identifier: MIT OR Apache-2.0
//! The errors of `#[derive(Element)]`, with their messages.
//!
//! The messages are compared, not the compiler's whole output: its wording around them changes from
//! version to version.

mod support;

use std::collections::BTreeMap;
use std::fs;

/// Programs that must not compile: a name, the struct, and the expected message of the compiler.
const REFUSED: [(&str, &str, &str); 12] = [
    (
        "no_repr",
        "#[derive(Element)] struct A { a: u64 }",
        "the compiler may reorder the fields of this struct: add `#[repr(C)]`",
    ),
    (
        "padding_between",
        "#[derive(Element)] #[repr(C)] struct A { a: u32, b: u64 }",
        "there is padding before the field `b`, whose bytes would leak to monitors",
    ),
    (
        "padding_behind",
        "#[derive(Element)] #[repr(C)] struct A { a: u64, b: u32 }",
        "there is padding behind the last field of `A`, whose bytes would leak to monitors",
    ),
    (
        "padding_by_alignment",
        "#[derive(Element)] #[repr(C, align(16))] struct A { a: u64 }",
        "there is padding behind the last field of `A`",
    ),
    (
        "a_bool",
        "#[derive(Element)] #[repr(C)] struct A { a: bool }",
        "`bool` cannot be a field of an element",
    ),
    (
        "an_address",
        "#[derive(Element)] #[repr(C)] struct A { a: &'static str }",
        "`&'static str` cannot be a field of an element",
    ),
    (
        "a_cell",
        "#[derive(Element)] #[repr(C)] struct A { a: std::cell::Cell<u64> }",
        "cannot be a field of an element",
    ),
    (
        "an_empty_text",
        "#[derive(Element)] #[repr(C)] struct A { a: [u8; 0] }",
        "the field `a` has no bytes; remove it",
    ),
    (
        "too_large",
        "#[derive(Element)] #[repr(C)] struct A { a: [u8; 4089] }",
        "`A` has more than 4088 bytes and does not fit into an element",
    ),
    (
        "generic",
        "#[derive(Element)] #[repr(C)] struct A<T> { a: T }",
        "an element has one layout, so it cannot be generic",
    ),
    (
        "an_enum",
        "#[derive(Element)] #[repr(C)] enum A { B }",
        "an element is a struct",
    ),
    (
        "a_foreign_field_type",
        "struct B; impl overhear::ElementField for B { \
         const KIND: overhear::FieldKind = overhear::FieldKind::U64; }",
        "the trait bound `B: overhear::element::sealed::Sealed` is not satisfied",
    ),
];

/// One program that must compile, so that the others fail for their own reason.
const ACCEPTED: &str = "#[derive(Element)] #[repr(C)] struct A { a: u64 }";

#[test]
fn mistake_is_refused_with_its_message() {
    let messages = build(
        REFUSED
            .iter()
            .map(|&(name, code, _)| (name, code))
            .chain([("accepted", ACCEPTED)]),
    );
    assert!(messages
        .get("accepted")
        .is_none_or(|text| !text.contains("error")));
    for (name, code, message) in REFUSED {
        let text = messages.get(name).map_or("", |text| text);
        assert!(text.contains(message), "{name}: {code}\n{text}");
    }
}

/// Builds a package with one binary for each program; returns the compiler's messages for each.
fn build<'a>(programs: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    let package = support::package("refused", "");
    let binaries = package.join("src/bin");
    fs::create_dir_all(&binaries).unwrap();
    for (name, code) in programs {
        let text =
            format!("#![allow(dead_code)]\nuse overhear::Element;\n{code}\nfn main() {{}}\n");
        fs::write(binaries.join(format!("{name}.rs")), text).unwrap();
    }
    let output = support::cargo(&package, "build")
        .args(["--bins", "--keep-going", "--message-format=json"])
        .output()
        .unwrap();
    let mut messages = BTreeMap::<String, String>::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: serde_json::Value = serde_json::from_str(line).unwrap();
        if let (Some(name), Some(text)) = (
            message["target"]["name"].as_str(),
            message["message"]["rendered"].as_str(),
        ) {
            messages.entry(name.to_owned()).or_default().push_str(text);
        }
    }
    assert!(
        !messages.is_empty(),
        "cargo: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    messages
}
