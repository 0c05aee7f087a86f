// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear ranges`, from a source to table, document and comparison; and its errors.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{finish, overhear};

const SOURCE: &str = "
#include <stdlib.h>
struct point { int x; };
static unsigned char full;
static int unused;
static int work(int count) {
  struct point point;
  int sum = 0;
  for (int i = -2; i < count; i++) {
    point.x = i;
    sum += point.x;
    full = (unsigned char)i;
  }
  return sum;
}
int main(int count, char **arguments) {
  if (count > 5)
    unused = 1;
  return work(count > 1 ? atoi(arguments[1]) : 3) == -1000;
}
";

/// Compiles the source; `None`, with the reason on standard output, without the wrapper.
fn compiled(folder: &Path) -> Option<String> {
    let wrapper = Path::new(env!("CARGO_BIN_EXE_overhear")).with_file_name("overhear-clang");
    let pass = wrapper
        .with_file_name("ranges")
        .join("overhear_ranges_pass.so");
    if !wrapper.is_file() || !pass.is_file() {
        println!("skipped: the parts of the range analysis are not built; type `make ranges`");
        return None;
    }
    let (source, program) = (folder.join("points.c"), folder.join("points"));
    fs::write(&source, SOURCE).unwrap();
    let status = Command::new(wrapper)
        .arg("-O2")
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .status()
        .unwrap();
    assert!(status.success());
    Some(program.display().to_string())
}

fn document(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn variable<'a>(report: &'a Value, name: &str) -> &'a Value {
    let variables = report["variables"].as_array().unwrap();
    variables
        .iter()
        .find(|variable| variable["name"] == name)
        .unwrap()
}

#[test]
fn ranges_are_reported_as_table_and_document_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled(folder.path()) else {
        return;
    };
    let ended = finish(&mut overhear(&["ranges", "--", &program, "300"]));
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    let row = |name: &str| {
        let line = ended
            .stderr
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap();
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let flags = ["sign", "change"].map(str::to_owned);
    let x = row("point.x");
    assert_eq!(
        x[..6],
        ["point.x", "-", "points.c:3", "int", "-2", "299"],
        "{x:?}"
    );
    assert_eq!(x[x.len() - 2..], flags, "{x:?}");
    assert!(row("full").ends_with(&["type".to_owned(), "maximum".to_owned()]));
    assert!(!ended.stderr.contains("unused "), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("of which never updated: 1"),
        "{}",
        ended.stderr
    );

    let (first, second) = (folder.path().join("1.json"), folder.path().join("2.json"));
    for (file, count, budget) in [(&first, "300", "full"), (&second, "50", "10%")] {
        let json = format!("--json={}", file.display());
        let arguments = ["ranges", "--budget", budget, &json, "--", &program, count];
        let ended = finish(&mut overhear(&arguments));
        assert_eq!(ended.status, 0, "{}", ended.stderr);
    }
    let report = document(&first);
    assert_eq!(report["complete"], true);
    let i = variable(&report, "i");
    assert_eq!((&i["minimum"], &i["maximum"]), (&(-2).into(), &300.into()));
    assert_eq!(
        (&i["updates_seen"], &i["function"]),
        (&303.into(), &"work".into())
    );
    assert_eq!(variable(&report, "unused")["flags"][0], "never_updated");
    assert_eq!(document(&second)["target"], 0.1);

    let path = |path: &Path| path.display().to_string();
    let ended = finish(&mut overhear(&[
        "ranges",
        "diff",
        &path(&first),
        &path(&second),
    ]));
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    let line = ended
        .stdout
        .lines()
        .find(|line| line.starts_with("point.x"))
        .unwrap();
    assert!(
        line.contains("-2 .. 299") && line.contains("-2 .. 49"),
        "{line}"
    );
    assert!(line.ends_with("narrower"), "{line}");
}

#[test]
fn misuse_is_one_message() {
    let folder = tempfile::tempdir().unwrap();
    let bad = |arguments: &[&str], message: &str| {
        let ended = finish(&mut overhear(arguments));
        assert_eq!(ended.status, 2, "{arguments:?}: {}", ended.stderr);
        assert!(
            ended.stderr.contains(message),
            "{arguments:?}: {}",
            ended.stderr
        );
    };
    bad(
        &["ranges", "--budget", "-5%", "--", "/bin/true"],
        "the budget -5% is below 0",
    );
    bad(
        &["ranges", "--budget", "much", "--", "/bin/true"],
        "`much` is no budget",
    );
    bad(
        &["ranges", "--", "/bin/true"],
        "/bin/true has no instrumented functions; compile it with",
    );
    let file = folder.path().join("file");
    fs::write(&file, "{}").unwrap();
    let file = file.display().to_string();
    bad(
        &["ranges", "diff", &file, &file],
        "it is no report of `overhear ranges --json`",
    );
    let ended = finish(&mut overhear(&["ranges", "--", "/no/such/program"]));
    assert_eq!(ended.status, 127, "{}", ended.stderr);
}
