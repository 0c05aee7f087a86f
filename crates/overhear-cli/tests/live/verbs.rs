// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listing, switching, `top`, and texts from the definitions of the command line.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use overhear_directory::Directory;
use serde_json::Value;

use crate::on_terminal::OnTerminal;
use crate::program::program;
use crate::session::Live;
use crate::support::{eventually, finish, folder, overhear, path, plugin, Started};

#[test]
fn list_has_all_sensors() {
    let live = Live::paced();
    let text = live.run_verb(&["list"]);
    assert_eq!(text.status, 0, "{text:#?}");
    for word in [
        "pace#first",
        "simple",
        "1.00 kHz (T 1.00 ms",
        "sample { number u64, load f64 %",
    ] {
        assert!(text.stdout.contains(word), "{word}: {text:#?}");
    }
    let sensors = live.listed();
    assert_eq!((sensors.len(), &sensors[0]["id"]), (1, &"pace".into()));
    assert_eq!(sensors[0]["state"], "on");
    assert_eq!(sensors[0]["declared"]["jitter_ns"], 5_000_000);
    let csv = live
        .run_verb(&["list", "program/*", "--format", "csv"])
        .stdout;
    assert_eq!(csv.lines().count(), 2, "{csv}");
    live.run_verb(&["list", "other/*"])
        .has_only_message(3, &["`other/*`", "one other"]);
    live.run_verb(&["list", "--type", "other"])
        .has_only_message(3, &["of type other"]);
    let socket = live.socket();
    drop(live);
    finish(overhear(&["list", "--socket", path(&socket)]).env_remove("XDG_RUNTIME_DIR"))
        .has_only_message(5, &["cannot", path(&socket)]);
}

#[test]
fn absent_directory_is_named_with_its_socket() {
    let nowhere = folder();
    for verb in [
        &["list"][..],
        &["attach", "*"],
        &["top", "--once"],
        &["enable", "*"],
    ] {
        let mut command = overhear(verb);
        let ended = finish(command.env("XDG_RUNTIME_DIR", nowhere.path()));
        if std::path::Path::new("/run/overhear/directory.sock").exists() {
            println!("skipped: this machine has a directory");
            return;
        }
        ended.has_only_message(5, &["no directory", "--socket"]);
    }
}

