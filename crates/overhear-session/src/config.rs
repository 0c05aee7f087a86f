// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear.toml`: the configuration of monitors, sensors, updates, constraints and reactions.
//!
//! Unknown keys are refused: a user would believe that an ignored key has an effect. A test
//! compares `docs/overhear.schema.json`, the JSON Schema of the file, with these types.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use overhear_event::Nanos;
use overhear_monitor::executor::MAX_SHARE_PERCENT;
use overhear_monitor::MissedPolicy;
use overhear_sampling::sources::PLUGIN;
use schemars::{json_schema, JsonSchema, Schema, SchemaGenerator};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer};

pub mod budget;
pub mod constraints;
pub(crate) mod kernel;
pub mod metrics;
pub mod probes;
pub mod reactions;
pub mod recording;
pub mod samplers;
pub mod selection;
pub mod tasks;

use crate::error::{ErrorKind, SessionError, Setting};
use crate::trust::{self, TrustError};
use budget::BudgetConfig;
use constraints::ConstraintConfig;
use metrics::MetricConfig;
use overhear_kernel::Probe;
use probes::ProbeConfig;
use reactions::ReactionConfig;
use recording::RecordingConfig;
use samplers::SamplerConfig;
use selection::ExecutorKind;
use tasks::TaskConfig;

/// A file with a monitor.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The monitor that evaluates all updates. A file without sensors and updates needs none.
    #[schemars(with = "Option<MonitorConfig>")]
    pub monitor: MonitorConfig,
    /// The sensors whose elements are evaluated.
    #[serde(default, rename = "sensor")]
    pub sensors: Vec<SensorConfig>,
    /// The updates, in the order in which they get an element.
    #[serde(default, rename = "update")]
    pub updates: Vec<UpdateConfig>,
    /// Requirements on results. A file with constraints only needs no monitor.
    #[serde(default, rename = "constraint")]
    pub constraints: Vec<ConstraintConfig>,
    /// Metrics of the run. A file with metrics only needs no monitor.
    #[serde(default, rename = "metric")]
    pub metrics: Vec<MetricConfig>,
    /// Functions, static probes and tracepoints that become sensors of the run. A file with probes
    /// only needs no monitor.
    #[serde(default, rename = "probe")]
    pub probes: Vec<ProbeConfig>,
    /// Samplers of the run. A file with samplers only needs no monitor.
    #[serde(default, rename = "sampler")]
    pub samplers: Vec<SamplerConfig>,
    /// Periodic tasks, for their response times. A file with tasks only needs no monitor.
    #[serde(default, rename = "task")]
    pub tasks: Vec<TaskConfig>,
    /// Reactions. In a file without a monitor, they react to constraints only.
    #[serde(default, rename = "reaction")]
    pub reactions: Vec<ReactionConfig>,
    /// The budget of the run. A file with a budget only needs no monitor.
    #[serde(default)]
    pub budget: Option<BudgetConfig>,
    /// Limits of the recording of the run. A file with these only needs no monitor.
    #[serde(default)]
    pub recording: Option<RecordingConfig>,
}

