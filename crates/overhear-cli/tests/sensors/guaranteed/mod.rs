// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear run --config`: the admitted monitor runs with the program, or a message has the reason
//! for its refusal.

mod kernel;
mod memory;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use overhear_event::Nanos;
use serde_json::Value;
use tempfile::TempDir;

use crate::program::{number, program};
use crate::support::{finish, folder, is_root, overhear, path, plugin, run_json, Ended};
use crate::witness::{keeps, Doubt, Excuse, Machine, Witness};

/// The program's sensor `eager` as it declares itself, and a machine that may be very late: the
/// tests are about messages, not about the machine.
pub(crate) const FILE: &str = r#"
    [monitor]
    latency = "600ms"
    level = "shared"
    executor = "EXECUTOR"
    wake_up_lateness = "80ms"
    scheduler_lateness = "40ms"
    hold_back = "100ms"
    overhead = "2ms"
    [[sensor]]
    id = "eager"
    period = "500us"
    distance = "50us"
    jitter = "4500us"
    [[update]]
    name = "numbers"
    wcet = "40us"
    field = "number"
"#;

const ELEMENTS: u64 = 400;

/// Monitors with reservations run one after the other: each is foreign to the others.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder that holds `overhear.toml`.
fn file(text: &str) -> (TempDir, PathBuf) {
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    std::fs::write(&file, text).unwrap();
    (folder, file)
}

/// Runs the eager program with the monitor of this file.
fn run(text: &str, more: &[&str]) -> (Ended, Value) {
    let elements = ELEMENTS.to_string();
    let options = [&["--kernel", "off"], more].concat();
    run_of(text, &options, &[path(program()), "eager", &elements])
}

/// Runs a program with the monitor of this file.
fn run_of(text: &str, options: &[&str], command: &[&str]) -> (Ended, Value) {
    let (_folder, file) = file(text);
    run_json(&[&["--config", path(&file)], options].concat(), command)
}

/// The session reads the stream as well, and may have missed elements that the monitor did not.
fn unharmed(report: &Value) -> i32 {
    if report["complete"] == true {
        0
    } else {
        3
    }
}

/// Half of the lateness that the files of these tests permit: the witness wakes at other times.
const LATE: Nanos = Nanos::from_ms(20);

/// The excuse by the machine for the message of an inconclusive guarantee.
fn excuse(message: &str, machine: &Machine) -> Excuse {
    let contains_any = |words: &[&str]| words.iter().any(|it| message.contains(it));
    if contains_any(&["reserved CPU time", "the kernel refuses"]) {
        return Excuse::seen(machine.was_reserved());
    }
    // A CPU's clock charges interrupts to the running thread; the kernel does not enter a BPF
    // program that interrupts itself.
    if contains_any(&["its wcet is", "of CPU time", "the kernel did not enter"]) {
        return match machine.was_late(LATE) {
            true => Excuse::Seen,
            false => Excuse::Unseen,
        };
    }
    // The program is an ordinary one, and may be displaced between stamp and publication.
    if contains_any(&["published later than the hold-back"]) {
        return Excuse::seen(machine.was_crowded());
    }
    let late = ["woke", "ended", "hypervisor"];
    Excuse::seen(contains_any(&late) && machine.was_late(LATE))
}

fn messages(guarantee: &Value) -> Vec<&str> {
    let reasons = guarantee["reasons"].as_array().unwrap();
    reasons.iter().map(|it| it.as_str().unwrap()).collect()
}

/// The guarantee held and the run was complete; otherwise the reason for doubt.
fn is_held(report: &Value, machine: &Machine) -> Result<(), Doubt> {
    let guarantee = &report["guarantee"];
    assert_ne!(guarantee["verdict"], "violated", "{guarantee:#}");
    let mut reasons = messages(guarantee);
    let mut excuses: Vec<Excuse> = reasons.iter().map(|it| excuse(it, machine)).collect();
    assert_eq!(
        reasons.is_empty(),
        guarantee["verdict"] == "held",
        "{guarantee:#}"
    );
    if report["complete"] != true {
        reasons.push("the session has missed something");
        excuses.push(Excuse::seen(machine.was_crowded()));
    }
    match reasons.is_empty() {
        true => Ok(()),
        false => Err(Doubt {
            excuse: Excuse::of_all(excuses),
            reasons: format!("{reasons:?}"),
        }),
    }
}

