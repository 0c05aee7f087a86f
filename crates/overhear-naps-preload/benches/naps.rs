// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `overhear naps` costs: CPU time and memory of programs with the library and without.
//!
//! Both programs of a pair run at the same time on one CPU, and are started in random order: other
//! load, the clock of the core and what other machines do on the same hardware slow both down
//! alike. So two equal programs differ by 0.1 % (`--plain`). The CPU time is user and system time
//! of the process by the kernel's account, with all threads of the library; the memory is the
//! largest resident set. The result is the median of the pairs' quotients, with its confidence
//! interval of 95 %. An interval that contains the target is inconclusive: the machine is too
//! noisy, so repeat it later.
//!
//! `cargo bench -p overhear-naps-preload -- [PROGRAM ...] [ROUNDS] [--budget SHARE]
//! [--backend NAME] [--cpu NUMBER] [--plain | --forward]`
//!
//! `--plain` compares programs without the library, `--forward` loads a library that does nothing
//! but to pass calls on: the least that any preload library costs.
#![allow(missing_docs)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
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
    cpu: usize,
    compared: Compared,
}

/// What a program without a library is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Compared {
    Observed,
    Plain,
    Forwarded,
}

impl Options {
    fn of_arguments() -> Self {
        let mut options = Self {
            programs: Vec::new(),
            rounds: ROUNDS,
            budget: "0.05".to_owned(),
            backend: "auto".to_owned(),
            cpu: last_cpu(),
            compared: Compared::Observed,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().expect("an option has a value");
            match word.as_str() {
                // An argument of cargo.
                "--bench" => {}
                "--budget" => options.budget = value(),
                "--backend" => options.backend = value(),
                "--cpu" => options.cpu = value().parse().expect("the number of a CPU"),
                "--plain" => options.compared = Compared::Plain,
                "--forward" => options.compared = Compared::Forwarded,
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
            let (plain, other) = workload.run_pair(&options, folder.path());
            time.push(other.cpu_s / plain.cpu_s - 1.0);
            space.push(other.memory / plain.memory - 1.0);
            plain_s.push(plain.cpu_s);
            if options.compared == Compared::Observed {
                // With a budget of 0 nothing is observed, and there is no document.
                last = other.record.unwrap_or_default();
                let cost = last.cost.total_ns() as f64 / 1e9;
                let plain_s = (last.cpu_ns as f64 / 1e9 - cost).max(plain.cpu_s / 2.0);
                estimate += cost / plain_s / options.rounds as f64;
            }
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
            name => Some(Self::Command(compiled(folder, name, &[]), Vec::new())),
        }
    }

    /// Runs the program twice at the same time: without a library, and as the options want it.
    fn run_pair(&self, options: &Options, folder: &Path) -> (Run, Run) {
        let documents = tempfile::tempdir().expect("a folder");
        let other = |command: &mut Command| match options.compared {
            Compared::Plain => {}
            Compared::Forwarded => {
                let library = compiled(folder, "forward", &["-shared", "-fPIC", "-fno-builtin"]);
                command.env("LD_PRELOAD", library);
            }
            Compared::Observed => {
                command
                    .env("LD_PRELOAD", library())
                    .env(environment::FOLDER, documents.path())
                    .env(environment::THRESHOLD_NS, THRESHOLD_NS.to_string())
                    .env(environment::BUDGET, &options.budget)
                    .env(environment::BACKEND, &options.backend);
            }
        };
        let start = |is_plain: bool| {
            let mut running = self.command(if is_plain { "plain" } else { "other" });
            if !is_plain {
                other(&mut running);
            }
            run_on(&mut running, options.cpu);
            running.spawn().expect("the program runs")
        };
        let is_plain_first = is_heads();
        let (first, second) = (start(is_plain_first), start(!is_plain_first));
        let (plain, other) = match is_plain_first {
            true => (first, second),
            false => (second, first),
        };
        let (plain, mut other) = match self {
            Self::Command(..) => (usage(&plain), usage(&other)),
            Self::Redis(folder) => std::thread::scope(|scope| {
                let plain = scope.spawn(|| load_redis(plain, &folder.join("plain")));
                let other = scope.spawn(|| load_redis(other, &folder.join("other")));
                let end = |it: std::thread::ScopedJoinHandle<'_, Run>| it.join().expect("a run");
                (end(plain), end(other))
            }),
        };
        other.record = document(documents.path());
        (plain, other)
    }

    fn command(&self, name: &str) -> Command {
        match self {
            Self::Command(program, words) => {
                let mut command = Command::new(program);
                command.args(words).stdout(Stdio::null());
                command
            }
            Self::Redis(folder) => {
                let folder = folder.join(name);
                std::fs::create_dir_all(&folder).expect("a folder");
                let mut server = Command::new("redis-server");
                server
                    .args(["--port", "0", "--save", "", "--unixsocket"])
                    .arg(folder.join("socket"))
                    .arg("--dir")
                    .arg(folder)
                    .stdout(Stdio::piped());
                server
            }
        }
    }
}

/// Lets a command run on one CPU.
fn run_on(command: &mut Command, cpu: usize) {
    let pin = move || {
        // SAFETY: an all-zero set is empty.
        let mut set = unsafe { core::mem::zeroed::<libc::cpu_set_t>() };
        // SAFETY: the set is valid; a number that is too large panics.
        unsafe { libc::CPU_SET(cpu, &mut set) };
        // SAFETY: the set is valid and has this size.
        let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
        match result {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the function makes one system call.
    unsafe { command.pre_exec(pin) };
}

/// The last CPU on which this process may run.
fn last_cpu() -> usize {
    // SAFETY: an all-zero set is empty.
    let mut set = unsafe { core::mem::zeroed::<libc::cpu_set_t>() };
    // SAFETY: the place has this size.
    unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    // SAFETY: the numbers are those of the set.
    let mut cpus =
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) });
    cpus.next_back().unwrap_or(0)
}

/// CPU time and largest resident set of a program that ends.
fn usage(child: &Child) -> Run {
    let mut status = 0;
    // SAFETY: an all-zero rusage is valid.
    let mut usage = unsafe { core::mem::zeroed::<libc::rusage>() };
    // SAFETY: both places are valid, and nobody else waits for the child.
    let pid = unsafe { libc::wait4(child.id() as i32, &raw mut status, 0, &raw mut usage) };
    assert!(pid > 0 && status == 0, "status {status:#x}");
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Run {
        cpu_s: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        memory: usage.ru_maxrss as f64,
        record: None,
    }
}

/// A fixed load of values from 16 B to 40 KB, until the server has ended.
fn load_redis(server: Child, folder: &Path) -> Run {
    let socket = folder.join("socket");
    let mut server = Server(server);
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

/// A program or library of `tests/programs`, compiled once.
fn compiled(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let program = folder.join(name);
    if !program.exists() {
        let mut compiler = Command::new("cc");
        let compiler = compiler.arg("-O2").args(options).arg("-o").arg(&program);
        assert!(compiler.arg(source).status().expect("cc runs").success());
    }
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
