// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface of [POSIX-metrics, section 2]: metrics by name, user metrics between two events,
//! and the events that a metric requires.

use overhear_event::kernel::events::{IRQ, KIND_BEGIN, KIND_END, PAGE_FAULT, SOFTIRQ, SYSCALL};
use overhear_event::{EventName, EventSet};

use super::compile::metric::Metric;
use super::compile::pattern::Pattern;
use super::compile::task_source::THREAD;
use super::spec::catalogue::Catalogue;
use super::spec::fault::SpecificationError;
use super::spec::specification::{
    Condition, Constant, Label, Ownership, Relation, Specification, State, StateKind, Symbol,
    TaskOf, TextPosition, Transition, Word,
};

/// The built-in metrics, in the order of the list that users see.
const FILES: [(&str, &str); 25] = [
    (
        "wakeup_latency",
        include_str!("../../metrics/wakeup_latency.metric"),
    ),
    ("run_delay", include_str!("../../metrics/run_delay.metric")),
    ("dispatch", include_str!("../../metrics/dispatch.metric")),
    ("off_cpu", include_str!("../../metrics/off_cpu.metric")),
    ("blocked", include_str!("../../metrics/blocked.metric")),
    (
        "time_slice",
        include_str!("../../metrics/time_slice.metric"),
    ),
    (
        "preemption",
        include_str!("../../metrics/preemption.metric"),
    ),
    (
        "response_time",
        include_str!("../../metrics/response_time.metric"),
    ),
    (
        "system_call",
        include_str!("../../metrics/system_call.metric"),
    ),
    (
        "futex_wait",
        include_str!("../../metrics/futex_wait.metric"),
    ),
    ("interrupt", include_str!("../../metrics/interrupt.metric")),
    ("softirq", include_str!("../../metrics/softirq.metric")),
    (
        "delay_until_wakeup",
        include_str!("../../metrics/delay_until_wakeup.metric"),
    ),
    (
        "timer_handler",
        include_str!("../../metrics/timer_handler.metric"),
    ),
    (
        "timer_latency",
        include_str!("../../metrics/timer_latency.metric"),
    ),
    (
        "job_system_time",
        include_str!("../../metrics/job_system_time.metric"),
    ),
    (
        "context_switch",
        include_str!("../../metrics/context_switch.metric"),
    ),
    (
        "schedule_and_dispatch",
        include_str!("../../metrics/schedule_and_dispatch.metric"),
    ),
    (
        "page_fault",
        include_str!("../../metrics/page_fault.metric"),
    ),
    ("block_io", include_str!("../../metrics/block_io.metric")),
    (
        "system_blocking",
        include_str!("../../metrics/system_blocking.metric"),
    ),
    (
        "lock_blocking",
        include_str!("../../metrics/lock_blocking.metric"),
    ),
    (
        "priority_inversion",
        include_str!("../../metrics/priority_inversion.metric"),
    ),
    (
        "futex_blocking",
        include_str!("../../metrics/futex_blocking.metric"),
    ),
    ("lock_wait", include_str!("../../metrics/lock_wait.metric")),
];

/// Field that separates begins from ends.
const KIND: &str = "kind";
/// `kind` of a page fault that the program caused, and of one that is served.
const FAULT: [u32; 2] = [1, 3];
/// `kind` of the begin and of the end of other intervals.
const EDGES: [u32; 2] = [KIND_BEGIN, KIND_END];

/// There is no system metric with this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SystemMetricError {
    /// The name is unknown.
    #[error("there is no system metric `{name}`; there are {known}")]
    Unknown {
        /// The unknown name.
        name: String,
        /// The names of all system metrics.
        known: String,
    },
}

/// A user metric cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserMetricError {
    /// Without system time, the metric needs the begin and end of system calls.
    #[error(
        "the metric {name} without system time needs the kernel sensor syscall, which the catalogue \
         does not have; include the system time"
    )]
    Waiting {
        /// Name of the metric.
        name: String,
    },
    /// The events cannot be used.
    #[error("the metric {name} cannot be made: {error}")]
    Refused {
        /// Name of the metric.
        name: String,
        /// The reason.
        error: SpecificationError,
    },
}

