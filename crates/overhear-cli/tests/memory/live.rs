// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that record and show running programs with many events.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use overhear::{Element, Sensor};
use serde_json::Value;

use crate::limits::{limited, Group, Watched, BOUND};
use crate::support::{eventually, lives, path, send, wait, WATCHDOG};

/// The variable that starts the program, with the numbers of sensors, elements and threads.
const WORK: &str = "OVERHEAR_TEST_MEMORY_PROGRAM";

#[derive(Element)]
#[repr(C)]
struct Tick {
    #[field(unit = "ns")]
    length: u64,
    number: u64,
}

/// Not a test: a program that writes to sensors, and whose threads wake each other.
#[test]
#[ignore = "started by the other tests"]
fn program() {
    let Ok(work) = std::env::var(WORK) else {
        return;
    };
    let work: Vec<u64> = work
        .split(' ')
        .map(|number| number.parse().unwrap())
        .collect();
    let [sensors, elements, threads, turns] = work[..] else {
        panic!("{work:?}");
    };
    let sensors = (0..sensors).map(|number| {
        let sensor = Sensor::<Tick>::builder(&format!("sensor{number}"));
        sensor.register().unwrap()
    });
    let mut sensors: Vec<_> = sensors.collect();
    // A token goes round, so that each step is a wake-up and a switch of each thread.
    let (first, mut receiver) = mpsc::channel::<u64>();
    let mut members = Vec::new();
    for _ in 0..threads {
        let (sender, next) = mpsc::channel();
        let own = std::mem::replace(&mut receiver, next);
        members.push(thread::spawn(move || {
            for token in own {
                if sender.send(token).is_err() {
                    return;
                }
            }
        }));
    }
    let mut random: u64 = 88_172_645_463_325_252;
    for number in 0..elements.max(turns) {
        if number < turns {
            first.send(number).unwrap();
            assert_eq!(receiver.recv(), Ok(number));
        }
        if number < elements {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let length = random >> (random % 40);
            let index = (number % sensors.len() as u64) as usize;
            sensors[index].write(&Tick { length, number });
        }
        // Slow enough for a monitor on a busy machine: a ring has room for several pauses.
        if number % 1_000 == 0 {
            thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    drop(first);
    drop(receiver);
    members
        .into_iter()
        .for_each(|member| member.join().unwrap());
}

/// The parameters of the program.
fn program_words(work: [u64; 4]) -> Vec<String> {
    let here = std::env::current_exe().unwrap();
    let work = work.map(|number| number.to_string()).join(" ");
    let words = [
        "env",
        &format!("{WORK}={work}"),
        path(&here),
        "--exact",
        "live::program",
        "--ignored",
    ];
    words.map(str::to_owned).to_vec()
}

/// Runs the program under a command whose last arguments are these. Returns the report, the output,
/// and the maximum memory of the command.
#[track_caller]
fn watched(options: &[&str], work: [u64; 4], group: Option<&Group>) -> (Value, String, u64) {
    let folder = crate::folder();
    let json = folder.path().join("report.json");
    let json_option = format!("--json={}", json.display());
    let words = program_words(work);
    let mut arguments = vec!["run", &json_option];
    arguments.extend(options);
    arguments.push("--");
    arguments.extend(words.iter().map(String::as_str));
    let mut command = limited(BOUND, &arguments);
    if let Some(group) = group {
        group.take(&mut command);
    }
    let (ended, most_bytes) = Watched::start(&mut command).end();
    // Elements may be missed on a busy machine: this test is not about that.
    assert!([0, 3].contains(&ended.status), "{ended:#?}");
    let report = fs::read_to_string(&json).unwrap();
    let report = serde_json::from_str(&report).unwrap();
    (report, ended.stderr, most_bytes)
}

fn elements_of(report: &Value) -> u64 {
    let sensors = report["sensors"].as_array().unwrap().iter();
    let each = sensors
        .map(|sensor| sensor["elements"].as_u64().unwrap() + sensor["missed"].as_u64().unwrap());
    each.sum()
}

#[test]
fn run_in_a_group_with_little_memory_is_bounded() {
    let folder = crate::folder();
    let out = folder.path().join("out");
    let group = Group::with_memory(512 << 20);
    if group.is_none() {
        println!("skipped: no control group with a limit of memory can be made here; the run is measured without");
    }
    let work = [1, 6_000_000, 8, 200_000];
    let (report, messages, most_bytes) = watched(&["--out", path(&out)], work, group.as_ref());
    assert_eq!(elements_of(&report), 6_000_000);
    assert!(most_bytes > 1 << 20 && most_bytes < BOUND, "{most_bytes}");
    assert!(
        messages.contains("elements of ") && messages.contains("--from"),
        "{messages}"
    );
    assert!(fs::metadata(out.join("report.html")).unwrap().len() < crate::PAGE_BYTES);
    if let Some(group) = group {
        assert_eq!(group.killed(), 0);
    }
}

#[test]
fn run_with_many_sensors_and_all_of_the_kernel_is_bounded() {
    let folder = crate::folder();
    let out = folder.path().join("out");
    let options = [
        "--out",
        path(&out),
        "--kernel-sensors",
        "all",
        "--metric",
        "wakeup_latency",
    ];
    let (report, _, most_bytes) = watched(&options, [200, 1_000_000, 8, 100_000], None);
    assert_eq!(report["sensors"].as_array().unwrap().len(), 200);
    assert_eq!(elements_of(&report), 1_000_000);
    assert!(most_bytes < BOUND, "{most_bytes}");
}

/// Starts a command that prints an address; returns the process, and the address as host and path.
fn viewer(mut command: Command) -> (Child, String, String) {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    // Both are read to their end, so that no writer blocks on a full pipe.
    let (messages, address) = mpsc::channel();
    let streams: [Box<dyn Read + Send>; 2] = [Box::new(stdout), Box::new(stderr)];
    for stream in streams {
        let messages = messages.clone();
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                if let Some((_, url)) = line.split_once("http://") {
                    let _ = messages.send(url.trim().to_owned());
                }
            }
        });
    }
    drop(messages);
    let url = address.recv();
    let Ok(url) = url else {
        panic!("no address: {:?}", child.wait());
    };
    let (host, rest) = url.split_once('/').unwrap();
    let path = format!("/{}", rest.split_whitespace().next().unwrap_or_default());
    (child, host.to_owned(), path)
}

