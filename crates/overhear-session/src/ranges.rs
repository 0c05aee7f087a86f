// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear ranges`: runs an instrumented program, and reports the values of its integer
//! variables.
//!
//! The results are files that the processes have mapped, see [`overhear_ranges::layout`]. They lie
//! in a private folder in memory until the program has ended.

use std::ffi::OsString;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use overhear_ranges::results::{Collector, Declaration, Kind, Observed, Results};
use serde::{Deserialize, Serialize};

use crate::child::{Held, Output};
use crate::conclusion::{Conclusion, Exit};
use crate::error::{ErrorKind, SessionError};
use crate::interrupts::Interrupts;
use crate::scratch::Scratch;

/// How often the results of ended processes are taken in.
const COLLECT_INTERVAL: Duration = Duration::from_millis(250);
/// The largest budget, as a fraction: beyond it a user means something else.
const MAX_BUDGET: f64 = 100.0;

/// How much of the program may be observed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RangesBudget {
    /// Nothing: the plain copies of all functions run.
    Off,
    /// Everything, whatever it costs.
    Full,
    /// At most this overhead, as a fraction of the program's own CPU time.
    Target(f64),
}

impl FromStr for RangesBudget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => return Ok(Self::Off),
            "full" => return Ok(Self::Full),
            _ => {}
        }
        let number = text
            .strip_suffix('%')
            .map(str::trim)
            .and_then(|n| n.parse::<f64>().ok());
        let Some(percent) = number.filter(|percent| percent.is_finite()) else {
            return Err(format!(
                "`{text}` is no budget; write a percentage as in `10%`, or `full` or `off`"
            ));
        };
        if percent < 0.0 {
            return Err(format!("the budget {text} is below 0; write at least `0%`"));
        }
        if percent == 0.0 {
            return Ok(Self::Off);
        }
        if percent / 100.0 > MAX_BUDGET {
            return Err(format!(
                "the budget {text} is above 10000%; `full` observes everything"
            ));
        }
        Ok(Self::Target(percent / 100.0))
    }
}

impl RangesBudget {
    fn variable(self) -> OsString {
        match self {
            Self::Off => "off".into(),
            Self::Full => "full".into(),
            Self::Target(target) => target.to_string().into(),
        }
    }
}

/// The ranges of a program's variables.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RangesReport {
    /// Version of this document.
    pub format: u32,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How the program ended.
    pub exit: Exit,
    /// Whether every update of every process was recorded.
    pub complete: bool,
    /// Target overhead as a fraction of the program's own CPU time; absent without a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<f64>,
    /// Estimated overhead of recording and control, as a fraction of the program's own CPU time;
    /// absent without a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_overhead: Option<f64>,
    /// CPU time of the instrumented processes up to their last round of control.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns: Option<u64>,
    /// Number of instrumented processes.
    pub processes: u64,
    /// In the order of files and lines.
    pub variables: Vec<VariableReport>,
    /// Functions by what they cost, the largest first.
    pub functions: Vec<FunctionReport>,
    /// What else should be known.
    pub notes: Vec<String>,
}

/// One variable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VariableReport {
    /// Its name; of a member, `TYPE.NAME`.
    pub name: String,
    /// What it is.
    pub kind: VariableKind,
    /// The function that declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Source file of the declaration.
    pub file: String,
    /// Line of the declaration.
    pub line: u32,
    /// Its type in the source.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Width of its type.
    pub bits: u32,
    /// Whether its type is signed.
    pub signed: bool,
    /// Smallest value observed.
    pub minimum: Option<Integer>,
    /// Largest value observed.
    pub maximum: Option<Integer>,
    /// Updates recorded.
    pub updates_seen: u64,
    /// Estimated updates in all.
    pub updates_estimated: f64,
    /// Lower end of the interval of 95 % of the updates in all.
    pub updates_low: f64,
    /// Upper end.
    pub updates_high: f64,
    /// Share of the passes (calls, and rounds of outer loops) of its functions that were
    /// monitored; absent if they never ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// What is remarkable.
    pub flags: Vec<Flag>,
}

