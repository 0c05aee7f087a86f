// SPDX-License-Identifier: MIT OR Apache-2.0
//! Constraints and metrics of a run: judged while it runs, and the same afterwards over its
//! recording.

use std::fs::{self, File};
use std::path::Path;

use serde_json::Value;

use crate::program::program;
use crate::support::{eventually, finish, folder, overhear, path, run_json, wait, Ended};

/// `program paced` counts in `number`, in `pace`, at least a millisecond apart.
fn constraints(folder: &Path, most: u32) -> String {
    let file = folder.join("overhear.toml");
    let text = format!(
        "[[constraint]]\nname = \"few\"\nof = \"user:pace\"\nfield = \"number\"\nmax = {most}\n\
         [[constraint]]\nname = \"slow\"\nof = \"user:pace\"\nwindow = \"1ms\"\nat_most = 1\n\
         [[constraint]]\nname = \"no end\"\nof = \"user:pace [number == 300]\"\nnever = true\n"
    );
    fs::write(&file, text).unwrap();
    path(&file).to_owned()
}

fn verdicts(check: &Value) -> Vec<&str> {
    let all = check["constraints"].as_array().unwrap().iter();
    all.map(|one| one["verdict"].as_str().unwrap()).collect()
}

/// Runs `program paced`, and keeps the results.
#[track_caller]
fn run_paced(out: &Path, constraint: [&str; 2], count: &str) -> (Ended, Value) {
    let options = [&["--kernel", "off", "--out", path(out)], &constraint[..]].concat();
    run_json(&options, &[path(program()), "paced", count])
}

