// SPDX-License-Identifier: MIT OR Apache-2.0
//! The demonstration: runs the client and the server, listens to both and to the kernel, and shows
//! where the CPU time of a call goes. See `demo/README.md`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, Context as _, Result};
use clap::{Parser, ValueEnum};
use demo::chart::{chart, duration};
use demo::{programs, Reason, Span, Spans};
use overhear_metrics::Histogram;
use overhear_session::conclusion::Exit;
use overhear_session::session::{KernelBackend, Session};
use rustix::time::{clock_gettime, ClockId};

/// Where does the CPU time of a call from a client to a server go?
#[derive(Debug, Parser)]
#[command(name = "demo")]
struct Options {
    /// How many calls the client makes
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    calls: u32,
    /// From the beginning of one call to the beginning of the next, in microseconds
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    period_us: u32,
    /// Where the recording and its report go [default: demo/calls in cargo's target directory]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Which kernel sensor to use
    #[arg(long, value_enum, default_value_t = Kernel::Auto)]
    kernel: Kernel,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kernel {
    Auto,
    Bpf,
    Perf,
    Off,
}

impl From<Kernel> for KernelBackend {
    fn from(kernel: Kernel) -> Self {
        match kernel {
            Kernel::Auto => Self::Auto,
            Kernel::Bpf => Self::Bpf,
            Kernel::Perf => Self::Perf,
            Kernel::Off => Self::Off,
        }
    }
}

fn main() -> ExitCode {
    if let Some(status) = programs::run_named(std::env::args_os().collect()) {
        return ExitCode::from(u8::try_from(status).unwrap_or(1));
    }
    match demonstrate(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn demonstrate(options: &Options) -> Result<()> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let out = match &options.out {
        Some(out) => out.clone(),
        None => fresh_default(&program)?,
    };
    let folder = tempfile::Builder::new().prefix("overhear-demo-").tempdir();
    let folder = folder.context("cannot make a folder for the server's socket")?;
    let command = programs::command(&program, folder.path(), options.calls, options.period_us);
    let command: Vec<OsString> = command.context("cannot name the client and the server")?;

    let mut spans = Spans::default();
    let mut outcome = Session::builder(command)
        .out(Some(out))
        .kernel(options.kernel.into())
        .run(&mut [&mut spans])?;
    spans.finish();
    outcome.add_histograms(histograms(&spans))?;

    let messages = outcome.report.sources.iter().map(|source| &source.message);
    for message in messages {
        println!("{}", fill(&capital(message), ""));
    }
    print!("{}", summary(&spans, options));
    let missed = outcome.report.missed_total;
    match missed {
        0 => println!("Nothing was missed."),
        missed => println!("{missed} elements were missed; the report shows where."),
    }
    for note in &outcome.report.notes {
        println!("{}", fill(&format!("Note: {note}"), "  "));
    }
    if let Some(page) = overhear_page::recorded::write_page(&mut outcome)? {
        let file = page.file.display();
        println!("The report, with the time-line of both: {file}");
    }
    match outcome.exit {
        Exit::Code(0) => Ok(()),
        Exit::Code(code) => bail!("the client ended with status {code}; its output is above"),
        Exit::Signal(signal) => bail!("signal {signal} ended the client"),
    }
}

/// The default folder of the recording, emptied: in cargo's target folder, where `cargo clean`
/// removes it.
fn fresh_default(program: &Path) -> Result<PathBuf> {
    let target = program.ancestors().nth(2).unwrap_or(Path::new("."));
    let out = target.join("demo").join("calls");
    match std::fs::remove_dir_all(&out) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot replace the last run's {}", out.display()))
        }
        _ => Ok(out),
    }
}

fn histograms(spans: &Spans) -> Vec<(&'static str, &'static str, &Histogram)> {
    Span::ALL
        .into_iter()
        .map(|span| (span.title(), "ns", spans.histogram(span)))
        .collect()
}

