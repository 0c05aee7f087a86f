// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interceptor pattern in C: a program waits for the verdict on each element, by a monitor of
//! its own and by one in another process.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use overhear_directory::{Directory, SOCKET_VARIABLE};

/// The example in C, compiled into `folder`; `None` without the library or a compiler.
fn example(folder: &Path) -> Option<PathBuf> {
    let here = std::env::current_exe().unwrap();
    // Cargo builds a library of this kind only on request: no Rust test can link it.
    let libraries = here.parent().unwrap().parent().unwrap();
    if !libraries.join("liboverhear_monitor.so").exists() {
        println!("skipped: the library liboverhear_monitor is not built; type `cargo build -p overhear-monitor-c`");
        return None;
    }
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
        .arg("-loverhear_monitor")
        .arg(format!(
            "-Wl,--disable-new-dtags,-rpath,{}",
            libraries.display()
        ))
        .output();
    let Ok(output) = output else {
        println!("skipped: the compiler gcc is not installed");
        return None;
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
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

/// The rest of a program's output. Its exit status must be 0.
fn rest(mut child: Child) -> String {
    let mut text = String::new();
    drop(child.stdin.take());
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut text).unwrap();
    }
    assert!(child.wait().unwrap().success(), "{text}");
    text
}

#[test]
fn interceptor_in_c_waits_for_monitor_of_its_own_and_of_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = example(folder.path()) else {
        return;
    };
    let none = folder.path().join("none");
    let text = rest(run(&program, "", &none));
    assert_eq!(text, "10 orders, 1 refused, the valve is at 90\n");

    let socket = folder.path().join("directory.sock");
    let _directory = Directory::builder().start(&socket).unwrap();
    let mut judge = run(&program, "judge", &socket);
    let mut lines = BufReader::new(judge.stdout.as_mut().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "judging\n");
    let text = rest(run(&program, "client", &socket));
    assert_eq!(text, "every order was judged before the next one\n");
    assert_eq!(rest(judge), "10 orders, 1 refused\n");
}
