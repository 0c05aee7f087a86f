// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `overhear naps` costs: CPU time and memory of programs with the library and without.
//!
//! Each program runs in pairs, in random order. The CPU time is user and system time of the process
//! by the kernel's account, with all threads of the library; the memory is the largest resident
//! set. The result is the median of the pairs' quotients, with its confidence interval of 95 %. An
//! interval that contains the target is inconclusive: the machine is too noisy, so repeat it later.
//!
//! `cargo bench -p overhear-naps-preload -- [PROGRAM ...] [ROUNDS] [--budget SHARE]
//! [--backend NAME]`
#![allow(missing_docs)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use overhear_naps::{environment, ProcessRecord};

/// Targets of time and space.
const MAX_TIME: f64 = 0.05;
const MAX_SPACE: f64 = 0.10;
const THRESHOLD_NS: u64 = 1_000_000_000;
const ROUNDS: usize = 31;
const PROGRAMS: [&str; 4] = ["bzip2", "redis", "million", "churn"];

struct Options {
    programs: Vec<String>,
    rounds: usize,
    budget: String,
    backend: String,
}

impl Options {
    fn of_arguments() -> Self {
        let mut options = Self {
            programs: Vec::new(),
            rounds: ROUNDS,
            budget: "0.05".to_owned(),
            backend: "auto".to_owned(),
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().expect("an option has a value");
            match word.as_str() {
                // An argument of cargo.
                "--bench" => {}
                "--budget" => options.budget = value(),
                "--backend" => options.backend = value(),
                name if PROGRAMS.contains(&name) => options.programs.push(word),
                number => options.rounds = number.parse().expect("a program, or a number"),
            }
        }
        if options.programs.is_empty() {
            options.programs = PROGRAMS.map(str::to_owned).to_vec();
        }
        options
    }
}

fn main() {
    let options = Options::of_arguments();
    let folder = tempfile::tempdir().expect("a folder");
    println!("| program | CPU time | time | space | own estimate | protections | watched |");
    println!("|---|--:|--:|--:|--:|--:|--:|");
    for program in &options.programs {
        let Some(workload) = Workload::prepare(program, folder.path()) else {
            println!("| {program} | not installed |");
            continue;
        };
        let (mut time, mut space, mut plain_s) = (Vec::new(), Vec::new(), Vec::new());
        let (mut estimate, mut last) = (0.0, ProcessRecord::default());
        for _ in 0..options.rounds {
            let observe = || workload.run(Some(&options));
            let (plain, observed) = match is_heads() {
                true => (workload.run(None), observe()),
                false => {
                    let observed = observe();
                    (workload.run(None), observed)
                }
            };
            time.push(observed.cpu_s / plain.cpu_s - 1.0);
            space.push(observed.memory / plain.memory - 1.0);
            plain_s.push(plain.cpu_s);
            last = observed.record.expect("the library leaves a document");
            let cost = last.cost.total_ns() as f64 / 1e9;
            estimate += cost / (last.cpu_ns as f64 / 1e9 - cost) / options.rounds as f64;
        }
        let (time, space) = (Interval::of(time), Interval::of(space));
        println!(
            "| {program} | {:.2} s | {time}: {} | {space}: {} | {:.2} % | {} | {} of {} |",
            Interval::of(plain_s).median,
            time.verdict(MAX_TIME),
            space.verdict(MAX_SPACE),
            estimate * 100.0,
            last.watched.protections,
            last.watched.allocations,
            last.watched.allocations + last.unwatched.budget + last.unwatched.space,
        );
    }
}

/// Half of all calls.
fn is_heads() -> bool {
    use std::hash::{BuildHasher as _, Hasher as _};
    let hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.finish().is_multiple_of(2)
}

struct Run {
    cpu_s: f64,
    memory: f64,
    record: Option<ProcessRecord>,
}

enum Workload {
    Command(PathBuf, Vec<String>),
    Redis(PathBuf),
}

impl Workload {
    /// None: the program is not installed.
    fn prepare(name: &str, folder: &Path) -> Option<Self> {
        match name {
            "bzip2" => {
                is_installed("bzip2").then_some(())?;
                let file = folder.join("mixed");
                write_mixed(&file).expect("a file for bzip2");
                let words = ["-k", "-c", file.to_str()?].map(str::to_owned);
                Some(Self::Command("bzip2".into(), words.to_vec()))
            }
            "redis" => {
                let found = is_installed("redis-server") && is_installed("redis-benchmark");
                found.then(|| Self::Redis(folder.join("redis")))
            }
            name => Some(Self::Command(compiled(folder, name), Vec::new())),
        }
    }

    fn run(&self, options: Option<&Options>) -> Run {
        let documents = tempfile::tempdir().expect("a folder");
        let preload = |command: &mut Command| {
            let Some(options) = options else { return };
            command
                .env("LD_PRELOAD", library())
                .env(environment::FOLDER, documents.path())
                .env(environment::THRESHOLD_NS, THRESHOLD_NS.to_string())
                .env(environment::BUDGET, &options.budget)
                .env(environment::BACKEND, &options.backend);
        };
        let (cpu_s, memory) = match self {
            Self::Command(program, words) => {
                let mut command = Command::new(program);
                preload(command.args(words).stdout(Stdio::null()));
                usage(&command.spawn().expect("the program runs"))
            }
            Self::Redis(folder) => redis(folder, preload),
        };
        Run {
            cpu_s,
            memory,
            record: document(documents.path()),
        }
    }
}

