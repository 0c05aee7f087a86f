// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attacks by which an ordinary user can keep a directory of root busy: each at full effort, until
//! the process is ended.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use overhear_directory::client::{register_at, Registration, SensorRequest};
use overhear_event::{FieldKind, Nanos, Rate, TypeSchema, WriterKind};
use overhear_stream::sync::Ordering;
use overhear_stream::{Shape, Words};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{json, Value};

/// The attacks, by the names that [`attack`] takes.
pub const ATTACKS: [&str; 7] = [
    "grants", "patterns", "lanes", "maps", "buffers", "flood", "requests",
];

/// Prints on standard output that the effort has begun.
fn begun() {
    println!("@ begun");
    let _ = std::io::stdout().flush();
}

/// Runs one attack until this process is ended.
pub fn attack(attack_name: &str, socket: &Path) {
    match attack_name {
        "grants" => never_map(socket),
        "patterns" => match_patterns(socket),
        "lanes" => own_many_lanes(socket),
        "maps" => register_twins(socket),
        "buffers" => register_large_buffers(socket),
        "flood" => connect_for_ever(socket),
        "requests" => request_for_ever(socket),
        other => panic!("there is no way `{other}`"),
    }
}

fn connect(socket: &Path) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let kind = SocketType::SEQPACKET;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).ok()?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(socket).ok()?).ok()?;
    Some(fd)
}

fn send(fd: impl AsFd, packet: &Value) -> bool {
    let packet = packet.to_string();
    rustix::net::send(fd, packet.as_bytes(), SendFlags::NOSIGNAL).is_ok()
}

fn receive(fd: impl AsFd) -> Option<Value> {
    let mut packet = vec![0; 256 * 1024];
    let (bytes, _) = rustix::net::recv(fd, &mut packet[..], RecvFlags::empty()).ok()?;
    serde_json::from_slice(&packet[..bytes]).ok()
}

fn request(sensor: &str) -> SensorRequest {
    let second = Nanos::from_ms(1_000);
    let schema = TypeSchema::builder("sample").field("number", FieldKind::U64, "");
    SensorRequest {
        sensor: sensor.to_owned(),
        instance: String::new(),
        schema: schema.build().unwrap(),
        rate: Some(Rate::new(second, second, Nanos::ZERO).unwrap()),
        capacity: 0,
        kind: WriterKind::Simple,
        lanes: 0,
    }
}

fn register_packet(sensor: &str, capacity: u64) -> Value {
    let request = request(sensor);
    json!({ "register": {
        "version": 1,
        "sensor": request.sensor,
        "instance": "",
        "schema": request.schema,
        "rate": request.rate,
        "capacity": capacity,
    } })
}

