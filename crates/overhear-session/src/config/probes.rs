// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[[probe]]`: a function, static probe or tracepoint that becomes a kernel sensor of the run.

use std::path::Path;
use std::sync::Arc;

use overhear_directory::Query;
use overhear_event::kernel::is_probe;
use overhear_event::{
    Analysis, EventName, EventSet, Origin, StreamDescriptor, StreamId, TypeSchema,
};
use overhear_kernel::{Probe, ProbeError};
use schemars::JsonSchema;
use serde::Deserialize;

use super::reject_unknown_entries;
use crate::error::{ErrorKind, SessionError, Setting};
use crate::requested_analyses::RequestedAnalyses;

/// `[[probe]]`: a kernel sensor while a program is run; see docs/kernel-sensors.md. Give one key.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeConfig {
    /// A function of a program or library: `FILE:SYMBOL` or `FILE:SYMBOL:return`, the sensor
    /// `kernel:probe/SYMBOL` or `kernel:probe/SYMBOL/return`.
    #[serde(default)]
    pub function: Option<String>,
    /// A static probe: `FILE:PROVIDER:NAME`, the sensor `kernel:usdt/PROVIDER/NAME`.
    #[serde(default)]
    pub usdt: Option<String>,
    /// A tracepoint of the kernel: `SYSTEM:NAME` or `NAME`, the sensor
    /// `kernel:tracepoint/SYSTEM/NAME` or `kernel:tracepoint/NAME`.
    #[serde(default)]
    pub tracepoint: Option<String>,
    /// A function of the kernel: `FUNCTION` or `FUNCTION:return`, the sensor
    /// `kernel:kprobe/FUNCTION` or `kernel:kprobe/FUNCTION/return`.
    #[serde(default)]
    pub kprobe: Option<String>,
}

/// Parses a text as a probe of one kind.
type ParseProbe = fn(&str) -> Result<Probe, ProbeError>;

impl ProbeConfig {
    /// The probe of the entry.
    ///
    /// # Errors
    /// A message, if the entry is invalid.
    pub(crate) fn probe(&self) -> Result<Probe, String> {
        let kinds: [(&Option<String>, ParseProbe); 4] = [
            (&self.function, Probe::function),
            (&self.usdt, Probe::usdt),
            (&self.tracepoint, Probe::tracepoint),
            (&self.kprobe, Probe::kernel_function),
        ];
        let given = kinds
            .into_iter()
            .filter_map(|(text, read)| Some((text.as_ref()?, read)));
        let mut given = given.collect::<Vec<_>>().into_iter();
        match (given.next(), given.next()) {
            (Some((text, read)), None) => read(text).map_err(|error| error.to_string()),
            _ => Err("give one of `function`, `usdt`, `tracepoint` and `kprobe`".to_owned()),
        }
    }
}

/// The probes of entries.
///
/// # Errors
/// A message about the first invalid entry.
pub(crate) fn probes_of(entries: &[ProbeConfig]) -> Result<Vec<Probe>, String> {
    let probes = (1..).zip(entries).map(|(number, entry)| {
        let probe = entry.probe();
        probe.map_err(|message| format!("the probe no. {number}: {message}"))
    });
    probes.collect()
}

/// The probes of the file `path`; empty if it has none.
///
/// # Errors
/// [`SessionError`] with a message that names the file and the entry.
pub fn read_any(path: &Path) -> Result<Vec<Probe>, SessionError> {
    let usage = |message: String| {
        SessionError::new(ErrorKind::Usage, format!("{}: {message}", path.display()))
    };
    parse(&super::text_of(path)?).map_err(usage)
}

fn parse(text: &str) -> Result<Vec<Probe>, String> {
    #[derive(Deserialize)]
    struct Entries {
        #[serde(default, rename = "probe")]
        probes: Vec<ProbeConfig>,
    }

    reject_unknown_entries(text)?;
    let entries: Entries = super::from_toml(text)?;
    probes_of(&entries.probes)
}

/// Checks that all probes that the analyses require are attached, and have the fields that the
/// analyses read. `trial` is opened for a stream of each probe and dropped.
///
/// # Errors
/// [`SessionError`] with a message about the first error.
pub(crate) fn check_usable(
    mut trial: RequestedAnalyses,
    probes: &[Probe],
) -> Result<(), SessionError> {
    let required = trial.requires();
    check_attached(&required, probes)?;
    let is_required = |probe: &&Probe| required.contains(&EventName::kernel(&probe.sensor()));
    for (id, probe) in (1..).zip(probes.iter().filter(is_required)) {
        // If it cannot be resolved, the monitor that attaches it returns the error.
        if let Ok(schema) = probe.schema() {
            trial.open(&stream_of(probe, id, schema));
        }
    }
    match trial.complaints().into_iter().next() {
        Some(message) => Err(SessionError::new(ErrorKind::Usage, message)),
        None => Ok(()),
    }
}