/// What a variable is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VariableKind {
    /// Outside of functions.
    Global,
    /// Static in a function.
    Static,
    /// Of one call of a function.
    Local,
    /// A parameter of a function.
    Parameter,
    /// A field of a struct or class.
    Member,
}

/// What is remarkable about a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flag {
    /// The smallest value of the type was reached; of unsigned types, 0 is no such value.
    TypeMinimum,
    /// The largest value of the type was reached.
    TypeMaximum,
    /// There are negative and positive values.
    SignChange,
    /// No update was recorded.
    NeverUpdated,
}

impl Flag {
    /// For people.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::TypeMinimum => "type minimum",
            Self::TypeMaximum => "type maximum",
            Self::SignChange => "sign change",
            Self::NeverUpdated => "never updated",
        }
    }
}

/// A value of an integer type of at most 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Integer(pub i128);

impl Serialize for Integer {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (i64::try_from(self.0), u64::try_from(self.0)) {
            (Ok(value), _) => serializer.serialize_i64(value),
            (_, Ok(value)) => serializer.serialize_u64(value),
            _ => Err(serde::ser::Error::custom("a value of more than 64 bits")),
        }
    }
}

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Value {
            Signed(i64),
            Unsigned(u64),
        }
        Ok(match Value::deserialize(deserializer)? {
            Value::Signed(value) => Self(value.into()),
            Value::Unsigned(value) => Self(value.into()),
        })
    }
}

/// What the updates of a function cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FunctionReport {
    /// Its name.
    pub name: String,
    /// Updates recorded.
    pub updates_seen: u64,
    /// Share of its passes that were monitored.
    pub share: f64,
    /// Nanoseconds for each update; absent without a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_ns: Option<f64>,
    /// Standard error of the price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_error_ns: Option<f64>,
}

impl RangesReport {
    /// Under a budget much is left out on purpose, and that is stated for each variable. Only what
    /// was lost makes the results inconclusive.
    #[must_use]
    pub const fn conclusion(&self) -> Conclusion {
        if self.complete || self.target.is_some() {
            Conclusion::Complete
        } else {
            Conclusion::Inconclusive
        }
    }
}

/// Runs a program and reports the ranges of its variables.
///
/// # Errors
/// The program cannot be run, or it has no instrumented functions.
pub fn run(
    command: &[OsString],
    budget: RangesBudget,
    preload: bool,
    stdout_to_stderr: bool,
) -> Result<RangesReport, SessionError> {
    let scratch = Scratch::in_memory().map_err(|error| {
        let message = format!("cannot make a folder for the results: {error}");
        SessionError::new(ErrorKind::Unavailable, message)
    })?;
    let mut variables = vec![
        ("OVERHEAR_RANGES", scratch.path().as_os_str().to_owned()),
        ("OVERHEAR_RANGES_BUDGET", budget.variable()),
    ];
    if preload {
        variables.push(("LD_PRELOAD", preloaded()?));
    }
    let output = if stdout_to_stderr {
        Output::ToStderr
    } else {
        Output::Inherited
    };
    let mut interrupts = Interrupts::listen()?;
    let running = Held::start(command, &variables, output)?.release()?;
    let mut collector = Collector::new(scratch.path());
    while !running.has_ended() {
        running.wait(COLLECT_INTERVAL);
        for request in interrupts.take() {
            if !request.reached_program {
                running.signal(request.signal);
            }
        }
        collector
            .collect_ended()
            .map_err(|error| unreadable(&error))?;
    }
    let exit = running.reap()?;
    let (results, still_running) = collector.finish().map_err(|error| unreadable(&error))?;
    if results.processes == 0 {
        return Err(SessionError::new(
            ErrorKind::Usage,
            format!(
                "{} has no instrumented functions; compile it with overhear-clang or \
                 overhear-clang++{}",
                command
                    .first()
                    .map(|name| name.display().to_string())
                    .unwrap_or_default(),
                if preload {
                    ""
                } else {
                    ", or observe its instrumented libraries by --libraries"
                }
            ),
        ));
    }
    let command = command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    Ok(report(command, exit, budget, &results, still_running))
}