/// A run that missed nothing, or the doubt in it: it has no reservation, and may be displaced.
fn is_complete(report: &Value, machine: &Machine) -> Result<(), Doubt> {
    let missed = number(&report["guarantee"], "missed");
    if missed == 0 && report["complete"] == true {
        return Ok(());
    }
    let was_busy = machine.was_crowded() || machine.was_late(LATE);
    Err(Doubt {
        excuse: Excuse::seen(was_busy),
        reasons: format!("{missed} missed, {}", report["losses"]),
    })
}

/// Result of `run`, and of the witness during it.
pub(crate) fn witnessed<T>(run: impl FnOnce() -> T) -> (T, Machine) {
    let witness = Witness::start();
    let result = run();
    (result, witness.stop())
}

/// A locked page that the kernel moves meanwhile can fault nevertheless.
fn has_no_faults(guarantee: &Value, machine: &Machine) -> Result<(), Doubt> {
    match number(guarantee, "page_faults") {
        0 => Ok(()),
        faults => Err(Doubt {
            excuse: Excuse::seen(machine.moved_pages()),
            reasons: format!("{faults} page faults"),
        }),
    }
}

#[test]
fn admitted_monitor_reports_the_end_of_its_guarantee() {
    let _alone = alone();
    keeps(|| {
        let ((ended, report), machine) = witnessed(|| run(&FILE.replace("EXECUTOR", "auto"), &[]));
        ends_with_a_verdict(&ended, &report, &machine)
    });
}

fn ends_with_a_verdict(ended: &Ended, report: &Value, machine: &Machine) -> Result<(), Doubt> {
    let guarantee = &report["guarantee"];
    assert_eq!(
        number(&guarantee["sensors"][0], "elements"),
        ELEMENTS,
        "{guarantee:#}"
    );
    assert_eq!(number(guarantee, "missed"), 0);
    let update = &guarantee["updates"][0];
    assert_eq!(number(update, "elements"), ELEMENTS);
    assert_eq!(number(&update["values"], "count"), ELEMENTS);
    if guarantee["executor"] == "best_effort" {
        let expected = (unharmed(report), &Value::Null);
        assert_eq!(
            (ended.status, &guarantee["verdict"]),
            expected,
            "{ended:#?}"
        );
        assert!(ended.stderr.contains("nothing is guaranteed"), "{ended:#?}");
        return lacks_guarantee(ended, machine);
    }
    assert_eq!(guarantee["executor"], "deadline");
    let expected = match guarantee["verdict"] == "held" {
        true => unharmed(report),
        false => 3,
    };
    assert_eq!(ended.status, expected, "{ended:#?}");
    is_held(report, machine)?;
    let latency = number(&guarantee["sensors"][0], "latency_ns");
    assert!(latency > 0 && latency <= number(guarantee, "latency_ns"));
    has_no_faults(guarantee, machine)?;
    assert_eq!(number(guarantee, "kernel_overruns"), 0);
    Ok(())
}

/// The result without an optional guarantee: others have reserved, or this user may not, which is
/// skipped.
fn lacks_guarantee(ended: &Ended, machine: &Machine) -> Result<(), Doubt> {
    let was_taken = machine.was_reserved() || machine.was_set_apart();
    let is_taken = ["reserv", "must be left for the others"];
    if was_taken && is_taken.iter().any(|words| ended.stderr.contains(words)) {
        return Err(Doubt {
            excuse: Excuse::Seen,
            reasons: ended.stderr.clone(),
        });
    }
    println!("skipped: {}", ended.stderr);
    Ok(())
}