/// CPU time in seconds and largest resident set of a program that ends.
fn usage(child: &Child) -> (f64, f64) {
    let mut status = 0;
    // SAFETY: an all-zero rusage is valid.
    let mut usage = unsafe { core::mem::zeroed::<libc::rusage>() };
    // SAFETY: both places are valid, and nobody else waits for the child.
    let pid = unsafe { libc::wait4(child.id() as i32, &raw mut status, 0, &raw mut usage) };
    assert!(pid > 0 && status == 0, "status {status:#x}");
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (
        seconds(usage.ru_utime) + seconds(usage.ru_stime),
        usage.ru_maxrss as f64,
    )
}

/// Runs a server with values from 16 B to 40 KB, under a fixed load.
fn redis(folder: &Path, preload: impl Fn(&mut Command)) -> (f64, f64) {
    let _ = std::fs::create_dir(folder);
    let socket = folder.join("socket");
    let mut server = Command::new("redis-server");
    server
        .args(["--port", "0", "--save", "", "--unixsocket"])
        .arg(&socket)
        .arg("--dir")
        .arg(folder)
        .stdout(Stdio::piped());
    preload(&mut server);
    let mut server = Server(server.spawn().expect("redis-server runs"));
    let mut lines = BufReader::new(server.0.stdout.take().expect("a pipe")).lines();
    let ready = lines.any(|line| line.is_ok_and(|line| line.contains("ready to accept")));
    assert!(ready, "redis-server is not ready");
    for (requests, bytes) in [("100000", "16"), ("5000", "40000"), ("100000", "300")] {
        let status = Command::new("redis-benchmark")
            .args(["-t", "set,get,hset", "-P", "8", "-r", "1000"])
            .args(["-q", "-n", requests, "-d", bytes, "-s"])
            .arg(&socket)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(status.expect("redis-benchmark runs").success());
    }
    let shutdown = ["shutdown", "nosave"];
    let mut client = Command::new("redis-cli");
    let status = client.arg("-s").arg(&socket).args(shutdown).status();
    assert!(status.expect("redis-cli runs").success());
    lines.for_each(drop);
    usage(&server.0)
}

/// A server that ends with this benchmark.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.kill();
        }
    }
}

fn document(folder: &Path) -> Option<ProcessRecord> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let paths = entries.map(|entry| entry.path());
    let mut documents = paths.filter(|path| path.extension().is_some_and(|end| end == "json"));
    serde_json::from_slice(&std::fs::read(documents.next()?).ok()?).ok()
}

fn library() -> PathBuf {
    let own = std::env::current_exe().expect("this program has a path");
    let folders = own.ancestors().skip(1).take(2);
    let mut files = folders.map(|folder| folder.join("liboverhear_naps_preload.so"));
    files
        .find(|file| file.is_file())
        .expect("cargo has built the library")
}

fn compiled(folder: &Path, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let program = folder.join(name);
    let mut compiler = Command::new("cc");
    let status = compiler.arg("-O2").arg("-o").arg(&program).arg(source);
    assert!(status.status().expect("cc runs").success());
    program
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// 9 MB of words, 2 MB of random bytes, 2 MB of machine code.
fn write_mixed(file: &Path) -> std::io::Result<()> {
    let mut out = std::io::BufWriter::new(std::fs::File::create(file)?);
    let mut state = 88_172_645_463_325_252_u64;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut written = 0;
    while written < 9_000_000 {
        // Small numbers are frequent, as short words are.
        let word = format!("{:x} ", draw() % (1 << (4 + draw() % 16)));
        out.write_all(word.as_bytes())?;
        written += word.len();
    }
    for _ in 0..250_000 {
        out.write_all(&draw().to_le_bytes())?;
    }
    let code = std::fs::read(std::env::current_exe()?)?;
    out.write_all(&code[..code.len().min(2_000_000)])?;
    out.flush()
}

/// The median, and order statistics around it.
struct Interval {
    median: f64,
    low: f64,
    high: f64,
}

impl Interval {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        // Normal approximation of the binomial distribution; the extremes if there are few.
        let reach = (0.98 * (count as f64).sqrt()).ceil() as usize;
        Self {
            median: values[count / 2],
            low: values[(count / 2).saturating_sub(reach)],
            high: values[(count / 2 + reach).min(count - 1)],
        }
    }

    fn verdict(&self, most: f64) -> &'static str {
        match (self.high < most, self.low > most) {
            (true, _) => "kept",
            (_, true) => "EXCEEDED",
            _ => "inconclusive",
        }
    }
}

impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [median, low, high] = [self.median, self.low, self.high].map(|it| it * 100.0);
        write!(f, "{median:+.2} % [{low:+.2}, {high:+.2}]")
    }
}
