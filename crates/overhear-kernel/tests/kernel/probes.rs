// SPDX-License-Identifier: MIT OR Apache-2.0
//! Probes on this binary, and at addresses that cannot be probed.

use std::collections::BTreeMap;
use std::hint::black_box;

use overhear_event::GapCause;
use overhear_kernel::{Backend, KernelMonitor, Probe, ProbeError, StartError};

use crate::harness::{cpu_lock, Program, Recorder};
use crate::roles::park;

/// Number of times that the program passes each probe.
pub(crate) const TURNS: i64 = 100;

/// A function that can be found by its name.
#[no_mangle]
#[inline(never)]
extern "C" fn overhear_test_probed(first: i64, second: i64) -> i64 {
    black_box(first * 3 - second)
}

/// A static probe: one nop, and a note in the file, as <sys/sdt.h> writes it. rdi and rsi hold the
/// values.
#[cfg(target_arch = "x86_64")]
macro_rules! static_probe {
    ($name:literal, $arguments:literal, $rdi:expr, $rsi:expr) => {
        // SAFETY: executes one nop; the rest is a note in the file.
        unsafe {
            std::arch::asm!(
                "990: nop",
                ".pushsection .note.stapsdt,\"\",\"note\"",
                ".balign 4",
                ".4byte 992f-991f, 994f-993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b",
                ".8byte _.stapsdt.base",
                ".8byte 0",
                ".asciz \"overhear_test\"",
                concat!(".asciz \"", $name, "\""),
                concat!(".asciz \"", $arguments, "\""),
                "994: .balign 4",
                ".popsection",
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base,1",
                ".popsection",
                ".endif",
                in("rdi") $rdi,
                in("rsi") $rsi,
                options(nomem, nostack, preserves_flags),
            );
        }
    };
}

/// Static probes with two arguments (a register, and a part of one with a sign), with none, and
/// with more than functions have registers for.
#[cfg(target_arch = "x86_64")]
fn pass_static_probes(value: i64) {
    static_probe!("phase", "-8@%rdi -4@%esi", value, 0xffff_fff9_u64);
    static_probe!("bare", "", 0, 0);
    // \\044 is a dollar, which the assembler would interpret itself.
    static_probe!(
        "many",
        "4@\\0441 -4@\\044-2 8@%rdi 4@%esi -1@%sil 8@\\0446 8@\\0447 -8@\\044-8",
        value,
        0xffff_fff9_u64
    );
}

#[cfg(not(target_arch = "x86_64"))]
fn pass_static_probes(_: i64) {}

/// Role: passes each probe in turn, and prints the address of the probed function.
pub(crate) fn probed() {
    println!(
        "@ {}",
        overhear_test_probed as extern "C" fn(i64, i64) -> i64 as usize
    );
    println!("@ parked");
    park();
    for cpu_lock in 0..TURNS {
        black_box(overhear_test_probed(cpu_lock, -cpu_lock));
        pass_static_probes(-cpu_lock);
    }
    println!("@ parked");
    park();
}

fn own(place: &str) -> String {
    let path = std::env::current_exe().unwrap();
    format!("{}:{place}", path.display())
}

/// The probes that [`probed`] passes.
pub(crate) fn probes() -> Vec<Probe> {
    let mut probes = vec![
        Probe::function(&own("overhear_test_probed")).unwrap(),
        Probe::function(&own("overhear_test_probed:return")).unwrap(),
    ];
    if cfg!(target_arch = "x86_64") {
        let names = ["phase", "bare", "many"];
        let own = names.map(|name| own(&format!("overhear_test:{name}")));
        probes.extend(own.map(|place| Probe::usdt(&place).unwrap()));
    }
    probes
}

/// The existing arguments, in their order.
fn arguments(fields: &BTreeMap<String, i128>) -> Vec<i128> {
    let names = (1..).map(|number| format!("argument_{number}"));
    let found = names.map_while(|name| fields.get(&name).copied());
    let found: Vec<i128> = found.collect();
    assert_eq!(fields.len(), 2 + found.len(), "and the thread: {fields:?}");
    found
}

