// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear response-times`, from a file and a recording to response times and exit statuses.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use overhear_event::kernel::events::{
    irq_schema, lock_schema, page_fault_schema, schedule_schema, syscall_schema, timer_schema, IRQ,
    LOCK, PAGE_FAULT, SCHEDULE, SYSCALL, TIMER,
};
use overhear_event::kernel::{Life, Switch, Wake, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE};
use overhear_event::{Analysis, ElementView, Gap, GapCause, Timestamp};
use overhear_trace::{TraceIdentity, TraceWriter};
use serde_json::Value;

use crate::metrics::{stream, switch, wake, TID};
use crate::support::{finish, folder, overhear, path};

/// Further kernel sensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extra {
    Nothing,
    /// All sensors for system times. All but 899 us of a job is in a system call, and the return
    /// from that of the longest job is missed.
    Calls,
    /// Locks: from 10 us to 310 us a thread called `low` has the priority of `control`.
    Locks,
    /// Wake-ups in a stream without the thread.
    Unfit,
    /// More threads than the limit, each in a job.
    Crowd,
}

/// A thread `control` with 50 jobs of 1 ms and 10 us more each time. The end of a `missed` job is
/// not recorded.
fn record(dir: &Path, missed: Option<u64>, extra: Extra) {
    let mut streams = vec![
        stream(1, SCHED_SWITCH, Switch::schema()),
        stream(2, SCHED_WAKE, Wake::schema()),
        stream(3, TASK_LIFE, Life::schema()),
    ];
    match extra {
        Extra::Calls => streams.extend([
            stream(4, SYSCALL, syscall_schema()),
            stream(5, SCHEDULE, schedule_schema()),
            stream(6, TIMER, timer_schema()),
            stream(7, PAGE_FAULT, page_fault_schema()),
            stream(8, IRQ, irq_schema()),
        ]),
        Extra::Locks => streams.push(stream(4, LOCK, lock_schema())),
        Extra::Unfit => streams.push(stream(4, SCHED_WAKE, Switch::schema())),
        Extra::Nothing | Extra::Crowd => {}
    }
    let mut writer = TraceWriter::create(dir, TraceIdentity::default()).unwrap();
    for stream in &streams {
        writer.open(&Arc::new(stream.clone())).unwrap();
    }
    let mut sequences = [0; 8];
    let mut write = |index: usize, us: u64, payload: &[u8]| {
        let time = Timestamp::from_monotonic_ns(us * 1_000);
        // Elements are missing before the next switch, and before the last call.
        let is_behind_gap = match index {
            0 => missed.is_some_and(|job| us == (job + 1) * 10_000 + 5),
            _ => index == 3 && us == 501_200,
        };
        if is_behind_gap {
            let gap = Gap {
                stream: streams[index].id,
                first: sequences[index],
                missed: 1,
                from: Timestamp::from_monotonic_ns((us - [10_000, 1_000][index / 3]) * 1_000),
                to: time,
                cause: GapCause::Overwritten,
            };
            Analysis::gap(&mut writer, &streams[index], &gap);
            sequences[index] += 1;
        }
        let element = ElementView {
            stream: &streams[index],
            sequence: sequences[index],
            time,
            payload,
        };
        Analysis::element(&mut writer, &element);
        sequences[index] += 1;
    };
    let named = |tid, name: &[u8]| {
        let mut comm = [0; 16];
        comm[..name.len()].copy_from_slice(name);
        let life = Life {
            tid,
            pid: TID,
            parent_tid: 0,
            parent_pid: 0,
            kind: Life::NAME,
            code: 0,
            cpu_ns: 0,
            comm,
        };
        life.to_payload()
    };
    write(2, 1, &named(TID, b"control"));
    if extra == Extra::Locks {
        write(2, 2, &named(LOW, b"low"));
    }
    write(0, 10, &switch(true, 0, 0));
    write(0, 20, &switch(false, 1, 10_000));
    if extra == Extra::Locks {
        write(3, 10, &lock(3));
        write(3, 310, &lock(4));
    }
    for job in 1..=50 {
        let begin = job * 10_000;
        write(1, begin, &wake(Wake::WAKING));
        write(1, begin + 1, &wake(Wake::WAKEUP));
        write(0, begin + 5, &switch(true, 0, 0));
        if extra == Extra::Calls {
            write(4, begin + 5, &scheduled());
            if job < 50 {
                write(3, begin + 100 + job * 10, &call(2));
            } else {
                write(3, begin + 1_200, &call(1));
            }
        }
        if missed != Some(job) {
            if extra == Extra::Calls {
                write(3, begin + 999 + job * 10, &call(1));
            }
            write(0, begin + 1_000 + job * 10, &switch(false, 1, 995_000));
        }
    }
    match extra {
        Extra::Unfit => write(3, 600_000, &switch(true, 0, 0)),
        Extra::Crowd => {
            for tid in 10_000..30_000 {
                let begin = 600_000 + u64::from(tid) * 4;
                let of = |mut payload: [u8; 24], place: usize| {
                    payload[place..place + 4].copy_from_slice(&u32::to_ne_bytes(tid));
                    payload
                };
                write(0, begin, &of(switch(false, 1, 0), 0));
                write(1, begin + 1, &of(wake(Wake::WAKING), 0));
                write(0, begin + 2, &of(switch(true, 0, 0), 4));
                write(0, begin + 3, &of(switch(false, 1, 0), 0));
            }
        }
        Extra::Nothing | Extra::Calls | Extra::Locks => {}
    }
    writer.finish().unwrap();
}

