// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page: `report.html`, one file that shows the results of a run.
//!
//! Input: two JSON documents, the *report* (the same one that `--json` prints) and the *time-line*
//! (the columns of the picture). Output: [`write()`] puts them, one style sheet and one script into
//! one HTML file that is opened from disk. It needs no server and no network: a content security
//! policy in its head forbids every connection. The documents are serialised straight into the
//! file, so the page takes no memory of its own.
//!
//! ```
//! let report = serde_json::json!({ "command": ["true"], "duration_ns": 1_000_000 });
//! let html = overhear_page::render(&report, &serde_json::Value::Null);
//! assert!(html.starts_with("<!doctype html>"));
//! ```
//!
//! # The report
//!
//! Every member may be absent; the page then leaves that part out, or a message states that it is
//! absent. Times are whole nanoseconds.
//!
//! | member | shape |
//! |---|---|
//! | `overhear_version` | text |
//! | `command` | list of texts |
//! | `exit` | `{"code": n}` or `{"signal": n}` |
//! | `duration_ns` | number |
//! | `sources` | list of `{name, active, message, sensors?}`; `active` of the kernel is `bpf`,
//! `perf` or `none`, its `sensors` are the recorded ones |
//! | `trace` | `{events, bytes, directory, left_out}` or null |
//! | `threads` | list of `{pid, tid, comm, run_ns, runnable_ns?, blocked_ns?, switches_voluntary,
//! switches_involuntary, migrations, wakeup_latency_ns: {median, p99, max, count}?}` | | `sensors`
//! | list of `{task, id, instance, type, elements, missed, rate_hz, declared: {period_ns,
//! distance_ns, jitter_ns}?, interval_ns: {median, p99, max, min}?, fields: [{name, unit, min,
//! mean, max, median, p99}]}` | | `samplers` | list of `{id, instance, complete, judged_from,
//! anomalies_not_listed, tasks: [{pid, tid, comm, duration_ns, ipc?, totals: [{name, unit, total,
//! per_second?, per_1000_instructions?, share?}], jobs: {values: [{name, unit, count, min, mean,
//! median, p90, p99, max}]}?, samples?, judged: {judged, anomalous}?}], anomalies: [{pid, tid,
//! comm, job, jobs, end_ns, last_end_ns, duration_ns, message, deviations: [{name, unit, value,
//! usual, times}]}]}`, may be absent |
//! | `losses` | list of `{stream, cause, missed, gaps}` |
//! | `missed_total` | number |
//! | `not_connected` | number of sensors that the directory refused or deferred |
//! | `compensated` | true shows the time-line in compensated time first, where it has one |
//! | `complete` | false keeps the page from showing *complete* even if no loss is listed |
//! | `outcome` | `complete`, `violated` or `inconclusive`; nothing on the page is marked as good
//! with the latter two | | `findings` | list of `{of, verdict, message}`, the worst first;
//! `verdict` is `held`, `violated` or `inconclusive` | | `check` | `{constraints: [{name, verdict,
//! judged, offences, first: {message}?, reasons}]}` or null |
//! | `notes` | list of texts |
//! | `budget` | `{target, observed, observed_error, course: [{from_ns, to_ns, overhead,
//! worst_window}], sensors: [{name, share_on?, cost_ns, cost_error_ns, price_ns, price_error_ns,
//! written, skipped?}]}` or null | | `histograms` | list of `{title, unit, buckets: [{low, high,
//! count}], fractions?}`, linear or logarithmic as the buckets are |
//!
//! `?` marks members that may be null: such a value was not measured, and is shown as a dash, never
//! as zero. A column of a table that has only dashes is left out.
//!
//! # The time-line
//!
//! Columns are base64 (standard alphabet, padded) of little-endian numbers.
//! Every time but `origin_ns` and `end_ns` is an offset from `origin_ns`.
//!
//! | member | shape |
//! |---|---|
//! | `origin_ns`, `end_ns` | first and last moment, CLOCK_MONOTONIC |
//! | `processes` | list of `{pid, comm}`, in the order in which they are shown |
//! | `threads` | list of `{index, pid, tid, comm, first_ns, lengths, states, cpus, reasons,
//! reason_table, open?}` | | `sensors` | list of `{index, pid, comm, id, instance, type, first_ns,
//! deltas, first_sequence, fields}` |
//! | `gaps` | list of `{label, pid?, from_ns, to_ns, missed, cause, sensor?}` |
//! | `left_out` | list of texts: parts of the run that the time-line does not show |
//!
//! A thread's `lengths` (u32, ns) are consecutive intervals from `first_ns` on. An interval longer
//! than 4,294,967,295 ns is split into several with the same state and CPU, each but the last at
//! least 2^31 ns long; the page joins them again. `states` (u8) are 0 absent, 1 running, 2 runnable
//! after a wake-up, 3 blocked, 4 preempted, 5 unknown. `cpus` (u16) is the CPU while running, else
//! 65,535. `reasons` (u16) are indices in `reason_table`, or 65,535 for none. The table is a list
//! of `[kind, value]`; the kind is
//!
//! - `asleep` (value: the kernel's state bits),
//! - `displaced` (by this thread),
//! - `yielded` (to this thread),
//! - `woken` (by this thread; 0 is an idle CPU), or
//! - `again` (it switched to itself).
//!
//! `open` is the state of the thread at the end, `{from_ns, state, cpu, reason}`, if the thread
//! still lives.
//!
//! A sensor without a `pid` is the kernel's. `index` is the thread or sensor that a later piece of
//! a live time-line continues; without it, the index is the position in the list.
//!
//! A sensor's first element is at `first_ns`; `deltas` (u32, ns) are the distances from each
//! element to the next. A delta of 4,294,967,295 is added without an element: the following entry
//! continues the same distance. `fields` are `{name, unit, kind: "number", count?, values, names?}`
//! with a column of f64, or `{name, unit, kind: "text", values}` with a list of texts. `count` is
//! true for the counts of samples. `names` has names of numbers, `{"202": "futex"}`.
//!
//! If the cost of observing is known, the time-line can also be shown as if there were none. It
//! then has:
//!
//! - `moved_end_ns`: the compensated end.
//! - `shrinks` of threads: for each interval the number of nanoseconds by which it is shorter
//!   (negative if longer).
//! - `delay_ns` of threads: how much earlier the first interval begins.
//! - `shrinks` of sensors: for each element, how much more it is moved than the one before.
//! - `moved` of gaps: their compensated `[from, to]`.
//!
//! `shrinks` are base64 of varints: seven bits a byte, the low ones first, the sign in the lowest
//! bit. Most take two bytes, while an interval itself takes nine.
//!
//! A gap with a `pid` is drawn under that process, a gap without one above all processes. If
//! `sensor` is given (an index into `sensors`), it is drawn in that sensor's row, too, and the
//! sequence numbers after it increase by `missed`.

