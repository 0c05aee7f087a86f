// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing calls nothing, as an outsider counts it: `strace -c` sees a program with one element
//! and a program with a million more make the same system calls, in the same numbers. (That it
//! may call nothing, and allocates nothing, is shown by the tests with seccomp and with an
//! allocation guard.)

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::program::{number, only_sensor, program};
use crate::support::{finish, folder, path, run_json};

/// How often each system call was made, from strace's table, whose total is named `total`.
fn calls(table: &Path) -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(table).unwrap();
    // Per cent, seconds, microseconds per call, calls, errors (or nothing), name. In the total's
    // line older versions leave the microseconds out, so that columns are counted from the header.
    let header = text.lines().next().unwrap();
    let end = header.find("calls").unwrap() + "calls".len();
    let row = |line: &str| {
        let calls = line.get(..end)?.split_whitespace().last()?.parse().ok()?;
        Some((line.split_whitespace().last()?.to_owned(), calls))
    };
    text.lines().skip(2).filter_map(row).collect()
}

/// Whether strace is installed and may trace; prints "skipped" if not.
fn has_strace() -> bool {
    let may_trace = Command::new("strace")
        .args(["-c", "-o", "/dev/null", "true"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match may_trace {
        Ok(status) if status.success() => return true,
        Ok(_) => println!("skipped: this process may not trace others, or strace does not work"),
        Err(_) => println!("skipped: strace is not installed"),
    }
    false
}

/// One more or one less element must not matter: the first one is written in both runs.
const WRITES: [u64; 2] = [1, 1_000_001];

#[track_caller]
fn same(counted: &[BTreeMap<String, u64>; 2]) {
    let [few, many] = counted;
    assert!(few.contains_key("total") && few["execve"] == 1, "{few:?}");
    assert_eq!(few, many);
}

#[test]
fn connected_writes_make_no_system_call() {
    if !has_strace() {
        return;
    }
    let folder = folder();
    let counted = WRITES.map(|writes| {
        let table = folder.path().join(format!("heard-{writes}"));
        let writes_text = writes.to_string();
        let (ended, report) = run_json(
            &["--kernel", "off"],
            &[
                "strace",
                "-f",
                "-c",
                "-o",
                path(&table),
                path(program()),
                "tight",
                &writes_text,
            ],
        );
        assert!(ended.stdout.contains("heard-tight 1"), "{ended:#?}");
        let sensor = only_sensor(&report);
        let (elements, missed) = (number(sensor, "elements"), number(sensor, "missed"));
        assert_eq!(elements + missed, writes, "{sensor}");
        calls(&table)
    });
    // A request to the directory needs a connection.
    assert!(counted[0].contains_key("connect"), "{counted:?}");
    same(&counted);
}

#[test]
fn unconnected_writes_make_no_system_call() {
    if !has_strace() {
        return;
    }
    let folder = folder();
    let counted = WRITES.map(|writes| {
        let table = folder.path().join(format!("unheard-{writes}"));
        let mut command = Command::new("strace");
        command
            .args(["-f", "-c", "-o", path(&table), path(program()), "tight"])
            .arg(writes.to_string())
            .stdin(Stdio::null())
            .env("OVERHEAR_DIRECTORY", "");
        let ended = finish(&mut command);
        assert_eq!(ended.status, 0, "{ended:#?}");
        assert!(ended.stdout.contains("heard-tight 0"), "{ended:#?}");
        calls(&table)
    });
    same(&counted);
}