/// `[monitor]`: the requested latency, and properties of the machine.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MonitorConfig {
    /// Bound of the time from the stamp of an element to the end of its evaluation. Guaranteed
    /// updates (executors `auto` and `deadline`) and `buffered` ones need it, here or in their own
    /// entry.
    #[serde(default)]
    pub latency: Option<Length>,
    /// Whether the monitor has a partition of one CPU, or shares all CPUs with other reservations.
    #[serde(default)]
    pub level: LevelConfig,
    /// The CPU that is set apart for the monitor while it runs, which the exclusive level needs:
    /// its number, or `"any"` for the last free one. By default, no CPU is set apart, and the
    /// command must be started in a partition.
    #[serde(default, alias = "own_cpu")]
    pub dedicated_cpu: Option<DedicatedCpu>,
    /// Number of CPUs that the shared level may use; by default all CPUs of this machine.
    #[serde(default)]
    pub cpus: Option<u32>,
    /// The shortest period that admission may choose. The kernel accepts none below 100 us.
    #[serde(default = "least_period")]
    pub least_period: Length,
    /// The longest period that admission may choose. Default buffers are sized for one second.
    #[serde(default = "largest_period")]
    pub largest_period: Length,
    /// CPU time per period besides evaluating and copying.
    #[serde(default = "overhead")]
    pub overhead: Length,
    /// Upper bound of the lateness of the monitor's timer.
    #[serde(default = "wake_up_lateness")]
    pub wake_up_lateness: Length,
    /// Upper bound of the time by which the kernel exceeds a deadline: its tick.
    #[serde(default = "scheduler_lateness", alias = "tardiness")]
    pub scheduler_lateness: Length,
    /// The age that an element must have before it is evaluated.
    #[serde(default = "hold_back")]
    pub hold_back: Length,
    /// Upper bound of the monitor's reservation, in per cent of a CPU. For the executor `bandwidth`
    /// it is the reserved share, at most 95.
    #[serde(default = "cpu_percent")]
    #[schemars(range(min = 1, max = 100))]
    pub cpu_percent: u32,
    /// Whether the demand of all sensors together has one bound, which needs less CPU time. The set
    /// of sensors must be fixed.
    #[serde(default, alias = "pooled")]
    pub joint_bound: bool,
    /// The executor of updates that name none.
    #[serde(default)]
    pub executor: ExecutorConfig,
    /// Number of elements of each stream that the buffered executor holds for its updates, rounded
    /// up to a power of two.
    #[serde(default = "buffered_elements", alias = "copies")]
    #[schemars(range(min = 2, max = 4194304))]
    pub buffered_elements: u64,
    /// Whether a watchdog measures the lateness of the machine, a thousand times per second on each
    /// CPU.
    #[serde(default, alias = "sentinel")]
    pub watchdog: bool,
}

/// The executor of an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorConfig {
    /// The deadline executor if this user may reserve CPU time; else best effort, with a warning.
    #[default]
    Auto,
    /// The deadline executor. Without it, the program is not run.
    Deadline,
    /// A reserved share of a CPU, `cpu_percent`, without a guaranteed latency.
    Bandwidth,
    /// A thread with reserved CPU time copies the elements, and the update evaluates the copies by
    /// best effort. It misses none while fewer than `buffered_elements` wait.
    Buffered,
    /// No guarantee and no reservation.
    BestEffort,
    /// No guarantee and no reservation, in the time in which the CPUs would be idle.
    Idle,
}

impl ExecutorConfig {
    /// The name in files and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Deadline => "deadline",
            Self::Bandwidth => "bandwidth",
            Self::Buffered => "buffered",
            Self::BestEffort => "best_effort",
            Self::Idle => "idle",
        }
    }
}

/// The level of the guarantee.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LevelConfig {
    /// A partition of one CPU.
    #[default]
    Exclusive,
    /// All CPUs, together with other reservations.
    Shared,
}

/// The CPU that is set apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "write a CPU's number or \"any\"")]
pub enum DedicatedCpu {
    /// The CPU with this number.
    Number(u32),
    /// A free CPU.
    Any(AnyCpu),
}

/// The word `any`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnyCpu {
    /// The last free CPU.
    Any,
}

impl DedicatedCpu {
    /// Its number; `None` for any CPU.
    #[must_use]
    pub const fn number(self) -> Option<u32> {
        match self {
            Self::Number(cpu) => Some(cpu),
            Self::Any(AnyCpu::Any) => None,
        }
    }
}

