// SPDX-License-Identifier: MIT OR Apache-2.0
//! Terminals that hang up, readers that close, and late signals.

use std::fs;
use std::process::Command;

use crate::on_terminal::OnTerminal;
use crate::support::{
    awaited, eventually, finish, folder, hangups, is_root, overhear, path, report_json, Started,
};

/// A command on a terminal, with the default action for its hang-up.
fn on_terminal(mut command: Command) -> OnTerminal {
    hangups(&mut command, libc::SIG_DFL);
    OnTerminal::spawn(command)
}

#[test]
fn hung_up_run_passes_the_signal_on_once_and_keeps_the_recording() {
    let folder = folder();
    let (ready, count) = (folder.path().join("ready"), folder.path().join("count"));
    let out = folder.path().join("out");
    // A second SIGHUP would have a second to arrive.
    let script = format!(
        "n=0; trap 'n=$((n+1))' HUP; echo > {}; while [ $n = 0 ]; do sleep 0.02; done; \
         i=0; while [ $i -lt 20 ]; do sleep 0.05; i=$((i+1)); done; echo $n > {}; exit 6",
        ready.display(),
        count.display()
    );
    let options = ["run", "--kernel", "off", "--out", path(&out)];
    let program = ["--", "bash", "-c", &script];
    let run = on_terminal(overhear(&[&options[..], &program].concat()));
    awaited(&ready);
    assert_eq!(run.hang_up(), 6);
    assert_eq!(awaited(&count).trim(), "1");
    let (_, report) = report_json(&out);
    assert_eq!(report["complete"], true, "{report:#}");
    assert_eq!(report["exit"]["code"], 6);
    assert!(out.join("report.html").exists());
}

#[test]
fn hung_up_run_ends_with_its_program() {
    let folder = folder();
    let ready = folder.path().join("ready");
    let script = format!("echo > {}; exec sleep 50", ready.display());
    for view in [&[][..], &["--view"]] {
        let words = [
            &["run", "--kernel", "off"],
            view,
            &["--", "sh", "-c", &script],
        ]
        .concat();
        let _ = fs::remove_file(&ready);
        let run = on_terminal(overhear(&words));
        awaited(&ready);
        assert_eq!(run.hang_up(), 129, "{view:?}");
    }
}

#[test]
fn hung_up_record_keeps_the_recording() {
    if !is_root() {
        println!("skipped: recording what runs needs root");
        return;
    }
    let folder = folder();
    let out = folder.path().join("out");
    let pid = std::process::id().to_string();
    let record = on_terminal(overhear(&["record", "--pid", &pid, "--out", path(&out)]));
    record.shows("elements, 0 missed");
    assert_eq!(record.hang_up(), 0);
    let (ended, report) = report_json(&out);
    assert_eq!((ended.status, &report["complete"]), (0, &true.into()));
    assert!(out.join("report.html").exists());
}

#[test]
fn hung_up_view_and_calibrate_end() {
    let folder = folder();
    let out = folder.path().join("out");
    let run = ["run", "--kernel", "off", "--out", path(&out), "--", "true"];
    assert_eq!(finish(&mut overhear(&run)).status, 0);
    let view = on_terminal(overhear(&["view", path(&out)]));
    view.shows("http://127.0.0.1:");
    assert_eq!(view.hang_up(), 0);
    let file = folder.path().join("calibration.json");
    let calibrate = on_terminal(overhear(&["calibrate", "--output", path(&file)]));
    calibrate.shows("round 0 of");
    assert_eq!(calibrate.hang_up(), 129);
    // Neither the file nor a temporary one.
    let left = fs::read_dir(folder.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["out"]);
}

/// Verbs that only print end by themselves if the terminal is closed and SIGHUP is ignored.
#[test]
fn verbs_that_print_end_on_a_terminal_that_is_gone() {
    let folder = folder();
    let (out, config) = (folder.path().join("out"), folder.path().join("check.toml"));
    let text = "[[constraint]]\nname = \"quick\"\nmetric = \"time_slice\"\nmax = \"1h\"\n";
    fs::write(&config, text).unwrap();
    let run = ["run", "--out", path(&out), "--", "true"];
    let ended = finish(&mut overhear(&run));
    assert_eq!(ended.status, 0, "{ended:#?}");
    for verb in [
        &["report", path(&out)][..],
        &["report", "--json", path(&out)],
        &["metrics", path(&out)],
        &["check", "--config", path(&config), path(&out)],
        &["export", "--to", "csv", path(&out), "--output", "-"],
        &["list"],
        &["doctor"],
        &["man"],
        &["run", "--", "sleep", "0.1"],
        &["check", "--config", path(&config), "--", "sleep", "0.1"],
    ] {
        let mut command = overhear(verb);
        hangups(&mut command, libc::SIG_IGN);
        let status = OnTerminal::spawn(command).hang_up();
        // It ended by itself, without a panic.
        assert!([0, 2, 3, 5].contains(&status), "{verb:?}: {status}");
    }
}

#[test]
fn requests_end_the_command_once_the_recording_is_finished() {
    let folder = folder();
    let (out, verdicts) = (folder.path().join("out"), folder.path().join("verdicts"));
    let config = folder.path().join("check.toml");
    let text = "[[constraint]]\nname = \"quick\"\nmetric = \"time_slice\"\nmax = \"1h\"\n";
    fs::write(&config, text).unwrap();
    for signal in [libc::SIGTERM, libc::SIGINT] {
        fs::create_dir(&out).unwrap();
        // No process will read from the page.
        let page = out.join("report.html");
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &page, fifo, 0o600.into(), 0).unwrap();
        let options = ["--check", path(&config), "--junit", path(&verdicts)];
        let words = [&["run", "--out", path(&out)], &options[..], &["--", "true"]].concat();
        let run = Started::spawn(&mut overhear(&words));
        eventually("the verdicts are there", || verdicts.exists());
        run.signal(signal);
        assert_eq!(run.end().status, 128 + signal);
        let (_, report) = report_json(&out);
        assert_eq!(report["exit"]["code"], 0, "{report:#}");
        fs::remove_dir_all(&out).unwrap();
        fs::remove_file(&verdicts).unwrap();
    }
}
