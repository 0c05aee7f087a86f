// SPDX-License-Identifier: MIT OR Apache-2.0
//! The examples of `examples/rust` run, also where nobody listens.

use std::process::{Command, Stdio};

#[test]
fn the_first_sensor_runs_unheard() {
    // Cargo builds the examples of a crate before it runs all of its tests.
    let here = std::env::current_exe().unwrap();
    let example = here
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples/hello_sensor");
    if !example.exists() {
        println!("skipped: the examples are not built; type `cargo build --examples -p overhear`");
        return;
    }
    let output = Command::new(example)
        .env("OVERHEAR_DIRECTORY", "")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.starts_with("not heard: no directory listens"),
        "{said}"
    );
}
