// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metrics over trace streams: the package Metrics of [POSIX-metrics, section 2], on the engine of
//! `overhear-metrics`.

use overhear_event::{EventName, Nanos};
use overhear_metrics::automaton::{
    new_user_metric, system_metric, Catalogue, MeasurementList, Metric, Metrics, Pattern, Results,
    SpecificationError, SystemMetricError, UserMetricError,
};

use crate::elements::{AnalysisSink, TraceElements};
use crate::{EventId, LogError, LogHeader, LogItem, LogReader, LostEvents, TraceEvent};

/// An event type of a metric, by its name: numbers of user event types differ between processes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequiredEvent {
    /// An event type of Linux.
    Kernel(EventId),
    /// A user event type with this name.
    User(String),
}

/// An error in creating a metric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceMetricError {
    /// No built-in metric has the name.
    #[error(transparent)]
    System(#[from] SystemMetricError),
    /// The events cannot be used.
    #[error(transparent)]
    User(#[from] UserMetricError),
    /// The text is no metric.
    #[error(transparent)]
    Text(#[from] SpecificationError),
    /// The metric has an event that trace streams do not have.
    #[error(
        "the metric {metric} requires {event}, and trace streams have no such event: they have those \
         of programs and of the kernel sensors except probes"
    )]
    Absent {
        /// Name of the metric.
        metric: String,
        /// Name of the event.
        event: EventName,
    },
    /// Events of trace streams themselves are of no task.
    #[error("the event type {0} is one of trace streams: use a user event type or one of Linux")]
    OfStream(&'static str),
}

/// A metric with the event types that it requires.
///
/// ```
/// use overhear_posixtrace::{RequiredEvent, TraceMetric};
///
/// let metric = TraceMetric::system("Time Slice")?;
/// let names: Vec<&str> = metric
///     .events()
///     .iter()
///     .map(|event| match event {
///         RequiredEvent::Kernel(event) => event.kernel_name().unwrap(),
///         RequiredEvent::User(name) => name,
///     })
///     .collect();
/// assert_eq!(names, ["sched_switch", "task_life"]);
/// # Ok::<(), overhear_posixtrace::TraceMetricError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TraceMetric {
    metric: Metric,
    events: Vec<RequiredEvent>,
}

/// A name of a metric as specifications write it: small letters, digits, and `_` for all others.
fn specified(name: &str) -> String {
    let name = name
        .trim()
        .chars()
        .map(|c| match c.is_ascii_alphanumeric() {
            true => c.to_ascii_lowercase(),
            false => '_',
        });
    name.collect()
}

/// The event as the initial or final one of a user metric.
fn pattern(event: &RequiredEvent, linux: &Catalogue) -> Result<Pattern, TraceMetricError> {
    match event {
        RequiredEvent::User(name) => Ok(EventName::user(name).into()),
        RequiredEvent::Kernel(event) => {
            let name = event.kernel_name().unwrap_or_default();
            Ok(Pattern::parse_user_event(&format!("kernel:{name}"), linux)?)
        }
    }
}

impl TraceMetric {
    /// The built-in metric of this name: `System_Metric`. `Delay Until Wakeup` is
    /// `delay_until_wakeup`.
    ///
    /// # Errors
    /// [`TraceMetricError::System`] if there is none.
    pub fn system(name: &str) -> Result<Self, TraceMetricError> {
        Self::new(system_metric(&specified(name))?)
    }