#[test]
fn run_and_recording_have_equal_verdicts() {
    let folder = folder();
    let (out, junit) = (folder.path().join("out"), folder.path().join("junit.xml"));
    let config = constraints(folder.path(), 250);
    let options = ["--kernel", "off", "--out", path(&out), "--check", &config];
    let options = [&options[..], &["--junit", path(&junit)]].concat();
    let (ended, report) = run_json(&options, &[path(program()), "paced", "300"]);
    assert_eq!(ended.status, 1, "{ended:#?}");
    let live = &report["check"];
    assert_eq!(verdicts(live), ["violated", "held", "held"], "{live:#}");
    let first = &live["constraints"][0];
    assert_eq!(first["offences"], 49);
    assert_eq!(first["first"]["elements"][0]["sequence"], 251);
    let message = first["first"]["message"].as_str().unwrap();
    ended.has_message(1, &["overhear: violated: few: ", message]);
    // Times are counted from the start of the run, as in the page; keys are of the monotonic clock.
    let run = fs::read_to_string(out.join("trace/overhear/run.json")).unwrap();
    let run: Value = serde_json::from_str(&run).unwrap();
    let start = run["start_ns"].as_u64().unwrap();
    let since = first["first"]["begin_ns"].as_u64().unwrap() - start;
    let since = format!(
        "at {}.{:09} s",
        since / 1_000_000_000,
        since % 1_000_000_000
    );
    assert!(message.contains(&since), "{since}: {message}");
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains(&format!("\"origin_ns\":{start}")));
    assert!(fs::read_to_string(&junit)
        .unwrap()
        .contains("failures=\"1\""));

    let arguments = ["check", path(&out), "--config", &config, "--json"];
    let ended = finish(&mut overhear(&arguments));
    assert_eq!(ended.status, 1, "{ended:#?}");
    let replayed: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(&replayed, live);

    let config = constraints(folder.path(), 299);
    let options = ["--kernel", "off", "--check", &config];
    let (ended, report) = run_json(&options, &[path(program()), "paced", "300"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert_eq!(verdicts(&report["check"]), ["held"; 3]);
    // The program's own status wins.
    let failing = ["sh", "-c", "\"$0\" paced 300; exit 7", path(program())];
    let config = constraints(folder.path(), 250);
    let options = ["--kernel", "off", "--check", &config];
    assert_eq!(run_json(&options, &failing).0.status, 7);
}

#[test]
fn check_judges_a_program_as_its_run_does() {
    let folder = folder();
    let junit = folder.path().join("junit.xml");
    // Losses of the kernel on a busy machine make the run inconclusive, but no verdict.
    for (most, statuses, verdict) in [(250, &[1][..], "violated"), (299, &[0, 3], "held")] {
        let config = constraints(folder.path(), most);
        let json = folder.path().join("report.json");
        let options = [
            format!("--config={config}"),
            format!("--json={}", path(&json)),
        ];
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let program = [
            "--junit",
            path(&junit),
            "--",
            path(program()),
            "paced",
            "300",
        ];
        let mut checked = overhear(&[&["check"], &options[..], &program].concat());
        let ended = finish(&mut checked);
        assert!(statuses.contains(&ended.status), "{ended:#?}");
        let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        assert_eq!(verdicts(&report["check"])[0], verdict);
        fs::remove_file(&json).unwrap();
        assert!(fs::read_to_string(&junit).unwrap().contains("few"));
    }
    let both = ["check", path(folder.path()), "--", path(program())];
    finish(&mut overhear(&both)).has_message(2, &["'[DIR]' cannot be used with '[PROGRAM]...'"]);
    finish(&mut overhear(&["check"])).has_message(2, &["<DIR>"]);
}

/// The end cuts the last expectation off: at the end of a run, with and without its recording.
#[test]
fn cases_cut_off_by_the_end_are_not_judged() {
    let folder = folder();
    let (out, file) = (
        folder.path().join("out"),
        folder.path().join("overhear.toml"),
    );
    let text = "[[constraint]]\nname = \"absence\"\nof = \"user:pace\"\nabsence = \"1 h\"\n\
         [[constraint]]\nname = \"deadline\"\nafter = \"user:pace\"\nof = \"user:pace\"\nwithin = \"1 h\"\n\
         [[constraint]]\nname = \"rate\"\nof = \"user:pace\"\nwindow = \"1 h\"\nat_least = 1\n\
         [[constraint]]\nname = \"period\"\nof = \"user:pace\"\nperiod = \"1 h\"\njitter = \"1 h\"\n";
    fs::write(&file, text).unwrap();
    let (ended, report) = run_paced(&out, ["--check", path(&file)], "3");
    assert_eq!(ended.status, 0, "{ended:#?}");
    let live = &report["check"];
    assert_eq!(verdicts(live), ["held"; 4], "{live:#}");
    for constraint in live["constraints"].as_array().unwrap() {
        assert_eq!(constraint["judged"], 2, "{constraint:#}");
    }
    let arguments = ["check", path(&out), "--config", path(&file), "--json"];
    let ended = finish(&mut overhear(&arguments));
    assert_eq!(ended.status, 0, "{ended:#?}");
    let replayed: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(&replayed, live);
}

#[test]
fn violation_is_printed_while_the_program_runs() {
    let folder = folder();
    let (messages, fifo) = (folder.path().join("stderr"), folder.path().join("fifo"));
    let mut mkfifo = std::process::Command::new("mkfifo");
    assert!(mkfifo.arg(&fifo).status().unwrap().success());
    let config = constraints(folder.path(), 10);
    let arguments = ["run", "--kernel", "off", "--check", &config, "--"];
    let waits = [
        "sh",
        "-c",
        "\"$0\" paced 20; cat \"$1\"",
        path(program()),
        path(&fifo),
    ];
    let mut run = overhear(&[&arguments[..], &waits].concat());
    let mut run = run
        .stderr(File::create(&messages).unwrap())
        .spawn()
        .unwrap();
    eventually("the violation is printed", || {
        let messages = fs::read_to_string(&messages).unwrap();
        messages.contains("overhear: violated: few: 11 is more than 10")
    });
    assert!(run.try_wait().unwrap().is_none(), "the program waits");
    fs::write(&fifo, "").unwrap();
    assert_eq!(wait(&mut run), 1);
}

#[test]
fn metrics_of_a_run_equal_those_of_its_recording() {
    let folder = folder();
    let (out, file) = (folder.path().join("out"), folder.path().join("gap.metric"));
    let text = "metric gap \"Between two elements\"\nevent comes = user:pace\nstate 0 out\nstate 1 begin\n\
        state 2 in\nstate 3 end\n0 -> 1: comes, i\n1 -> 2: lambda\n2 -> 3: comes, i\n3 -> 0: lambda\n";
    fs::write(&file, text).unwrap();
    let (ended, report) = run_paced(&out, ["--metric", path(&file)], "300");
    assert_eq!(ended.status, 0, "{ended:#?}");
    let live = &report["metrics"];
    let row = &live["metrics"][0]["tasks"][0];
    assert_eq!(
        (&row["count"], &row["comm"]),
        (&150.into(), &"program".into())
    );
    let arguments = ["metrics", path(&out), "--metric", path(&file), "--json"];
    let ended = finish(&mut overhear(&arguments));
    assert_eq!(ended.status, 0, "{ended:#?}");
    let replayed: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(&replayed, live);
}

#[test]
fn mistakes_end_the_run_before_it_begins() {
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    fs::write(
        &file,
        "[[constraint]]\nname = \"c\"\nof = \"user:a [x = 1]\"\nnever = true\n",
    )
    .unwrap();
    let ran = folder.path().join("ran");
    let touch = ["--", "touch", path(&ran)];
    for options in [["--check", path(&file)], ["--metric", "wakeup"]] {
        let ended = finish(&mut overhear(&[&["run"], &options[..], &touch].concat()));
        assert_eq!(ended.status, 2, "{ended:#?}");
        assert!(!ran.exists());
    }
}

#[test]
fn tests_fail_unless_everything_held() {
    use overhear_session::harness::{assert_recording_held, run, NotHeld};
    use overhear_session::session::KernelBackend;

    let folder = folder();
    let judge = |most: u32, words: &[&str]| {
        let config = constraints(folder.path(), most);
        run(words, Path::new(&config), KernelBackend::Off)
    };
    let paced = [path(program()), "paced", "300"];
    assert_eq!(judge(299, &paced).unwrap().verdict, "held");
    let error = judge(250, &paced).unwrap_err();
    assert!(
        error.to_string().contains("251 is more than 250"),
        "{error}"
    );
    // Without its sensors a program shows nothing.
    let error = judge(299, &["true"]).unwrap_err();
    assert!(
        error.to_string().contains("no stream of user:pace"),
        "{error}"
    );
    assert!(matches!(judge(299, &["false"]), Err(NotHeld::Ended(_))));

    let out = folder.path().join("out");
    run_json(&["--kernel", "off", "--out", path(&out)], &paced);
    let config = constraints(folder.path(), 299);
    assert_recording_held(&out, Path::new(&config));
    let config = constraints(folder.path(), 250);
    let judged = std::panic::catch_unwind(|| assert_recording_held(&out, Path::new(&config)));
    assert!(judged.is_err());
}
