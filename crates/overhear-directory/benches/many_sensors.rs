// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many sensors at once: the rate of registration, their cost for the directory in memory and
//! descriptors, and the time of a list and of an attachment. Then many lanes, each with a thread
//! that the directory watches: their cost, and the delay of registrations.
//!
//! `cargo bench -p overhear-directory --bench many_sensors [COUNT]...`
#![allow(missing_docs)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use overhear_directory::client::{register_at, Registration, SensorRequest};
use overhear_directory::{Begin, MonitorConnection, Query};
use overhear_event::{FieldKind, Nanos, Rate, TypeSchema, WriterKind};
use overhear_stream::sync::Ordering;
use overhear_stream::{Shape, Words};

fn main() {
    let counts: Vec<u32> = std::env::args()
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let counts = match counts.is_empty() {
        true => vec![1_000, 2_000, 5_000, 10_000],
        false => counts,
    };
    println!(
        "{:>8} {:>14} {:>12} {:>12} {:>12} {:>8} {:>10} {:>10} {:>10} {:>10}",
        "sensors",
        "registered/s",
        "its CPU each",
        "own memory",
        "buffers",
        "files",
        "list",
        "CPU",
        "attach",
        "CPU"
    );
    for &count in &counts {
        measure(count);
    }
    println!(
        "\n{:>8} {:>14} {:>12} {:>12} {:>12}",
        "lanes", "registered/s", "median", "longest", "CPU per s"
    );
    let most = counts.iter().max().copied().unwrap_or(0);
    for lanes in [0, most / LANES * LANES] {
        measure_lanes(lanes);
    }
}

/// Lanes of each sensor.
const LANES: u32 = 100;

/// Registers sensors while `lanes` lanes belong to threads; all of them are this thread.
fn measure_lanes(lanes: u32) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("directory.sock");
    let service = Service::start(&socket);
    let pools: Vec<Registration> = (0..lanes / LANES)
        .map(|number| {
            let request = SensorRequest {
                kind: WriterKind::Laned,
                lanes: LANES,
                ..request(&format!("pool {number}"))
            };
            register_at(&socket, request).unwrap()
        })
        .collect();
    let owner = u64::from(std::process::id()) | 1 << 32;
    for registration in &pools {
        let Shape::Laned(pool) = &registration.shape else {
            panic!("not laned: {:?}", registration.shape);
        };
        // SAFETY: the registration keeps the map.
        let words = unsafe { registration.mapping.words() };
        for lane in 0..pool.lanes() {
            let word = words.word((pool.lane_offset(lane) + 160) / 8);
            word.store(owner, Ordering::Release);
        }
    }
    let (begun, cpu) = (Instant::now(), service.cpu());
    while begun.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let idle = (service.cpu() - cpu).as_secs_f64() / begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let mut sensors = Vec::new();
    let mut each: Vec<Duration> = (0..2_000)
        .map(|number| {
            let begun = Instant::now();
            sensors.push(register(&socket, number));
            begun.elapsed()
        })
        .collect();
    let took = begun.elapsed();
    each.sort_unstable();
    println!(
        "{:>8} {:>14.0} {:>9.2} ms {:>9.2} ms {:>9.1} ms",
        lanes,
        each.len() as f64 / took.as_secs_f64(),
        each[each.len() / 2].as_secs_f64() * 1e3,
        each[each.len() - 1].as_secs_f64() * 1e3,
        idle * 1e3,
    );
}

fn measure(count: u32) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("directory.sock");
    let service = Service::start(&socket);
    let (begun, cpu) = (Instant::now(), service.cpu());
    let sensors: Vec<Registration> = (0..count).map(|n| register(&socket, n)).collect();
    let took = begun.elapsed();
    // The rate depends on the other load of the machine; the CPU time does so less.
    let cpu = service.cpu() - cpu;
    // CPU time of both sides, without the time that each waits for the other.
    let spent = || service.cpu() + cpu_of(std::process::id());
    let connect = || MonitorConnection::connect(&socket).unwrap();
    let (begun, before) = (Instant::now(), spent());
    let listed = connect().list(&Query::all()).unwrap();
    let (list, list_cpu) = (begun.elapsed(), spent() - before);
    assert_eq!(listed.len(), sensors.len());
    let (begun, before) = (Instant::now(), spent());
    let source = connect().attach(Query::all(), Begin::Now).unwrap();
    let (attach, attach_cpu) = (begun.elapsed(), spent() - before);
    assert_eq!(source.sensors(), sensors.len());
    let buffers: u64 = listed.iter().map(|sensor| sensor.bytes).sum();
    println!(
        "{:>8} {:>14.0} {:>9.0} us {:>8.1} MiB {:>8.1} MiB {:>8} {:>7.1} ms {:>7.1} ms \
         {:>7.1} ms {:>7.1} ms",
        count,
        f64::from(count) / took.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / f64::from(count),
        service.own_kib() as f64 / 1024.0,
        buffers as f64 / (1 << 20) as f64,
        service.files(),
        list.as_secs_f64() * 1e3,
        list_cpu.as_secs_f64() * 1e3,
        attach.as_secs_f64() * 1e3,
        attach_cpu.as_secs_f64() * 1e3,
    );
}

fn register(socket: &Path, number: u32) -> Registration {
    register_at(socket, request(&format!("sensor {number}"))).unwrap()
}

fn request(sensor: &str) -> SensorRequest {
    let second = Nanos::from_ms(1_000);
    let schema = TypeSchema::builder("sample").field("value", FieldKind::U64, "");
    SensorRequest {
        sensor: sensor.to_string(),
        instance: String::new(),
        schema: schema.build().unwrap(),
        rate: Some(Rate::new(second, second, Nanos::ZERO).unwrap()),
        capacity: 0,
        kind: WriterKind::Simple,
        lanes: 0,
    }
}

/// CPU time of the threads of a process.
fn cpu_of(process: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    let ran = threads.into_iter().flatten().flatten().map(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        let ran = stat.split_whitespace().next();
        ran.and_then(|ns| ns.parse().ok()).unwrap_or(0)
    });
    Duration::from_nanos(ran.sum())
}

/// A separate `overheard` for this bench.
struct Service(Child);

impl Service {
    fn start(socket: &Path) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_overheard"))
            .arg("--socket")
            .arg(socket)
            .env_remove("NOTIFY_SOCKET")
            .env("XDG_CONFIG_HOME", socket.parent().unwrap())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while MonitorConnection::connect(socket).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Self(child)
    }

    /// Memory of the directory without buffers: its private pages.
    fn own_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.0.id());
        let status = std::fs::read_to_string(path).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.unwrap_or(0)
    }

    fn cpu(&self) -> Duration {
        cpu_of(self.0.id())
    }

    fn files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.0.id())).map_or(0, Iterator::count)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