pub mod naps;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};

use serde::Serialize;
use serde_json::{json, Value};

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");

/// The parts of the script, in the order in which they need each other. They form one script in one
/// strict function scope, so that only `window.overhear` is visible outside.
const SCRIPTS: &[&str] = &[
    include_str!("format.js"),
    include_str!("data.js"),
    include_str!("samples.js"),
    include_str!("model.js"),
    include_str!("columns.js"),
    include_str!("spans.js"),
    include_str!("query.js"),
    include_str!("reasons.js"),
    include_str!("raster.js"),
    include_str!("rows.js"),
    include_str!("inspect.js"),
    include_str!("timeline.js"),
    include_str!("view.js"),
    include_str!("statistics.js"),
    include_str!("controls.js"),
    include_str!("summary.js"),
    include_str!("histograms.js"),
    include_str!("tables.js"),
    include_str!("samplers.js"),
    include_str!("budget.js"),
    include_str!("monitor.js"),
    include_str!("verdicts.js"),
    include_str!("export.js"),
    include_str!("compare.js"),
    include_str!("compensated.js"),
    include_str!("live.js"),
    include_str!("main.js"),
];

/// One run: its two documents, and its names.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a, R: ?Sized, T: ?Sized> {
    /// The report.
    pub report: &'a R,
    /// The time-line, or null if none was recorded.
    pub timeline: &'a T,
    /// The program, which the browser tab names.
    pub program: &'a str,
    /// A name that distinguishes it from another run on the same page.
    pub label: &'a str,
}

impl<'a> Run<'a, Value, Value> {
    /// A run whose documents are JSON values.
    #[must_use]
    pub fn of_values(report: &'a Value, timeline: &'a Value) -> Self {
        let program = report.pointer("/command/0").and_then(Value::as_str);
        Self {
            report,
            timeline,
            program: program.unwrap_or_default(),
            label: "",
        }
    }
}

