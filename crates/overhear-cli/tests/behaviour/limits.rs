// SPDX-License-Identifier: MIT OR Apache-2.0
//! Resource limits of `overhear` itself, and the limits and signals of its programs.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{setrlimit, Resource, Rlimit};

use crate::support::{finish, folder, overhear, path, report_json, Ended};

/// Has the command start with this limit.
fn limited(command: &mut Command, resource: Resource, limit: u64) -> &mut Command {
    let limit = Rlimit {
        current: Some(limit),
        maximum: Some(limit),
    };
    // SAFETY: between fork and exec only a system call is made.
    unsafe { command.pre_exec(move || Ok(setrlimit(resource, limit)?)) }
}

#[test]
fn file_size_limit_ends_the_recording_and_not_the_program() {
    let folder = folder();
    let out = folder.path().join("out");
    // Some thousand context switches; then the program exceeds the limit itself, with the default
    // action.
    let beyond = folder.path().join("beyond");
    let script = format!(
        "i=0; while [ $i -lt 1500 ]; do /bin/true; i=$((i+1)); done; echo done; \
         dd if=/dev/zero of={} bs=64k count=4 2>/dev/null; echo dd $?",
        path(&beyond)
    );
    let mut command = overhear(&["run", "--out", path(&out), "--", "sh", "-c", &script]);
    let ended = finish(limited(&mut command, Resource::Fsize, 64 * 1024));
    // 128 and the number of SIGXFSZ.
    assert_eq!(ended.stdout, "done\ndd 153\n", "{ended:#?}");
    if ended.stderr.contains("kernel sensors: none") {
        println!("skipped: without kernel sensors there is nothing to record");
        return;
    }
    ended.has_message(3, &["(os error 27, the limit RLIMIT_FSIZE is 65536"]);
    ended.has_message(3, &["INCOMPLETE"]);
    let (reported, report) = report_json(&out);
    assert_eq!(reported.status, 3, "{reported:#?}");
    assert!(report["trace"]["events"].as_u64() > Some(0), "{report:#}");

    // The same limit while a recording is exported.
    let target = folder.path().join("export.csv");
    let mut command = overhear(&["export", path(&out), "--to", "csv", "-o", path(&target)]);
    let export = finish(limited(&mut command, Resource::Fsize, 4096));
    export.has_only_message(3, &["RLIMIT_FSIZE is 4096", "elements"]);
}

#[test]
fn limits_have_a_message() {
    let run = |resource, limit| -> Ended {
        let mut command = overhear(&["run", "--kernel", "off", "--", "true"]);
        finish(limited(&mut command, resource, limit))
    };
    run(Resource::Nofile, 8).has_message(5, &["RLIMIT_NOFILE is 8", "ulimit -n"]);
    run(Resource::As, 64 << 20).does_not_panic();
    // Root has no limit of processes.
    if let Some(mut command) = crate::support::as_nobody(&["run", "--kernel", "off", "--", "true"])
    {
        let ended = finish(limited(&mut command, Resource::Nproc, 1));
        ended.has_only_message(5, &["RLIMIT_NPROC is 1", "ulimit -u"]);
    }
    let ended = run(Resource::Memlock, 0);
    ended.does_not_panic();
    assert_eq!(ended.status, 0, "{ended:#?}");
}

/// `SigIgn` and `SigBlk` of `cat`.
fn signals_of(text: &str) -> Vec<&str> {
    let lines = text.lines();
    lines
        .filter(|line| line.starts_with("SigIgn:") || line.starts_with("SigBlk:"))
        .collect()
}

#[test]
fn program_inherits_the_signals_of_the_shell() {
    for given in [
        &[][..],
        &[
            libc::SIGINT,
            libc::SIGPIPE,
            libc::SIGCHLD,
            libc::SIGXFSZ,
            libc::SIGUSR1,
        ],
    ] {
        let with_signals = |mut command: Command| {
            // SAFETY: between fork and exec only async-signal-safe calls are made, on a mask of
            // their own.
            unsafe {
                command.pre_exec(move || {
                    let mut mask: libc::sigset_t = std::mem::zeroed();
                    libc::signal(libc::SIGINT, libc::SIG_DFL);
                    for signal in given {
                        libc::signal(*signal, libc::SIG_IGN);
                    }
                    if !given.is_empty() {
                        libc::sigaddset(&raw mut mask, libc::SIGUSR2);
                        libc::sigaddset(&raw mut mask, libc::SIGWINCH);
                    }
                    libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
                    Ok(())
                });
            }
            finish(&mut command)
        };
        let mut cat = Command::new("cat");
        cat.arg("/proc/self/status");
        let direct = with_signals(cat);
        let run = with_signals(overhear(&[
            "run",
            "--kernel",
            "off",
            "--quiet",
            "--",
            "cat",
            "/proc/self/status",
        ]));
        assert_eq!(run.status, 0, "{run:#?}");
        assert_eq!(signals_of(&direct.stdout).len(), 2);
        assert_eq!(
            signals_of(&run.stdout),
            signals_of(&direct.stdout),
            "{given:?}"
        );
    }
}