#[test]
fn disabled_sensor_is_silent_until_it_is_enabled() {
    let live = Live::paced();
    let elements = || live.listed()[0]["elements"].as_u64().unwrap();
    let ended = live.run_verb(&["disable", "pace"]);
    assert_eq!(
        (ended.status, &*ended.stdout),
        (0, "1 of 1 sensor disabled\n")
    );
    assert_eq!(live.listed()[0]["state"], "off");
    let before = elements();
    std::thread::sleep(Duration::from_millis(200));
    // The program may have been in the middle of one write.
    let since = elements() - before;
    assert!(since <= 1, "{since} elements of a sensor that is off");
    // `attach` prints the reason for the lack of elements.
    let ended = live.run_verb(&["attach", "pace", "--duration", "30ms"]);
    assert_eq!((ended.status, &*ended.stdout), (0, ""), "{ended:#?}");
    let why = "1 sensor, 1 of them switched off";
    assert!(ended.stderr.contains(why), "{ended:#?}");
    let ended = live.run_verb(&["disable", "pace"]);
    assert_eq!(
        (ended.status, &*ended.stdout),
        (0, "0 of 1 sensor disabled\n")
    );
    let ended = live.run_verb(&["enable", "program/pace"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    eventually("it writes again", || elements() > before + 10);
    live.run_verb(&["disable", "nothing"])
        .has_only_message(3, &["`nothing`"]);
}

#[test]
fn snapshot_has_actual_and_declared_rate() {
    let live = Live::paced();
    let options = ["--once", "--window", "500ms", "--format", "json"];
    let ended = live.run_verb(&[&["top"], &options[..]].concat());
    assert_eq!(ended.status, 0, "{ended:#?}");
    let look: Value = serde_json::from_str(&ended.stdout).unwrap();
    let sensor = &look["sensors"][0];
    // Each pause is at least a millisecond: a bound that holds on any machine.
    let rate = sensor["rate_hz"].as_f64().unwrap();
    assert!(rate > 0.0 && rate <= 1_000.0, "{sensor:#}");
    assert_eq!(
        (&sensor["missed"], &sensor["too_early"]),
        (&0.into(), &0.into())
    );
    assert!(
        sensor["interval_ns"]["min"].as_u64() >= Some(1_000_000),
        "{sensor:#}"
    );
    assert_eq!(look["complete"], true);
    let ended = live.run_verb(&["top", "--once", "--window", "100ms"]);
    assert!(
        ended.stdout.contains("of decl") && ended.stdout.contains("pace#first"),
        "{ended:#?}"
    );
    live.run_verb(&["top"])
        .has_only_message(2, &["no terminal", "--once"]);
    live.run_verb(&["top", "--once", "--pid", "4194304"])
        .has_only_message(5, &["4194304"]);
    live.run_verb(&["top", "nothing", "--once", "--window", "50ms"])
        .has_only_message(3, &["`nothing`"]);
}

#[test]
fn top_draws_obeys_keys_and_leaves_the_terminal_as_it_was() {
    let live = Live::paced();
    for (leave, how) in [("q", "a key"), ("\x03", "an interrupt")] {
        let mut top = OnTerminal::spawn(live.verb(&["top", "--interval", "100ms"]));
        top.shows("pace#first");
        top.keyboard.write_all(b"?x\tsro").unwrap();
        top.keyboard.write_all(leave.as_bytes()).unwrap();
        let (status, screen) = top.end();
        assert_eq!(status, 0, "{how}: {screen:?}");
        assert!(screen.contains("pace#first"), "{how}: {screen:?}");
        let (_, after) = screen.rsplit_once("\x1b[?1049l").unwrap();
        assert!(!after.contains("pace"), "{how}: {after:?}");
    }
    // The key `o` on the page of tasks switches nothing.
    assert_eq!(live.listed()[0]["state"], "on");
}

/// `top --pid` of a program that runs and sleeps alternately; `None` if kernel sensors do not work.
fn top_of_threads(arguments: &[&str]) -> Option<(Started, Command)> {
    // It ends by itself, if the test does not end it.
    let script = "i=0; while [ $i -lt 5000 ]; do sleep 0.01; i=$((i+1)); done";
    let program = Started::spawn(Command::new("sh").args(["-c", script]));
    let pid = program.pid().to_string();
    let nowhere = folder();
    let mut command = overhear(&[&["top", "--pid", &pid], arguments].concat());
    command.env("XDG_RUNTIME_DIR", nowhere.path());
    if std::path::Path::new("/run/overhear/directory.sock").exists() {
        println!("skipped: this machine has a directory");
        return None;
    }
    if !crate::support::is_root() {
        println!("skipped: following a process needs root");
        return None;
    }
    Some((program, command))
}

#[test]
fn threads_alone_need_no_directory() {
    let options = ["--once", "--window", "300ms", "--json"];
    let Some((program, mut command)) = top_of_threads(&options) else {
        return;
    };
    let ended = finish(&mut command);
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{ended:#?}");
    let look: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(look["threads"][0]["pid"], program.pid(), "{look:#}");
    assert_eq!(
        (&look["sensors"], &look["socket"]),
        (&Value::Array(Vec::new()), &"".into())
    );
    // A user who names sensors requires them.
    command.arg("queue");
    finish(&mut command).has_only_message(5, &["no directory", "--socket"]);
    program.signal(libc::SIGKILL);
    program.end();
}

#[test]
fn threads_alone_are_shown_first() {
    let Some((program, command)) = top_of_threads(&["--interval", "100ms"]) else {
        return;
    };
    let mut top = OnTerminal::spawn(command);
    top.shows("thread");
    top.shows("invol/s");
    top.keyboard.write_all(b"q").unwrap();
    let (status, screen) = top.end();
    assert_eq!(status, 0, "{screen:?}");
    assert!(!screen.contains("-0.00"), "{screen:?}");
    program.signal(libc::SIGKILL);
    program.end();
}

#[test]
fn doctor_reports_whether_a_directory_answers() {
    let finding = |arguments: &mut std::process::Command| -> Value {
        let ended = finish(arguments.args(["--json"]));
        ended.does_not_panic();
        let findings: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap();
        let directory = findings.into_iter().find(|one| one["name"] == "directory");
        directory.unwrap()
    };
    let live = Live::paced();
    let found = finding(&mut live.verb(&["doctor"]));
    assert_eq!(found["ok"], true, "{found}");
    let message = found["message"].as_str().unwrap();
    assert!(message.contains("permits you 1 of 1 sensor"), "{found}");
    let mut doctor = overhear(&["doctor"]);
    let found = finding(doctor.env("OVERHEAR_DIRECTORY", "/nowhere/directory.sock"));
    assert_eq!(found["ok"], false, "{found}");
    assert!(
        found["advice"].as_str().unwrap().contains("overheard"),
        "{found}"
    );
}

#[test]
fn doctor_lists_counters() {
    let ended = finish(&mut overhear(&["doctor", "--counters", "--json"]));
    ended.does_not_panic();
    let findings: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap();
    let of = |name: &str| -> Vec<&Value> {
        let found = findings.iter().filter(|finding| finding["name"] == name);
        found.collect()
    };
    for (name, counter) in [
        ("software", "task-clock"),
        ("hardware", "instructions"),
        ("cache", "llc-load-misses"),
    ] {
        let listed = of(name).into_iter().filter(|finding| {
            let names = finding["message"].as_str().unwrap().split(", ");
            names.clone().any(|listed| listed == counter)
        });
        assert_eq!(listed.count(), 1, "{counter}: {findings:#?}");
        for finding in of(name) {
            let reason = finding["advice"].as_str().unwrap();
            assert_eq!(finding["ok"], reason.is_empty(), "{finding}");
        }
    }
    for name in ["group", "rdpmc", "kernel"] {
        assert_eq!(of(name).len(), 1, "{name}: {findings:#?}");
    }
    let works = of("software").iter().any(|finding| finding["ok"] == true);
    assert_eq!(ended.status, if works { 0 } else { 5 }, "{ended:#?}");
}

#[test]
fn completions_and_manual_come_from_the_definitions() {
    for shell in ["bash", "zsh", "fish"] {
        let ended = finish(&mut overhear(&["completions", shell]));
        assert_eq!(ended.status, 0, "{ended:#?}");
        assert!(ended.stdout.contains("until-ended"), "{shell}");
    }
    let page = finish(&mut overhear(&["man"]));
    assert!(page.stdout.contains(".TH overhear 1"), "{page:#?}");
    let folder = folder();
    let ended = finish(&mut overhear(&["man", "--out", path(folder.path())]));
    assert_eq!(ended.status, 0, "{ended:#?}");
    let attach = std::fs::read_to_string(folder.path().join("overhear-attach.1")).unwrap();
    assert!(attach.contains("GLOB"), "{attach}");
}

#[test]
fn snapshot_draws_the_distributions_of_updates() {
    // Longer than any test lasts; it is ended with the test.
    let live = Live::program(&["paced", "120000"]);
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    let text = "[monitor]\nlatency = \"1s\"\n[[sensor]]\nid = \"pace\"\nperiod = \"1ms\"\n\
        [[update]]\nname = \"numbers\"\nfield = \"number\"\n";
    std::fs::write(&file, text).unwrap();
    let options = ["--once", "--window", "300ms", "--config", path(&file)];
    let ended = live.run_verb(&[&["top", "--json"], &options[..]].concat());
    let look: Value = serde_json::from_str(&ended.stdout).unwrap();
    let histogram = &look["histograms"][0];
    assert_eq!(histogram["title"], "numbers: number");
    let buckets = histogram["buckets"].as_array().unwrap().iter();
    let counted: u64 = buckets.map(|it| it["count"].as_u64().unwrap()).sum();
    // All elements were counted.
    assert_eq!(look["sensors"][0]["elements"], counted, "{look:#}");
    let ended = live.run_verb(&[&["top"], &options[..]].concat());
    assert!(ended.stdout.contains("numbers: number\n"), "{ended:#?}");
    // Notes name the causes of missing values: sensors without the field, and absent sensors.
    let other = text.replace("= \"number\"", "= \"colour\"");
    let other = other + "[[sensor]]\nid = \"unheard\"\nperiod = \"1ms\"\n";
    std::fs::write(&file, other).unwrap();
    let ended = live.run_verb(&[&["top", "--json"], &options[..]].concat());
    let look: Value = serde_json::from_str(&ended.stdout).unwrap();
    let notes = look["notes"].to_string();
    assert!(
        notes.contains("update `numbers`: no sensor `unheard` has appeared"),
        "{notes}"
    );
    assert!(
        notes.contains("has no number `colour`; it has `number`"),
        "{notes}"
    );
    let unknown = text.replace("field", "sensors = [\"nobody\"]\nfield");
    std::fs::write(&file, unknown).unwrap();
    live.run_verb(&[&["top"], &options[..]].concat())
        .has_only_message(2, &[path(&file), "sensor `nobody`, which is not described"]);
    std::fs::write(&file, text.replace("field = \"number\"\n", "")).unwrap();
    live.run_verb(&[&["top"], &options[..]].concat())
        .has_only_message(2, &[path(&file), "nothing to draw"]);
}

#[test]
fn attaching_monitor_enables_its_sensors() {
    let live = Live::start_with(&["--disable-unused"], &[path(program()), "paced", "8000"]);
    eventually("the program registers its sensor", || {
        live.listed().len() == 1
    });
    let state = || live.listed()[0]["state"].clone();
    assert_eq!(state(), "off");
    let output = live.run_verb(&["attach", "pace", "--count", "5", "--format", "csv"]);
    assert_eq!(output.status, 0, "{output:#?}");
    assert_eq!(output.stdout.lines().count(), 6, "{output:#?}");
    eventually("the monitor is gone", || state() == "off");
    live.kill_program();
}

#[test]
fn unused_sensors_are_off_while_disable_unused_is_requested() {
    let folder = folder();
    let socket = folder.path().join("directory.sock");
    let directory = Directory::builder().standalone().start(&socket).unwrap();
    let run_verb = |arguments: &[&str]| {
        let mut command = overhear(arguments);
        finish(command.env("OVERHEAR_DIRECTORY", directory.socket()))
    };
    let programs: Vec<Started> = (0..2)
        .map(|_| {
            let mut program = Command::new(program());
            program.args(["paced", "100000"]);
            Started::spawn(program.env("OVERHEAR_DIRECTORY", directory.socket()))
        })
        .collect();
    let states = || -> Vec<(String, String)> {
        let listing: Value =
            serde_json::from_str(&run_verb(&["list", "--json"]).stdout).unwrap_or_default();
        let sensors = listing["sensors"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.to_string().trim_matches('"').to_owned();
        let state = |sensor: &Value| (text(&sensor["pid"]), text(&sensor["state"]));
        sensors.iter().map(state).collect()
    };
    eventually("both are there", || states().len() == 2);
    let [one, other] = [&states()[0].0, &states()[1].0].map(Clone::clone);
    let names = format!("{one}/pace");
    let mut attach = overhear(&["attach", &names, "--disable-unused"]);
    let attached = Started::spawn(attach.env("OVERHEAR_DIRECTORY", directory.socket()));
    let is =
        |on: &str, off: &str| states() == [(one.clone(), on.into()), (other.clone(), off.into())];
    eventually("the other is switched off", || is("on", "off"));
    // Sensors that another monitor needs are on as long as it is there.
    let output = run_verb(&["attach", &format!("{other}/pace"), "--count", "3"]);
    assert_eq!(output.status, 0, "{output:#?}");
    eventually("that one is gone", || is("on", "off"));
    attached.signal(libc::SIGINT);
    attached.end();
    eventually("everything is as it was", || is("on", "on"));
    for program in programs {
        program.signal(libc::SIGKILL);
        program.end();
    }
}

#[test]
fn growing_distribution_of_a_plug_in_is_drawn() {
    let folder = folder();
    let source = "examples/updates/distances.c";
    let library = folder.path().join("distances.so");
    if plugin("gcc", "-std=c11", source, &library).is_none() {
        return;
    }
    let live = Live::program(&["paced", "120000"]);
    let file = folder.path().join("overhear.toml");
    let text = "[monitor]\nlatency = \"1s\"\n[[sensor]]\nid = \"pace\"\nperiod = \"1ms\"\n\
        [[update]]\nname = \"far\"\nplugin = \"distances.so\"\n";
    std::fs::write(&file, text).unwrap();
    let options = ["--once", "--window", "300ms", "--config", path(&file)];
    let ended = live.run_verb(&[&["top", "--json"], &options[..]].concat());
    let look: Value = serde_json::from_str(&ended.stdout).unwrap();
    let histogram = &look["histograms"][0];
    assert_eq!(histogram["title"], "distances: distances", "{look:#}");
    assert_eq!(histogram["unit"], "ns");
    let buckets = histogram["buckets"].as_array().unwrap().iter();
    let counted: u64 = buckets.map(|it| it["count"].as_u64().unwrap()).sum();
    // All distances but those across what was missed.
    let output = look["sensors"][0]["elements"].as_u64().unwrap();
    let gaps = look["missed"].as_u64().unwrap();
    assert!(
        counted < output && output <= counted + 1 + 2 * gaps,
        "{look:#}"
    );
    // On a terminal there is a page for it.
    let mut top =
        OnTerminal::spawn(live.verb(&["top", "--interval", "100ms", "--config", path(&file)]));
    top.shows("Histograms");
    top.keyboard.write_all(b"3q").unwrap();
    assert_eq!(top.end().0, 0);
    // An update that cannot be loaded is an error before the first picture.
    std::fs::write(&file, text.replace("distances.so", "nowhere.so")).unwrap();
    live.run_verb(&[&["top"], &options[..]].concat())
        .has_only_message(2, &["update `far`: plug-in ", "nowhere.so does not load"]);
}