/// Writes the page of a run, or of two runs: then both time-lines have one scale, and each starts
/// at its own begin.
///
/// Nothing in a document can become markup or script:
///
/// - The data are in JSON blocks, in which `<` is written as an escape.
/// - The script inserts them into the page as text only.
/// - The policy permits no script but this one.
///
/// Null stands for a time-line that was not recorded. Documents are serialised twice, and must be
/// the same both times.
///
/// # Errors
/// The errors of `out`.
pub fn write<R, T>(
    out: &mut dyn Write,
    run: &Run<'_, R, T>,
    other: Option<&Run<'_, R, T>>,
) -> io::Result<()>
where
    R: Serialize + ?Sized,
    T: Serialize + ?Sized,
{
    compose(out, run, other, false)
}

/// The page of a run as [`write()`] writes it.
pub fn render(report: &Value, timeline: &Value) -> String {
    rendered(&Run::of_values(report, timeline), None, false)
}

/// The page of two runs as [`write()`] writes it.
pub fn render_comparison(run: &Run<'_, Value, Value>, other: &Run<'_, Value, Value>) -> String {
    rendered(run, Some(other), false)
}

/// Renders the page of a run that goes on. It is empty. It requests news from the server that it
/// came from, and from no other: each piece is a JSON object with the members `report`, `timeline`
/// and `compensated` (the time-line in compensated time), which may be absent, and `ended`. A
/// time-line has only the items since the last one.
pub fn render_live(report: &Value) -> String {
    rendered(&Run::of_values(report, &Value::Null), None, true)
}

fn rendered(
    run: &Run<'_, Value, Value>,
    other: Option<&Run<'_, Value, Value>>,
    is_live: bool,
) -> String {
    let mut page = Vec::new();
    compose(&mut page, run, other, is_live).expect("values are written to memory");
    String::from_utf8(page).expect("the template and JSON are UTF-8")
}

fn compose<R, T>(
    out: &mut dyn Write,
    run: &Run<'_, R, T>,
    other: Option<&Run<'_, R, T>>,
    is_live: bool,
) -> io::Result<()>
where
    R: Serialize + ?Sized,
    T: Serialize + ?Sized,
{
    let report = |out: &mut dyn Write| json_block(out, run.report);
    let timeline = |out: &mut dyn Write| json_block(out, run.timeline);
    let other_report = |out: &mut dyn Write| json_block(out, &other.map(|run| run.report));
    let other_timeline = |out: &mut dyn Write| json_block(out, &other.map(|run| run.timeline));
    let options = json!({
        "label": run.label,
        "other_label": other.map(|run| run.label),
        "live": is_live,
    });
    let script = format!("(() => {{\n'use strict';\n{}\n}})();", SCRIPTS.join("\n"));
    let documents: [Part<'_>; 4] = [&report, &timeline, &other_report, &other_timeline];
    let nonce = nonce(&documents, &script)?;
    let (nonce, script) = (text(&nonce), text(&script));
    let title = title(run.program);
    let title = text(&title);
    fill(
        out,
        TEMPLATE,
        &[
            ("NONCE", &nonce),
            ("CONNECT", &text(if is_live { "'self'" } else { "'none'" })),
            ("TITLE", &title),
            ("STYLE", &text(STYLE)),
            ("REPORT", &report),
            ("TIMELINE", &timeline),
            ("OTHER_REPORT", &other_report),
            ("OTHER_TIMELINE", &other_timeline),
            ("OPTIONS", &|out: &mut dyn Write| json_block(out, &options)),
            ("SCRIPT", &script),
        ],
    )
}

/// A part of the page that writes itself.
type Part<'a> = &'a dyn Fn(&mut dyn Write) -> io::Result<()>;

fn text(text: &str) -> impl Fn(&mut dyn Write) -> io::Result<()> + '_ {
    move |out| out.write_all(text.as_bytes())
}

/// JSON that cannot end its own block: `<` occurs only inside strings, and a JSON string may have
/// it as an escape.
fn json_block(out: &mut dyn Write, document: &(impl Serialize + ?Sized)) -> io::Result<()> {
    serde_json::to_writer(Escaped(out), document).map_err(io::Error::from)
}

