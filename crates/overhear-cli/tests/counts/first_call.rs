// SPDX-License-Identifier: MIT OR Apache-2.0
//! Actions of the child of `overhear run` before its program starts do not belong to the program.

use std::env;
use std::ffi::OsString;

use overhear_event::kernel::events::{KIND_BEGIN, PAGE_FAULT, SYSCALL};
use overhear_event::{Analysis, ElementView, Gap, StreamDescriptor, Timestamp};
use overhear_trace::TraceReader;

use crate::harness::{cpu_lock, Backend, Overhear};

/// System calls: begin or end, and the number; and the number of page faults before the first of
/// them.
#[derive(Default)]
struct Calls {
    calls: Vec<(u64, u64, String)>,
    faults_before: u64,
}

impl Analysis for Calls {
    fn element(&mut self, element: &ElementView<'_>) {
        let number = |name| element.field(name).unwrap().as_u64().unwrap();
        match element.stream.sensor.as_str() {
            SYSCALL => {
                let value = element.field("value").unwrap().to_string();
                self.calls.push((number("kind"), number("number"), value));
            }
            PAGE_FAULT if self.calls.is_empty() => self.faults_before += 1,
            _ => {}
        }
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

#[test]
fn first_and_only_execve_is_the_programs_wherever_path_leads() {
    let _cpus = cpu_lock();
    if !Backend::Bpf.works() {
        return;
    }
    let work_folder = tempfile::tempdir().unwrap();
    // Many folders without the program, and a file of its name that is no program.
    let mut path: Vec<OsString> = (0..5)
        .map(|number| work_folder.path().join(format!("folder-{number}")).into())
        .collect();
    for folder in &path[..3] {
        std::fs::create_dir(folder).unwrap();
    }
    std::fs::write(work_folder.path().join("folder-1/true"), "nothing").unwrap();
    std::fs::create_dir(work_folder.path().join("folder-2/true")).unwrap();
    path.push(env::var_os("PATH").unwrap());
    let overhear = Overhear::new(&work_folder)
        .backend(Backend::Bpf)
        .sensors("syscall,page_fault");
    let mut command = overhear.command(["true"]);
    let output = command
        .env("PATH", path.join(":".as_ref()))
        .output()
        .unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    if messages.contains("no sensor syscall") {
        return println!("skipped: {messages}");
    }
    assert_eq!(output.status.code(), Some(0), "{messages}");

    let mut calls = Calls::default();
    TraceReader::open(overhear.trace())
        .unwrap()
        .replay(&mut [&mut calls]);
    let execve = libc::SYS_execve as u64;
    let own = |call: &&(u64, u64, String)| call.1 == execve;
    let executes: Vec<_> = calls.calls.iter().filter(own).collect();
    println!("{executes:?} of {} elements", calls.calls.len());
    let (kind, number, _) = &calls.calls[0];
    assert_eq!((*kind, *number), (KIND_BEGIN.into(), execve));
    assert_eq!(executes.len(), 2, "an entry and an end");
    assert_eq!(executes[1].2, "0", "it did not fail");
    let unknown = u64::from(u32::MAX);
    assert!(calls.calls.iter().all(|(_, number, _)| *number != unknown));
    assert_eq!(calls.faults_before, 0);
}