/// The description of a stream of the probe's elements.
fn stream_of(probe: &Probe, id: u32, schema: TypeSchema) -> StreamDescriptor {
    StreamDescriptor {
        id: StreamId::from_raw(id),
        origin: Origin::Kernel { cpu: 0 },
        sensor: probe.sensor(),
        instance: probe.instance(),
        lane: None,
        schema: Arc::new(schema),
        rate: None,
        capacity: 0,
    }
}

/// Checks that a probe is attached if the pattern of an update names probes.
///
/// # Errors
/// [`SessionError`] with a message that names the update.
pub(crate) fn check_pattern(
    update: &str,
    pattern: &str,
    probes: &[Probe],
) -> Result<(), SessionError> {
    let names_probes = ["kernel:", "kernel/"].iter().any(|origin| {
        let name = pattern.strip_prefix(origin);
        name.is_some_and(is_probe)
    });
    let matches = Query::streams(pattern);
    let matches =
        matches.map_err(|error| SessionError::new(ErrorKind::Usage, error.to_string()))?;
    let is_named = |probe: &Probe| {
        let schema = TypeSchema::builder("probe").build();
        schema.is_ok_and(|schema| matches(&stream_of(probe, 1, schema)))
    };
    if !names_probes || probes.iter().any(is_named) {
        return Ok(());
    }
    Err(SessionError::new(
        ErrorKind::Usage,
        format!(
            "update `{update}` takes `{pattern}`, which is no probe of this run ({}); {PROBE_ADVICE}",
            attached(probes)
        ),
    )
    .about(Setting::Probes))
}

/// Advice in messages about a probe that is not attached.
const PROBE_ADVICE: &str = "name it as a probe of the run, or by a [[probe]] of the file";

/// The probes of a run, for a message.
fn attached(probes: &[Probe]) -> String {
    let events = probes
        .iter()
        .map(|probe| format!("kernel:{}", probe.sensor()));
    let events: Vec<String> = events.collect();
    match events.is_empty() {
        true => "there are none".to_owned(),
        false => format!("there is {}", events.join(", ")),
    }
}

fn check_attached(required: &EventSet, probes: &[Probe]) -> Result<(), SessionError> {
    let is_attached = |event: &&EventName| {
        let mut attached = probes.iter();
        attached.any(|probe| EventName::kernel(&probe.sensor()) == **event)
    };
    let absent = required.iter().filter(|event| event.is_of_probe());
    let Some(event) = absent.filter(|event| !is_attached(event)).min() else {
        return Ok(());
    };
    Err(SessionError::new(
        ErrorKind::Usage,
        format!(
            "`{event}` is to be evaluated, and is no probe of this run ({}); {PROBE_ADVICE}",
            attached(probes)
        ),
    )
    .about(Setting::Probes))
}

#[cfg(test)]
mod tests {
    use overhear_event::{EventName, EventSet};

    use super::{check_attached, parse};

    #[test]
    fn entries_name_probes_of_each_kind() {
        let text = "[[probe]]\nfunction = \"server:shop::price(int)\"\n[[probe]]\nusdt = \"server:app:phase\"\n\
                    [[probe]]\ntracepoint = \"sched:sched_switch\"\n[[probe]]\nkprobe = \"vfs_read:return\"\n";
        let probes = parse(text).unwrap();
        let sensors: Vec<String> = probes.iter().map(|probe| probe.sensor()).collect();
        let expected = [
            "probe/shop::price(int)",
            "usdt/app/phase",
            "tracepoint/sched/sched_switch",
            "kprobe/vfs_read/return",
        ];
        assert_eq!(sensors, expected);
        for (text, part) in [
            ("[[probe]]\n", "no. 1: give one of"),
            (
                "[[probe]]\nusdt = \"a:b:c\"\nkprobe = \"f\"\n",
                "give one of",
            ),
            (
                "[[probe]]\nfunction = \"server\"\n",
                "no. 1: \"server\" names no probe",
            ),
            ("[[probe]]\nfunktion = \"a:b\"\n", "line 2"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(part), "{text:?}: {message}");
        }
        let required: EventSet = [
            EventName::user("probe/x"),
            EventName::kernel("sched_switch"),
            EventName::kernel("usdt/app/phase"),
        ]
        .into();
        assert!(check_attached(&required, &probes).is_ok());
        let failure = check_attached(&required, &[]).unwrap_err();
        assert!(
            failure.message.contains("`kernel:usdt/app/phase`"),
            "{}",
            failure.message
        );
    }
}
