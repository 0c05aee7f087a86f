// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that writes elements and makes system calls until it is stopped. Then it writes the
//! begin of each of them to a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use overhear::{Element, Sensor};

use crate::support::eventually;

/// The variable with the folder that program and test share.
pub(crate) const FOLDER: &str = "OVERHEAR_KILLS_FOLDER";
/// A file that exists after the first element of the program,
pub(crate) const BEGUN: &str = "begun";
/// and a file that ends the program.
pub(crate) const STOP: &str = "stop";
const TIMES: &str = "times";

pub(crate) const SENSOR: &str = "counted";
/// The system call that goes with each element. No other part of the program makes it.
pub(crate) const CALL: i64 = libc::SYS_getpgid;

#[derive(Element)]
#[repr(C)]
struct Counted {
    number: u64,
}

/// The account of the program.
pub(crate) struct Account {
    /// The begin of each element, on `CLOCK_MONOTONIC`.
    pub(crate) times: Vec<u64>,
}

impl Account {
    /// Waits until the program has written it.
    pub(crate) fn awaited(folder: &Path) -> Self {
        let file = folder.join(TIMES);
        eventually("the program writes down what it did", || file.exists());
        let bytes = fs::read(file).unwrap();
        let times = bytes.as_chunks().0.iter().copied().map(u64::from_ne_bytes);
        Self {
            times: times.collect(),
        }
    }
}

/// `CLOCK_MONOTONIC` now.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Not a test: the program.
#[test]
#[ignore = "started by the other tests"]
fn program() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    // Without a directory the sensor is not connected: then the system calls count.
    let mut sensor = Sensor::<Counted>::builder(SENSOR).register().unwrap();
    let mut times = Vec::new();
    let begun = Instant::now();
    // A program whose test has died ends by itself.
    while begun.elapsed() < Duration::from_secs(60) {
        if times.len() % 16 == 1 && folder.join(STOP).exists() {
            break;
        }
        let number = times.len() as u64;
        times.push(now_ns());
        // SAFETY: a system call without memory.
        unsafe { libc::syscall(CALL, 0) };
        sensor.write(&Counted { number });
        if number == 0 {
            fs::write(folder.join(BEGUN), "").unwrap();
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    drop(sensor);
    let bytes: Vec<u8> = times.iter().flat_map(|time| time.to_ne_bytes()).collect();
    let temporary = folder.join("times.new");
    fs::write(&temporary, bytes).unwrap();
    fs::rename(temporary, folder.join(TIMES)).unwrap();
}
