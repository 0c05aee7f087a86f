// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[[metric]]`: metrics of a run.

use std::path::{Path, PathBuf};

use overhear_metrics::automaton::{new_user_metric, system_metric, Catalogue, Metric, Pattern};
use schemars::JsonSchema;
use serde::Deserialize;

use super::reject_unknown_entries;
use crate::error::{ErrorKind, SessionError};
use crate::trust::{self, TrustError};

/// `[[metric]]`: a built-in metric by its name, one in a file, or the execution time between two
/// events of a task; see docs/metrics.md.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricConfig {
    /// The name of a built-in metric; with `initial`, the name of the new metric.
    #[serde(default)]
    pub name: Option<String>,
    /// The file with the metric, relative to this file.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// The event that begins a measurement: a sensor of the program, or an event as metrics declare
    /// it (`kernel:syscall [kind == 2 and number == 0]`).
    #[serde(default)]
    pub initial: Option<String>,
    /// The event that ends it; `initial` by default.
    #[serde(default, rename = "final")]
    pub last: Option<String>,
    /// Whether the time in system calls and page faults is included; it is by default.
    #[serde(default)]
    pub include_system: Option<bool>,
}

impl MetricConfig {
    fn metric(&self, base: &Path) -> Result<Metric, String> {
        let has_range_keys = self.last.is_some() || self.include_system.is_some();
        match (&self.name, &self.file, &self.initial) {
            (Some(name), None, Some(initial)) => {
                let last = self.last.as_ref().unwrap_or(initial);
                let include_system = self.include_system.unwrap_or(true);
                let linux = Catalogue::linux();
                let events = (event_of(initial, &linux)?, event_of(last, &linux)?);
                new_user_metric(name, &events.0, &events.1, include_system, &linux)
                    .map_err(|error| error.to_string())
            }
            (_, _, None) if has_range_keys => {
                Err("`final` and `include_system` need `initial`".to_owned())
            }
            (Some(name), None, None) if name.contains(['/', '.']) => Err(format!(
                "`{name}` is no name of a metric; write `file = \"{name}\"` for a file"
            )),
            (Some(name), None, None) => find(name, base),
            // A word with a folder is always a file.
            (None, Some(file), None) => find(&Path::new(".").join(file).to_string_lossy(), base),
            _ => Err(
                "it names no metric; give a `name`, or a `file`, or a `name` with `initial` and \
                      `final`"
                    .to_owned(),
            ),
        }
    }
}

fn event_of(text: &str, catalogue: &Catalogue) -> Result<Pattern, String> {
    let event = Pattern::parse_user_event(text, catalogue);
    event.map_err(|error| format!("`{text}` is no event: {error}"))
}

/// The metrics of the file `path`; empty if it has none.
///
/// # Errors
/// [`SessionError`] with a message that names the file and the entry.
pub fn read_any(path: &Path) -> Result<Vec<Metric>, SessionError> {
    let usage = |message: String| {
        SessionError::new(ErrorKind::Usage, format!("{}: {message}", path.display()))
    };
    let text = super::text_of(path)?;
    let base = path.parent().unwrap_or(Path::new(""));
    parse(&text, base).map_err(usage)
}

fn parse(text: &str, base: &Path) -> Result<Vec<Metric>, String> {
    #[derive(Deserialize)]
    struct Entries {
        #[serde(default, rename = "metric")]
        metrics: Vec<MetricConfig>,
    }

    reject_unknown_entries(text)?;
    let entries: Entries = super::from_toml(text)?;
    let metrics = (1..).zip(&entries.metrics).map(|(number, config)| {
        let metric = config.metric(base);
        metric.map_err(|message| format!("the metric no. {number}: {message}"))
    });
    metrics.collect()
}

/// The metric of this name. A name with `/` or `.` is that of a file; `base` is the folder of
/// relative names.
///
/// # Errors
/// A message, if there is no such metric or the file is invalid.
pub fn find(name: &str, base: &Path) -> Result<Metric, String> {
    if !name.contains(['/', '.']) {
        return system_metric(name)
            .map_err(|error| format!("{error}; a file is named with its folder or ending"));
    }
    let text = trust::read_to_string(&base.join(name)).map_err(|error| match error {
        TrustError::Io(error) => format!("cannot read {name}: {error}"),
        TrustError::Untrusted(message) => message,
    })?;
    text.parse().map_err(|error| format!("{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::parse;

    #[test]
    fn metrics_are_built_in_or_files_or_between_two_events() {
        let folder = tempfile::tempdir().unwrap();
        let text = overhear_metrics::automaton::system_metric_text("time_slice").unwrap();
        std::fs::write(folder.path().join("own"), text.replace("time_slice", "own")).unwrap();
        let text = "[[metric]]\nname = \"run_delay\"\n[[metric]]\nfile = \"own\"\n\
            [[metric]]\nname = \"mine\"\ninitial = \"a\"\nfinal = \"user:b\"\ninclude_system = false\n";
        let metrics = parse(text, folder.path()).unwrap();
        let names: Vec<&str> = metrics.iter().map(|metric| metric.name()).collect();
        assert_eq!(names, ["run_delay", "own", "mine"]);
        let sources = metrics[2].sources().iter();
        let sources: Vec<&str> = sources.map(|event| event.as_str()).collect();
        assert!(sources.contains(&"user:b") && sources.contains(&"kernel:syscall"));
        let text = "[[metric]]\nname = \"it\"\ninitial = \"kernel:signal [kind == 2]\"\n\
            final = \"queue [depth == 0]\"\n";
        let wrong = parse(text, folder.path()).unwrap_err();
        assert!(
            wrong.contains("`queue [depth == 0]` is no event"),
            "{wrong}"
        );
        let [metric] = &parse(&text.replace("queue", "user:queue"), folder.path()).unwrap()[..]
        else {
            panic!("there is one");
        };
        let symbols = &metric.specification().symbols;
        let written: Vec<String> = symbols[..2]
            .iter()
            .map(|it| it.source.to_string())
            .collect();
        assert_eq!(written, ["kernel:signal", "user:queue"]);
        assert!(parse("", Path::new("")).unwrap().is_empty());
    }

    #[test]
    fn mistakes_name_the_entry() {
        for (text, part) in [
            (
                "[[metric]]\nname = \"nonsense\"\n",
                "no. 1: there is no system metric",
            ),
            (
                "[[metric]]\nname = \"own.metric\"\n",
                "write `file = \"own.metric\"`",
            ),
            ("[[metric]]\nfile = \"absent\"\n", "cannot read ./absent"),
            ("[[metric]]\nfinal = \"a\"\n", "need `initial`"),
            ("[[metric]]\n", "names no metric"),
            (
                "[[metric]]\nname = \"m\"\ninitial = \"kernel:cpu_idle\"\n",
                "no. 1: the metric m cannot be made: event `initial` is used with `i`",
            ),
            (
                "[[metric]]\nname = \"m\"\ninitial = \"kernel:irq [no == 1]\"\n",
                "no. 1: `kernel:irq [no == 1]` is no event: line 1, column 13: `kernel:irq` has no field `no`",
            ),
            (
                "[[metric]]\nname = \"a\"\nfile = \"b\"\n",
                "names no metric",
            ),
            ("[[metric]]\nnames = \"a\"\n", "line 2"),
            ("[[sensor]]\nid = \"a\"\n", "`sensor` needs a [monitor]"),
        ] {
            let message = parse(text, Path::new("")).unwrap_err();
            assert!(message.contains(part), "{text:?}: {message}");
        }
    }
}