/// The names of the system metrics of this version.
pub fn system_metrics() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// The text of a system metric: the content of its file.
#[must_use]
pub fn system_metric_text(name: &str) -> Option<&'static str> {
    FILES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, text)| *text)
}

/// The system metric with this name: `System_Metric` of [POSIX-metrics, section 2].
///
/// # Errors
/// [`SystemMetricError`] if there is none.
pub fn system_metric(name: &str) -> Result<Metric, SystemMetricError> {
    let Some(text) = system_metric_text(name) else {
        return Err(SystemMetricError::Unknown {
            name: name.to_owned(),
            known: system_metrics().collect::<Vec<_>>().join(", "),
        });
    };
    Ok(Metric::parse(text, Catalogue::of_linux()).expect("the built-in metrics make sense"))
}

/// The events on which a metric depends: `Events_Required_By` of [POSIX-metrics, section 2].
#[must_use]
pub fn events_required_by(metric: &Metric) -> EventSet {
    metric.requires()
}

/// The execution time of a task between two of its events: `New_User_Metric` of [POSIX-metrics,
/// section 2, figure 2]. It is the time in which the thread is on a CPU. With `include_system` it
/// contains the time that the thread spends in the kernel on its own behalf: in system calls, and
/// in page faults of the program if `catalogue` has `kernel:page_fault`.
///
/// The time of interrupts that return to the thread is left out if `catalogue` has `kernel:irq`:
/// the paper's `No_Preempt`. The time of soft interrupts, which the kernel runs before it returns,
/// is left out if it has `kernel:softirq`. With another catalogue their time counts.
///
/// The final event ends the measurement in every state: a thread that writes it is running, even if
/// its return to the CPU was not seen.
///
/// # Errors
/// [`UserMetricError`] if system time is to be left out and `catalogue` has no `kernel:syscall`, or
/// if the events cannot be used.
pub fn new_user_metric(
    name: &str,
    initial: &Pattern,
    r#final: &Pattern,
    include_system: bool,
    catalogue: &Catalogue,
) -> Result<Metric, UserMetricError> {
    let records = |hook: &str| catalogue.permits(&EventName::kernel(hook));
    if !include_system && !records(SYSCALL) {
        return Err(UserMetricError::Waiting {
            name: name.to_owned(),
        });
    }
    let mut user = UserMetric::new(name, initial, r#final);
    if records(IRQ) {
        let edges = user.leave_out("interrupt", "interrupted", IRQ, EDGES);
        // A handler can be interrupted by another one: the outer one returns to the thread.
        if let Some([begins, ends]) = edges {
            user.out("inner_interrupt");
            user.go("interrupted", "inner_interrupt", own(&begins));
            user.go("inner_interrupt", "interrupted", own(&ends));
        }
    }
    if records(SOFTIRQ) {
        user.leave_out("softirq", "in_softirq", SOFTIRQ, EDGES);
    }
    if !include_system {
        let calls = user.leave_out("system", "in_system", SYSCALL, EDGES);
        let faults = records(PAGE_FAULT)
            .then(|| user.leave_out("fault", "in_fault", PAGE_FAULT, FAULT))
            .flatten();
        // A fault that is not served, for example because a signal is sent, was over before a
        // system call.
        if let (Some([begins, _]), Some(_)) = (calls, faults) {
            user.go("in_fault", "in_system", own(&begins));
        }
    }
    Metric::new(user.specification, catalogue).map_err(|error| UserMetricError::Refused {
        name: name.to_owned(),
        error,
    })
}

/// The automaton of figure 2 in [POSIX-metrics, section 2], as far as Linux has the events.
struct UserMetric {
    specification: Specification,
    /// The symbol of the final event; that of the initial event if they are the same.
    closing: &'static str,
}

impl UserMetric {
    fn new(name: &str, initial: &Pattern, r#final: &Pattern) -> Self {
        let switch = EventName::kernel(overhear_event::kernel::SCHED_SWITCH);
        let mut specification = Specification {
            name: Word::new(name),
            description: format!("Execution time from {initial} to {final}"),
            symbols: vec![
                initial.to_symbol("initial"),
                r#final.to_symbol("final"),
                symbol("left", &switch, Some(2), "prev_tid"),
                symbol("arrived", &switch, Some(4), "next_tid"),
            ],
            key: None,
            states: Vec::new(),
            transitions: Vec::new(),
        };
        // One event may be both: then a measurement goes from one element to the next.
        let closing = if initial == r#final {
            specification.symbols.remove(1);
            "initial"
        } else {
            "final"
        };
        let mut user = Self {
            specification,
            closing,
        };
        for (state, kind) in [
            ("idle", StateKind::Out),
            ("begin", StateKind::Begin),
            ("running", StateKind::In),
            ("last", StateKind::In),
            ("end", StateKind::End),
        ] {
            user.state(state, kind);
        }
        user.go("idle", "begin", own("initial"));
        user.go("begin", "running", Label::Lambda);
        user.go("running", "last", own(closing));
        user.go("last", "end", Label::Lambda);
        user.go("end", "idle", Label::Lambda);
        user.out("off");
        user.go("running", "off", own("left"));
        user.go("off", "running", own("arrived"));
        user
    }

    /// Leaves out the time between the begin and the end of an interval of a kernel sensor; `kinds`
    /// are their kinds. Returns the names of the two symbols; `None` if the interval begins with
    /// the final event, which ends the measurement.
    fn leave_out(
        &mut self,
        event: &str,
        state: &str,
        hook: &str,
        [begin, end]: [u32; 2],
    ) -> Option<[String; 2]> {
        let names = [("begins", begin), ("ends", end)].map(|(edge, kind)| {
            let mut symbol = symbol(
                &format!("{event}_{edge}"),
                &EventName::kernel(hook),
                None,
                THREAD,
            );
            symbol.conditions.push(Condition {
                field: Word::new(KIND),
                relation: Relation::Equal,
                constant: Constant::Number(kind.into()),
                constant_at: TextPosition::default(),
            });
            self.declare(symbol)
        });
        if names[0] == self.closing {
            return None;
        }
        self.out(state);
        // The states from which this one may be entered: running, and the intervals left out
        // before.
        self.go("running", state, own(&names[0]));
        self.go(state, "running", own(&names[1]));
        let away = format!("{state}_off");
        self.out(&away);
        self.go(state, &away, own("left"));
        self.go(&away, state, own("arrived"));
        Some(names)
    }

    /// Declares a symbol. Returns its name: that of the initial or the final event if it is the
    /// same.
    fn declare(&mut self, symbol: Symbol) -> String {
        let same = |known: &&Symbol| {
            let known = (&known.source, &known.conditions, &known.task, &known.ago);
            known
                == (
                    &symbol.source,
                    &symbol.conditions,
                    &symbol.task,
                    &symbol.ago,
                )
        };
        if let Some(known) = self.specification.symbols.iter().find(same) {
            return known.name.text.clone();
        }
        let name = symbol.name.text.clone();
        self.specification.symbols.push(symbol);
        name
    }

    /// A state in which the thread does not execute, as far as was seen.
    fn out(&mut self, name: &str) {
        self.state(name, StateKind::Out);
        self.go(name, "last", own(self.closing));
    }

    fn state(&mut self, name: &str, kind: StateKind) {
        let name = Word::new(name);
        self.specification.states.push(State { name, kind });
    }

    /// The first transition with a label is used: the final event ends the measurement, whatever
    /// else it is.
    fn go(&mut self, from: &str, to: &str, label: Label) {
        let mut known = self.specification.transitions.iter();
        if known.any(|known| known.from.text == from && known.label == label) {
            return;
        }
        self.specification.transitions.push(Transition {
            from: Word::new(from),
            to: Word::new(to),
            label,
            label_at: TextPosition::default(),
        });
    }
}