/// Connections that are granted a buffer and never map it, renewed before the directory closes
/// them.
fn never_map(socket: &Path) {
    let mut connections: Vec<Option<OwnedFd>> = (0..300).map(|_| None).collect();
    let mut round = 0;
    loop {
        for (number, connection) in connections.iter_mut().enumerate() {
            let packet = register_packet(&format!("never mapped {round} {number}"), 0);
            if connection.as_ref().is_none_or(|fd| !send(fd, &packet)) {
                *connection = connect(socket);
                if let Some(fd) = connection {
                    send(fd, &packet);
                }
            }
        }
        if round == 0 {
            // Until each has its grant, or was refused.
            connections.iter().flatten().for_each(|fd| {
                receive(fd);
            });
            begun();
        }
        round += 1;
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Monitors with the maximum number of patterns, which attach and end, over many sensors.
fn match_patterns(socket: &Path) {
    let sensors =
        (0..1_300).map(|n| register_at(socket, request(&format!("{}{n}", "a".repeat(100)))));
    let sensors: Vec<Registration> = sensors.flatten().collect();
    let patterns = |count: u32| -> Value {
        let patterns = (0..count).map(|n| json!({ "names": format!("*a*a*a*b{n}") }));
        json!({ "attach": {
            "version": 1,
            "query": {},
            "needs": { "all": false, "sensors": patterns.collect::<Vec<_>>(), "only": true },
        } })
    };
    // The maximum for a packet, and numbers that fit into a share of a fair directory.
    let packets = [patterns(2_000), patterns(1_000), patterns(100)];
    begun();
    std::thread::scope(|scope| {
        for turn in 0..16 {
            let packet = &packets[turn % packets.len()];
            scope.spawn(move || loop {
                if let Some(fd) = connect(socket) {
                    send(&fd, packet);
                    receive(&fd);
                }
            });
        }
    });
    drop(sensors);
}

/// Many threads, and many lanes that belong to them. In a pid namespace the directory has to search
/// each of them.
fn own_many_lanes(socket: &Path) {
    const THREADS: usize = 1_500;
    let (send, tids) = channel();
    for _ in 0..THREADS {
        let send = send.clone();
        std::thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            send.send(tid.unsigned_abs()).unwrap();
            loop {
                std::thread::park();
            }
        });
    }
    let tids: Vec<u32> = tids.iter().take(THREADS).collect();
    let mut kept = Vec::new();
    for number in 0..8 {
        let wanted = SensorRequest {
            kind: WriterKind::Laned,
            lanes: 512,
            ..request(&format!("lanes {number}"))
        };
        let Ok(registration) = register_at(socket, wanted) else {
            continue;
        };
        if let Shape::Laned(pool) = &registration.shape {
            // SAFETY: the registration keeps the map.
            let words = unsafe { registration.mapping.words() };
            for lane in 0..pool.lanes() {
                let owner = u64::from(tids[lane as usize % tids.len()]) | 1 << 32;
                let word = words.word((pool.lane_offset(lane) + 160) / 8);
                word.store(owner, Ordering::Release);
            }
        }
        kept.push(registration);
    }
    // Long enough for the directory to check all of them.
    std::thread::sleep(Duration::from_secs(1));
    begun();
    loop {
        std::thread::park();
    }
}

/// A process with very many maps, which registers the same names again and again.
fn register_twins(socket: &Path) {
    let folder = std::env::temp_dir().join("x".repeat(200));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("y".repeat(200));
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(2 * 4096).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    for number in 0..60_000_u64 {
        // Neighbours differ, so that the kernel cannot join them.
        let offset = number % 2 * 4096;
        // SAFETY: a fresh map at an address of the kernel's choice, which nobody uses.
        let map = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                4096,
                ProtFlags::READ,
                MapFlags::SHARED,
                &file,
                offset,
            )
        };
        if map.is_err() {
            break;
        }
    }
    let _twin = register_at(socket, request("twin"));
    begun();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| loop {
                let _ = register_at(socket, request("twin"));
            });
        }
    });
}

/// Buffers as large as the quota allows, one after the other.
fn register_large_buffers(socket: &Path) {
    begun();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for round in 0.. {
                    let name = format!("large {thread} {round}");
                    if let Some(fd) = connect(socket) {
                        send(&fd, &register_packet(&name, 32 << 20));
                        receive(&fd);
                        // This process allocates no page of it.
                        send(&fd, &json!("mapped"));
                        receive(&fd);
                    }
                }
            });
        }
    });
}

/// Connections that are closed at once.
fn connect_for_ever(socket: &Path) {
    begun();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| loop {
                drop(connect(socket));
            });
        }
    });
}

/// Monitors that send requests without a pause, and some that never read.
fn request_for_ever(socket: &Path) {
    let deaf: Vec<OwnedFd> = (0..20).filter_map(|_| connect(socket)).collect();
    for fd in &deaf {
        send(fd, &json!({ "attach": { "version": 1, "query": {} } }));
    }
    begun();
    std::thread::scope(|scope| {
        for turn in 0..16 {
            scope.spawn(move || loop {
                let Some(fd) = connect(socket) else { continue };
                let packet = match turn % 3 {
                    0 => json!({ "list": { "version": 1, "query": { "names": "*a*/*b*#*" } } }),
                    1 => {
                        json!({ "switch": { "version": 1, "query": {}, "enabled": turn % 2 == 0 } })
                    }
                    _ => json!({ "finished": { "streams": (0..9_000).collect::<Vec<u32>>() } }),
                };
                for _ in 0..100 {
                    if !send(&fd, &packet) || (turn % 3 < 2 && receive(&fd).is_none()) {
                        break;
                    }
                }
            });
        }
    });
}