    /// The execution time of a task between two of its events: `New_User_Metric`.
    ///
    /// # Errors
    /// [`TraceMetricError::User`] if the events cannot be used.
    pub fn user(
        name: &str,
        initial: &RequiredEvent,
        r#final: &RequiredEvent,
        include_system: bool,
    ) -> Result<Self, TraceMetricError> {
        let linux = Catalogue::linux();
        let (first, last) = (pattern(initial, &linux)?, pattern(r#final, &linux)?);
        let name = match specified(name) {
            name if name.is_empty() => "user_metric".to_owned(),
            name => name,
        };
        Self::new(new_user_metric(
            &name,
            &first,
            &last,
            include_system,
            &linux,
        )?)
    }

    /// The metric of a specification.
    ///
    /// # Errors
    /// [`TraceMetricError::Text`] with line and column.
    pub fn parse(text: &str) -> Result<Self, TraceMetricError> {
        Self::new(text.parse()?)
    }

    fn new(metric: Metric) -> Result<Self, TraceMetricError> {
        let events = metric.requires();
        let events = events.iter().map(|event| {
            let absent = || TraceMetricError::Absent {
                metric: metric.name().to_owned(),
                event: event.clone(),
            };
            match event.as_str().split_once(':') {
                Some(("user", name)) => Ok(RequiredEvent::User(name.to_owned())),
                Some(("kernel", name)) => {
                    let event = EventId::kernel(name).ok_or_else(absent)?;
                    Ok(RequiredEvent::Kernel(event))
                }
                _ => Err(absent()),
            }
        });
        let events = events.collect::<Result<_, _>>()?;
        Ok(Self { metric, events })
    }

    /// The event types that it requires: `Events_Required_By`.
    #[must_use]
    pub fn events(&self) -> &[RequiredEvent] {
        &self.events
    }

    /// The automaton.
    #[must_use]
    pub const fn metric(&self) -> &Metric {
        &self.metric
    }
}

impl RequiredEvent {
    /// The event type of a number with its name.
    ///
    /// # Errors
    /// [`TraceMetricError::OfStream`] for system event types of the standard.
    pub fn new(event: EventId, name: &[u8]) -> Result<Self, TraceMetricError> {
        match event {
            _ if event.kernel_name().is_some() => Ok(Self::Kernel(event)),
            _ if event.is_user() => Ok(Self::User(String::from_utf8_lossy(name).into_owned())),
            _ => Err(TraceMetricError::OfStream(
                event.standard_name().unwrap_or("without a name"),
            )),
        }
    }

    /// The event type of a name alone. One of Linux has precedence.
    #[must_use]
    pub fn named(name: &str) -> Self {
        match name.strip_prefix("user:") {
            Some(user) => Self::User(user.to_owned()),
            None => EventId::kernel(name).map_or_else(|| Self::User(name.to_owned()), Self::Kernel),
        }
    }
}

/// Metrics over the events of one stream.
///
/// Events and losses come in the order of the stream; measurements are taken at any time.
#[derive(Debug)]
pub struct TraceEvaluation {
    engine: Metrics<Results>,
    elements: TraceElements,
    /// Whether an event of the kernel has come.
    has_kernel: bool,
}

impl TraceEvaluation {
    /// Metrics over a stream with these properties. `cost` is the time that a traced task needs to
    /// record one event, which lengths do not contain.
    #[must_use]
    pub fn new<'a>(
        metrics: impl IntoIterator<Item = &'a TraceMetric>,
        header: &LogHeader,
        cost: Nanos,
    ) -> Self {
        let mut engine = Metrics::new(Results::default().minus_costs(cost));
        for metric in metrics {
            engine.add(metric.metric.clone());
        }
        Self {
            engine,
            elements: TraceElements::new(header),
            has_kernel: false,
        }
    }

    /// Names an event type, before its first event.
    pub fn define(&mut self, event: EventId, name: &[u8]) {
        self.elements.define(event, name);
    }

    /// Evaluates an event.
    pub fn event(&mut self, event: &TraceEvent<'_>) {
        self.has_kernel |= event.event.is_kernel();
        self.elements
            .event(event, &mut AnalysisSink(&mut self.engine));
    }

    /// Events were lost.
    pub fn lost(&mut self, loss: LostEvents) {
        let sink = &mut AnalysisSink(&mut self.engine);
        self.elements.lost(loss, sink);
    }

    /// Evaluates a log from its begin to its end, and rewinds it.
    ///
    /// # Errors
    /// [`LogError`] if it cannot be read.
    pub fn log(&mut self, log: &mut LogReader) -> Result<(), LogError> {
        log.rewind()?;
        for (event, name) in log.names() {
            self.define(*event, name);
        }
        let mut known = log.names().len();
        loop {
            match log.next()? {
                Some(LogItem::Event(event)) => self.event(&event),
                Some(LogItem::Lost(loss)) => self.lost(loss),
                None => break,
            }
            // Those of a channel are known when they have been read.
            if log.names().len() > known {
                for (event, name) in &log.names()[known..] {
                    self.elements.define(*event, name);
                }
                known = log.names().len();
            }
        }
        self.engine.finish();
        log.rewind()
    }

    /// Whether events of the kernel were among the events.
    #[must_use]
    pub const fn has_kernel(&self) -> bool {
        self.has_kernel
    }

    /// Takes the measurements of a metric since the last call, by its index.
    pub fn take(&mut self, index: usize) -> MeasurementList {
        MeasurementList::take(&mut self.engine, index)
    }
}

impl TraceMetric {
    /// The required event that a log cannot have: a user event type that has no name there, or
    /// every one of the kernel. `None` if it can have all.
    #[must_use]
    pub fn absent_in(&self, names: &[(EventId, Vec<u8>)], has_kernel: bool) -> Option<String> {
        let is_named = |name: &str| {
            let mut users = names.iter().filter(|(event, _)| event.is_user());
            users.any(|(_, known)| String::from_utf8_lossy(known) == name)
        };
        let users = self.events.iter().find_map(|event| match event {
            RequiredEvent::User(name) if !is_named(name) => Some(format!("no event type {name:?}")),
            _ => None,
        });
        let needs_kernel = || {
            let mut events = self.events.iter();
            events.any(|event| matches!(event, RequiredEvent::Kernel(_)))
        };
        users.or_else(|| {
            (!has_kernel && needs_kernel())
                .then(|| "no events of the kernel (not permitted, or filtered out)".into())
        })
    }
}

#[cfg(test)]
mod tests {
    use overhear_metrics::automaton::system_metrics;

