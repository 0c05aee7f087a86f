// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interceptor pattern: a program waits for the verdict on each element, of a monitor of its own
//! and of another process; and what a waiter in Rust is told.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use overhear::{Announcement, NotEvaluated, Waiter, WaiterError};
use overhear_directory::{monotonic_now, Directory, SOCKET_VARIABLE};
use overhear_event::{Timestamp, Update};

/// Waits are for conditions; this long only if something is broken.
const PATIENCE: Duration = Duration::from_secs(60);

/// The example in C, compiled into this folder; `None` without a compiler.
fn example(folder: &Path) -> Option<PathBuf> {
    let here = std::env::current_exe().unwrap();
    let libraries = here.parent().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let binary = folder.join("interceptor");
    let output = Command::new("gcc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg("-I")
        .arg(root.join("include"))
        .arg(root.join("examples/c/interceptor.c"))
        .arg("-o")
        .arg(&binary)
        .arg("-L")
        .arg(libraries)
        .arg("-loverhear")
        .arg(format!(
            "-Wl,--disable-new-dtags,-rpath,{}",
            libraries.display()
        ))
        .output();
    let Ok(output) = output else {
        println!("skipped: the compiler gcc is not installed");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    Some(binary)
}

fn run(program: &Path, argument: &str, socket: &Path) -> Child {
    Command::new(program)
        .args((!argument.is_empty()).then_some(argument))
        .env(SOCKET_VARIABLE, socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The rest of what a program says, once it has ended well.
fn rest(mut child: Child) -> String {
    let mut said = String::new();
    drop(child.stdin.take());
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut said).unwrap();
    }
    assert!(child.wait().unwrap().success(), "{said}");
    said
}

#[test]
fn a_program_in_c_waits_for_its_judge_in_the_same_process_and_in_another() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = example(folder.path()) else {
        return;
    };
    let none = folder.path().join("none");
    let said = rest(run(&program, "", &none));
    assert_eq!(said, "10 orders, 1 refused, the valve is at 90\n");

    let socket = folder.path().join("directory.sock");
    let _directory = Directory::builder().start(&socket).unwrap();
    let mut judge = run(&program, "judge", &socket);
    let mut lines = BufReader::new(judge.stdout.as_mut().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "judging\n");
    let said = rest(run(&program, "client", &socket));
    assert_eq!(said, "every order was judged before the next one\n");
    assert_eq!(rest(judge), "10 orders, 1 refused\n");
}

#[test]
fn a_waiter_hears_how_far_a_monitor_is_and_that_it_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("directory.sock");
    let at = Timestamp::from_monotonic_ns;
    let short = Duration::from_nanos(1);
    let missing = Waiter::attach_at(&socket, "judge").unwrap_err();
    assert!(matches!(missing, WaiterError::Attach(_)), "{missing}");
    let _directory = Directory::builder().start(&socket).unwrap();
    let nonsense = Waiter::attach_at(&socket, "[").unwrap_err();
    assert!(
        nonsense
            .to_string()
            .starts_with("`[` is no name of a monitor"),
        "{nonsense}"
    );
    // The only test of this process that registers a sensor.
    std::env::set_var(SOCKET_VARIABLE, &socket);
    let mut waiter = Waiter::attach("judge").unwrap();
    assert_eq!(waiter.wait(at(1), short), Err(NotEvaluated::Nobody));

    let mut one = Announcement::register("judge").unwrap();
    assert_eq!(one.sensor().unheard_because(), None);
    one.advance(at(70));
    one.advance(at(100));
    assert_eq!(waiter.wait(at(70), PATIENCE), Ok(at(100)));
    let expected = NotEvaluated::TimedOut {
        until: at(101),
        reached: at(100),
    };
    assert_eq!(waiter.wait(at(101), short), Err(expected));
    // A name is announced once in a process.
    let two = Announcement::register("judge").unwrap();
    assert!(two.sensor().unheard_because().is_some());
    drop(two);
    let now = monotonic_now();
    one.advance(now);
    drop(one);
    assert_eq!(waiter.wait(now, PATIENCE), Ok(now));
    let ended = waiter.wait(Timestamp::MAX, PATIENCE);
    assert_eq!(ended, Err(NotEvaluated::Ended { reached: now }));
}
