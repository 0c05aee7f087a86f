// SPDX-License-Identifier: MIT OR Apache-2.0
//! On a terminal: the progress line, and what Control-C does.

use std::fs;
use std::io::Write;

use crate::on_terminal::OnTerminal;
use crate::support::{awaited, finish, folder, overhear, path};

const CLEAR: &str = "\r\x1b[K";

#[test]
fn runs_of_more_than_a_second_show_progress_and_wipe_it_away() {
    let folder = folder();
    let enough = folder.path().join("enough");
    // The program ends when the test has read the line, independent of the time.
    let script = format!(
        "until [ -e {} ]; do sleep 0.05; done; true",
        enough.display()
    );
    let run = OnTerminal::spawn(overhear(&[
        "run", "--kernel", "off", "--", "sh", "-c", &script,
    ]));
    run.shows(&format!("{CLEAR}overhear: "));
    run.shows("elements, 0 missed");
    fs::write(&enough, "").unwrap();
    let (status, screen) = run.end();
    assert_eq!(status, 0, "{screen}");
    // Not before the first second.
    let (_, drawn) = screen.split_once(&format!("{CLEAR}overhear: ")).unwrap();
    assert!(!drawn.starts_with("0."), "{screen:?}");
    // Output after the last line of progress wipes that line first.
    let (_, after) = screen.rsplit_once(CLEAR).unwrap();
    assert!(after.starts_with("sh -c "), "{screen:?}");
    assert!(after.contains("ended with status 0"), "{screen:?}");
    assert!(!after.contains('\x1b'), "{screen:?}");
}

#[test]
fn short_and_quiet_runs_and_those_without_a_terminal_show_none() {
    let (_, screen) =
        OnTerminal::spawn(overhear(&["run", "--kernel", "off", "--", "sleep", "0.1"])).end();
    // On a machine where this takes more than a second, the line is correct.
    let was_short = screen.contains(" ms\r\n");
    assert!(!was_short || !screen.contains("overhear:"), "{screen:?}");
    let quiet = ["run", "--quiet", "--kernel", "off", "--", "sleep", "1.3"];
    let (_, screen) = OnTerminal::spawn(overhear(&quiet)).end();
    assert!(
        !screen.contains("overhear:") && !screen.contains('\x1b'),
        "{screen:?}"
    );
    let ended = finish(&mut overhear(&[
        "run", "--kernel", "off", "--", "sleep", "1.3",
    ]));
    assert!(
        !ended.stderr.contains("overhear:") && !ended.stderr.contains('\x1b'),
        "{ended:#?}"
    );
}

#[test]
fn output_fits_a_narrow_terminal_and_is_unbroken_in_files() {
    let folder = folder();
    let out = folder.path().join("out");
    let arguments = [
        "run",
        "--out",
        path(&out),
        "--",
        "sh",
        "-c",
        "sleep 0.01 & wait",
    ];
    assert_eq!(finish(&mut overhear(&arguments)).status, 0);
    for verb in [&["report", path(&out)][..], &["doctor"]] {
        let file = finish(&mut overhear(verb)).stdout;
        assert!(file.lines().any(|line| line.chars().count() > 80), "{file}");
        for columns in [60, 80] {
            let (_, screen) = OnTerminal::spawn_in(columns, overhear(verb)).end();
            // The only exception is a path or a name that is longer than any line.
            let too_long = screen
                .lines()
                .find(|line| line.chars().count() > columns.into() && line.trim().contains(' '));
            assert_eq!(too_long, None, "{screen}");
            for word in file.split_whitespace() {
                assert!(screen.contains(word), "{word} at {columns}: {screen}");
            }
        }
        // A sufficiently wide window shows the content of a file.
        let (_, screen) = OnTerminal::spawn_in(400, overhear(verb)).end();
        assert_eq!(screen.replace("\r\n", "\n"), file);
    }
}

#[test]
fn control_c_reaches_the_program_exactly_once() {
    let folder = folder();
    let (ready, count) = (folder.path().join("ready"), folder.path().join("count"));
    let out = folder.path().join("out");
    // A second SIGINT, passed on by `overhear`, would have a second and a half to arrive.
    let script = format!(
        "n=0; trap 'n=$((n+1))' INT; echo > {}; i=0; while [ $i -lt 30 ]; do sleep 0.05; i=$((i+1)); done; \
         echo $n > {}; exit 5",
        ready.display(),
        count.display()
    );
    let arguments = [
        "run",
        "--kernel",
        "off",
        "--out",
        path(&out),
        "--",
        "bash",
        "-c",
        &script,
    ];
    let mut run = OnTerminal::spawn(overhear(&arguments));
    awaited(&ready);
    run.keyboard.write_all(b"\x03").unwrap();
    let (status, screen) = run.end();
    assert_eq!(awaited(&count).trim(), "1", "{screen}");
    assert_eq!(status, 5, "{screen}");
    assert!(out.join("report.html").exists());
}

#[test]
fn control_c_ends_a_program_that_does_not_mind_it() {
    let folder = folder();
    let ready = folder.path().join("ready");
    let script = format!("echo > {}; exec sleep 50", ready.display());
    let mut run = OnTerminal::spawn(overhear(&[
        "run", "--kernel", "off", "--", "sh", "-c", &script,
    ]));
    awaited(&ready);
    run.keyboard.write_all(b"\x03").unwrap();
    let (status, screen) = run.end();
    assert_eq!(status, 130, "{screen}");
    assert!(screen.contains("was ended by signal 2"), "{screen}");
}