/// Everything that was found about the calls.
fn summary(spans: &Spans, options: &Options) -> String {
    let mut text = String::new();
    let calls = options.calls;
    let _ = writeln!(
        text,
        "\n{calls} calls of `{}`, one every {} us.\n",
        programs::COMMAND,
        options.period_us
    );
    for (number, span) in (1..).zip(Span::ALL) {
        let histogram = spans.histogram(span);
        let title = format!("{number} {}", capital(span.title()));
        let _ = writeln!(text, "{title:<29}{}", figures(histogram));
        if histogram.count() == 0 {
            let _ = writeln!(text, "  {}", fill(&why_nothing(span, spans), "  "));
        }
        let _ = writeln!(text, "{}", chart(histogram));
    }
    text.push_str(&table(spans));
    let _ = writeln!(
        text,
        "{}",
        fill(
            &format!(
                "A sensor's look at its thread's CPU time costs about {} here; spans 1 and 4 contain \
                 one look, span 3 contains two.",
                duration(cost_of_a_look_ns())
            ),
            ""
        )
    );
    text.push('\n');
    text.push_str(&discarded(
        "Calls discarded",
        calls.into(),
        spans.discarded(),
    ));
    let measured = spans.histogram(Span::Client).count();
    if spans.switches() > 0 {
        let what = "Calls measured without span 2";
        text.push_str(&discarded(what, measured, spans.ipc_discarded()));
    }
    text
}

/// The line behind a span's name.
fn figures(histogram: &Histogram) -> String {
    let quantile = |fraction| histogram.quantile(fraction).map(duration);
    match (quantile(0.5), quantile(0.99)) {
        (Some(median), Some(p99)) => {
            let count = histogram.count();
            format!("median {median}, p99 {p99}, {count} measured")
        }
        _ => String::new(),
    }
}

fn why_nothing(span: Span, spans: &Spans) -> String {
    if span == Span::Ipc && spans.switches() == 0 {
        return "Not measured: this span needs the kernel's context switches, and no kernel sensor \
                is active (see above)."
            .to_string();
    }
    "Not measured: every one was discarded (see below).".to_string()
}

/// All four spans side by side, and the time a call takes by the clock.
fn table(spans: &Spans) -> String {
    let medians = Span::ALL.map(|span| spans.histogram(span).quantile(0.5));
    let sum: u64 = medians.iter().flatten().sum();
    let mut text = format!(
        "{:<26}{:>9}{:>10}{:>10}{:>10}{:>7}{:>8}\n",
        "CPU time of a call", "median", "p99", "min", "max", "share", "calls"
    );
    let mut row = |name: &str, histogram: &Histogram, share: String| {
        let number = |value: Option<u64>| value.map_or("-".to_string(), duration);
        let _ = writeln!(
            text,
            "{name:<26}{:>9}{:>10}{:>10}{:>10}{share:>7}{:>8}",
            number(histogram.quantile(0.5)),
            number(histogram.quantile(0.99)),
            number(histogram.min()),
            number(histogram.max()),
            histogram.count(),
        );
    };
    for ((number, span), median) in (1..).zip(Span::ALL).zip(medians) {
        let share = median.map_or("-".to_string(), |ns| format!("{} %", ns * 100 / sum.max(1)));
        let name = format!("{number} {}", span.title());
        row(&name, spans.histogram(span), share);
    }
    row("the call by the clock", spans.round_trip(), String::new());
    text
}

fn discarded(what: &str, of: u64, reasons: &BTreeMap<Reason, u64>) -> String {
    let all: u64 = reasons.values().sum();
    let mut text = format!("{what}: {all} of {of}");
    for (index, (reason, count)) in reasons.iter().enumerate() {
        let before = if index == 0 { "; " } else { ", " };
        let _ = write!(text, "{before}{count} because {reason}");
    }
    text.push('.');
    fill(&text, "  ") + "\n"
}

/// What one look at the thread's CPU time costs, seen from inside: the middle of many distances
/// of neighbouring looks.
fn cost_of_a_look_ns() -> u64 {
    let look = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000
            + u64::try_from(now.tv_nsec).unwrap_or(0)
    };
    let mut distances = Histogram::new();
    let mut last = look();
    for _ in 0..1_000 {
        let now = look();
        distances.record(now - last);
        last = now;
    }
    distances.quantile(0.5).unwrap_or(0)
}

fn capital(message: &str) -> String {
    let mut letters = message.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}

/// Breaks a text into lines of at most 80 columns; all but the first begin with `indent`.
fn fill(text: &str, indent: &str) -> String {
    let mut filled = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > 78 {
            filled.push('\n');
            filled.push_str(indent);
            column = indent.len();
        } else if column > 0 {
            filled.push(' ');
            column += 1;
        }
        filled.push_str(word);
        column += width;
    }
    filled
}
