// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear rta`, from a file and a recording to response times and exit statuses.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use overhear_event::kernel::events::{syscall_schema, SYSCALL};
use overhear_event::kernel::{Life, Switch, Wake, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE};
use overhear_event::{ElementView, Gap, GapCause, Timestamp, Update};
use overhear_trace::{TraceIdentity, TraceWriter};
use serde_json::Value;

use crate::metrics::{stream, switch, wake, TID};
use crate::support::{finish, folder, overhear, path};

/// What is heard besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Besides {
    Nothing,
    /// System calls. All but 900 us of a job is in one, and the return from that of the longest job is missed.
    Calls,
    /// Wake-ups in a stream that does not say whose they are.
    Unfit,
    /// More threads than find room, in a job each.
    Crowd,
}

/// A thread `control` with 50 jobs of 1 ms and 10 us more each time. The end of a `missed` job is told nobody.
fn record(dir: &Path, missed: Option<u64>, besides: Besides) {
    let mut streams = vec![
        stream(1, SCHED_SWITCH, Switch::schema()),
        stream(2, SCHED_WAKE, Wake::schema()),
        stream(3, TASK_LIFE, Life::schema()),
    ];
    match besides {
        Besides::Calls => streams.push(stream(4, SYSCALL, syscall_schema())),
        Besides::Unfit => streams.push(stream(4, SCHED_WAKE, Switch::schema())),
        Besides::Nothing | Besides::Crowd => {}
    }
    let mut writer = TraceWriter::create(dir, TraceIdentity::default()).unwrap();
    for stream in &streams {
        writer.open(&Arc::new(stream.clone())).unwrap();
    }
    let mut sequences = [0; 4];
    let mut write = |index: usize, us: u64, payload: &[u8]| {
        let time = Timestamp::from_monotonic_ns(us * 1_000);
        // Before the next switch something is missing, and before the last call.
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
            Update::gap(&mut writer, &streams[index], &gap);
            sequences[index] += 1;
        }
        let element = ElementView {
            stream: &streams[index],
            sequence: sequences[index],
            time,
            payload,
        };
        Update::element(&mut writer, &element);
        sequences[index] += 1;
    };
    let mut comm = [0; 16];
    comm[..7].copy_from_slice(b"control");
    let life = Life {
        tid: TID,
        pid: TID,
        parent_tid: 0,
        parent_pid: 0,
        kind: Life::NAME,
        code: 0,
        cpu_ns: 0,
        comm,
    };
    write(2, 1, &life.to_payload());
    write(0, 10, &switch(true, 0, 0));
    write(0, 20, &switch(false, 1, 10_000));
    for job in 1..=50 {
        let begin = job * 10_000;
        write(1, begin, &wake(Wake::WAKING));
        write(1, begin + 1, &wake(Wake::WAKEUP));
        write(0, begin + 5, &switch(true, 0, 0));
        if besides == Besides::Calls {
            if job < 50 {
                write(3, begin + 100 + job * 10, &call(2));
            } else {
                write(3, begin + 1_200, &call(1));
            }
        }
        if missed != Some(job) {
            write(0, begin + 1_000 + job * 10, &switch(false, 1, 995_000));
        }
    }
    match besides {
        Besides::Unfit => write(3, 600_000, &switch(true, 0, 0)),
        Besides::Crowd => {
            for tid in 10_000..15_000 {
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
        Besides::Nothing | Besides::Calls => {}
    }
    writer.finish().unwrap();
}

/// A system call of `control` that begins (1) or ends (2).
fn call(kind: u32) -> Vec<u8> {
    let numbers = [TID, TID, 35, kind, 0, 0];
    numbers.into_iter().flat_map(u32::to_ne_bytes).collect()
}

#[test]
fn computed_and_observed_response_times_stand_side_by_side() {
    let folder = folder();
    let (dir, file) = (folder.path().join("out"), folder.path().join("tasks.toml"));
    record(&dir, None, Besides::Nothing);
    let rta = |wcet: &str, status: i32| -> Value {
        let text = format!(
            "[[task]]\nname = \"control\"\npriority = 9\nperiod = \"10ms\"\nwcet = \"{wcet}\"\n\
             job_system_time = \"100us\"\nsystem_blocking = \"0s\"\ndelay_until_wakeup = \"0s\"\n"
        );
        fs::write(&file, text).unwrap();
        let arguments = ["rta", path(&dir), "--config", path(&file), "--json"];
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
    // A job that took longer than computed: the file is wrong about the program.
    let report = rta("1300us", 1);
    assert_eq!(report["tasks"][0]["exceeded"], true);
    let report = rta("9950us", 1);
    assert_eq!(report["tasks"][0]["response_ns"], Value::Null);

    // The same without a recording, as text.
    let ended = finish(&mut overhear(&["rta", "--config", path(&file)]));
    assert_eq!(ended.status, 1, "{ended:?}");
    assert!(ended.stdout.contains("MISSED"), "{ended:?}");
    assert!(ended.stdout.contains("job system time"), "{ended:?}");
    assert!(!ended.stdout.contains("count as nothing"), "{ended:?}");
    let bare = folder.path().join("bare.toml");
    let text = "[[task]]\nname = \"control\"\npriority = 9\nperiod = \"10ms\"\nwcet = \"1ms\"\n";
    fs::write(&bare, text).unwrap();
    let ended = finish(&mut overhear(&["rta", "--config", path(&bare)]));
    let sentence =
        "does not give count as nothing: job_system_time, system_blocking, delay_until_wakeup";
    assert_eq!(ended.status, 0, "{ended:?}");
    assert!(ended.stdout.contains(sentence), "{ended:?}");
    // The wake-up of the job and the arrival on the CPU are elements of the task in its measurement.
    let metric = ["metrics", path(&dir), "--metric", "response_time", "--json"];
    let longest = |options: &[&str]| {
        let ended = finish(&mut overhear(&[&metric, options].concat()));
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        report["metrics"][0]["tasks"][0]["max_ns"].as_u64().unwrap()
    };
    assert_eq!(longest(&[]) - longest(&["--element-cost", "1us"]), 2_000);
}

/// A job whose end was missed seems to last until the end of the next one.
#[test]
fn what_was_missed_exceeds_nothing() {
    let folder = folder();
    let file = folder.path().join("tasks.toml");
    let text = "[[task]]\nname = \"control\"\npriority = 9\nperiod = \"10ms\"\nwcet = \"1500us\"\n\
         job_system_time = \"0s\"\nsystem_blocking = \"0s\"\ndelay_until_wakeup = \"0s\"\n";
    fs::write(&file, text).unwrap();
    let rta = |name: &str, missed, damage: &dyn Fn(&Path)| -> Value {
        let dir = folder.path().join(name);
        record(&dir, missed, Besides::Nothing);
        damage(&dir);
        let arguments = ["rta", path(&dir), "--config", path(&file), "--json"];
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
    // Behind what can be read of the switches there was more.
    fs::write(&file, text.replace("1500us", "1400us")).unwrap();
    let tear = |dir: &Path| {
        let switches = dir.join("trace/stream-1");
        let bytes = fs::read(&switches).unwrap();
        fs::write(&switches, [&bytes[..], &bytes[..9]].concat()).unwrap();
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
    // Nor is it known what a recorder that was killed had not written yet.
    let kill = |dir: &Path| fs::remove_file(dir.join("trace/overhear/summary.json")).unwrap();
    let report = rta("killed", None, &kill);
    assert_eq!(report["tasks"][0]["exceeded"], false, "{report:#}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("the recorder did not finish"), "{report:#}");
}

/// What is not known of an overhead makes R no shorter than it is, and nothing exceeds it then.
#[test]
fn overheads_that_are_not_completely_known_are_exceeded_by_nothing() {
    let folder = folder();
    let file = folder.path().join("tasks.toml");
    let rta = |besides, wcet: &str, given: &[&str], status: i32| -> Value {
        let mut text = format!(
            "[[task]]\nname = \"control\"\npriority = 9\nperiod = \"10ms\"\nwcet = \"{wcet}\"\n"
        );
        for overhead in given {
            text += &format!("{overhead} = \"0s\"\n");
        }
        fs::write(&file, text).unwrap();
        let dir = folder.path().join(format!("{besides:?}"));
        if !dir.exists() {
            record(&dir, None, besides);
        }
        let arguments = ["rta", path(&dir), "--config", path(&file), "--json"];
        let ended = finish(&mut overhear(&arguments));
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(ended.status, status, "{report:#}");
        report
    };
    let system_time = "job_system_time";
    let others = ["system_blocking", "delay_until_wakeup"];
    let all = [system_time, others[0], others[1]];
    // Its longest system time was not seen: with that, R is 1.5 ms at least.
    let report = rta(Besides::Calls, "900us", &others, 3);
    let task = &report["tasks"][0];
    assert_eq!(
        (&task["job_system_time_ns"], &task["response_ns"]),
        (&585_000.into(), &1_485_000.into()),
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
    // Nor is any known that nobody listened for; and a whole job is no system time.
    rta(Besides::Nothing, "1400us", &[system_time], 3);
    let report = rta(Besides::Nothing, "9ms", &others, 3);
    assert_eq!(report["tasks"][0]["response_ns"], 9_000_000, "{report:#}");
    // Of a job that was seen wholly others take nothing away, of an overhead they do.
    let report = rta(Besides::Crowd, "1400us", &all, 1);
    let notes = report["notes"].to_string();
    assert!(notes.contains("found no room"), "{report:#}");
    assert!(!notes.contains("may not have exceeded"), "{report:#}");
    // Wake-ups that cannot be used may have been those of its jobs.
    rta(Besides::Unfit, "1400us", &all, 3);
}

#[test]
fn tasks_that_make_no_sense_are_refused_with_their_place() {
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
        let ended = finish(&mut overhear(&["rta", "--config", path(&file)]));
        ended.says_only(2, &[path(&file), part]);
    }
}