#[test]
fn executors_with_latency_demand_one() {
    let text = FILE.replace("latency = \"600ms\"", "");
    let (ended, report) = run(&text.replace("EXECUTOR", "best_effort"), &[]);
    assert_eq!(ended.status, unharmed(&report), "{ended:#?}");
    let guarantee = &report["guarantee"];
    assert_eq!(number(&guarantee["updates"][0], "elements"), ELEMENTS);
    for executor in ["auto", "deadline", "buffered"] {
        let (_folder, file) = file(&text.replace("EXECUTOR", executor));
        let run = ["run", "--config", path(&file), "--", "true"];
        finish(&mut overhear(&run))
            .has_only_message(2, &["update `numbers`", executor, "`latency`"]);
    }
    // Admission is about a latency, for any executor.
    let (_folder, file) = file(&text.replace("EXECUTOR", "best_effort"));
    let admitted = finish(&mut overhear(&["admit", "--config", path(&file)]));
    admitted.has_only_message(2, &["[monitor] has no `latency`"]);
}

/// Results of `admit` and of `run` with the same file, for this executor and level.
fn admit_and_run(executor: &str, level: &str) -> (Ended, Ended) {
    let text = FILE.replace("EXECUTOR", executor);
    let text = text.replace("level = \"shared\"", level);
    let (_folder, file) = file(&text);
    let admitted = finish(&mut overhear(&["admit", "--config", path(&file)]));
    let words = ["run", "--kernel", "off", "--config", path(&file), "--"];
    let words = [&words[..], &[path(program()), "eager", "20"]].concat();
    let ran = finish(&mut overhear(&words));
    (admitted, ran)
}

#[test]
fn admit_and_run_agree() {
    let _alone = alone();
    for level in [
        "level = \"shared\"",
        "level = \"exclusive\"",
        "level = \"exclusive\"\ndedicated_cpu = \"any\"",
        "level = \"exclusive\"\ndedicated_cpu = 1000",
    ] {
        for executor in ["auto", "deadline", "best_effort"] {
            let (admitted, ran) = admit_and_run(executor, level);
            let guarantees = ran.stderr.contains("every element within");
            // Another program has reserved time or set a CPU apart between the two.
            let others = ["has reserved CPU time", "must be left for the others"];
            let both = [&admitted.stdout, &ran.stderr];
            if both
                .iter()
                .any(|messages| others.iter().any(|it| messages.contains(it)))
            {
                println!("skipped: {executor}, {level}: {both:?}");
                continue;
            }
            let what = format!("{executor}, {level}: {admitted:#?} {ran:#?}");
            match admitted.status {
                0 if executor == "best_effort" => {
                    assert!(admitted.stdout.contains("nothing is guaranteed"), "{what}");
                    assert!(!guarantees, "{what}");
                }
                0 => assert!(guarantees, "{what}"),
                // Refused or lacking: the same message, and the same status if it is demanded.
                status => {
                    let (_, why) = admitted.stdout.split_once(": ").unwrap();
                    let why = why.lines().next().unwrap();
                    assert!(ran.stderr.contains(why), "{what}");
                    assert!(!guarantees, "{what}");
                    let is_demanded = executor == "deadline" || status == 4;
                    assert!(!is_demanded || ran.status == status, "{what}");
                }
            }
        }
    }
}

#[test]
fn execution_times_are_measured_and_a_reservation_is_suggested() {
    let _alone = alone();
    let unknown = FILE
        .replace("EXECUTOR", "deadline")
        .replace("wcet = \"40us\"", "# measured later");
    keeps(|| {
        let ((ended, report), machine) = witnessed(|| run(&unknown, &["--measure-wcet"]));
        assert_eq!(ended.status, unharmed(&report), "{ended:#?}");
        suggests(&unknown, &report, &machine)
    });
    // Without it, an update without WCET is no reservation.
    let (ended, _) = refused(&unknown);
    assert_eq!(ended.status, 2, "{ended:#?}");
    assert!(
        ended.stderr.contains("update `numbers` has no wcet"),
        "{ended:#?}"
    );
}