fn unreadable(error: &std::io::Error) -> SessionError {
    SessionError::new(
        ErrorKind::Incomplete,
        format!("the results cannot be read: {error}"),
    )
}

/// The runtime as a shared library, for programs that do not contain it, before what is preloaded
/// already.
fn preloaded() -> Result<OsString, SessionError> {
    let library = overhear_ranges::wrapper::runtime_library()
        .map_err(|error| SessionError::new(ErrorKind::Unavailable, error.to_string()))?;
    let mut value = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        value.push(":");
        value.push(others);
    }
    Ok(value)
}

fn report(
    command: Vec<String>,
    exit: Exit,
    budget: RangesBudget,
    results: &Results,
    still_running: usize,
) -> RangesReport {
    let target = match budget {
        RangesBudget::Target(target) => Some(target),
        RangesBudget::Off | RangesBudget::Full => None,
    };
    let cost = results.cost;
    let overhead = cost.updates_ns + cost.machinery_ns;
    let own = cost.cpu_ns - overhead;
    let is_controlled = target.is_some() && own > 0.0;
    let is_complete = results.is_whole()
        && still_running == 0
        && budget != RangesBudget::Off
        && results
            .functions
            .values()
            .all(|function| function.monitored >= function.passes);
    RangesReport {
        format: 1,
        command,
        exit,
        complete: is_complete,
        target,
        estimated_overhead: is_controlled.then(|| overhead / own),
        cpu_ns: is_controlled.then_some(cost.cpu_ns as u64),
        processes: results.processes,
        variables: results
            .variables
            .iter()
            .map(|(d, o)| variable(d, o))
            .collect(),
        functions: functions(results, target.is_some()),
        notes: notes(results, still_running, target.is_some()),
    }
}

fn variable(declaration: &Declaration, observed: &Observed) -> VariableReport {
    let (low, high) = observed.interval();
    let function = &declaration.function;
    VariableReport {
        name: declaration.name.clone(),
        kind: match declaration.kind {
            Kind::Global => VariableKind::Global,
            Kind::Static => VariableKind::Static,
            Kind::Local => VariableKind::Local,
            Kind::Parameter => VariableKind::Parameter,
            Kind::Member => VariableKind::Member,
        },
        function: (!function.is_empty()).then(|| readable(function)),
        file: declaration.file.clone(),
        line: declaration.line,
        type_name: declaration.type_name.clone(),
        bits: declaration.bits,
        signed: !declaration.is_unsigned,
        minimum: observed.range.map(|range| Integer(range.0)),
        maximum: observed.range.map(|range| Integer(range.1)),
        updates_seen: observed.updates,
        updates_estimated: observed.estimated,
        updates_low: low,
        updates_high: high,
        share: observed.share(),
        flags: flags(declaration, observed),
    }
}

fn flags(declaration: &Declaration, observed: &Observed) -> Vec<Flag> {
    let Some((minimum, maximum)) = observed.range else {
        return vec![Flag::NeverUpdated];
    };
    let (least, most) = declaration.bounds();
    let mut flags = Vec::new();
    if minimum == least && !declaration.is_unsigned {
        flags.push(Flag::TypeMinimum);
    }
    if maximum == most {
        flags.push(Flag::TypeMaximum);
    }
    if minimum < 0 && maximum > 0 {
        flags.push(Flag::SignChange);
    }
    flags
}

fn functions(results: &Results, has_prices: bool) -> Vec<FunctionReport> {
    let mut functions: Vec<_> = results
        .functions
        .iter()
        .filter(|(_, cost)| cost.passes > 0.0)
        .collect();
    functions.sort_by(|(_, a), (_, b)| {
        let cost = |f: &overhear_ranges::results::FunctionCost| f.updates as f64 * f.price_ns;
        cost(b).total_cmp(&cost(a)).then(b.updates.cmp(&a.updates))
    });
    let report = |(name, cost): (&String, &overhear_ranges::results::FunctionCost)| {
        let price = |value: f64| (has_prices && value > 0.0).then_some(value);
        FunctionReport {
            name: readable(name),
            updates_seen: cost.updates,
            share: (cost.monitored / cost.passes).min(1.0),
            price_ns: price(cost.price_ns),
            price_error_ns: price(cost.error_ns),
        }
    };
    functions.into_iter().map(report).collect()
}