fn own(symbol: &str) -> Label {
    Label::Symbol(Word::new(symbol), Ownership::Own)
}

fn symbol(name: &str, source: &EventName, flag: Option<u64>, thread: &str) -> Symbol {
    let condition = flag.map(|flag| Condition {
        field: Word::new("flags"),
        relation: Relation::Has,
        constant: Constant::Number(flag),
        constant_at: TextPosition::default(),
    });
    Symbol {
        name: Word::new(name),
        source: source.clone(),
        source_at: TextPosition::default(),
        conditions: condition.into_iter().collect(),
        task: TaskOf::Field(Word::new(thread)),
        ago: None,
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::kernel::{Switch, SCHED_SWITCH};
    use overhear_event::EventName;

    use super::{
        events_required_by, new_user_metric, system_metric, system_metric_text, system_metrics,
        UserMetricError,
    };
    use crate::automaton::{Catalogue, Metric, Pattern, Specification};

    fn user(
        name: &str,
        initial: &EventName,
        r#final: &EventName,
        include_system: bool,
        catalogue: &Catalogue,
    ) -> Result<Metric, UserMetricError> {
        let [initial, r#final] = [initial, r#final].map(|event| Pattern::from(event.clone()));
        new_user_metric(name, &initial, &r#final, include_system, catalogue)
    }

    #[test]
    fn built_in_metrics_are_valid_and_have_the_name_of_their_file() {
        for name in system_metrics() {
            let metric = system_metric(name).unwrap();
            assert_eq!(metric.name(), name);
            assert!(!metric.description().is_empty());
            let printed = metric.to_string();
            let again: Specification = printed.parse().unwrap();
            assert_eq!(
                again,
                *metric.specification(),
                "{}",
                system_metric_text(name).unwrap()
            );
        }
    }

    #[test]
    fn pictures_match_their_metric_files() {
        for name in system_metrics() {
            let picture = format!("{}/metrics/{name}.dot", env!("CARGO_MANIFEST_DIR"));
            let picture = std::fs::read_to_string(picture).unwrap();
            let drawn = system_metric(name).unwrap().specification().to_graphviz();
            assert_eq!(
                drawn, picture,
                "type `overhear metrics --dot --metric {name}`"
            );
        }
    }

    #[test]
    fn unknown_name_lists_the_known_ones() {
        let error = system_metric("nonsense").unwrap_err().to_string();
        assert!(
            error.starts_with("there is no system metric `nonsense`; there are wakeup_latency,")
        );
    }

    #[test]
    fn metrics_require_exactly_the_needed_events() {
        let names = |name: &str| -> Vec<String> {
            let required = events_required_by(&system_metric(name).unwrap());
            required.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            names("time_slice"),
            ["kernel:sched_switch", "kernel:task_life"]
        );
        assert_eq!(
            names("wakeup_latency"),
            [
                "kernel:sched_switch",
                "kernel:sched_wake",
                "kernel:task_life"
            ]
        );
        let (a, b) = (EventName::user("a"), EventName::user("b"));
        let metric = user("m", &a, &b, true, &Catalogue::linux()).unwrap();
        let required: Vec<String> = events_required_by(&metric)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            required,
            [
                "kernel:irq",
                "kernel:sched_switch",
                "kernel:softirq",
                "kernel:task_life",
                "user:a",
                "user:b"
            ]
        );
    }

    #[test]
    fn system_time_and_interrupts_are_left_out_if_their_events_exist() {
        let (a, b) = (EventName::user("a"), EventName::user("b"));
        let linux = Catalogue::linux();
        let metric = user("m", &a, &b, false, &linux).unwrap();
        let sources: Vec<&str> = metric.sources().iter().map(EventName::as_str).collect();
        assert_eq!(
            sources,
            [
                "user:a",
                "user:b",
                "kernel:sched_switch",
                "kernel:irq",
                "kernel:softirq",
                "kernel:syscall",
                "kernel:page_fault"
            ]
        );
        let metric = user("m", &a, &a, true, &linux).unwrap();
        assert_eq!(metric.sources().len(), 4);
        // Without their events, interrupts count, and system time cannot be left out.
        let switch = EventName::kernel(SCHED_SWITCH);
        let deaf = Catalogue::empty().with(switch, Switch::schema());
        let metric = user("m", &a, &b, true, &deaf).unwrap();
        assert_eq!(metric.sources().len(), 3);
        let irq = EventName::kernel("irq");
        assert!(user("m", &a, &irq, true, &linux).is_err());
        let named = user("my metric", &a, &b, true, &linux).unwrap_err();
        let message = "the metric my metric cannot be made: `my metric` cannot be a name;";
        assert!(named.to_string().starts_with(message), "{named}");
        let error = user("m", &a, &b, false, &deaf).unwrap_err();
        assert!(error
            .to_string()
            .contains("needs the kernel sensor syscall"));
    }
}