/// Writes `<` as the escape of a JSON string.
struct Escaped<'a>(&'a mut dyn Write);

impl Write for Escaped<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        for (place, piece) in bytes.split(|&byte| byte == b'<').enumerate() {
            if place > 0 {
                self.0.write_all(b"\\u003c")?;
            }
            self.0.write_all(piece)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The name of the program for the browser tab, as text that is safe inside `<title>`.
fn title(program: &str) -> String {
    let title = match program.rsplit('/').next() {
        None | Some("") => "Overhear".to_owned(),
        Some(name) => format!("{name} - Overhear"),
    };
    title.replace('&', "&amp;").replace('<', "&lt;")
}

/// Two digests of the written bytes.
struct Digest([DefaultHasher; 2]);

impl Write for Digest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for hasher in &mut self.0 {
            hasher.write(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A nonce that ties the policy to this page's own script and style.
///
/// It depends on every measured value, so a recorded text cannot contain it. The same documents
/// always give the same page.
fn nonce(documents: &[Part<'_>], script: &str) -> io::Result<String> {
    let salted = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        hasher
    };
    // A serialiser writes only few bytes at once.
    let mut digest = io::BufWriter::new(Digest([salted(1), salted(2)]));
    for document in documents {
        document(&mut digest)?;
        digest.write_all(b"\n")?;
    }
    digest.write_all(script.as_bytes())?;
    let [one, other] = digest.into_inner().map_err(|error| error.into_error())?.0;
    Ok(format!("{:016x}{:016x}", one.finish(), other.finish()))
}

/// Replaces each `{{NAME}}` of the template once, from left to right. Inserted text is not searched
/// again, so data that contain a placeholder stay unchanged.
fn fill(out: &mut dyn Write, template: &str, values: &[(&str, Part<'_>)]) -> io::Result<()> {
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, behind) = after
            .split_once("}}")
            .expect("the template closes what it opens");
        let (_, write) = values
            .iter()
            .find(|(known, _)| *known == name)
            .expect("the template names known values only");
        out.write_all(before.as_bytes())?;
        write(out)?;
        rest = behind;
    }
    out.write_all(rest.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::{render, STYLE};
    use serde_json::{json, Value};

    #[test]
    fn data_stay_data() {
        let evil = "</script><script>alert(1)</script>{{SCRIPT}}<!--";
        let page = render(
            &json!({"command": [evil]}),
            &json!({"threads": [{"comm": evil}]}),
        );
        assert_eq!(page.matches("<script").count(), 6);
        assert_eq!(page.matches("</script>").count(), 6);
        assert_eq!(page.matches("{{SCRIPT}}").count(), 3);
    }

    #[test]
    fn documents_are_in_the_page_as_json_in_which_no_tag_can_begin() {
        let report = json!({"command": ["<<a", "b<", "<"], "notes": ["<!-- </script>"]});
        let page = render(&report, &Value::Null);
        let (_, block) = page.split_once("id=\"report-data\"").unwrap();
        let (block, _) = block.split_once("</script>").unwrap();
        let block = block.split_once('>').unwrap().1;
        assert!(!block.contains('<'));
        assert_eq!(serde_json::from_str::<Value>(block).unwrap(), report);
    }

    #[test]
    fn same_documents_give_the_same_page() {
        let report = json!({"duration_ns": 5});
        assert_eq!(render(&report, &Value::Null), render(&report, &Value::Null));
        assert_ne!(
            render(&report, &Value::Null),
            render(&json!({"duration_ns": 6}), &Value::Null)
        );
    }

    #[test]
    fn each_cause_of_losses_has_a_phrase() {
        let page = render(&json!({}), &json!({}));
        let (_, causes) = page.split_once("const CAUSES = {").unwrap();
        let (causes, _) = causes.split_once('}').unwrap();
        for cause in overhear_event::GapCause::ALL {
            assert!(
                causes.contains(&format!("\n  {}: '", cause.name())),
                "{cause:?}"
            );
        }
    }

    #[test]
    fn page_loads_nothing_from_elsewhere() {
        // A fill of a saved picture refers to a pattern in the picture itself.
        let page = render(&Value::Null, &Value::Null).replace("url(#", "");
        for reference in [" src=", "@import", "url(", "<link"] {
            assert!(!page.contains(reference), "{reference}");
        }
        assert!(!STYLE.contains("</style"));
    }
}