/// `[[sensor]]`: the arrival bound of a sensor, declared by `period`, `distance` and `jitter`, or
/// fitted to a recording.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SensorConfig {
    /// Its id, to which updates refer. `kernel:NAME` is a kernel sensor, or a `[[probe]]` of the
    /// file.
    pub id: String,
    /// T, the period.
    #[serde(default)]
    pub period: Option<Length>,
    /// D, the least distance of two elements; 0 by default.
    #[serde(default)]
    pub distance: Option<Length>,
    /// tau, the total time by which elements may arrive early; 0 by default.
    #[serde(default)]
    pub jitter: Option<Length>,
    /// The folder of a recording: (T, D, tau) is fitted to the elements of this sensor in it. If
    /// `period` is given as well, it is T of the fit.
    #[serde(default)]
    pub fitted: Option<PathBuf>,
    /// Number of elements that the shared buffer holds. By default it is the number that the
    /// directory gives a sensor with this declared rate. A smaller buffer makes the guarantee
    /// inconclusive.
    #[serde(default)]
    pub buffer: Option<u64>,
    /// Number of sensors that match `id`. Each has this (T, D, tau). The guarantee begins when this
    /// number of sensors is registered.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 256))]
    pub count: u32,
    /// Number of lanes of a laned sensor: one for each thread that may write it.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 4096))]
    pub lanes: u32,
    /// Largest payload of an element in bytes, for the bound of the monitor's memory.
    #[serde(default = "payload")]
    #[schemars(range(min = 0, max = 65536))]
    pub payload: u32,
    /// Worst-case execution time of copying an element to private memory.
    #[serde(default = "copy")]
    pub copy: Length,
}

/// `[[update]]`: an update and its execution time.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateConfig {
    /// Its name.
    pub name: String,
    /// The ids of the sensors whose elements it takes; all of them by default.
    #[serde(default)]
    pub sensors: Option<Vec<String>>,
    /// Worst-case execution time for one element. `overhear run --measure-wcet` suggests one, and
    /// needs none. An update without a guarantee needs none either.
    #[serde(default)]
    pub wcet: Option<Length>,
    /// The numeric field whose values are counted in a histogram. Without it, elements are counted.
    #[serde(default)]
    pub field: Option<String>,
    /// A metric that is measured: the name of a built-in one, or a file, as a name with `/` or `.`
    /// relative to this file. All its events must be those of sensors that the update takes.
    #[serde(default)]
    pub metric: Option<String>,
    /// An update of a plug-in, `FILE.so[:NAME][=ARGUMENT]`; without a name, all updates of the
    /// plug-in together. The file name is relative to this file.
    #[serde(default)]
    pub plugin: Option<String>,
    /// Upper bound of the bytes that the update of a plug-in allocates; by default its allocation
    /// at creation and a MiB. The mapped file of the plug-in is not included.
    #[serde(default)]
    pub memory: Option<u64>,
    /// Its missed policy. By default that of its plug-in; without a plug-in, it continues.
    #[serde(default)]
    pub missed: Option<MissedConfig>,
    /// Bound of the time from the stamp of an element to the end of this update; by default that of
    /// the monitor. Guaranteed updates share the least of their latencies.
    #[serde(default)]
    pub latency: Option<Length>,
    /// Its executor; by default that of the monitor.
    #[serde(default)]
    pub executor: Option<ExecutorConfig>,
    /// Whether it evaluates large elements in place, if its plug-in can. A guaranteed update must
    /// state it: the elements then stay in the sensor's buffer until they are evaluated, and the
    /// buffer must be large enough.
    #[serde(default)]
    pub in_place: bool,
}

impl UpdateConfig {
    /// The missed policy that the monitor enforces. The updates of a plug-in enforce their own
    /// policies.
    pub(crate) fn missed_policy(&self) -> MissedPolicy {
        match (&self.plugin, self.missed) {
            (None, Some(missed)) => missed.policy(),
            _ => MissedPolicy::Continue,
        }
    }
}

/// The missed policy of an update. It gets the gap in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MissedConfig {
    /// It continues, and missed elements are counted.
    Continue,
    /// It is stopped after the gap, which is reported.
    Stop,
}

