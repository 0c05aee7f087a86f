// SPDX-License-Identifier: MIT OR Apache-2.0
//! Probes of a program compared with its calls, from the run to the table, the report and the
//! export.

use std::process::{Command, Output};

use serde_json::{json, Value};

use crate::harness::{called, cpu_lock, Backend, OVERHEAR};

/// The account of a kernel sensor.
fn of<'a>(report: &'a Value, id: &str) -> &'a Value {
    let all = report["kernel_sensors"].as_array().unwrap();
    let found = all.iter().find(|sensor| sensor["id"] == id);
    found.unwrap_or_else(|| panic!("{id}: {report:#}"))
}

fn overhear(arguments: &[&str]) -> Output {
    Command::new(OVERHEAR).args(arguments).output().unwrap()
}

#[test]
fn calls_of_a_probed_function_have_arguments_and_results() {
    let _cpus = cpu_lock();
    if !Backend::Bpf.works() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    let program = called().to_str().unwrap();
    let [call, back, never] = ["doubled", "doubled:return", "never"];
    let probes = [call, back, never].map(|function| format!("{program}:{function}"));
    let mut arguments = vec![
        "run",
        "--backend",
        "bpf",
        "--kernel-sensors",
        "ipc",
        "--out",
        out,
    ];
    for probe in &probes {
        arguments.extend(["--probe", probe]);
    }
    arguments.extend(["--", program]);
    let ended = overhear(&arguments);
    let messages = String::from_utf8_lossy(&ended.stderr);
    if ended.status.code() == Some(5) {
        return println!("skipped: {messages}");
    }
    // The report shows the requested probes at once.
    assert_eq!(ended.status.code(), Some(0), "{messages}");
    for part in ["kernel sensor", "probe/doubled#", "probe/never#"] {
        assert!(messages.contains(part), "{part}: {messages}");
    }

    let found = overhear(&["report", out, "--json"]);
    let report: Value = serde_json::from_slice(&found.stdout).unwrap();
    let first = |id: &str| of(&report, id)["fields"][0].clone();
    assert_eq!(of(&report, "probe/doubled")["elements"], 100);
    let argument = first("probe/doubled");
    assert_eq!(
        (
            &argument["name"],
            &argument["min"],
            &argument["max"],
            &argument["mean"]
        ),
        (
            &json!("argument_1"),
            &json!(0.0),
            &json!(99.0),
            &json!(49.5)
        )
    );
    assert_eq!(first("probe/doubled/return")["max"], json!(198.0));
    // A function that was never called was probed, too.
    assert_eq!(of(&report, "probe/never")["elements"], 0);
    let ipc: Vec<&str> = (of(&report, "ipc")["fields"].as_array().unwrap().iter())
        .map(|field| field["name"].as_str().unwrap())
        .collect();
    assert_eq!(ipc, ["bytes"], "ids have no statistics");

    let rows = |sensor: &str| {
        let arguments = [
            "export", out, "--to", "csv", "--output", "-", "--sensor", sensor,
        ];
        let exported = overhear(&arguments);
        let messages = String::from_utf8_lossy(&exported.stderr).into_owned();
        let rows = String::from_utf8_lossy(&exported.stdout).into_owned();
        (exported.status.code(), rows, messages)
    };
    let (_, rows_of_calls, messages) = rows("probe/doubled");
    let mut lines = rows_of_calls.lines();
    let heads = lines.next().unwrap_or_else(|| panic!("{messages}"));
    assert!(heads.contains("argument_1"), "{heads}");
    assert_eq!(lines.count(), 100);
    // In Perfetto each call is a slice with the function's name, because returns are recorded too.
    let arguments = ["export", out, "--to", "perfetto", "--output", "-"];
    let exported = overhear(&arguments).stdout;
    let slice = b"\xba\x01\x07doubled";
    let slices = exported.windows(slice.len()).filter(|at| at == slice);
    assert_eq!(slices.count(), 100);

    let (status, _, messages) = rows("probe/nothing");
    assert_eq!(status, Some(2));
    assert!(messages.contains("probe/doubled/return#"), "{messages}");
}
