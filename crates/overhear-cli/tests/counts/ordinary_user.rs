// SPDX-License-Identifier: MIT OR Apache-2.0
//! An ordinary user on the user's own programs: perf records, or sensors of programs alone.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{chown, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::harness::{cpu_lock, is_root, workload, wrapper, Backend, Found, Overhear, OVERHEAR};
use crate::sensing::{self, ELEMENTS, SENSORS};
use crate::unmodified::{assert_sums, write_numbers};

/// The user id of `nobody` in every distribution.
const NOBODY: u32 = 65_534;

/// A user with a folder and copies of all programs: the folder of the build may be closed to other
/// users.
struct User {
    work_folder: TempDir,
    /// Owner of the folders, where root runs the tests.
    id: u32,
    /// Command that runs a program as this user.
    front: Vec<OsString>,
    overhear: PathBuf,
    workload: PathBuf,
    wrapper: PathBuf,
    tests: PathBuf,
}

impl User {
    /// The user who runs the tests, or `nobody` for root. If `nobody` cannot execute copies in the
    /// folder for temporary files, prints "skipped" and returns `None`.
    fn new() -> Option<Self> {
        let work_folder = tempfile::tempdir().unwrap();
        let copy = |from: &Path| {
            let to = work_folder.path().join(from.file_name().unwrap());
            fs::copy(from, &to).unwrap();
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
            to
        };
        let mut user = Self {
            overhear: copy(OVERHEAR.as_ref()),
            workload: copy(workload()),
            wrapper: copy(wrapper()),
            tests: copy(&env::current_exe().unwrap()),
            front: Vec::new(),
            id: NOBODY,
            work_folder,
        };
        let own = format!("TMPDIR={}", user.work_folder.path().display());
        let env = ["env", "-u", "XDG_RUNTIME_DIR", &own].map(OsString::from);
        if is_root() {
            fs::set_permissions(&user.work_folder, fs::Permissions::from_mode(0o755)).unwrap();
            chown(user.work_folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
            let id = NOBODY.to_string();
            let (uid, gid) = (format!("--reuid={id}"), format!("--regid={id}"));
            let words = ["setpriv", &uid, &gid, "--clear-groups", "--"];
            user.front.extend(words.map(OsString::from));
        }
        user.front.extend(env);
        let output = Command::new(&user.front[0])
            .args(&user.front[1..])
            .arg(&user.overhear)
            .arg("--version")
            .current_dir("/")
            .output();
        match output {
            Ok(output) if output.status.success() => Some(user),
            other => {
                println!("skipped: an ordinary user cannot execute copies of ours ({other:?})");
                None
            }
        }
    }

    /// An `overhear run` of this user, with or without a wrapper.
    fn overhear(&self, work_folder: &TempDir, wrapper: &[OsString]) -> Overhear {
        let own = [self.overhear.clone().into_os_string()];
        let front = self.front.iter().chain(wrapper).chain(&own);
        Overhear::new(work_folder).front(front)
    }

    /// A folder that belongs to the user.
    fn folder(&self) -> TempDir {
        let folder = TempDir::new_in(self.work_folder.path()).unwrap();
        if is_root() {
            chown(folder.path(), Some(self.id), Some(self.id)).unwrap();
        }
        folder
    }

    fn refused(&self) -> [OsString; 2] {
        [self.wrapper.clone().into(), "refuse".into()]
    }

    fn counted(&self, usage: &Path, program: &[OsString]) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![self.wrapper.clone().into(), "usage".into()];
        words.push(usage.into());
        words.extend(program.iter().cloned());
        words
    }
}

/// Whether an ordinary user may use perf here.
fn perf_is_open_to_all() -> bool {
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let open = level.trim().parse().is_ok_and(|level: i32| level <= 2);
    if !open {
        println!("skipped: kernel.perf_event_paranoid is {}", level.trim());
    }
    open
}

fn assert_sensors_work(found: &Found) {
    let sensors = found.report["sensors"].as_array().unwrap();
    assert_eq!(sensors.len() as u64, SENSORS);
    for sensor in sensors {
        assert_eq!(sensor["elements"], ELEMENTS, "{sensor}");
        assert_eq!(sensor["missed"], 0);
    }
}

