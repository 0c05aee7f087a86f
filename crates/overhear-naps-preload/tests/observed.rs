// SPDX-License-Identifier: MIT OR Apache-2.0
//! Observed programs behave as without the library, and no reported NAP contains an access.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

mod support;

use support::{compiled, compiled_library, library, observe, works, Documents, Settings};

const fn settings(backend: &'static str, threshold_ms: u64, budget: &'static str) -> Settings {
    Settings {
        backend,
        threshold_ms,
        budget,
    }
}

/// An access of the program that knows them: it began and was complete at these times.
type Accesses = BTreeMap<u64, Vec<(u64, u64)>>;

fn logged(path: &Path) -> Accesses {
    let text = std::fs::read_to_string(path).unwrap();
    let mut accesses = Accesses::new();
    for line in text.lines() {
        let words: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        accesses
            .entry(words[0])
            .or_default()
            .push((words[1], words[2]));
    }
    // Several threads access a block.
    accesses
        .values_mut()
        .for_each(|of_block| of_block.sort_unstable());
    accesses
}

/// With a budget that covers every protection, all long pauses are found, and no access is inside
/// a NAP.
fn oracle(backend: &'static str) {
    const THRESHOLD_MS: u64 = 300;
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "oracle");
    let log = folder.path().join("log");
    let mut command = Command::new(program);
    command.arg(&log).args(["4", "3"]);
    let observed = observe(&mut command, settings(backend, THRESHOLD_MS, "5"));
    assert!(observed.output.status.success(), "{:?}", observed.output);
    // Its children end at once, without documents.
    let [record] = &observed.records[..] else {
        panic!("{} documents", observed.records.len());
    };
    if !works(backend, record) {
        return;
    }
    assert!(record.ended);
    let accesses = logged(&log);
    let (mut naps, mut pauses, mut found) = (0, 0, 0);
    for allocation in &record.allocations {
        let Some(of_block) = accesses.get(&allocation.address) else {
            continue;
        };
        for nap in &allocation.naps {
            naps += 1;
            assert!(nap.length_ns() >= THRESHOLD_MS * 1_000_000);
            let inside = of_block
                .iter()
                .find(|(before, after)| nap.start_ns < *before && *after < nap.end_ns);
            assert_eq!(inside, None, "{nap:?} of {allocation:?}");
        }
        // Protected soon after the first access, a pause of twice the threshold is a NAP. A test
        // that gets no CPU time for so long proves nothing about such a pause: only those of a
        // protected block count.
        for pair in of_block.windows(2) {
            let (start, end) = (pair[0].1, pair[1].0);
            if end.saturating_sub(start) < 2 * THRESHOLD_MS * 1_000_000 {
                continue;
            }
            pauses += 1;
            found += usize::from(
                allocation
                    .naps
                    .iter()
                    .any(|nap| nap.start_ns < end && start < nap.end_ns),
            );
        }
    }
    assert!(naps > 0, "{record:?}");
    println!("{backend}: {naps} NAPs, {found} of {pauses} long pauses found");
    // Accessed bits are looked at from time to time. Beside load only the longest pauses contain
    // two looks: those of blocks that nobody accesses, which the log does not have.
    assert!(found > 0 || backend == "accessed");
}

#[test]
fn naps_of_moved_pages_contain_no_access() {
    oracle("move");
}

#[test]
fn naps_by_accessed_bits_contain_no_access() {
    oracle("accessed");
}

#[test]
fn naps_of_guarded_pages_contain_no_access() {
    oracle("rwp");
}

#[test]
fn system_calls_signals_forks_and_threads_work_with_guarded_pages() {
    edges("rwp");
}

/// A kernel without read-write protection is named as the reason, and auto selects another back
/// end.
#[test]
fn missing_read_write_protection_is_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "oracle");
    let record = |backend| {
        let mut command = Command::new(&program);
        command.arg(folder.path().join("log")).args(["1", "1"]);
        let mut observed = observe(&mut command, settings(backend, 300, "5"));
        assert!(observed.output.status.success(), "{:?}", observed.output);
        observed.records.remove(0)
    };
    let (asked, auto) = (record("rwp"), record("auto"));
    if asked.backend == "rwp" {
        // As on every kernel that has it.
        assert_eq!(auto.backend, "rwp");
        return;
    }
    assert_eq!(asked.backend, "none");
    let sentence = "rwp: this kernel has no read-write protection by userfaultfd, which Linux 7.3 \
                    introduced";
    let permission = "rwp: userfaultfd for system calls needs root";
    let reason = &asked.backend_reason;
    assert!(
        reason.starts_with(sentence) || reason.starts_with(permission),
        "{reason}"
    );
    assert_eq!(asked.watched.protections, 0);
    assert_ne!(auto.backend, "none");
    assert!(!auto.backend_reason.contains("rwp"), "{auto:#?}");
}