/// A thread below `control`.
const LOW: u32 = TID + 1;

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|it| it.to_ne_bytes()).collect()
}

/// The scheduler has let `control` go on.
fn scheduled() -> Vec<u8> {
    words(&[TID, TID, 2, 1, 0, 0])
}

/// `low` inherits the priority of `control` (3), or has its own again (4).
fn lock(kind: u32) -> Vec<u8> {
    words(&[LOW, TID, kind, 0, 0, 0, TID, 1])
}

/// A system call of `control` that begins (1) or ends (2).
fn call(kind: u32) -> Vec<u8> {
    words(&[TID, TID, 35, kind, 0, 0])
}

#[test]
fn computed_and_observed_response_times_are_in_one_table() {
    let folder = folder();
    let (dir, file) = (folder.path().join("out"), folder.path().join("tasks.toml"));
    record(&dir, None, Extra::Nothing);
    let rta = |wcet: &str, status: i32| -> Value {
        let text = format!(
            "[[task]]\nname = \"control\"\npriority = 9\nperiod = \"10ms\"\nwcet = \"{wcet}\"\n\
             job_system_time = \"100us\"\nsystem_blocking = \"0s\"\ndelay_until_wakeup = \"0s\"\n"
        );
        fs::write(&file, text).unwrap();
        let arguments = [
            "response-times",
            path(&dir),
            "--config",
            path(&file),
            "--json",
        ];
        let ended = finish(&mut overhear(&arguments));
        assert_eq!(ended.status, status, "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap()
    };
    let report = rta("1400us", 0);
    let task = &report["tasks"][0];
    assert_eq!(
        (&task["response_ns"], &task["jobs"]),
        (&1_500_000.into(), &50.into())
    );
    assert_eq!(
        (&task["observed_ns"], &task["exceeded"]),
        (&1_500_000.into(), &false.into())
    );
    // A job that took longer than computed: the file describes the program incorrectly.
    let report = rta("1300us", 1);
    assert_eq!(report["tasks"][0]["exceeded"], true);
    let report = rta("9950us", 1);
    assert_eq!(report["tasks"][0]["response_ns"], Value::Null);

    // The same without a recording, as text.
    let ended = finish(&mut overhear(&["response-times", "--config", path(&file)]));
    assert_eq!(ended.status, 1, "{ended:?}");
    assert!(ended.stdout.contains("MISSED"), "{ended:?}");
    assert!(ended.stdout.contains("job system time"), "{ended:?}");
    assert!(!ended.stdout.contains("count as nothing"), "{ended:?}");
    let bare = folder.path().join("bare.toml");
    let text = "[[task]]\nname = \"control\"\npriority = 9\nperiod = \"10ms\"\nwcet = \"1ms\"\n";
    fs::write(&bare, text).unwrap();
    let ended = finish(&mut overhear(&["response-times", "--config", path(&bare)]));
    let message =
        "does not give count as nothing: job_system_time, system_blocking, delay_until_wakeup";
    assert_eq!(ended.status, 0, "{ended:?}");
    assert!(ended.stdout.contains(message), "{ended:?}");
    // The wake-up of the job and the arrival on the CPU are elements of the task in its
    // measurement.
    let metric = ["metrics", path(&dir), "--metric", "response_time", "--json"];
    let longest = |options: &[&str]| {
        let ended = finish(&mut overhear(&[&metric, options].concat()));
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        report["metrics"][0]["tasks"][0]["max_ns"].as_u64().unwrap()
    };
    assert_eq!(longest(&[]) - longest(&["--element-cost", "1us"]), 2_000);
}

/// A job with a missed end seems to last until the end of the next one.
#[test]
fn missed_elements_exceed_no_bound() {
    let folder = folder();
    let file = folder.path().join("tasks.toml");
    let text = "[[task]]\nname = \"control\"\npriority = 9\nperiod = \"10ms\"\nwcet = \"1500us\"\n\
         job_system_time = \"0s\"\nsystem_blocking = \"0s\"\ndelay_until_wakeup = \"0s\"\n";
    fs::write(&file, text).unwrap();
    let rta = |name: &str, missed, damage: &dyn Fn(&Path)| -> Value {
        let dir = folder.path().join(name);
        record(&dir, missed, Extra::Nothing);
        damage(&dir);
        let arguments = [
            "response-times",
            path(&dir),
            "--config",
            path(&file),
            "--json",
        ];
        let ended = finish(&mut overhear(&arguments));
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(ended.status, 3, "{report:#}");
        report
    };
    let task = &rta("gap", Some(30), &|_| {})["tasks"][0];
    assert_eq!(task["exceeded"], false, "{task:#}");
    assert_eq!(
        (&task["observed_ns"], &task["jobs"]),
        (&1_500_000.into(), &49.into()),
        "{task:#}"
    );
    // After the readable switches there were more.
    fs::write(&file, text.replace("1500us", "1400us")).unwrap();
    let tear = |dir: &Path| {
        let switches = dir.join("trace/stream-1");
        let bytes = fs::read(&switches).unwrap();
        fs::write(&switches, [&bytes[..], &bytes[..9]].concat()).unwrap();
        // The recorder wrote one more element than is readable.
        let file = dir.join("trace/overhear/summary.json");
        let mut summary: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        summary["events"] = (summary["events"].as_u64().unwrap() + 1).into();
        summary.as_object_mut().unwrap().remove("checksum");
        fs::write(&file, summary.to_string()).unwrap();
    };
    let report = rta("torn", None, &tear);
    let task = &report["tasks"][0];
    assert_eq!(
        (&task["observed_ns"], &task["exceeded"]),
        (&1_500_000.into(), &false.into()),
        "{report:#}"
    );
    let notes = report["notes"].to_string();
    assert!(notes.contains("may not have exceeded R"), "{report:#}");
    // A killed recorder has not written its newest elements; their number is unknown.
    let kill = |dir: &Path| fs::remove_file(dir.join("trace/overhear/summary.json")).unwrap();
    let report = rta("killed", None, &kill);
    assert_eq!(report["tasks"][0]["exceeded"], false, "{report:#}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("the recorder did not finish"), "{report:#}");
}

/// A partly known overhead does not reduce R, and no job exceeds R then.
#[test]
fn overheads_that_are_not_completely_known_are_exceeded_by_nothing() {
    let folder = folder();
    let file = folder.path().join("tasks.toml");
    let rta = |extra, wcet: &str, given: &[&str], status: i32| -> Value {
        let mut text = format!(
            "[[task]]\nname = \"control\"\npriority = 9\nperiod = \"10ms\"\nwcet = \"{wcet}\"\n"
        );
        for overhead in given {
            text += &format!("{overhead} = \"0s\"\n");
        }
        fs::write(&file, text).unwrap();
        let dir = folder.path().join(format!("{extra:?}"));
        if !dir.exists() {
            record(&dir, None, extra);
        }
        let arguments = [
            "response-times",
            path(&dir),
            "--config",
            path(&file),
            "--json",
        ];
        let ended = finish(&mut overhear(&arguments));
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(ended.status, status, "{report:#}");
        report
    };
    let system_time = "job_system_time";
    let others = ["system_blocking", "delay_until_wakeup"];
    let all = [system_time, others[0], others[1]];
    // Its longest system time was missed: with it, R is 1.5 ms at least.
    let report = rta(Extra::Calls, "899us", &others, 3);
    let task = &report["tasks"][0];
    assert_eq!(
        (&task["job_system_time_ns"], &task["response_ns"]),
        (&586_000.into(), &1_485_000.into()),
        "{report:#}"
    );
    assert_eq!(
        (&task["observed_ns"], &task["exceeded"]),
        (&1_500_000.into(), &false.into()),
        "{report:#}"
    );
    let notes = report["notes"].to_string();
    assert!(
        notes.contains("overheads are not completely known"),
        "{report:#}"
    );
    assert!(!notes.contains("missed of its longest"), "{report:#}");
    // Without its sensor none is known; and a complete job is no system time.
    rta(Extra::Nothing, "1400us", &[system_time], 3);
    let report = rta(Extra::Nothing, "9ms", &others, 3);
    assert_eq!(report["tasks"][0]["response_ns"], 9_000_000, "{report:#}");
    // Other threads do not change the time of a completely recorded job, but that of an overhead.
    let report = rta(Extra::Crowd, "1400us", &all, 1);
    let notes = report["notes"].to_string();
    assert!(notes.contains("found no room"), "{report:#}");
    assert!(!notes.contains("may not have exceeded"), "{report:#}");
    // Unusable wake-ups may belong to its jobs.
    rta(Extra::Unfit, "1400us", &all, 3);
}

/// By hand: R = 1500 + ceil(R / 1000) 10 + 300 us, where `low` had the priority of `control` for
/// 300 us, and an interrupt comes every millisecond and takes 10 us.
#[test]
fn recorded_interrupts_and_locks_are_in_the_response_time() {
    let folder = folder();
    let (dir, file) = (folder.path().join("out"), folder.path().join("tasks.toml"));
    record(&dir, None, Extra::Locks);
    let rta = |blocking: &str, words: &[&str]| -> Value {
        let given =
            "job_system_time = \"0s\"\nsystem_blocking = \"0s\"\ndelay_until_wakeup = \"0s\"\n";
        let text = format!(
            "[[task]]\nname = \"tick\"\nthread = \"\"\npriority = 99\nperiod = \"1ms\"\nwcet = \"10us\"\n\
             [[task]]\nname = \"control\"\npriority = 9\nperiod = \"10ms\"\nwcet = \"1500us\"\n{given}{blocking}\
             [[task]]\nname = \"low\"\npriority = 1\nperiod = \"100ms\"\nwcet = \"1ms\"\n{given}"
        );
        fs::write(&file, text).unwrap();
        let arguments = [
            &[
                "response-times",
                path(&dir),
                "--config",
                path(&file),
                "--json",
            ],
            words,
        ]
        .concat();
        let ended = finish(&mut overhear(&arguments));
        // `low` has no job.
        assert_eq!(ended.status, 3, "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap()
    };
    let report = rta("", &[]);
    let [tick, control, low] = &report["tasks"].as_array().unwrap()[..] else {
        panic!("{report}");
    };
    assert_eq!(
        (&tick["jobs"], &tick["observed_ns"]),
        (&Value::Null, &Value::Null)
    );
    assert!(!report["notes"].to_string().contains("tick"), "{report}");
    assert_eq!(low["lock_blocking_ns"], 300_000);
    assert_eq!(
        (&control["blocking_ns"], &control["response_ns"]),
        (&300_000.into(), &1_820_000.into())
    );
    let report = rta("blocking = \"50us\"\n", &["--element-cost", "1us"]);
    let control = &report["tasks"][1];
    assert_eq!(control["response_ns"], 1_570_000);
    // Two elements of the longest job cost 1 us each.
    assert_eq!(control["observed_ns"], 1_498_000);
}

#[test]
fn compensated_times_are_shorter_by_the_costs_of_elements() {
    let folder = folder();
    let (dir, file) = (folder.path().join("out"), folder.path().join("tasks.toml"));
    record(&dir, None, Extra::Nothing);
    let text = "[[task]]\nname = \"control\"\npriority = 9\nperiod = \"10ms\"\nwcet = \"1600us\"\n\
         job_system_time = \"0s\"\nsystem_blocking = \"0s\"\ndelay_until_wakeup = \"0s\"\n";
    fs::write(&file, text).unwrap();
    let rta = |words: &[&str]| {
        let arguments = [
            &[
                "response-times",
                path(&dir),
                "--config",
                path(&file),
                "--json",
            ],
            words,
        ]
        .concat();
        finish(&mut overhear(&arguments))
    };
    rta(&["--compensate"]).has_message(2, &["there is no calibration"]);
    let both = rta(&["--compensate", "--element-cost", "1us"]);
    assert_eq!(both.status, 2, "{both:?}");
    let documents = dir.join("trace/overhear");
    fs::write(
        documents.join("calibration.json"),
        r#"{"kernel": [{"sensor": "sched_switch", "cost_per_event": {"mean_ns": 3000.0}}]}"#,
    )
    .unwrap();
    let observed = |words: &[&str]| {
        let ended = rta(words);
        assert_eq!(ended.status, 0, "{ended:?}");
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        report["tasks"][0]["observed_ns"].as_u64().unwrap()
    };
    // Its arrival on the CPU costs the job 3 us; the departure costs the next thread.
    assert_eq!(observed(&[]), 1_500_000);
    assert_eq!(observed(&["--compensate"]), 1_497_000);
}

#[test]
fn invalid_tasks_are_refused_with_their_location() {
    let folder = folder();
    let file = folder.path().join("tasks.toml");
    for (text, part) in [
        (
            "[[task]]\nname = \"a\"\npriority = 1\nperiod = \"0s\"\nwcet = \"1ms\"\n",
            "task `a` has a period of 0 ns",
        ),
        (
            "[[task]]\nname = \"a\"\npriority = 1\nperiod = \"1s\"\nwcet = 5\n",
            "line 5: ",
        ),
        ("[[taks]]\n", "`taks` needs a [monitor]"),
    ] {
        fs::write(&file, text).unwrap();
        let ended = finish(&mut overhear(&["response-times", "--config", path(&file)]));
        ended.has_only_message(2, &[path(&file), part]);
    }
}
