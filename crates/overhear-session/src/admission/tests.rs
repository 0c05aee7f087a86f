// SPDX-License-Identifier: MIT OR Apache-2.0
use std::path::Path;

use overhear_admission::DeadlineReservation;
use overhear_event::Nanos;

use super::{decide, Admitted, Machine, ResolvedMonitor};
use crate::config::Config;

fn machine(present: &[(u64, u64)]) -> Machine {
    let present = present
        .iter()
        .map(|&(runtime, period)| DeadlineReservation {
            runtime: Nanos::from_ms(runtime),
            deadline: Nanos::from_ms(period),
            period: Nanos::from_ms(period),
        });
    Machine {
        cpus: 2,
        present: present.collect(),
    }
}

fn plan(config: &Config, base: &Path, machine: &Machine) -> Result<Admitted, String> {
    let monitor = ResolvedMonitor::of(config, base, machine, &[]);
    monitor
        .map(|monitor| decide(&monitor))
        .map_err(|error| error.to_string())
}

const TWO_SENSORS: &str = r#"
    [monitor]
    latency = "50ms"
    [[sensor]]
    id = "queue"
    period = "1ms"
    distance = "50us"
    jitter = "5ms"
    [[sensor]]
    id = "torque"
    period = "40us"
    jitter = "3ms"
    [[update]]
    name = "histogram"
    wcet = "2us"
    [[update]]
    name = "alarm"
    sensors = ["torque"]
    wcet = "500ns"
"#;

#[test]
fn accepted_plan_adds_up() {
    let config = Config::parse(TWO_SENSORS).unwrap();
    let admitted = plan(&config, Path::new(""), &machine(&[])).unwrap();
    let (report, terms) = (admitted.report, admitted.terms.unwrap());
    assert!(report.accepted, "{}", report.reason);
    assert!(report.latency_ns.unwrap() <= 50_000_000);
    assert_eq!(terms.reservation.period.as_ns(), report.period_ns.unwrap());
    let [queue, torque] = report.sensors.as_slice() else {
        panic!("two sensors");
    };
    assert_eq!((queue.wcet_ns, torque.wcet_ns), (2_000, 2_500));
    assert_eq!(queue.burst_length, Some(6));
    let r = [queue.r.unwrap(), torque.r.unwrap()];
    let copies = [queue.copies.unwrap(), torque.copies.unwrap()];
    let evaluations = r[0] * 2_000 + r[1] * 2_500;
    // The last update of a period may be the longest one.
    let excess = 2_500 - 1;
    let copying = (copies[0] + copies[1]) * 200;
    let runtime = report.runtime_ns.unwrap();
    let least = 20_000 + evaluations + excess + copying;
    assert!(runtime >= least, "{report:?}");
    // It was computed for an earlier period of the iteration, which needed no less.
    assert!(runtime <= least + least / 2, "{report:?}");
    // All elements that arrive between two readings are copied.
    let span = terms.reservation.period.plus(terms.reservation.deadline);
    let arriving = terms.sensors[1].constraint.elements_within(span.into());
    assert!(u128::from(copies[1]) >= arriving, "{report:?}");
    for sensor in &report.sensors {
        assert!(sensor.backlog.unwrap() <= sensor.buffer_elements);
        assert!(sensor.latency_ns.unwrap() <= 50_000_000);
    }
}