#[test]
fn never_accessed_block_is_one_nap_until_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "oracle");
    let mut command = Command::new(program);
    command.arg(folder.path().join("log")).args(["2", "1"]);
    let observed = observe(&mut command, settings("move", 300, "5"));
    let record = &observed.records[0];
    if !works("move", record) {
        return;
    }
    // Every sixth block is not accessed after it was filled, until the program checks it.
    let longest = |allocation: &overhear_naps::Allocation| {
        let lengths = allocation.naps.iter().map(overhear_naps::Nap::length_ns);
        lengths.max().unwrap_or(0)
    };
    let idle = record
        .allocations
        .iter()
        .filter(|one| longest(one) > 1_000_000_000);
    assert!(idle.count() >= 4, "{:?}", record.allocations);
    // The function that accessed last is known.
    assert!(record
        .allocations
        .iter()
        .any(|one| one.last_access_at.is_some()));
    // Each was allocated by the program, below a thread.
    assert!(record.sites.iter().any(|site| site.frames.len() >= 2));
}

fn edges(backend: &'static str) {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "edges");
    let observed = observe(&mut Command::new(program), settings(backend, 20, "2"));
    let text = String::from_utf8_lossy(&observed.output.stderr);
    assert!(
        observed.output.status.success(),
        "{:?} {text}",
        observed.output.status
    );
    let protections = observed
        .records
        .iter()
        .map(|record| record.watched.protections);
    if works(backend, &observed.records[0]) {
        assert!(protections.sum::<u64>() > 0);
    }
}

#[test]
fn system_calls_signals_forks_and_threads_work_with_moved_pages() {
    edges("move");
}

#[test]
fn system_calls_signals_forks_and_threads_work_with_accessed_bits() {
    edges("accessed");
}

/// The output of a program is that without the library.
fn same_output(program: &str, arguments: &[&str]) {
    let Ok(plain) = Command::new(program).args(arguments).output() else {
        println!("skipped: {program} is not installed");
        return;
    };
    for backend in ["move", "accessed"] {
        let mut command = Command::new(program);
        let observed = observe(command.args(arguments), settings(backend, 50, "0.5"));
        assert_eq!(observed.output.status, plain.status, "{program} {backend}");
        assert!(
            observed.output.stdout == plain.stdout,
            "{program} {backend}"
        );
        assert!(!observed.records.is_empty());
    }
}

#[test]
fn python_prints_the_same() {
    let script = "
import hashlib, json, multiprocessing, random, subprocess
random.seed(1)
blocks = {i: bytes([i % 256]) * (1000 + i * 50) for i in range(1500)}
print(hashlib.sha256(b''.join(blocks.values())).hexdigest())
print(subprocess.run(['sh', '-c', 'echo hi'], capture_output=True, text=True).stdout)
def digest(i):
    return hashlib.md5(blocks[i]).hexdigest()
with multiprocessing.get_context('fork').Pool(3) as pool:
    print(hashlib.md5(''.join(pool.map(digest, range(1500))).encode()).hexdigest())
numbers = sorted(random.random() for _ in range(200000))
print(numbers[5], hashlib.md5(json.dumps(numbers).encode()).hexdigest())
";
    same_output("python3", &["-c", script]);
}

#[test]
fn sqlite_prints_the_same() {
    let script = "create table t(a integer primary key, b text);
        with recursive c(x) as (select 1 union all select x + 1 from c where x < 100000)
        insert into t select x, printf('%d-%d-%d', x, x * 7, x % 13) from c;
        create index i on t(b);
        select count(*), sum(length(b)), max(b) from t;
        select a from t order by b limit 50;
        delete from t where a % 3 = 0;
        vacuum;
        select count(*), min(b) from t;
        pragma integrity_check;";
    same_output("sqlite3", &[":memory:", script]);
}