fn notes(results: &Results, still_running: usize, has_budget: bool) -> Vec<String> {
    let mut notes = Vec::new();
    for library in &results.unloaded {
        notes.push(format!(
            "the library {library} was unloaded while the program went on; its ranges are those \
             up to then"
        ));
    }
    if still_running > 0 {
        notes.push(format!(
            "processes that still ran when the program ended: {still_running}; their ranges are \
             those up to then"
        ));
    }
    if results.blocks_lost > 0 {
        notes.push(format!(
            "threads whose ranges are lost, because the folder of the results had no room or \
             could not be reached: {}",
            results.blocks_lost
        ));
    }
    if results.modules_refused > 0 {
        notes.push(format!(
            "libraries that are not observed, because a process can have 256: {}",
            results.modules_refused
        ));
    }
    if has_budget && results.uncontrolled > 0 {
        notes.push(format!(
            "processes that ended before the first round of control, so that only the burst at \
             their start is bounded: {}",
            results.uncontrolled
        ));
    }
    notes.extend(
        results
            .faults
            .iter()
            .map(|fault| format!("results that cannot be used: {fault}")),
    );
    notes
}

/// A linkage name as the source writes it.
fn readable(linkage_name: &str) -> String {
    // Names of C are no mangled ones: `f` would be the type float.
    let mangled = linkage_name.starts_with("_Z").then_some(linkage_name);
    let symbol = mangled.and_then(|name| cpp_demangle::Symbol::new(name).ok());
    let text = symbol.and_then(|symbol| symbol.demangle().ok());
    text.unwrap_or_else(|| linkage_name.to_owned())
}

/// How a variable differs between two runs.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// Its name.
    pub name: String,
    /// The function that declares it.
    pub function: Option<String>,
    /// Source file.
    pub file: String,
    /// Line in the first run, or else in the second one.
    pub line: u32,
    /// The range of the first run; absent if the variable is not in it or was never updated.
    pub first: Option<(Integer, Integer)>,
    /// The range of the second run.
    pub second: Option<(Integer, Integer)>,
    /// What changed.
    pub change: Change,
}

/// What changed from the first run to the second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Values outside of the first range.
    Wider,
    /// Only values inside of the first range, and not all of it.
    Narrower,
    /// A range that contains values outside of the first one and lacks others.
    Moved,
    /// No range in the first run.
    New,
    /// No range in the second run.
    Gone,
}

impl Change {
    /// For people.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Wider => "wider",
            Self::Narrower => "narrower",
            Self::Moved => "moved",
            Self::New => "new",
            Self::Gone => "gone",
        }
    }
}

/// The differences between two runs.
#[derive(Clone, Debug, Serialize)]
pub struct RangesDifference {
    /// Variables whose ranges differ, in the order of the first run; new ones last.
    pub variables: Vec<Difference>,
    /// Variables with equal ranges.
    pub equal: usize,
    /// What else should be known.
    pub notes: Vec<String>,
}

/// Reads a report that `--json` has written.
///
/// # Errors
/// It cannot be read, or is no such report.
#[expect(clippy::disallowed_methods, reason = "a file that the user names")]
pub fn read_report(path: &Path) -> Result<RangesReport, SessionError> {
    let fail = |message: String| {
        SessionError::new(
            ErrorKind::Usage,
            format!("cannot use {}: {message}", path.display()),
        )
    };
    let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
    let report: RangesReport = serde_json::from_str(&text).map_err(|error| {
        fail(format!(
            "it is no report of `overhear ranges --json`: {error}"
        ))
    })?;
    if report.format != 1 {
        return Err(fail(format!(
            "its format is {}, and this program reads 1",
            report.format
        )));
    }
    Ok(report)
}

