// SPDX-License-Identifier: MIT OR Apache-2.0
//! `attach` and `top` with a terminal that hangs up, or with an output that is closed or not read.

use std::fs::File;
use std::io::{pipe, Read};
use std::process::Stdio;

use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::on_terminal::OnTerminal;
use crate::session::Live;
use crate::support::{eventually, hangups, path, report_json, wait};

#[test]
fn hung_up_top_ends() {
    let live = Live::paced();
    for (action, what) in [(libc::SIG_DFL, "default"), (libc::SIG_IGN, "ignored")] {
        let mut command = live.verb(&["top", "--interval", "100ms"]);
        hangups(&mut command, action);
        let top = OnTerminal::spawn(command);
        top.shows("pace#first");
        assert_eq!(top.hang_up(), 0, "{what}");
    }
}

#[test]
fn top_ends_at_each_request() {
    let live = Live::paced();
    for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGINT] {
        let mut command = live.verb(&["top", "--interval", "100ms"]);
        hangups(&mut command, libc::SIG_DFL);
        let top = OnTerminal::spawn(command);
        top.shows("pace#first");
        crate::support::send(top.child.id().cast_signed(), signal);
        let (status, screen) = top.end();
        assert_eq!(status, 0, "{signal}");
        // The terminal has its old settings.
        assert!(screen.contains("\x1b[?1049l"), "{screen:?}");
    }
}

#[test]
fn hung_up_attach_ends_and_keeps_the_recording() {
    let live = Live::paced();
    for (action, what) in [(libc::SIG_DFL, "default"), (libc::SIG_IGN, "ignored")] {
        let out = live.folder.path().join(what);
        let mut command = live.verb(&["attach", "pace", "--out", path(&out)]);
        hangups(&mut command, action);
        let attach = OnTerminal::spawn(command);
        attach.shows("number");
        assert_eq!(attach.hang_up(), 0, "{what}");
        let (ended, report) = report_json(&out);
        assert_eq!((ended.status, &report["complete"]), (0, &true.into()));
        assert!(report["trace"]["events"].as_u64() > Some(0), "{report:#}");
    }
}

#[test]
fn attach_ends_when_its_idle_output_is_closed() {
    let live = Live::start(&["sleep", "1000"]);
    let (reader, writer) = pipe().unwrap();
    let messages = live.folder.path().join("said");
    let mut command = live.verb(&["attach", "nothing"]);
    command
        .stdout(writer)
        .stderr(File::create(&messages).unwrap());
    let mut attach = command.spawn().unwrap();
    drop(command);
    let messages = || std::fs::read_to_string(&messages).unwrap();
    eventually("it is attached", || messages().contains("attached to"));
    drop(reader);
    // There was no element.
    assert_eq!(wait(&mut attach), 3, "{}", messages());
}

#[test]
fn attach_counts_its_output_until_the_close() {
    let live = Live::paced();
    let mut command = live.verb(&["attach", "pace", "--json"]);
    let mut attach = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 4096];
    attach
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    assert_eq!(wait(&mut attach), 0);
    let mut messages = String::new();
    attach
        .stderr
        .unwrap()
        .read_to_string(&mut messages)
        .unwrap();
    let line = messages
        .lines()
        .find(|line| line.contains("reader"))
        .unwrap();
    let count = line.split_once("after ").unwrap().1.split(' ').next();
    let count: usize = count.unwrap().parse().unwrap();
    let read = String::from_utf8_lossy(&first);
    assert!(count + 1 >= read.lines().count() - 1, "{count}: {messages}");
    assert!(!messages.contains("complete"), "{messages}");
}

#[test]
fn attach_ends_at_a_request_while_its_reader_pauses() {
    let live = Live::paced();
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let (_reader, writer) = pipe().unwrap();
        let full = writer.try_clone().unwrap();
        let messages = live.folder.path().join("said");
        let mut command = live.verb(&["attach", "pace", "--json"]);
        command
            .stdout(writer)
            .stderr(File::create(&messages).unwrap());
        let mut attach = command.spawn().unwrap();
        drop(command);
        eventually("the pipe is full", || {
            let mut state = [PollFd::new(&full, PollFlags::OUT)];
            poll(&mut state, Some(&Timespec::default())).unwrap() == 0
        });
        crate::support::send(attach.id().cast_signed(), signal);
        let status = wait(&mut attach);
        let messages = std::fs::read_to_string(&messages).unwrap();
        assert_eq!(status, 3, "{messages}");
        assert!(messages.contains("paused"), "{messages}");
    }
}
