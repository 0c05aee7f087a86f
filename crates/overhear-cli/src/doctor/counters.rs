// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counters of this machine, for `overhear doctor --counters`.

use overhear_sampling::counters::{survey, CounterSurvey, EventClass};

use super::Finding;

/// Classes with names, in the order of the findings.
const CLASSES: [(EventClass, &str); 3] = [
    (EventClass::Software, "software"),
    (EventClass::Hardware, "hardware"),
    (EventClass::Cache, "cache"),
];

/// Opens every counter that has a name.
#[must_use]
pub(crate) fn examine_counters() -> Vec<Finding> {
    let survey = survey();
    let mut findings = Vec::new();
    for (class, name) in CLASSES {
        findings.extend(of_class(&survey, class, name));
    }
    findings.push(group(&survey));
    findings.push(rdpmc(&survey));
    findings.push(match survey.kernel_permitted {
        true => Finding::good("kernel", "counters count in user mode and in the kernel"),
        false => Finding::bad(
            "kernel",
            "counters count in user mode only, and events of the kernel are not permitted",
            "set kernel.perf_event_paranoid to 1, or give the program CAP_PERFMON",
        ),
    });
    findings
}

/// The counters of a class that work, and the others, one finding for each reason.
fn of_class(survey: &CounterSurvey, class: EventClass, name: &'static str) -> Vec<Finding> {
    let counters = survey
        .counters
        .iter()
        .filter(|it| it.event.class() == class);
    let (mut work, mut missing): (Vec<&str>, Vec<(String, Vec<&str>)>) = Default::default();
    for counter in counters {
        let written = counter.event.name();
        let Err(error) = &counter.result else {
            work.push(written);
            continue;
        };
        let reason = error.reason();
        match missing.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, names)) => names.push(written),
            None => missing.push((reason, vec![written])),
        }
    }
    let mut findings = Vec::new();
    if !work.is_empty() {
        findings.push(Finding::good(name, work.join(", ")));
    }
    for (reason, names) in missing {
        findings.push(Finding::bad(name, names.join(", "), &reason));
    }
    findings
}

fn group(survey: &CounterSurvey) -> Finding {
    match survey.fit {
        Some(fit) => Finding::good(
            "group",
            format!("{fit} of the CPU's counters above fit in one group at present"),
        ),
        None => Finding::bad(
            "group",
            "no counter of the CPU works",
            "samplers count software events, of which any number fits",
        ),
    }
}

fn rdpmc(survey: &CounterSurvey) -> Finding {
    match survey.rdpmc {
        Some(true) => Finding::good(
            "rdpmc",
            "programs read the CPU's counters without a system call",
        ),
        Some(false) => Finding::bad(
            "rdpmc",
            "programs read the CPU's counters by a system call",
            "set /sys/devices/cpu/rdpmc to 1 (x86-64 only)",
        ),
        None => Finding::bad(
            "rdpmc",
            "no counter of the CPU works",
            "samplers in programs read software events by one system call",
        ),
    }
}