impl MissedConfig {
    /// The policy of the executor.
    #[must_use]
    pub const fn policy(self) -> MissedPolicy {
        match self {
            Self::Continue => MissedPolicy::Continue,
            Self::Stop => MissedPolicy::Stop,
        }
    }
}

/// A length of time, written with its unit: `"50 ms"`, `"2500ns"`, `"1s 500ms"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length(pub Nanos);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Length;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a length of time such as \"50 ms\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Length, E> {
                Length::parse(text).map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Text)
    }
}

impl Length {
    /// Parses a number and its unit.
    fn parse(text: &str) -> Result<Self, String> {
        let length = humantime::parse_duration(text).map_err(|error| {
            format!("`{text}` is not a length of time ({error}); write for example \"50 ms\"")
        })?;
        let ns = u64::try_from(length.as_nanos())
            .map_err(|_| format!("`{text}` is longer than 584 years"))?;
        Ok(Self(Nanos::from_ns(ns)))
    }
}

impl fmt::Display for Length {
    /// Exact, in the largest unit of which it is a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.as_ns();
        let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
        let fits = units
            .iter()
            .find(|(length, _)| ns > 0 && ns.is_multiple_of(*length));
        let (length, unit) = fits.copied().unwrap_or((1, "ns"));
        write!(f, "{}{unit}", ns / length)
    }
}

impl JsonSchema for Length {
    fn schema_name() -> Cow<'static, str> {
        "Length".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "a length of time with its unit",
            "examples": ["50ms", "2500ns", "1s"],
        })
    }
}

const fn least_period() -> Length {
    Length(Nanos::from_us(100))
}
const fn largest_period() -> Length {
    Length(Nanos::from_ms(1_000))
}
const fn overhead() -> Length {
    Length(Nanos::from_us(20))
}
const fn wake_up_lateness() -> Length {
    Length(Nanos::from_us(300))
}
const fn scheduler_lateness() -> Length {
    Length(Nanos::from_us(100))
}
const fn hold_back() -> Length {
    Length(overhear_monitor::HOLD_BACK)
}
const fn cpu_percent() -> u32 {
    50
}
const fn copy() -> Length {
    Length(Nanos::from_ns(200))
}
const fn buffered_elements() -> u64 {
    16 * 1024
}
const fn one() -> u32 {
    1
}
const fn payload() -> u32 {
    256
}

/// Reads the text of a configuration file.
pub(crate) fn text_of(path: &Path) -> Result<String, SessionError> {
    trust::read_to_string(path).map_err(|error| {
        let error = match error {
            TrustError::Io(error) => error,
            TrustError::Untrusted(message) => return SessionError::new(ErrorKind::Usage, message),
        };
        let advice = match error.kind() {
            std::io::ErrorKind::NotFound => {
                "; name a file that exists, or write one: docs/admission.md, docs/verdicts.md and docs/response-times.md have examples"
            }
            _ => "",
        };
        let message = format!("cannot read {}: {error}{advice}", path.display());
        SessionError::new(ErrorKind::Usage, message)
    })
}

/// Whether plug-ins, programs and functions that a file names may be executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// They are executed.
    #[default]
    Allowed,
    /// None is executed.
    Disabled,
}