    use super::{RequiredEvent, TraceMetric, TraceMetricError};
    use crate::EventId;

    #[test]
    fn every_built_in_metric_has_its_events_in_trace_streams() {
        for name in system_metrics() {
            let metric = TraceMetric::system(name).unwrap();
            assert!(!metric.events().is_empty(), "{name}");
            let title = name.replace('_', " ").to_uppercase();
            let titled = TraceMetric::system(&title).unwrap();
            assert_eq!(titled.events(), metric.events());
        }
        let error = TraceMetric::system("nonsense").unwrap_err().to_string();
        assert!(error.contains("delay_until_wakeup"), "{error}");
    }

    #[test]
    fn user_metric_requires_its_events_and_those_of_the_kernel() {
        let [first, last] = ["Initial Event", "Final Event"].map(RequiredEvent::named);
        let metric = TraceMetric::user("My Metric", &first, &last, false).unwrap();
        assert_eq!(metric.metric().name(), "my_metric");
        assert!(metric.events().contains(&first) && metric.events().contains(&last));
        let call = EventId::kernel("syscall").unwrap();
        assert!(metric.events().contains(&RequiredEvent::Kernel(call)));
        let with_system = TraceMetric::user("", &first, &last, true).unwrap();
        assert!(!with_system.events().contains(&RequiredEvent::Kernel(call)));
        // One of the kernel may be both.
        let fault = RequiredEvent::named("page_fault");
        assert_eq!(
            fault,
            RequiredEvent::Kernel(EventId::kernel("page_fault").unwrap())
        );
        assert!(TraceMetric::user("faults", &fault, &fault, true).is_ok());
    }

    #[test]
    fn events_without_a_task_or_a_stream_are_refused() {
        let error = RequiredEvent::new(EventId::START, b"").unwrap_err();
        assert_eq!(error, TraceMetricError::OfStream("posix_trace_start"));
        let event = RequiredEvent::new(EventId::UNNAMED, b"a \xff");
        assert_eq!(event, Ok(RequiredEvent::User("a \u{fffd}".to_owned())));
        let text = "metric m\nevent a = kernel:probe/f\nstate 0 out\nstate 1 begin\nstate 2 in\nstate 3 end\n\
                    0 -> 1: a, i\n1 -> 2: lambda\n2 -> 3: a, i\n3 -> 0: lambda\n";
        let error = TraceMetric::parse(text).unwrap_err();
        assert!(matches!(error, TraceMetricError::Absent { .. }), "{error}");
        assert!(matches!(
            TraceMetric::parse("metric"),
            Err(TraceMetricError::Text(_))
        ));
    }
}
