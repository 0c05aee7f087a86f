// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear doctor`: the features that work for this user on this machine, and how to enable the
//! others.

mod counters;

use std::fs;

use overhear_directory::{MonitorConnection, Query};
use overhear_event::ClockId;
use overhear_kernel::{Backend, Kernel, Sensor};
use overhear_monitor::Partition;
use overhear_trace::ForeignTrace;
use serde::Serialize;

pub(crate) use counters::examine_counters;

/// One finding.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    /// Name of the feature.
    pub(crate) name: &'static str,
    /// Whether it works.
    pub(crate) ok: bool,
    /// Result of the examination.
    pub(crate) message: String,
    /// How to enable the feature; empty if it works.
    pub(crate) advice: String,
}

impl Finding {
    fn good(name: &'static str, message: impl Into<String>) -> Self {
        Self {
            name,
            ok: true,
            message: message.into(),
            advice: String::new(),
        }
    }

    fn bad(name: &'static str, message: impl Into<String>, advice: &str) -> Self {
        Self {
            name,
            ok: false,
            message: message.into(),
            advice: advice.to_string(),
        }
    }
}

/// Examines all features.
#[must_use]
pub(crate) fn examine() -> Vec<Finding> {
    vec![
        kernel_release(),
        btf(),
        bpf(),
        more(),
        perf(),
        clock(),
        locked_memory(),
        partitions(),
        directory(),
        tools(),
    ]
}

/// Whether at least one kernel sensor works, or at least one counter.
#[must_use]
pub(crate) fn is_usable(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| {
        let essential = ["bpf", "perf", "software", "hardware", "cache"];
        essential.contains(&finding.name) && finding.ok
    })
}

#[expect(clippy::disallowed_methods, reason = "of /proc and /sys")]
fn kernel_release() -> Finding {
    let name = rustix::system::uname();
    let (release, machine) = (
        name.release().to_string_lossy(),
        name.machine().to_string_lossy(),
    );
    let realtime = fs::read_to_string("/sys/kernel/realtime").is_ok_and(|text| text.trim() == "1");
    let kind = if realtime { ", PREEMPT_RT" } else { "" };
    Finding::good("kernel", format!("Linux {release} on {machine}{kind}"))
}

#[expect(clippy::disallowed_methods, reason = "of /proc and /sys")]
fn btf() -> Finding {
    match fs::metadata("/sys/kernel/btf/vmlinux") {
        Ok(_) => Finding::good("btf", "the kernel describes its types (BTF)"),
        Err(_) => Finding::bad(
            "btf",
            "the kernel does not describe its types, so BPF programs cannot adapt to it",
            "run a kernel built with CONFIG_DEBUG_INFO_BTF; perf records work without it",
        ),
    }
}

fn bpf() -> Finding {
    match Kernel::builder().backend(Backend::Bpf).build() {
        Ok(_) => Finding::good(
            "bpf",
            "BPF kernel sensors load: context switches and wake-ups",
        ),
        Err(error) => Finding::bad(
            "bpf",
            error.to_string(),
            "run as root, or give the command `setcap cap_bpf,cap_perfmon+ep` on the binary",
        ),
    }
}

/// The sensors beyond scheduling that this kernel has.
fn more() -> Finding {
    let kernel = Kernel::builder()
        .backend(Backend::Bpf)
        .sensors(Sensor::all())
        .elements(64)
        .build();
    let message = match kernel {
        Ok(kernel) => kernel.status().message.clone(),
        Err(_) => {
            return Finding::bad(
                "sensors",
                "kernel sensors beyond scheduling need BPF",
                "as for bpf",
            )
        }
    };
    let parts = message.split("; ").skip(1);
    let parts: Vec<&str> = parts.collect();
    Finding::good("sensors", parts.join("; "))
}