#[test]
fn probes_record_arguments() {
    let _cpus = cpu_lock();
    let probes = probes();
    let names: Vec<String> = probes.iter().map(Probe::sensor).collect();
    let builder = KernelMonitor::builder()
        .backend(Backend::Bpf)
        .probes(probes);
    let mut monitor = match builder.create() {
        Ok(monitor) => monitor,
        Err(StartError::Bpf { why }) => return println!("skipped: {why}"),
        Err(error) => panic!("{error}"),
    };
    let mut recorder = Recorder::default();
    let mut program = Program::start("probed", |_| {});
    program.until_parked(|| {});
    // Another process passes the same probes, untracked.
    let mut stranger = Program::start("probed", |_| {});
    stranger.until_parked(|| {});
    monitor.process_monitor(program.pid).unwrap();
    monitor.resume().unwrap();
    stranger.release(1);
    stranger.until_parked_again(|| recorder.poll(&mut monitor));
    program.release(1);
    program.until_parked_again(|| recorder.poll(&mut monitor));
    program.end();
    stranger.end();
    monitor.finish().unwrap();
    recorder.poll(&mut monitor);
    for (name, elements) in &recorder.others {
        println!("{name}: {} elements", elements.len());
    }
    recorder.assert_all(|id| monitor.committed(id));
    assert_eq!(recorder.missed(GapCause::Overwritten), 0);
    for name in &names {
        let elements = &recorder.others[name];
        assert_eq!(elements.len(), TURNS as usize, "{name}");
        assert!(elements
            .iter()
            .all(|fields| fields["pid"] == program.pid.into()));
        for (cpu_lock, fields) in elements.iter().enumerate() {
            let cpu_lock = cpu_lock as i128;
            match name.as_str() {
                "probe/overhear_test_probed" => {
                    assert_eq!(
                        (fields["argument_1"], fields["argument_2"]),
                        (cpu_lock, -cpu_lock)
                    );
                }
                "probe/overhear_test_probed/return" => assert_eq!(fields["value"], 4 * cpu_lock),
                "usdt/overhear_test/phase" => assert_eq!(arguments(fields), [-cpu_lock, -7]),
                "usdt/overhear_test/bare" => assert_eq!(arguments(fields), []),
                _ => {
                    // Without a sign it has the value of its bits.
                    let unsigned = |value: i128| i128::from(value as u64);
                    let expected = [1, -2, unsigned(-cpu_lock), 0xffff_fff9, -7, 6, 7, -8];
                    assert_eq!(arguments(fields), expected);
                }
            }
        }
    }
}

#[test]
fn invalid_probes_fail_with_message() {
    for text in ["", ":", "/bin/sh", "/bin/sh:", ":main", "/bin/sh::return"] {
        let error = Probe::function(text).unwrap_err();
        assert!(matches!(error, ProbeError::Form { .. }), "{error}");
    }
    for text in ["/bin/sh", "/bin/sh:name", "::", "/bin/sh:a:"] {
        assert!(
            matches!(Probe::usdt(text), Err(ProbeError::Form { .. })),
            "{text}"
        );
    }
    let create = |probe: Probe| KernelMonitor::builder().probes([probe]).create();
    for path in ["/no/such/file", "/proc", "/etc/passwd", "/dev/null"] {
        let probe = Probe::function(&format!("{path}:main")).unwrap();
        let error = create(probe).unwrap_err();
        println!("{error}");
        let refused = matches!(error, StartError::Probe(ProbeError::File { .. }));
        assert!(refused, "{error:?}");
    }
    for probe in [
        Probe::function(&own("there_is_no_such_function")).unwrap(),
        Probe::usdt(&own("there_is_no:such_probe")).unwrap(),
    ] {
        match create(probe).unwrap_err() {
            StartError::Probe(ProbeError::NeedsBpf { why }) => println!("skipped: {why}"),
            StartError::Probe(ProbeError::Missing { what, .. }) => println!("no {what}"),
            error => panic!("{error:?}"),
        }
    }
    let many = vec![Probe::function(&own("overhear_test_probed")).unwrap(); 17];
    let error = KernelMonitor::builder().probes(many).create().unwrap_err();
    assert_eq!(error, StartError::Probe(ProbeError::TooMany { given: 17 }));
}