#[test]
fn ordinary_user_gets_perf_records_of_own_programs() {
    let _cpus = cpu_lock();
    let Some(user) = perf_is_open_to_all().then(User::new).flatten() else {
        return;
    };
    let numbers = user.work_folder.path().join("numbers");
    write_numbers(&numbers, 300_000);
    let clocks = user.work_folder.path().join("clocks");
    let programs: [Vec<OsString>; 3] = [
        vec![user.workload.clone().into(), "burn".into(), clocks.into()],
        ["sort", "--parallel=2", "-S", "64M", "-o", "/dev/null"]
            .iter()
            .map(OsString::from)
            .chain([numbers.into_os_string()])
            .collect(),
        sensing::command(&user.tests),
    ];
    for (index, program) in programs.iter().enumerate() {
        let folder = user.folder();
        let usage = folder.path().join("usage");
        let overhear = user.overhear(&folder, &[]);
        let found = overhear.run(user.counted(&usage, program));
        let (active, message) = found.kernel_source();
        println!("{message}");
        assert_eq!(active, "perf");
        // One message has the sensors and the reason.
        assert!(message.contains("perf") && message.contains("because"));
        assert!(message.contains("BPF") && message.contains("CAP_BPF"));
        assert!(!message.contains('\n'));
        for thread in found.threads() {
            assert!(thread["wakeup_latency_ns"].is_null(), "{thread}");
        }
        // The wrapper's thread lives as long as the run, so it was sampled.
        let first = found.threads().next().unwrap();
        assert!(first["runnable_ns"].is_u64() && first["blocked_ns"].is_u64());
        // The threads that used 100 ms of CPU time were recorded, too.
        let long = |thread: &&serde_json::Value| thread["run_ns"].as_u64() >= Some(100_000_000);
        for thread in found.threads().filter(long) {
            assert!(thread["runnable_ns"].is_u64(), "{thread}");
        }
        // All threads have ended, and no line contradicts that.
        assert_eq!(found.report["notes"], serde_json::json!([]));
        assert_sums(&found, &usage, Backend::Perf);
        if index == 2 {
            assert_sensors_work(&found);
        }
    }
}

/// The kernel takes the records of a process away when it executes a program with other privileges.
/// However short the program, the report is incomplete and names it; of ordinary programs as short
/// it is complete.
#[test]
fn program_with_other_privileges_makes_the_report_incomplete() {
    const ROUNDS: usize = 25;
    let _cpus = cpu_lock();
    if !is_root() {
        println!("skipped: not root, so no program can be given other privileges");
        return;
    }
    let Some(user) = perf_is_open_to_all().then(User::new).flatten() else {
        return;
    };
    let of = |name: &str, mode| {
        let program = user.work_folder.path().join(name);
        fs::copy("/bin/true", &program).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        program.into_os_string()
    };
    let (plain, privileged) = (of("plain", 0o755), of("privileged", 0o4755));
    let folder = user.folder();
    let runs = |program: &[OsString]| {
        let overhear = user.overhear(&folder, &[]);
        let output = overhear.command(program).output().unwrap();
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        // Read separately: an incomplete report misses elements.
        let report = fs::read(folder.path().join("report.json")).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        fs::remove_dir_all(folder.path().join("out")).unwrap();
        let complete = report["complete"].as_bool().unwrap();
        let notes = report["notes"].to_string();
        let named = notes.matches("with other privileges").count();
        assert_eq!(
            output.status.code(),
            Some(if complete { 0 } else { 3 }),
            "{messages}"
        );
        (complete, named)
    };
    let script = |program: &OsString| {
        let line = format!("{0}; {0}", program.display());
        ["sh", "-c", &line].map(OsString::from).to_vec()
    };
    if runs(std::slice::from_ref(&privileged)) == (true, 0) && is_nosuid(user.work_folder.path()) {
        println!("skipped: the folder for temporary files gives programs no privileges (nosuid)");
        return;
    }
    for round in 0..ROUNDS {
        assert_eq!(
            runs(std::slice::from_ref(&privileged)),
            (false, 1),
            "round {round}"
        );
        assert_eq!(runs(&script(&privileged)), (false, 2), "round {round}");
        assert_eq!(runs(&script(&plain)), (true, 0), "round {round}");
    }
}

/// Whether programs below this folder get no privileges of their owners.
fn is_nosuid(folder: &Path) -> bool {
    let about = rustix::fs::statvfs(folder).unwrap();
    about.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID)
}

/// If neither backend is permitted, the run continues with the sensors of programs. Only a request
/// for kernel sensors is refused, before anything runs.
fn sensors_alone(user: &User, front: &[OsString]) {
    let program = sensing::command(&user.tests);
    let folder = user.folder();
    let found = user.overhear(&folder, front).run(&program);
    let (active, message) = found.kernel_source();
    println!("{message}");
    assert_eq!(active, "none");
    assert!(message.contains("because") && message.contains("perf_event_open"));
    assert!(message.to_uppercase().contains("BPF"));
    assert_eq!(found.threads().count(), 0);
    assert_sensors_work(&found);

    for backend in [Backend::Bpf, Backend::Perf] {
        let folder = user.folder();
        let ran = folder.path().join("ran");
        let overhear = user.overhear(&folder, front).backend(backend);
        let touch = [OsString::from("touch"), ran.clone().into()];
        let output = overhear.command(touch).output().unwrap();
        println!("{}", String::from_utf8_lossy(&output.stderr).trim());
        assert_eq!(output.status.code(), Some(5));
        assert!(!ran.exists());
    }
}

#[test]
fn sensors_of_programs_work_where_perf_is_refused() {
    let _cpus = cpu_lock();
    if let Some(user) = User::new() {
        sensors_alone(&user, &user.refused());
    }
}

#[test]
fn sensors_of_programs_work_where_root_is_refused() {
    let _cpus = cpu_lock();
    if !is_root() {
        println!("skipped: not root");
        return;
    }
    if let Some(mut user) = User::new() {
        // Root has all permissions of `nobody`; the filter applies to both.
        user.front = vec!["env".into()];
        // Root records in no folder of other users.
        user.id = 0;
        chown(user.work_folder.path(), Some(0), Some(0)).unwrap();
        sensors_alone(&user, &user.refused());
    }
}