/// Compares the ranges of two runs.
#[must_use]
pub fn diff(first: &RangesReport, second: &RangesReport) -> RangesDifference {
    // A line may move between the runs; a variable is the same if name, function and file are.
    let key = |v: &VariableReport, number: usize| {
        (v.file.clone(), v.function.clone(), v.name.clone(), number)
    };
    let keyed = |report: &RangesReport| {
        let mut seen = std::collections::BTreeMap::new();
        let mut keyed = Vec::new();
        for variable in &report.variables {
            let number = seen.entry(key(variable, 0)).or_insert(0);
            keyed.push((key(variable, *number), variable.clone()));
            *number += 1;
        }
        keyed
    };
    let range = |v: &VariableReport| v.minimum.zip(v.maximum);
    let (one, other) = (keyed(first), keyed(second));
    let by_key: std::collections::BTreeMap<_, _> = other.iter().cloned().collect();
    let in_first: std::collections::BTreeSet<_> = one.iter().map(|(key, _)| key.clone()).collect();
    let added = other.iter().filter(|(key, _)| !in_first.contains(key));
    let pairs = one
        .iter()
        .map(|(key, variable)| (variable, range(variable), by_key.get(key).and_then(range)))
        .chain(added.map(|(_, variable)| (variable, None, range(variable))));
    let (mut variables, mut equal) = (Vec::new(), 0);
    for (variable, first, second) in pairs {
        let Some(change) = change(first, second) else {
            equal += 1;
            continue;
        };
        variables.push(Difference {
            name: variable.name.clone(),
            function: variable.function.clone(),
            file: variable.file.clone(),
            line: variable.line,
            first,
            second,
            change,
        });
    }
    let mut notes = Vec::new();
    for (name, report) in [("first", first), ("second", second)] {
        if !report.complete {
            notes.push(format!(
                "the {name} run did not record every update, so values that it lacks may have \
                 occurred"
            ));
        }
    }
    RangesDifference {
        variables,
        equal,
        notes,
    }
}

fn change(first: Option<(Integer, Integer)>, second: Option<(Integer, Integer)>) -> Option<Change> {
    match (first, second) {
        (None, None) => None,
        (None, Some(_)) => Some(Change::New),
        (Some(_), None) => Some(Change::Gone),
        (Some(a), Some(b)) if a == b => None,
        (Some(a), Some(b)) if b.0 <= a.0 && b.1 >= a.1 => Some(Change::Wider),
        (Some(a), Some(b)) if b.0 >= a.0 && b.1 <= a.1 => Some(Change::Narrower),
        _ => Some(Change::Moved),
    }
}

#[cfg(test)]
mod tests {
    use super::{change, Change, Integer, RangesBudget};

    #[test]
    fn budget_is_a_percentage_of_at_least_zero() {
        assert_eq!("10%".parse(), Ok(RangesBudget::Target(0.1)));
        assert_eq!("0%".parse(), Ok(RangesBudget::Off));
        assert_eq!("full".parse(), Ok(RangesBudget::Full));
        let message = |text: &str| text.parse::<RangesBudget>().unwrap_err();
        assert_eq!(
            message("-5%"),
            "the budget -5% is below 0; write at least `0%`"
        );
        for text in ["10", "ten%", "", "nan%", "inf%"] {
            assert!(message(text).contains("is no budget"), "{text}");
        }
        assert!(message("20000%").contains("above"));
    }

    #[test]
    fn ranges_are_compared_by_their_ends() {
        let range = |low, high| Some((Integer(low), Integer(high)));
        assert_eq!(change(range(0, 5), range(0, 5)), None);
        assert_eq!(change(range(0, 5), range(-1, 5)), Some(Change::Wider));
        assert_eq!(change(range(0, 5), range(1, 4)), Some(Change::Narrower));
        assert_eq!(change(range(0, 5), range(3, 8)), Some(Change::Moved));
        assert_eq!(change(None, range(3, 8)), Some(Change::New));
        assert_eq!(change(range(3, 8), None), Some(Change::Gone));
    }
}
