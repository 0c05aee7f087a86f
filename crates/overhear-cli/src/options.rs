// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names of options in the messages of errors.

use overhear_session::error::{SessionError, Setting};

/// The message of an error, with the options that it is about.
pub(crate) fn message(error: &SessionError) -> String {
    match error.setting.map(names) {
        Some(names) => format!("{error} ({names})"),
        None => error.to_string(),
    }
}

const fn names(setting: Setting) -> &'static str {
    match setting {
        Setting::Calibration => "--compensate, --calibration FILE",
        Setting::Command => "after `--`",
        Setting::Compensate => "--compensate",
        Setting::Execution => "--no-exec",
        Setting::KernelOff => "--kernel off, --kernel-sensors",
        Setting::KernelSensors => "--kernel-sensors",
        Setting::MeasureWcet => "--measure-wcet",
        Setting::Metrics => "--dot, --metric, --config",
        Setting::Output => "--output",
        Setting::Probes => "--probe, --usdt, --tracepoint, --kprobe",
        Setting::Sampling => "--sample, --every, --per, --min-interval",
        Setting::Socket => "--socket",
        Setting::Until => "--until all-ended",
        Setting::UntilWithoutKernel => "--until all-ended, --kernel off",
    }
}