impl Execution {
    /// Refuses a file with updates of plug-ins if execution is disabled: without these updates the
    /// results would look complete.
    ///
    /// # Errors
    /// [`SessionError`] that names the update, or if the file cannot be read.
    pub fn check(self, path: &Path) -> Result<(), SessionError> {
        if self == Self::Allowed {
            return Ok(());
        }
        let usage =
            |message| SessionError::new(ErrorKind::Usage, format!("{}: {message}", path.display()));
        let table: toml::Table = from_toml(&text_of(path)?).map_err(usage)?;
        let samplers = table.get("sampler").and_then(toml::Value::as_array);
        let sampled = samplers.into_iter().flatten().filter_map(|sampler| {
            let names = sampler.get("sample")?.as_array()?;
            names
                .iter()
                .filter_map(toml::Value::as_str)
                .find(|name| name.starts_with(PLUGIN))
        });
        if let Some(name) = sampled.into_iter().next() {
            let message = format!(
                "`{name}` is of a plug-in, which is not loaded because execution is disabled; remove it, or enable \
                 execution"
            );
            return Err(usage(message).about(Setting::Execution));
        }
        let updates = table.get("update").and_then(toml::Value::as_array);
        let plugin = updates
            .into_iter()
            .flatten()
            .find(|update| update.get("plugin").is_some());
        plugin.map_or(Ok(()), |update| {
            let name = update.get("name").and_then(toml::Value::as_str);
            let message = format!(
                "update `{}` is of a plug-in, which is not loaded because execution is disabled; remove the update, or \
                 enable execution",
                name.unwrap_or_default()
            );
            Err(usage(message).about(Setting::Execution))
        })
    }
}

impl Config {
    /// Reads and parses the file.
    ///
    /// # Errors
    /// [`SessionError`] with a message that names the file, the line and the entry.
    pub fn read(path: &Path) -> Result<Self, SessionError> {
        let text = text_of(path)?;
        Self::parse(&text).map_err(|message| {
            SessionError::new(ErrorKind::Usage, format!("{}: {message}", path.display()))
        })
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// One message that names the line, or the entry, and what is wrong there.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config: Self = from_toml(text)?;
        config.validate()?;
        Ok(config)
    }

    /// The probes that it names.
    ///
    /// # Errors
    /// A message about an invalid entry.
    pub(crate) fn probes(&self) -> Result<Vec<Probe>, String> {
        probes::probes_of(&self.probes)
    }

    /// Checks the values that are wrong for every executor.
    fn validate(&self) -> Result<(), String> {
        let (cpu_percent, buffered_elements) =
            (self.monitor.cpu_percent, self.monitor.buffered_elements);
        if !(1..=100).contains(&cpu_percent) {
            return Err(format!(
                "[monitor] `cpu_percent` is {cpu_percent}; give 1 to 100"
            ));
        }
        if !(2..=1 << 22).contains(&buffered_elements) {
            return Err(format!(
                "[monitor] `buffered_elements` is {buffered_elements}; give 2 to 4194304"
            ));
        }
        if let Some(recording) = &self.recording {
            recording.limits()?;
        }
        samplers::samplers_of(&self.samplers)?;
        let probes = self.probes()?;
        for sensor in &self.sensors {
            let checked = sensor.of_kernel(&probes);
            checked.map_err(|message| format!("sensor `{}`: {message}", sensor.id))?;
        }
        for (index, update) in self.updates.iter().enumerate() {
            let name = &update.name;
            if self.updates[..index].iter().any(|it| it.name == *name) {
                return Err(format!("update `{name}` is listed twice"));
            }
            let given = [&update.metric, &update.field, &update.plugin];
            if given.into_iter().flatten().count() > 1 {
                return Err(format!(
                    "update `{name}`: give one of `metric`, `field` and `plugin`"
                ));
            }
            let executor = self.executor_of(update);
            if ExecutorKind::from(executor) == ExecutorKind::Bandwidth
                && cpu_percent > MAX_SHARE_PERCENT
            {
                return Err(format!(
                    "[monitor] `cpu_percent` is {cpu_percent}, and update `{name}` has the executor \"bandwidth\", which \
                     reserves that share; give 1 to {MAX_SHARE_PERCENT}"
                ));
            }
            let keeps_latency = matches!(
                ExecutorKind::from(executor),
                ExecutorKind::Guaranteed | ExecutorKind::Buffered
            );
            if keeps_latency && update.latency.or(self.monitor.latency).is_none() {
                return Err(format!(
                    "update `{name}` has the executor \"{}\", which keeps a latency, and there is none; give \
                     `latency` in [monitor] or to the update, or executor = \"best_effort\"",
                    executor.name()
                ));
            }
        }
        Ok(())
    }
}

