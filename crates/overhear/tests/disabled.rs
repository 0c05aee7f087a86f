// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect of the feature `disable` on a program's sensors: no instruction for a write.

mod support;

use std::fs;

/// A program whose functions differ only in their writes.
const PROGRAM: &str = r#"
use overhear::{ConcurrentSensor, Element, LanedSensor, Sampler, Sensor};

#[derive(Element)]
#[repr(C)]
pub struct Sample { depth: u64, load: f64 }

type Sensors = (Sensor<Sample>, LanedSensor<Sample>, ConcurrentSensor<Sample>, Sampler<2>);

#[no_mangle]
pub fn nothing(_: &mut Sensors, _: u64) {}

#[no_mangle]
pub fn writes(sensors: &mut Sensors, depth: u64) {
    sensors.0.write(&Sample { depth, load: 0.5 });
}

#[no_mangle]
pub fn writes_laned(sensors: &mut Sensors, depth: u64) {
    let _ = sensors.1.write(&Sample { depth, load: 0.5 });
}

#[no_mangle]
pub fn begins_laned(sensors: &mut Sensors, depth: u64) {
    if let Ok(open) = sensors.1.begin() {
        let _ = open.commit(&Sample { depth, load: 0.5 });
    }
}

#[no_mangle]
pub fn writes_concurrent(sensors: &mut Sensors, depth: u64) {
    let _ = sensors.2.write(&Sample { depth, load: 0.5 });
}

#[no_mangle]
pub fn begins_concurrent(sensors: &mut Sensors, depth: u64) {
    if let Ok(open) = sensors.2.begin() {
        open.commit(&Sample { depth, load: 0.5 });
    }
}

#[no_mangle]
pub fn samples(sensors: &mut Sensors, _: u64) {
    sensors.3.sample();
}

#[no_mangle]
pub fn ends_job(sensors: &mut Sensors, _: u64) {
    drop(sensors.3.job());
    overhear::job_end();
}
"#;

/// The instructions of a function, without labels and directives.
fn instructions<'a>(assembly: &'a str, function: &str) -> Vec<&'a str> {
    // The compiler keeps one of several equal functions, and gives it the names of the others.
    let same = format!("{function} = ");
    let same = assembly.lines().find_map(|line| line.strip_prefix(&same));
    let label = format!("{}:", same.unwrap_or(function));
    let lines = assembly.lines().skip_while(|line| *line != label);
    let body = lines
        .skip(1)
        .take_while(|line| !line.starts_with(".Lfunc_end"));
    body.map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with(['.', '#']) && !line.ends_with(':'))
        .collect()
}

#[test]
fn disabled_sensor_leaves_no_instruction() {
    let package = support::package("disabled", ", features = [\"disable\"]");
    fs::write(package.join("src/lib.rs"), PROGRAM).unwrap();
    let file = package.join("disabled.s");
    let emit = format!("--emit=asm={}", file.display());
    let output = support::cargo(&package, "rustc")
        .args(["--lib", "--quiet", "--", &emit])
        .args(["-Copt-level=3", "-Ccodegen-units=1"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let assembly = fs::read_to_string(file).unwrap();
    let nothing = instructions(&assembly, "nothing");
    assert_eq!(nothing.len(), 1, "a return: {nothing:?}");
    for function in [
        "writes",
        "writes_laned",
        "begins_laned",
        "writes_concurrent",
        "begins_concurrent",
        "samples",
        "ends_job",
    ] {
        assert_eq!(instructions(&assembly, function), nothing, "{function}");
    }
}
