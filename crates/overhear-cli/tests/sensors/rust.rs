// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program in Rust: this test binary, started once more.

use overhear::{Element, Nanos, Rate, Sensor};

use overhear_directory::SOCKET_VARIABLE;

use crate::program::number;
use crate::support::{folder, path, run_json};

/// Variable that makes this binary the program; its value is the file of the program's results.
const REPORT: &str = "OVERHEAR_TEST_RUST_PROGRAM";

#[derive(Element)]
#[repr(C)]
struct Depth {
    #[field(unit = "requests")]
    requests: u64,
    #[field(unit = "ns")]
    waiting_ns: u64,
}

/// Not a test: the program.
#[test]
#[ignore = "started by the other tests"]
fn program_in_rust() {
    let Some(report) = std::env::var_os(REPORT) else {
        return;
    };
    let ms = Nanos::from_ms;
    let builder = || Sensor::<Depth>::builder("queue").instance("disk");
    let mut sensor = builder()
        .rate(Rate::new(ms(1), Nanos::from_us(100), ms(3)).unwrap())
        .register()
        .unwrap();
    let mut messages = vec![sensor.is_connected().to_string()];
    for requests in 0..100 {
        let waiting_ns = requests * 1_000;
        sensor.write(&Depth {
            requests,
            waiting_ns,
        });
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let twin = builder().register().unwrap();
    messages.push(twin.not_connected_reason().unwrap_or("heard").to_string());
    // Sensors may move to other threads; dropping releases the name.
    std::thread::spawn(move || drop(sensor)).join().unwrap();
    let mut again = builder().register().unwrap();
    again.write(&Depth {
        requests: 7,
        waiting_ns: 0,
    });
    messages.push(again.not_connected_reason().unwrap_or("heard").to_string());
    messages.push(registers_late().to_string());
    std::fs::write(report, messages.join("\n")).unwrap();
}

/// A sensor that finds the directory at its second attempt.
fn registers_late() -> bool {
    let element = |requests| Depth {
        requests,
        waiting_ns: 0,
    };
    let directory = std::env::var_os(SOCKET_VARIABLE).unwrap();
    std::env::set_var(SOCKET_VARIABLE, "");
    let mut late = Sensor::<Depth>::builder("late").register().unwrap();
    late.write(&element(1));
    assert!(!late.register_again().unwrap());
    late.write(&element(2));
    std::env::set_var(SOCKET_VARIABLE, directory);
    let is_connected = late.register_again().unwrap();
    for requests in 3..8 {
        late.write(&element(requests));
    }
    is_connected && late.not_connected_reason().is_none()
}

#[test]
fn rust_program_is_read() {
    let folder = folder();
    let file = folder.path().join("said");
    let here = std::env::current_exe().unwrap();
    let variable = format!("{REPORT}={}", file.display());
    let (ended, report) = run_json(
        &["--kernel", "off"],
        &[
            "env",
            &variable,
            path(&here),
            "--exact",
            "rust::program_in_rust",
            "--ignored",
        ],
    );
    // One of its sensors is refused on purpose.
    assert_eq!(ended.status, 3, "{ended:#?}");
    let messages = std::fs::read_to_string(&file).unwrap();
    let messages: Vec<&str> = messages.lines().collect();
    assert_eq!(
        (messages[0], messages[2], messages[3]),
        ("true", "heard", "true")
    );
    assert!(
        messages[1].contains("has such a sensor already"),
        "{messages:?}"
    );
    let sensors = report["sensors"].as_array().unwrap();
    assert_eq!(sensors.len(), 3, "{sensors:?}");
    assert_eq!(sensors[2]["id"], "late");
    assert_eq!(number(&sensors[2], "elements"), 5);
    assert_eq!(sensors[2]["fields"][0]["min"].as_f64(), Some(3.0));
    assert_eq!(
        (
            number(&sensors[0], "elements"),
            number(&sensors[1], "elements")
        ),
        (100, 1)
    );
    assert_eq!(
        (&sensors[0]["id"], &sensors[0]["instance"]),
        (&"queue".into(), &"disk".into())
    );
    assert_eq!(number(&sensors[0]["declared"], "period_ns"), 1_000_000);
    assert_eq!(sensors[0]["fields"][1]["unit"], "ns");
    assert_eq!(sensors[0]["fields"][1]["max"].as_f64(), Some(99_000.0));
    assert_eq!(
        (&report["not_connected"], &report["complete"]),
        (&1.into(), &false.into())
    );
}