#[expect(clippy::disallowed_methods, reason = "of /proc and /sys")]
fn perf() -> Finding {
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let level = level.trim();
    // The sensor opens its events when it follows a process; any process will do.
    let kernel = Kernel::builder().backend(Backend::Perf).build();
    let followed = kernel
        .map_err(|error| error.to_string())
        .and_then(|mut kernel| kernel.follow(std::process::id()).map_err(|e| e.to_string()));
    match followed {
        Ok(()) => Finding::good(
            "perf",
            format!("perf context-switch records work for your own programs (perf_event_paranoid is {level})"),
        ),
        Err(error) => Finding::bad(
            "perf",
            error,
            "set kernel.perf_event_paranoid to 2 or less, and leave room in RLIMIT_NOFILE",
        ),
    }
}

fn clock() -> Finding {
    match overhear_directory::sensor_clock() {
        ClockId::Monotonic => Finding::bad(
            "clock",
            "sensors stamp with CLOCK_MONOTONIC: correct, but about 15 ns slower per element",
            "the CPU's counter must be invariant and the kernel's clocksource `tsc`",
        ),
        ClockId::X86Tsc => Finding::good("clock", "sensors stamp with the time stamp counter"),
        ClockId::ArmCntvct => Finding::good("clock", "sensors stamp with the virtual counter"),
    }
}

fn locked_memory() -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    match limit {
        Some(bytes) if bytes < 8 << 20 && !rustix::process::geteuid().is_root() => Finding::bad(
            "memory",
            format!("only {bytes} bytes may be locked, so buffers may be swapped out"),
            "raise RLIMIT_MEMLOCK (`memlock` in /etc/security/limits.d) to 64 MiB",
        ),
        Some(bytes) if !rustix::process::geteuid().is_root() => Finding::good(
            "memory",
            format!(
                "buffers of {} MiB in all can be locked in memory; what is beyond that may be \
                 swapped out",
                bytes >> 20
            ),
        ),
        _ => Finding::good("memory", "buffers can be locked in memory"),
    }
}

/// CPUs that are still set apart for monitors that were killed.
fn partitions() -> Finding {
    match Partition::leftovers() {
        Ok(left) if left.is_empty() => {
            Finding::good("partitions", "no CPU is set apart for a monitor that has ended")
        }
        Ok(left) => Finding::bad(
            "partitions",
            format!(
                "a monitor was killed and has left CPUs set apart: {}",
                left.join(", ")
            ),
            "the next monitor with `dedicated_cpu` clears it: run `overhear run --config FILE` with one as root",
        ),
        Err(error) => Finding::bad(
            "partitions",
            error.to_string(),
            "mount the control groups, or do without `dedicated_cpu`",
        ),
    }
}

fn directory() -> Finding {
    let Some(socket) = overhear_directory::client::socket_path() else {
        return Finding::good(
            "directory",
            "no directory runs; `overhear run` brings its own, `overheard` serves all programs",
        );
    };
    let shown = socket.display();
    let mut connection = match MonitorConnection::connect(&socket) {
        Ok(connection) => connection,
        Err(error) => {
            return Finding::bad(
                "directory",
                error.to_string(),
                "start `overheard`, or unset OVERHEAR_DIRECTORY: no monitor can read sensors",
            )
        }
    };
    let listed = connection
        .status()
        .and_then(|status| Ok((status.sensors, connection.list(&Query::all())?.len())));
    match listed {
        Ok((all, readable)) if all == 0 || readable > 0 => Finding::good(
            "directory",
            format!("the directory at {shown} permits you {readable} of {all} sensors"),
        ),
        Ok((all, _)) => Finding::bad(
            "directory",
            format!("the directory at {shown} permits you none of {all} sensors"),
            "sensors of other users need a rule in its directory.toml",
        ),
        Err(error) => Finding::bad(
            "directory",
            error.to_string(),
            "you may not attach here: its directory.toml needs a rule for you; or run your own directory",
        ),
    }
}

fn tools() -> Finding {
    match ForeignTrace::available() {
        Ok(()) => Finding::good(
            "tools",
            "libbabeltrace2 is installed: `overhear import` works",
        ),
        Err(error) => Finding::good("tools", format!("{error}; only `overhear import` needs it")),
    }
}