/// Whether the file describes a monitor. A file without one can have constraints,
/// metrics, probes, samplers, tasks and reactions.
///
/// # Errors
/// [`SessionError`] if it cannot be read, or is no TOML.
pub fn has_monitor(path: &Path) -> Result<bool, SessionError> {
    let table: Result<toml::Table, String> = from_toml(&text_of(path)?);
    let usage =
        |message| SessionError::new(ErrorKind::Usage, format!("{}: {message}", path.display()));
    table
        .map(|table| table.contains_key("monitor"))
        .map_err(usage)
}

/// Entries of a file without `[monitor]`.
const STANDALONE: [&str; 6] = [
    "constraint",
    "metric",
    "probe",
    "sampler",
    "task",
    "reaction",
];
/// The same, as tables.
const STANDALONE_TABLES: [&str; 2] = ["budget", "recording"];

/// Refuses entries that would have no effect. A file with a `[monitor]` must be a valid [`Config`];
/// a file without one can have the [`STANDALONE`] entries only.
fn reject_unknown_entries(text: &str) -> Result<(), String> {
    let table: toml::Table = from_toml(text)?;
    if table.contains_key("monitor") {
        return Config::parse(text).map(drop);
    }
    let mut keys = table.keys();
    let stands = |key: &str| STANDALONE_TABLES.contains(&key) || STANDALONE.contains(&key);
    match keys.find(|key| !stands(key)) {
        Some(key) => Err(format!(
            "`{key}` needs a [monitor]; without one there can be {}, {}",
            STANDALONE.map(|key| format!("[[{key}]]")).join(", "),
            STANDALONE_TABLES.map(|key| format!("[{key}]")).join(", ")
        )),
        None => Ok(()),
    }
}

/// Parses a text.
///
/// # Errors
/// One message with the line and the entry.
pub(crate) fn from_toml<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| {
        let line = error
            .span()
            .and_then(|span| text.get(..span.start))
            .map_or(0, |before| before.matches('\n').count());
        let message = error.message().trim_end().replace('\n', ", ");
        format!("line {}: {}{message}", line + 1, entry_at(text, line))
    })
}

