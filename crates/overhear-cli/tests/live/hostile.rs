// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names and values with control sequences for terminals and spreadsheets, through every verb and
//! form of output.

use std::process::Stdio;

use serde_json::Value;

use crate::program::compiled;
use crate::support::{eventually, finish, overhear, path, wait, Ended};

/// Forbidden in output: control characters, bidirectional controls, zero-width characters.
fn acts(c: char) -> bool {
    (c.is_control() && c != '\n')
        || ('\u{200b}'..='\u{200f}').contains(&c)
        || ('\u{2028}'..='\u{202e}').contains(&c)
        || ('\u{2066}'..='\u{2069}').contains(&c)
}

#[track_caller]
fn is_harmless(what: &str, text: &str) {
    let found = text.chars().find(|c| acts(*c));
    assert_eq!(found, None, "{what}: {text:?}");
}

#[track_caller]
fn shows(what: &str, ended: &Ended) {
    ended.does_not_panic();
    is_harmless(what, &ended.stdout);
    is_harmless(what, &ended.stderr);
}

/// No cell is a formula. The output contains no line feed of the program, so lines are rows.
#[track_caller]
fn is_plain_csv(what: &str, text: &str) {
    is_harmless(what, text);
    let mut rows = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(text.as_bytes());
    let mut cells = 0;
    for row in rows.records() {
        for cell in &row.unwrap() {
            let is_number = cell.parse::<f64>().is_ok();
            let is_formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r']) && !is_number;
            assert!(!is_formula, "{what}: {cell:?} in {text}");
            cells += 1;
        }
    }
    assert!(cells > 20, "{what}: {text}");
}

#[test]
fn hostile_names_act_on_no_output() {
    let folder = crate::support::folder();
    let out = folder.path().join("run");
    let socket = folder.path().join("socket");
    let program = compiled("tests/live/hostile.c", "hostile");
    let options = [
        "run",
        "--kernel",
        "off",
        "--out",
        path(&out),
        "--socket",
        path(&socket),
        "--",
    ];
    let mut run = overhear(&options)
        .arg(&program)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let run_verb =
        |arguments: &[&str]| finish(overhear(arguments).env("OVERHEAR_DIRECTORY", &socket));
    eventually("the program registers its sensor", || {
        run_verb(&["list", "--json"]).stdout.contains("\"message\"")
    });
    let stdin = run.stdin.take();

    let list = run_verb(&["list"]);
    shows("list", &list);
    let escaped = "=1+cmd\\u{202e}gpj#\\u{2066}zero\\u{200b}width";
    assert!(list.stdout.contains(escaped), "{list:#?}");
    assert!(
        list.stdout.contains("-\\x1b[2J\\u{202e}\\x09\\x07("),
        "{list:#?}"
    );
    is_plain_csv("list", &run_verb(&["list", "--format", "csv"]).stdout);
    let json = run_verb(&["list", "--json"]);
    shows("list --json", &json);
    let document: Value = serde_json::from_str(&json.stdout).unwrap();
    // The same name, exactly.
    assert_eq!(document["sensors"][0]["id"], "=1+cmd\u{202e}gpj");

    for format in ["text", "json", "csv"] {
        let attached = run_verb(&[
            "attach", "*", "--start", "oldest", "--count", "5", "--format", format,
        ]);
        assert_eq!(attached.status, 0, "{attached:#?}");
        shows("attach", &attached);
        match format {
            "csv" => {
                is_plain_csv("attach", &attached.stdout);
                assert!(attached
                    .stdout
                    .contains("'@\\x1b]0;PWN\\x07\\x7f\\x9b31m\\x0d\\x0a,\"\"x"));
            }
            "json" => assert!(attached.stdout.contains("\\u009b31m")),
            _ => assert!(attached.stdout.contains("@\\x1b]0;PWN"), "{attached:#?}"),
        }
        let top = run_verb(&["top", "--once", "--window", "200ms", "--format", format]);
        shows("top", &top);
        if format == "csv" {
            is_plain_csv("top", &top.stdout);
        }
    }
    shows("enable", &run_verb(&["enable", "*"]));
    shows(
        "a glob that matches nothing",
        &run_verb(&["list", "\u{202e}\x1b[2J"]),
    );

    let messages = run.stderr.take().unwrap();
    drop(stdin);
    let messages = std::io::read_to_string(messages).unwrap();
    assert_eq!(wait(&mut run), 0, "{messages}");
    is_harmless("run", &messages);

    let dir = path(&out);
    for arguments in [
        &["report", dir][..],
        &["report", dir, "--json"],
        &["fit-rate", dir, "=1+cmd\u{202e}gpj"],
        &["fit-rate", dir, "\x1b]0;nothing\x07"],
        &[
            "export",
            dir,
            "--to",
            "csv",
            "--sensor",
            "\u{9b}31m",
            "-o",
            "-",
        ],
        &["metrics", dir, "--metric", "\x1b[2J"],
        &["check", dir, "--config", "\u{202e}\x1b.toml"],
        &["report", "\x1b[2J\u{202e}"],
    ] {
        shows(&arguments.join(" "), &run_verb(arguments));
    }
    let export = run_verb(&["export", dir, "--to", "csv", "-o", "-"]);
    assert_eq!(export.status, 0, "{export:#?}");
    is_plain_csv("export", &export.stdout);
    let sensor = [
        "export",
        dir,
        "--to",
        "csv",
        "--sensor",
        "=1+cmd\u{202e}gpj",
        "-o",
        "-",
    ];
    let export = run_verb(&sensor);
    assert_eq!(export.status, 0, "{export:#?}");
    is_plain_csv("export --sensor", &export.stdout);
}