/// A report of measured execution times suggests a reservation that is admitted. `measured` is the
/// text of the file.
fn suggests(measured: &str, report: &Value, machine: &Machine) -> Result<(), Doubt> {
    let guarantee = &report["guarantee"];
    assert_eq!(guarantee["verdict"], Value::Null);
    let update = &guarantee["updates"][0];
    assert_eq!(
        (&update["name"], &update["wcet_ns"]),
        (&"numbers".into(), &Value::Null)
    );
    let longest = number(update, "longest_ns");
    let suggested = number(update, "suggested_wcet_ns");
    assert!(
        suggested >= 1_000 && suggested >= longest + longest / 2,
        "{update:#}"
    );
    assert_eq!(update["longest_sensor"], "eager");
    assert!(number(update, "longest_element") < ELEMENTS);
    // A complete reservation, in a file that is admitted unchanged.
    let suggestion = &guarantee["suggestion"];
    if suggestion["accepted"] == false {
        // The measured time was too long: the CPU's clock contains interrupts of others.
        return Err(Doubt {
            excuse: match machine.was_late(LATE) {
                true => Excuse::Seen,
                false => Excuse::Unseen,
            },
            reasons: suggestion["reason"].to_string(),
        });
    }
    let config = suggestion["config"].as_str().unwrap();
    // The original file, with its comments and in its order, except for the suggestions.
    let suggested = ["wcet", "overhead", "latency"];
    let stays = |line: &&str| !suggested.iter().any(|key| line.trim().starts_with(key));
    let stay = |text| str::lines(text).filter(stays).collect::<Vec<_>>();
    assert_eq!(stay(config), stay(measured));
    let (_folder, file) = self::file(config);
    let arguments = ["admit", "--config", path(&file), "--json"];
    let admitted = finish(&mut overhear(&arguments));
    let answer: Value = serde_json::from_str(&admitted.stdout).unwrap();
    // The permissions of this user do not matter here.
    if answer["kernel"] == "accepted" {
        assert_eq!(admitted.status, 0, "{admitted:#?}");
    }
    for key in ["period_ns", "deadline_ns", "runtime_ns", "latency_ns"] {
        assert!(number(suggestion, key) > 0, "{suggestion:#}");
        assert_eq!(answer[key], suggestion[key], "{key}: {answer:#}");
    }
    let sensor = &answer["sensors"][0];
    assert_eq!(
        number(sensor, "wcet_ns"),
        number(update, "suggested_wcet_ns")
    );
    // It is also printed as a file, whose lines are not broken on the narrowest terminal.
    let whole = serde_json::from_value(report.clone()).unwrap();
    let text = overhear_cli::report_text(&whole, Some(40));
    assert!(text.contains("suggested reservation: "), "{text}");
    let lines: Vec<&str> = config.lines().collect();
    assert!(text.contains(&lines.join("\n")), "{text}");
    Ok(())
}

/// Runs a program that creates a file, and returns whether it did.
pub(crate) fn refused(text: &str) -> (Ended, bool) {
    let (folder, file) = file(text);
    let mark = folder.path().join("mark");
    let arguments = [
        "run",
        "--kernel",
        "off",
        "--config",
        path(&file),
        "--",
        "touch",
        path(&mark),
    ];
    let ended = finish(&mut overhear(&arguments));
    let ran = mark.exists();
    (ended, ran)
}

#[test]
fn unadmitted_monitor_is_refused_before_the_program_runs() {
    let _alone = alone();
    let dear = FILE.replace("EXECUTOR", "auto").replace("40us", "2ms");
    let (ended, ran) = refused(&dear);
    assert_eq!((ended.status, ran), (4, false), "{ended:#?}");
    assert!(ended.stderr.contains("of a CPU in the mean"), "{ended:#?}");
    // A dedicated CPU, where there are several: demanded, then optional.
    if std::thread::available_parallelism().map_or(1, usize::from) == 1 {
        return;
    }
    let exclusive = FILE.replace("\"shared\"", "\"exclusive\"");
    let (ended, ran) = refused(&exclusive.replace("EXECUTOR", "deadline"));
    assert_eq!((ended.status, ran), (5, false), "{ended:#?}");
    assert!(
        ended.stderr.contains("cpuset partition of one CPU"),
        "{ended:#?}"
    );
    let (ended, report) = run(&exclusive.replace("EXECUTOR", "auto"), &[]);
    assert_eq!(ended.status, unharmed(&report), "{ended:#?}");
    assert!(
        ended.stderr.contains("best effort, nothing is guaranteed"),
        "{ended:#?}"
    );
    assert_eq!(report["guarantee"]["executor"], "best_effort");
}