/// The entry and the key of a line, counted from 0, as the begin of a message: ``sensor `queue`,
/// `period`: ``. Empty if the line has no key.
fn entry_at(text: &str, line: usize) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let pair = |line: &str| {
        let (key, value) = line.split_once('=')?;
        let is_word = |key: &str| key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let (key, value) = (key.trim(), value.trim().trim_matches('"'));
        is_word(key).then(|| (key.to_string(), value.to_string()))
    };
    let is_head = |line: &&str| line.starts_with('[');
    let Some((key, _)) = lines
        .get(line)
        .filter(|it| !is_head(it))
        .and_then(|it| pair(it))
    else {
        return String::new();
    };
    let Some(head) = lines[..line].iter().rposition(is_head) else {
        return format!("`{key}`: ");
    };
    let kind = lines[head].trim_matches(['[', ']']);
    let own = lines[head + 1..].iter().take_while(|line| !is_head(line));
    let mut pairs = own.filter_map(|line| pair(line));
    match pairs.find(|(key, _)| key == "id" || key == "name") {
        Some((_, name)) => format!("{kind} `{name}`, `{key}`: "),
        None => format!("[{kind}] `{key}`: "),
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::Nanos;

    use super::{Config, DedicatedCpu};

    #[test]
    fn lengths_have_units_and_unknown_keys_are_refused_by_line() {
        let good = "[monitor]\nlatency = \"1s 500ms\"\n[[sensor]]\nid = \"a\"\n";
        let config = Config::parse(good).unwrap();
        assert_eq!(config.monitor.latency.unwrap().0, Nanos::from_ms(1_500));
        assert_eq!(config.monitor.cpu_percent, 50);
        assert_eq!(config.monitor.dedicated_cpu, None);
        for (written, number) in [("3", Some(3)), ("\"any\"", None)] {
            let text = good.replace("[[", &format!("dedicated_cpu = {written}\n[["));
            let dedicated_cpu = Config::parse(&text).unwrap().monitor.dedicated_cpu;
            assert_eq!(dedicated_cpu.map(DedicatedCpu::number), Some(number));
        }
        for (bad, line, part) in [
            (
                "[monitor]\nlatency = 5\n",
                "line 2",
                "expected a length of time such as \"50 ms\"",
            ),
            (
                "[monitor]\nlatency = \"5\"\n",
                "line 2",
                "`5` is not a length of time",
            ),
            ("[monitor]\nlatency = \"-5 ms\"\n", "line 2", "not a length"),
            (
                "[monitor]\nlatency = \"5 ms\"\nown_cpu = \"all\"\n",
                "line 3",
                "a CPU's number or \"any\"",
            ),
            (
                "[monitor]\nlatency = \"5 ms\"\nlatencies = 1\n",
                "line 3",
                "latencies",
            ),
            (
                "[monitor]\nlatency = \"5 ms\"\nlevel = \"half\"\n",
                "line 3",
                "half",
            ),
            ("[[sensor]]\nid = \"a\"\n", "line 1", "monitor"),
            ("[monitor\n", "line 1", ""),
        ] {
            let message = Config::parse(bad).unwrap_err();
            let named = message.starts_with(line) && message.contains(part);
            assert!(named, "{bad:?}: {message}");
            assert!(!message.contains('\n'), "{message:?}");
        }
    }

    #[test]
    fn former_keys_are_read() {
        let text = "[monitor]\nlatency = \"5 ms\"\nown_cpu = 3\ntardiness = \"7 us\"\npooled = true\ncopies = 9\n\
                    sentinel = true\n[[sensor]]\nid = \"a\"\n";
        let monitor = Config::parse(text).unwrap().monitor;
        assert_eq!(
            monitor.dedicated_cpu.map(DedicatedCpu::number),
            Some(Some(3))
        );
        assert_eq!(monitor.scheduler_lateness.0, Nanos::from_us(7));
        assert_eq!((monitor.joint_bound, monitor.buffered_elements), (true, 9));
        assert!(monitor.watchdog);
    }

    #[test]
    fn latency_is_required_by_executors_that_keep_one() {
        let text = |executor: &str, own: &str| {
            format!(
                "[monitor]\nexecutor = \"{executor}\"\n[[sensor]]\nid = \"a\"\nperiod = \"1ms\"\n\
                 [[update]]\nname = \"u\"\n{own}"
            )
        };
        for executor in ["best_effort", "bandwidth"] {
            assert!(Config::parse(&text(executor, "")).is_ok(), "{executor}");
        }
        for executor in ["auto", "deadline", "buffered"] {
            let message = Config::parse(&text(executor, "")).unwrap_err();
            assert!(message.starts_with("update `u` has"), "{message}");
            assert!(message.contains("give `latency`"), "{message}");
            assert!(Config::parse(&text(executor, "latency = \"5ms\"\n")).is_ok());
            assert!(Config::parse(&text(executor, "executor = \"best_effort\"\n")).is_ok());
        }
    }

    /// With `OVERHEAR_BLESS` set the file is written instead of compared.
    #[test]
    fn schema_in_docs_is_current() {
        let root = env!("CARGO_MANIFEST_DIR");
        let path = std::path::Path::new(root).join("../../docs/overhear.schema.json");
        let schema = schemars::schema_for!(Config);
        let schema = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("OVERHEAR_BLESS").is_some() {
            std::fs::write(&path, &schema).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap();
        assert!(
            kept == schema,
            "set OVERHEAR_BLESS=1 to write {}",
            path.display()
        );
    }
}