fn get(host: &str, path: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    BufReader::new(stream)
}

/// The size of the page of a command, which is then interrupted.
#[track_caller]
pub(crate) fn viewed(command: Command) -> usize {
    let (mut child, host, path) = viewer(command);
    let mut page = String::new();
    get(&host, &path).read_to_string(&mut page).unwrap();
    assert!(
        page.starts_with("HTTP/1.1 200 OK"),
        "{}",
        &page[..page.len().min(400)]
    );
    send(child.id().cast_signed(), libc::SIGINT);
    assert_eq!(wait(&mut child), 0);
    page.len()
}

#[test]
fn run_that_is_viewed_is_bounded() {
    let words = program_words([4, 2_000_000, 8, 200_000]);
    let mut arguments = vec!["run", "--view", "--"];
    arguments.extend(words.iter().map(String::as_str));
    let (mut child, host, path) = viewer(limited(BOUND, &arguments));
    let mut last = String::new();
    for line in get(&host, &format!("{path}events")).lines() {
        let line = line.unwrap();
        if line.starts_with("data: ") {
            last = line;
        }
    }
    let last: Value = serde_json::from_str(last.trim_start_matches("data: ")).unwrap();
    assert_eq!(last["ended"], true);
    let left_out = last["timeline"]["left_out"].to_string();
    assert!(left_out.contains("no room for"), "{left_out}");
    assert_eq!(elements_of(&last["report"]), 2_000_000);
    send(child.id().cast_signed(), libc::SIGINT);
    assert!([0, 3].contains(&wait(&mut child)));
}

#[test]
fn attached_recording_is_bounded() {
    let folder = crate::folder();
    let (socket, out) = (folder.path().join("directory"), folder.path().join("out"));
    let words = program_words([4, 3_000_000, 1, 1]);
    let mut arguments = vec!["run", "--kernel", "off", "--socket", path(&socket), "--"];
    arguments.extend(words.iter().map(String::as_str));
    let program = Watched::start(&mut limited(BOUND, &arguments));
    eventually("the directory listens", || socket.exists());
    let names = [
        "attach",
        "*",
        "--socket",
        path(&socket),
        "--out",
        path(&out),
    ];
    let options = ["--quiet", "--format", "csv", "--until-ended"];
    let mut attach = limited(BOUND, &[&names[..], &options].concat());
    let (ended, most_bytes) = Watched::start(&mut attach).end();
    assert!([0, 3].contains(&ended.status), "{ended:#?}");
    assert!(most_bytes < BOUND, "{most_bytes}");
    let (ended, most_bytes) = program.end();
    assert!([0, 3].contains(&ended.status), "{ended:#?}");
    assert!(most_bytes < BOUND, "{most_bytes}");
    let reader = overhear_trace::TraceReader::open(&out).unwrap();
    let recorded = reader.events() + reader.discarded();
    assert!(recorded > 500_000, "{recorded}");
}

#[test]
fn record_of_a_running_program_is_bounded() {
    let words = program_words([1, 1_000, 8, 300_000]);
    let mut program = Command::new(&words[0])
        .args(&words[1..])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = program.id().to_string();
    let folder = crate::folder();
    let out = folder.path().join("out");
    let arguments = ["record", "--pid", &pid, "--out", path(&out)];
    let (ended, most_bytes) = Watched::start(&mut limited(BOUND, &arguments)).end();
    if ended.status == 5 {
        println!("skipped: kernel sensors do not work here");
    } else {
        assert!([0, 3].contains(&ended.status), "{ended:#?}");
        assert!(most_bytes < BOUND, "{most_bytes}");
        assert!(Path::new(&out).join("report.html").is_file());
    }
    let _ = program.kill();
    let _ = program.wait();
    assert!(!lives(pid.parse().unwrap()));
}