#[test]
fn cpu_is_set_apart_for_the_monitor_and_given_back() {
    let _alone = alone();
    let text = FILE.replace("EXECUTOR", "auto");
    let text = text.replace(
        "level = \"shared\"",
        "level = \"exclusive\"\ndedicated_cpu = \"any\"",
    );
    // The next one finds a free CPU, too.
    for _ in 0..2 {
        keeps(|| {
            let ((ended, report), machine) = witnessed(|| run(&text, &[]));
            let guarantee = &report["guarantee"];
            if guarantee["executor"] == "best_effort" {
                assert!(ended.stderr.contains("nothing is guaranteed"), "{ended:#?}");
                assert_eq!(guarantee["cpu"], Value::Null);
                return lacks_guarantee(&ended, &machine);
            }
            assert_eq!(guarantee["level"], "exclusive");
            assert!(guarantee["cpu"].is_u64(), "{guarantee:#}");
            is_held(&report, &machine)
        });
    }
}

#[test]
fn demanded_guarantee_without_privilege_is_refused_by_name() {
    let _alone = alone();
    if !is_root() {
        println!("skipped: only root can drop a single privilege");
        return;
    }
    let (_folder, file) = file(&FILE.replace("EXECUTOR", "deadline"));
    let whole = overhear(&[
        "run",
        "--kernel",
        "off",
        "--config",
        path(&file),
        "--",
        "true",
    ]);
    let mut without = std::process::Command::new("setpriv");
    without.args(["--bounding-set=-sys_nice", "--inh-caps=-sys_nice"]);
    without.arg(whole.get_program()).args(whole.get_args());
    let ended = finish(&mut without);
    if ended.status == 127 || ended.status == 126 {
        println!("skipped: setpriv is not there");
        return;
    }
    assert_eq!(ended.status, 5, "{ended:#?}");
    assert!(ended.stderr.contains("cap_sys_nice"), "{ended:#?}");
}

#[test]
fn plug_in_update_runs_under_its_executor() {
    let _alone = alone();
    let missing = FILE.replace("field = \"number\"", "plugin = \"nowhere.so\"");
    let (ended, ran) = refused(&missing.replace("EXECUTOR", "auto"));
    assert_eq!((ended.status, ran), (2, false), "{ended:#?}");
    assert!(ended.stderr.contains("update `numbers`: "), "{ended:#?}");
    let folder = folder();
    let source = "examples/updates/late_elements.c";
    let Some(plugin) = plugin("gcc", "-std=c11", source, &folder.path().join("late.so")) else {
        return;
    };
    // The same library under each executor. Every element but the first comes more than a
    // nanosecond after its predecessor.
    let line = format!("plugin = \"{}:late_elements=1\"", path(&plugin));
    let text = FILE.replace("field = \"number\"", &line);
    for executor in ["auto", "bandwidth", "buffered", "best_effort", "idle"] {
        let text = text.replace("EXECUTOR", executor);
        let (ended, ran) = refused(&text);
        if ended.status == 5 {
            assert!(!ran);
            println!("skipped: {}", ended.stderr);
            continue;
        }
        let (_, report) = run(&text, &[]);
        let update = &report["guarantee"]["updates"][0];
        assert_eq!(number(update, "elements"), ELEMENTS, "{report:#}");
        let [found] = update["plugin"].as_array().unwrap().as_slice() else {
            panic!("{update:#}");
        };
        assert_eq!(number(&found["results"], "late"), ELEMENTS - 1, "{found:#}");
    }
}

