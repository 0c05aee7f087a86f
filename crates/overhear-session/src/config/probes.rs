// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[[probe]]`: a place in programs or in the kernel that becomes a sensor of the run.

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

use super::refuse_strangers;
use crate::error::{ErrorKind, SessionError};
use crate::evaluations::Evaluations;

/// `[[probe]]`: a place that becomes a sensor while a program is run, as by the options of
/// `overhear run`; see docs/kernel-sensors.md. Give one key.
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

/// Reads a text as a probe of some kind.
type Read = fn(&str) -> Result<Probe, ProbeError>;

impl ProbeConfig {
    /// The probe that it names.
    ///
    /// # Errors
    /// A message.
    pub(crate) fn probe(&self) -> Result<Probe, String> {
        let kinds: [(&Option<String>, Read); 4] = [
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

/// The probes of entries; a message names the first that is none.
pub(crate) fn probes_of(entries: &[ProbeConfig]) -> Result<Vec<Probe>, String> {
    let probes = (1..).zip(entries).map(|(number, entry)| {
        let probe = entry.probe();
        probe.map_err(|message| format!("the probe no. {number}: {message}"))
    });
    probes.collect()
}

/// The probes of the file `path`, which may have none.
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

    refuse_strangers(text)?;
    let entries: Entries = super::from_toml(text)?;
    probes_of(&entries.probes)
}

/// Refuses evaluations that could not succeed: of probes that nobody attaches, and of fields that
/// the probes lack. The evaluations are opened for a stream of each probe and dropped.
///
/// # Errors
/// [`SessionError`] with a message about the first of them.
pub(crate) fn refuse_unusable(
    mut trial: Evaluations,
    probes: &[Probe],
) -> Result<(), SessionError> {
    let required = trial.requires();
    refuse_absent(&required, probes)?;
    let evaluated = |probe: &&Probe| required.contains(&EventName::kernel(&probe.sensor()));
    for (id, probe) in (1..).zip(probes.iter().filter(evaluated)) {
        // A place that cannot be resolved is refused by the monitor that attaches it.
        if let Ok(schema) = probe.schema() {
            trial.open(&stream_of(probe, id, schema));
        }
    }
    match trial.complaints().into_iter().next() {
        Some(message) => Err(SessionError::new(ErrorKind::Usage, message)),
        None => Ok(()),
    }
}

/// A stream of the probe's elements.
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

/// Refuses the pattern of an update that names probes, of which none is attached.
///
/// # Errors
/// [`SessionError`] with a message that names the update.
pub(crate) fn refuse_pattern(
    update: &str,
    pattern: &str,
    probes: &[Probe],
) -> Result<(), SessionError> {
    let names_probes = ["kernel:", "kernel/"].iter().any(|origin| {
        let name = pattern.strip_prefix(origin);
        name.is_some_and(is_probe)
    });
    let wants = Query::streams(pattern);
    let wants = wants.map_err(|error| SessionError::new(ErrorKind::Usage, error.to_string()))?;
    let is_wanted = |probe: &Probe| {
        let schema = TypeSchema::builder("probe").build();
        schema.is_ok_and(|schema| wants(&stream_of(probe, 1, schema)))
    };
    if !names_probes || probes.iter().any(is_wanted) {
        return Ok(());
    }
    Err(SessionError::new(
        ErrorKind::Usage,
        format!(
            "update `{update}` wants `{pattern}`, which is no probe of this run ({}); {REMEDY}",
            attached(probes)
        ),
    ))
}

/// What to do about a probe that is not attached.
const REMEDY: &str =
    "give it by --probe, --usdt, --tracepoint or --kprobe, or by a [[probe]] of the file";

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

fn refuse_absent(required: &EventSet, probes: &[Probe]) -> Result<(), SessionError> {
    let is_there = |event: &&EventName| {
        let mut own = probes.iter();
        own.any(|probe| EventName::kernel(&probe.sensor()) == **event)
    };
    let absent = required.iter().filter(|event| event.is_of_probe());
    let Some(event) = absent.filter(|event| !is_there(event)).min() else {
        return Ok(());
    };
    Err(SessionError::new(
        ErrorKind::Usage,
        format!(
            "`{event}` is to be evaluated, and is no probe of this run ({}); {REMEDY}",
            attached(probes)
        ),
    ))
}

#[cfg(test)]
mod tests {
    use overhear_event::{EventName, EventSet};

    use super::{parse, refuse_absent};

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
        assert!(refuse_absent(&required, &probes).is_ok());
        let failure = refuse_absent(&required, &[]).unwrap_err();
        assert!(
            failure.message.contains("`kernel:usdt/app/phase`"),
            "{}",
            failure.message
        );
    }
}