/// Blocks of another allocator that lie in observed mappings are freed there.
#[test]
fn blocks_of_another_allocator_stay_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "blocks");
    let allocator = compiled_library(folder.path(), "mapping");
    for backend in ["move", "accessed"] {
        let documents = Documents::create();
        let mut command = Command::new(&program);
        documents.preload(&mut command, settings(backend, 20, "5"));
        let both = format!("{}:{}", library().display(), allocator.display());
        let status = command.env("LD_PRELOAD", both).status().unwrap();
        assert!(status.success(), "{backend}: {status}");
        let records = documents.records();
        // The mappings were observed.
        assert!(records[0].watched.allocations > 0, "{records:#?}");
    }
}

/// A program whose handlers of signals, or whose calls of the loader, come in the middle of what
/// the library does, ends by itself.
fn nobody_waits_for_ever(part: &str) {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "signals");
    for backend in ["move", "accessed"] {
        let mut command = Command::new(&program);
        let observed = observe(command.arg(part), settings(backend, 20, "2"));
        let text = String::from_utf8_lossy(&observed.output.stderr);
        let status = observed.output.status;
        assert!(status.success(), "{backend}: {status} {text}");
        let protections = observed.records.iter().map(|it| it.watched.protections);
        // What is protected for a few milliseconds only is seen by one back end.
        if backend == "move" && part != "loader" && works(backend, &observed.records[0]) {
            assert!(protections.sum::<u64>() > 0, "{:#?}", observed.records);
        }
    }
}

#[test]
fn handler_of_signals_may_end_the_process_within_its_end() {
    nobody_waits_for_ever("exit");
}

#[test]
fn handler_of_signals_may_fork_and_map_within_hooks() {
    nobody_waits_for_ever("locks");
}

#[test]
fn only_thread_may_lock_the_loader() {
    nobody_waits_for_ever("loader");
}

/// A program with one thread takes mutexes of the C library and the lock of the loader without
/// atomic operations. So the thread of the library must use none of them.
#[test]
fn handler_uses_no_lock_of_the_c_library() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "oracle");
    let spy = compiled_library(folder.path(), "spy");
    for backend in ["move", "accessed"] {
        let documents = Documents::create();
        let mut command = Command::new(&program);
        command.arg(folder.path().join("log")).args(["2", "1"]);
        documents.preload(&mut command, settings(backend, 100, "5"));
        let both = format!("{}:{}", library().display(), spy.display());
        let output = command.env("LD_PRELOAD", both).output().unwrap();
        assert!(output.status.success(), "{backend}: {output:?}");
        let records = documents.records();
        if works(backend, &records[0]) {
            assert!(records[0].watched.protections > 0, "{records:#?}");
        }
    }
}

/// What `readelf` prints of the library.
fn elf(option: &str) -> String {
    let mut tool = Command::new("readelf");
    let output = tool.arg(option).arg("-W").arg(library()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Functions that were bound at their first call would be looked up by the handler.
#[test]
fn library_is_bound_when_it_is_loaded() {
    let text = elf("--dynamic");
    let flags = |line: &&str| line.contains("(FLAGS)") && line.contains("BIND_NOW");
    assert!(text.lines().any(|line| flags(&line)), "{text}");
}

/// The memory of an observed program contains neither another library nor the code that prints
/// panics.
#[test]
fn library_is_small_in_memory() {
    let text = elf("--dynamic");
    let needed: Vec<&str> = text.lines().filter(|it| it.contains("(NEEDED)")).collect();
    let mut compiler = Command::new("cc");
    let output = compiler.arg("-print-file-name=libgcc_eh.a").output();
    if output.unwrap().stdout.starts_with(b"/") {
        let loads = needed.iter().any(|line| line.contains("libgcc_s"));
        assert!(!loads, "{needed:#?}");
    }
    // A mapping of its own: after the data, which is writable.
    let text = elf("--segments");
    let segments: Vec<&str> = text.lines().filter(|it| it.contains(" LOAD ")).collect();
    let data = segments.iter().rposition(|line| line.contains(" RW "));
    let code = segments.iter().rposition(|line| line.contains(" R E "));
    assert!(data < code, "{segments:#?}");
    let last: Vec<&str> = segments[code.unwrap()].split_whitespace().collect();
    let bytes = u64::from_str_radix(&last[4][2..], 16).unwrap();
    assert!(bytes > 100_000, "{segments:#?}");
}