/// From each element of `eager` to the next.
const DISTANCE: &str =
    "metric distance\nevent next = user:eager\nstate idle out\nstate first begin\n\
    state between in\nstate done end\nidle -> first: next, i\nfirst -> between: lambda\n\
    between -> done: next, i\ndone -> idle: lambda\n";

#[test]
fn metric_is_equal_under_each_executor() {
    let _alone = alone();
    let folder = folder();
    let metric = folder.path().join("distance.metric");
    std::fs::write(&metric, DISTANCE).unwrap();
    let text = FILE.replace(
        "field = \"number\"",
        &format!("metric = \"{}\"", path(&metric)),
    );
    let text = format!("{text}\n    [[metric]]\n    file = \"{}\"\n", path(&metric));
    for executor in ["auto", "bandwidth", "buffered", "best_effort", "idle"] {
        let text = text.replace("EXECUTOR", executor);
        let (ended, ran) = refused(&text);
        if ended.status == 5 {
            assert!(!ran);
            println!("skipped: {}", ended.stderr);
            continue;
        }
        keeps(|| {
            let ((_, report), machine) = witnessed(|| run(&text, &[]));
            let update = &report["guarantee"]["updates"][0];
            let seen = number(update, "elements") + number(update, "missed");
            assert!(seen >= ELEMENTS, "{report:#}");
            is_complete(&report, &machine)?;
            // The run measures the same metric of the same elements.
            let measured = &report["metrics"]["metrics"][0]["tasks"][0];
            assert_eq!(update["values"]["count"], ELEMENTS / 2, "{report:#}");
            for key in ["count", "min", "max"] {
                let own = match key {
                    "count" => measured["count"].clone(),
                    key => measured[format!("{key}_ns")].clone(),
                };
                assert_eq!(update["values"][key], own, "{report:#}");
            }
            Ok(())
        });
    }
    for (other, words) in [
        ("metric = \"run_delay\"", "requires kernel:sched_wake"),
        ("metric = \"nonsense\"", "there is no system metric"),
        ("metric = \"run_delay\"\nfield = \"number\"", "give one of"),
    ] {
        let text = FILE
            .replace("EXECUTOR", "auto")
            .replace("field = \"number\"", other);
        let (ended, ran) = refused(&text);
        assert_eq!((ended.status, ran), (2, false), "{ended:#?}");
        assert!(ended.stderr.contains("update `numbers`: "), "{ended:#?}");
        assert!(ended.stderr.contains(words), "{ended:#?}");
    }
}

#[test]
fn updates_of_one_file_have_executors_of_their_own() {
    let _alone = alone();
    let more = r#"
    [[update]]
    name = "buffered"
    executor = "buffered"
    field = "number"
    [[update]]
    name = "free"
    executor = "best_effort"
    latency = "5ms"
    "#;
    let text = FILE.replace("EXECUTOR", "auto") + more;
    let (ended, ran) = refused(&text);
    if !ran {
        assert!(matches!(ended.status, 4 | 5), "{ended:#?}");
        println!("skipped: {}", ended.stderr);
        return;
    }
    // A reservation of this file for another update is not foreign to the guarantee.
    keeps(|| {
        let ((ended, report), machine) = witnessed(|| run(&text, &[]));
        let guarantee = &report["guarantee"];
        let updates = guarantee["updates"].as_array().unwrap();
        let executors: Vec<&str> = updates
            .iter()
            .map(|update| update["executor"].as_str().unwrap())
            .collect();
        let first = guarantee["executor"].as_str().unwrap();
        assert_eq!(executors, [first, "buffered", "best_effort"], "{ended:#?}");
        for update in updates {
            let seen = number(update, "elements") + number(update, "missed");
            assert_eq!(seen, ELEMENTS, "{guarantee:#}");
        }
        assert_eq!(number(&updates[2], "requested_latency_ns"), 5_000_000);
        match first {
            "deadline" => is_held(&report, &machine),
            _ => lacks_guarantee(&ended, &machine),
        }
    });
}