/// The result for `TWO_SENSORS` with these replacements.
fn admitted_with(replaced: &[(&str, &str)]) -> Result<Admitted, String> {
    let mut text = TWO_SENSORS.to_string();
    for (from, to) in replaced {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    let config = Config::parse(&text).unwrap();
    plan(&config, Path::new(""), &machine(&[]))
}

#[test]
fn several_sensors_of_one_entry_are_admitted_one_by_one() {
    let one = admitted_with(&[]).unwrap().report;
    let three = admitted_with(&[("id = \"queue\"", "id = \"queue*\"\ncount = 3")]).unwrap();
    let (three, terms) = (three.report, three.terms.unwrap());
    assert_eq!((three.sensors[0].count, terms.sensors[0].count), (3, 3));
    assert_eq!(three.sensors.len(), 2);
    // It costs as much as three equal entries.
    let queue = TWO_SENSORS.split("[[sensor]]").nth(1).unwrap();
    let twins = ["queue2", "queue3"].map(|id| format!("[[sensor]]{}", queue.replace("queue", id)));
    let separate = admitted_with(&[(
        "[[update]]\n    name = \"histogram\"",
        &format!("{}[[update]]\n    name = \"histogram\"", twins.concat()),
    )]);
    let separate = separate.unwrap().report;
    assert_eq!(three.runtime_ns, separate.runtime_ns);
    assert_eq!(three.memory_bytes, separate.memory_bytes);
    assert!(three.utilisation > one.utilisation);
    assert!(three.memory_bytes > one.memory_bytes);
    let message = admitted_with(&[("id = \"queue\"", "id = \"queue\"\ncount = 0")]).unwrap_err();
    assert!(
        message.contains("sensor `queue`: its count is 0"),
        "{message}"
    );
}

#[test]
fn least_latency_of_the_updates_is_kept() {
    let alarm = |latency: &str| {
        admitted_with(&[(
            "wcet = \"500ns\"",
            &format!("wcet = \"500ns\"\nlatency = \"{latency}\""),
        )])
    };
    let report = alarm("20ms").unwrap().report;
    assert_eq!(report.requested_latency_ns, 20_000_000);
    let guaranteed = report.latency_ns.unwrap();
    assert!(guaranteed <= 20_000_000);
    for (update, requested) in report.updates.iter().zip([50_000_000, 20_000_000]) {
        assert_eq!(
            (update.requested_latency_ns, update.latency_ns),
            (Some(requested), Some(guaranteed))
        );
    }
    let hasty = alarm("2500us").unwrap().report;
    assert!(!hasty.accepted);
    assert!(
        hasty
            .reason
            .starts_with("update `alarm`: `latency` is 2.50 ms"),
        "{}",
        hasty.reason
    );
    let message = alarm("1ms").unwrap_err();
    assert!(
        message.starts_with("update `alarm`: `latency` is "),
        "{message}"
    );
}

#[test]
fn each_executor_reserves_for_its_own_updates() {
    let shared = ("[monitor]", "[monitor]\n level = \"shared\"");
    let histogram = "wcet = \"2us\"";
    let run = |executor: &str| {
        admitted_with(&[
            shared,
            (
                histogram,
                &format!("executor = \"{executor}\"\n {histogram}"),
            ),
        ])
    };
    let alone = admitted_with(&[shared]).unwrap().report;
    for executor in ["best_effort", "bandwidth", "buffered"] {
        let report = run(executor).unwrap().report;
        assert!(report.accepted, "{executor}: {}", report.reason);
        // The alarm alone is guaranteed, with its sensor alone.
        let [queue, torque] = report.sensors.as_slice() else {
            panic!("two sensors");
        };
        assert_eq!((queue.count, queue.r, torque.count), (0, None, 1));
        assert_eq!(torque.wcet_ns, 500);
        assert!(report.utilisation < alone.utilisation);
        let [histogram, alarm] = report.updates.as_slice() else {
            panic!("two updates");
        };
        assert_eq!((histogram.executor, histogram.latency_ns), (executor, None));
        assert_eq!(alarm.latency_ns, report.latency_ns);
        assert_eq!(report.copying.is_some(), executor == "buffered");
    }
    // The cost of copying follows from the `copy` of the sensors, and admission has the same rules.
    let copying = run("buffered").unwrap().report.copying.unwrap();
    assert!(
        copying.latency_ns <= 50_000_000 && copying.utilisation < 0.1,
        "{copying:?}"
    );
    // The guaranteed updates would not be alone on their CPU.
    for executor in ["bandwidth", "buffered"] {
        let own = admitted_with(&[(
            histogram,
            &format!("executor = \"{executor}\"\n {histogram}"),
        )]);
        let message = own.unwrap_err();
        assert!(message.contains("dedicated_cpu"), "{message}");
    }
    // Their reservations count at the shared level.
    let crowded = admitted_with(&[
        (
            "[monitor]",
            "[monitor]\n level = \"shared\"\n cpus = 1\n cpu_percent = 95",
        ),
        (histogram, "executor = \"bandwidth\"\n wcet = \"2us\""),
    ]);
    assert!(!crowded.unwrap().report.accepted);
}

#[test]
fn elements_in_place_must_fit_into_the_buffer() {
    let torque = "jitter = \"3ms\"";
    let alarm = "wcet = \"500ns\"";
    let place = |buffer: u64, in_place: bool| {
        let sensor = format!("{torque}\n payload = 1000\n buffer = {buffer}");
        admitted_with(&[
            (torque, &sensor),
            (alarm, &format!("{alarm}\n in_place = {in_place}")),
        ])
    };
    // With copies, few elements must fit into the buffer.
    let copied = place(300, false).unwrap().report;
    assert!(copied.accepted, "{}", copied.reason);
    let refused = place(300, true).unwrap().report;
    assert!(!refused.accepted);
    let (_, wanted) = refused.reason.split_once("must hold the ").unwrap();
    let wanted: u64 = wanted.split(' ').next().unwrap().parse().unwrap();
    // The elements that can arrive within the latency: 50 ms at 40 us, and the early ones.
    assert!((301..=1_400).contains(&wanted), "{}", refused.reason);
    let admitted = place(1_400, true).unwrap().report;
    assert!(admitted.accepted, "{}", admitted.reason);
    assert_eq!(
        (admitted.sensors[1].in_place, admitted.sensors[1].copies),
        (true, Some(0))
    );
    // Small elements are always copied.
    let message = admitted_with(&[(alarm, &format!("{alarm}\n in_place = true"))]).unwrap_err();
    assert!(
        message.contains("update `alarm` evaluates in place"),
        "{message}"
    );
}

#[test]
fn refusals_have_a_hint() {
    let of = |text: &str, present: &[(u64, u64)]| {
        let config = Config::parse(text).unwrap();
        plan(&config, Path::new(""), &machine(present))
            .unwrap()
            .report
    };
    let hasty = of(&TWO_SENSORS.replace("50ms", "2500us"), &[]);
    assert!(!hasty.accepted && hasty.period_ns.is_none());
    let (_, wanted) = hasty.reason.split_once("a latency of ").unwrap();
    let latency = wanted.split(" would").next().unwrap();
    let patient = of(&TWO_SENSORS.replace("50ms", latency), &[]);
    assert!(patient.accepted, "{}", hasty.reason);
    let dear = of(&TWO_SENSORS.replace("500ns", "50us"), &[]);
    assert!(
        dear.reason.contains("of a CPU in the mean"),
        "{}",
        dear.reason
    );
    // Two CPUs with others on them: the shared level counts them, the exclusive one does not.
    let shared = TWO_SENSORS.replace("[monitor]", "[monitor]\n level = \"shared\"");
    assert!(of(&shared, &[]).accepted);
    let crowded = of(&shared, &[(17, 20), (6, 20)]);
    assert!(crowded.reason.contains("Goossens"), "{}", crowded.reason);
    assert!(of(TWO_SENSORS, &[(17, 20), (6, 20)]).accepted);
}

#[test]
fn mistakes_name_the_entry() {
    for (from, to, part) in [
        ("period = \"1ms\"", "period = \"0s\"", "sensor `queue`: "),
        (
            "distance = \"50us\"",
            "distance = \"2ms\"",
            "sensor `queue`: ",
        ),
        ("period = \"40us\"", "", "sensor `torque`: it has no period"),
        (
            "[\"torque\"]",
            "[\"talk\"]",
            "update `alarm` takes sensor `talk`",
        ),
        ("id = \"torque\"", "id = \"queue\"", "is listed twice"),
        (
            "latency = \"50ms\"",
            "latency = \"50ms\"\nlevel = \"shared\"\ndedicated_cpu = 1",
            "dedicated_cpu sets a CPU apart",
        ),
        (
            "period = \"40us\"\n    jitter = \"3ms\"",
            "fitted = \"nowhere\"",
            "sensor `torque`: ",
        ),
    ] {
        let text = TWO_SENSORS.replace(from, to);
        assert_ne!(text, TWO_SENSORS, "{from}");
        let config = Config::parse(&text).unwrap();
        let message = plan(&config, Path::new("/none"), &machine(&[])).unwrap_err();
        assert!(message.contains(part), "{message}");
    }
    let config = Config::parse("[monitor]\nlatency = \"1s\"\n").unwrap();
    let message = plan(&config, Path::new(""), &machine(&[])).unwrap_err();
    assert!(message.contains("[[sensor]]"), "{message}");
}