#[test]
fn guarantee_covers_all_admitted_sensors_of_a_pattern() {
    let _alone = alone();
    let one = FILE.replace("EXECUTOR", "auto").replace("eager", "eag*");
    let two = one.replace("\"eag*\"", "\"eag*\"\n    count = 2");
    for (text, counted) in [(&one, 1), (&two, 2)] {
        keeps(|| {
            let options = ["--kernel", "off"];
            let program = [path(program()), "twins", "200"];
            let ((ended, report), machine) = witnessed(|| run_of(text, &options, &program));
            let guarantee = &report["guarantee"];
            if guarantee["executor"] == "best_effort" {
                return lacks_guarantee(&ended, &machine);
            }
            let sensor = &guarantee["sensors"][0];
            let names = sensor["sensors"].as_array().unwrap();
            assert_eq!(names.len(), counted, "{guarantee:#}");
            let seen = number(sensor, "elements") + number(sensor, "missed");
            assert_eq!(seen, 200 * counted as u64, "{guarantee:#}");
            if guarantee["begun_ns"] == Value::Null || counted == 2 {
                return is_held(&report, &machine);
            }
            let uncounted = |it: &&str| it.contains("admission did not count");
            assert!(messages(guarantee).iter().any(uncounted), "{guarantee:#}");
            Ok(())
        });
    }
}

#[test]
fn large_elements_are_evaluated_in_place_by_plug_ins_that_can() {
    let _alone = alone();
    let folder = folder();
    let text = FILE
        .replace("eager", "frame")
        .replace("EXECUTOR", "best_effort");
    for (compiler, standard, ending) in [("gcc", "-std=c11", "c"), ("g++", "-std=c++17", "cpp")] {
        let source = format!("examples/updates/bright_frames.{ending}");
        let library = folder.path().join(format!("{ending}.so"));
        let Some(plugin) = plugin(compiler, standard, &source, &library) else {
            continue;
        };
        let line = format!("plugin = \"{}\"", path(&plugin));
        let text = text.replace("field = \"number\"", &line);
        keeps(|| {
            let program = [path(program()), "film", "60"];
            let ((_, report), machine) =
                witnessed(|| run_of(&text, &["--kernel", "off"], &program));
            let update = &report["guarantee"]["updates"][0];
            let [found] = update["plugin"].as_array().unwrap().as_slice() else {
                panic!("{report:#}");
            };
            let missed = number(&report["guarantee"], "missed");
            let results = &found["results"];
            let (frames, bright) = (number(results, "frames"), number(results, "bright"));
            assert_eq!(frames + missed, 60, "{report:#}");
            assert_eq!(number(results, "in_place"), frames, "{report:#}");
            assert_eq!(number(update, "elements"), frames, "{report:#}");
            is_complete(&report, &machine)?;
            assert_eq!(bright, 30, "{report:#}");
            Ok(())
        });
    }
}

#[test]
fn share_of_a_cpu_evaluates_everything_that_fits() {
    let _alone = alone();
    let text = FILE.replace("EXECUTOR", "bandwidth");
    let (ended, ran) = refused(&text);
    if ended.status == 5 {
        assert!(!ran && ended.stderr.contains("cap_sys_nice"), "{ended:#?}");
        println!("skipped: {}", ended.stderr);
        return;
    }
    keeps(|| {
        let ((ended, report), machine) = witnessed(|| run(&text, &[]));
        let guarantee = &report["guarantee"];
        let executor = (&guarantee["executor"], &guarantee["verdict"]);
        assert_eq!(executor, (&"bandwidth".into(), &Value::Null));
        let elements = number(&guarantee["sensors"][0], "elements");
        assert_eq!(
            elements + number(guarantee, "missed"),
            ELEMENTS,
            "{guarantee:#}"
        );
        is_complete(&report, &machine)?;
        assert_eq!(ended.status, 0, "{ended:#?}");
        Ok(())
    });
}
