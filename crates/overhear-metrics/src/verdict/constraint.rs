// SPDX-License-Identifier: MIT OR Apache-2.0
//! Constraints: requirements on the results of a metric, the fields of a sensor, or the times of
//! events.

use std::fmt;

use overhear_event::kernel::TASK_LIFE;
use overhear_event::{EventName, EventSet, Nanos};

use crate::automaton::{Catalogue, Fault, Metric, Pattern};

/// Largest number of elements that a rate may count in its window: that number of times is kept per
/// group.
const MOST_IN_WINDOW: u64 = 65_536;

/// A requirement with a name.
///
/// Holding one proves that its bounds can be met: no bound is missing, contradictory or NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct Constraint {
    name: String,
    demand: Demand,
    each: Each,
    task: Option<TaskFilter>,
    clock_error: Option<Nanos>,
    is_sampled: bool,
}

/// A requirement.
#[derive(Clone, Debug, PartialEq)]
pub enum Demand {
    /// Every value lies between two bounds.
    Bounds {
        /// The values.
        of: Values,
        /// Least permitted value.
        min: Option<f64>,
        /// Greatest permitted value.
        max: Option<f64>,
    },
    /// At least this fraction of the values is at most the bound.
    Quantile {
        /// The values.
        of: Values,
        /// The fraction, above 0 and at most 1.
        fraction: f64,
        /// The bound.
        at_most: f64,
    },
    /// The largest and the smallest value differ by at most the bound.
    Spread {
        /// The values.
        of: Values,
        /// The bound.
        at_most: f64,
    },
    /// The number of events in every window of this length is within bounds.
    Rate {
        /// The events.
        of: Pattern,
        /// Length of the window.
        window: Nanos,
        /// Least permitted number.
        at_least: Option<u64>,
        /// Greatest permitted number.
        at_most: Option<u64>,
    },
    /// The distance of neighbouring events is a period, up to a jitter.
    Period {
        /// The events.
        of: Pattern,
        /// The period.
        period: Nanos,
        /// Largest deviation of a distance from it.
        jitter: Nanos,
    },
    /// After each event there is another one within this length.
    Absence {
        /// The event.
        of: Pattern,
        /// Longest permitted distance.
        at_most: Nanos,
    },
    /// The event does not happen.
    Never {
        /// The event.
        of: Pattern,
    },
    /// The samplers find at most this number of anomalies.
    Anomalies {
        /// The samples.
        of: Pattern,
        /// Greatest permitted number of anomalies of all threads.
        at_most: u64,
    },
    /// The events happen in this order, again and again.
    Order {
        /// The events.
        of: Vec<Pattern>,
    },
    /// After each event another one happens within this length.
    Deadline {
        /// The event that begins the length.
        after: Pattern,
        /// The event that must happen.
        of: Pattern,
        /// The length.
        within: Nanos,
    },
}

/// Numbers that are judged.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Lengths of a metric's measurements, in nanoseconds.
    Metric(Box<Metric>),
    /// A field of elements, in its own unit.
    Field {
        /// The elements.
        of: Pattern,
        /// The field.
        field: String,
        /// Whether bounds are lengths in nanoseconds: then the unit of the field must be one of
        /// time.
        as_time: bool,
    },
}

/// The groups that are judged separately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Each {
    /// All elements are one group.
    #[default]
    All,
    /// Each sensor of each process; all kernel elements are one group.
    Sensor,
    /// Each task that the elements name.
    Task,
    /// The elements with one value of a field, an unsigned number.
    Field(String),
}

/// The tasks that are judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskFilter {
    /// The task with this id.
    Id(u32),
    /// Tasks whose short name matches; `*` stands for any text, `?` for any character.
    Name(String),
}

impl fmt::Display for TaskFilter {
    /// The filter as text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(glob) => f.write_str(glob),
        }
    }
}

impl TaskFilter {
    /// A number is an id, anything else a name.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.parse() {
            Ok(id) => Self::Id(id),
            Err(_) => Self::Name(text.to_owned()),
        }
    }

    /// Whether the task is judged; its name may be unknown.
    pub(super) fn takes(&self, task: Option<u32>, name: Option<&str>) -> bool {
        match self {
            Self::Id(id) => task == Some(*id),
            Self::Name(glob) => name.is_some_and(|name| {
                let (glob, name): (Vec<char>, Vec<char>) =
                    (glob.chars().collect(), name.chars().collect());
                matches(&glob, &name)
            }),
        }
    }
}

fn matches(glob: &[char], name: &[char]) -> bool {
    match glob.split_first() {
        None => name.is_empty(),
        Some(('*', rest)) => (0..=name.len()).any(|skipped| matches(rest, &name[skipped..])),
        Some((c, rest)) => match name.split_first() {
            Some((first, others)) => (*c == '?' || c == first) && matches(rest, others),
            None => false,
        },
    }
}

/// A constraint that nothing could meet, or that has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The name is empty.
    #[error("a constraint has no name; give it one, for verdicts and reports")]
    Nameless,
    /// There is no bound.
    #[error("no bound is given; give at least one")]
    Boundless,
    /// No value is between the bounds.
    #[error("the least permitted, {least}, is more than the most, {most}; exchange them")]
    Contradiction {
        /// The lower bound.
        least: String,
        /// The upper bound.
        most: String,
    },
    /// A bound is NaN.
    #[error("a bound is not a number")]
    NotANumber,
    /// The bound is negative: no two values are so close.
    #[error("the jitter is {0}; give at least 0, which demands that all values are the same")]
    Negative(String),
    /// The fraction is not above 0 and at most 1.
    #[error(
        "the quantile is {0}; give a fraction that is more than 0 and at most 1, such as 0.99"
    )]
    Fraction(String),
    /// A length is zero.
    #[error("the {0} is 0 ns; give a length")]
    Zero(&'static str),
    /// The window counts too many elements.
    #[error("a window of {0} elements is more than the {MOST_IN_WINDOW} that are kept; choose a shorter window")]
    Window(u64),
    /// An order needs two events.
    #[error("an order needs at least two events; name them in the order in which they must come")]
    OneEvent,
    /// An event occurs twice in one order.
    #[error("the order names `{0}` twice, so an element would be both; name each event once")]
    TwiceInOrder(String),
    /// The field cannot be judged.
    #[error("{0}")]
    Field(Fault),
    /// A constraint on a metric can only be judged for each task or for all together.
    #[error("a metric is judged as a whole or by each task; leave out `each`, or give \"task\"")]
    EachOfMetric,
    /// Two different metrics have the same name.
    #[error("two different metrics are called {0}; rename one of them")]
    TwoMetrics(String),
    /// Two constraints have the same name.
    #[error("two constraints are called `{0}`; rename one of them")]
    TwoConstraints(String),
}

impl Constraint {
    /// Checks a requirement. `catalogue` has the schemas of events.
    ///
    /// # Errors
    /// [`ConstraintError`] if it has no meaning, or nothing could meet it.
    pub fn new(name: &str, demand: Demand, catalogue: &Catalogue) -> Result<Self, ConstraintError> {
        if name.trim().is_empty() {
            return Err(ConstraintError::Nameless);
        }
        check(&demand, catalogue)?;
        let each = match &demand {
            Demand::Rate { .. } | Demand::Period { .. } | Demand::Absence { .. } => Each::Sensor,
            _ => Each::All,
        };
        Ok(Self {
            name: name.to_owned(),
            demand,
            each,
            task: None,
            clock_error: None,
            is_sampled: false,
        })
    }

    /// Sets the groups that are judged separately. The default for rates, periods and absences is
    /// each sensor; for everything else, all elements together.
    ///
    /// # Errors
    /// [`ConstraintError`] if the elements have no such groups.
    pub fn each(mut self, each: Each, catalogue: &Catalogue) -> Result<Self, ConstraintError> {
        if let Each::Field(field) = &each {
            for pattern in self.demand.patterns() {
                pattern
                    .check_unsigned(field, catalogue)
                    .map_err(ConstraintError::Field)?;
            }
        }
        if self.demand.metric().is_some() && !matches!(each, Each::All | Each::Task) {
            return Err(ConstraintError::EachOfMetric);
        }
        self.each = each;
        Ok(self)
    }

    /// Judges these tasks only.
    #[must_use]
    pub fn of_task(mut self, filter: TaskFilter) -> Self {
        self.task = Some(filter);
        self
    }

    /// Sets the largest error of time stamps between two streams, if that is known better than from
    /// the clock's segments.
    #[must_use]
    pub const fn with_clock_error(mut self, error: Nanos) -> Self {
        self.clock_error = Some(error);
        self
    }

    /// Judges what a budget let be observed, as a sample: elements that were not observed to keep a
    /// budget do not make the verdict inconclusive. It has the reason [`Reason::Sampled`].
    ///
    /// [`Reason::Sampled`]: super::Reason::Sampled
    #[must_use]
    pub const fn sampled(mut self, is_sampled: bool) -> Self {
        self.is_sampled = is_sampled;
        self
    }

    /// Whether it judges a sample.
    #[must_use]
    pub const fn is_sampled(&self) -> bool {
        self.is_sampled
    }

    /// Name of the constraint.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The requirement.
    #[must_use]
    pub const fn demand(&self) -> &Demand {
        &self.demand
    }

    pub(super) const fn grouping(&self) -> &Each {
        &self.each
    }

    pub(super) const fn task_filter(&self) -> Option<&TaskFilter> {
        self.task.as_ref()
    }

    pub(super) const fn clock_error(&self) -> Option<Nanos> {
        self.clock_error
    }

    /// The events that it needs. Begins and ends of threads are among them if names or ends of
    /// tasks matter.
    #[must_use]
    pub fn requires(&self) -> EventSet {
        let mut events: EventSet = match self.demand.metric() {
            Some(metric) => metric.requires(),
            None => self.sources().cloned().collect(),
        };
        let follows_tasks = matches!(self.each, Each::Task)
            || matches!(self.task, Some(TaskFilter::Name(_)))
            || events
                .iter()
                .any(|event| event.as_str().starts_with("kernel:"));
        if follows_tasks {
            events.insert(EventName::kernel(TASK_LIFE));
        }
        events
    }

    /// The events that it names.
    pub(super) fn sources(&self) -> impl Iterator<Item = &EventName> {
        let of_metric = self.demand.metric().map(Metric::sources);
        let patterns = self.demand.patterns().into_iter().map(Pattern::source);
        of_metric.into_iter().flatten().chain(patterns)
    }
}

impl Demand {
    /// The patterns of its elements, in the order in which it names them.
    #[must_use]
    pub fn patterns(&self) -> Vec<&Pattern> {
        match self {
            Self::Bounds { of, .. } | Self::Quantile { of, .. } | Self::Spread { of, .. } => {
                match of {
                    Values::Metric(_) => Vec::new(),
                    Values::Field { of, .. } => vec![of],
                }
            }
            Self::Rate { of, .. }
            | Self::Period { of, .. }
            | Self::Absence { of, .. }
            | Self::Never { of }
            | Self::Anomalies { of, .. } => vec![of],
            Self::Order { of } => of.iter().collect(),
            Self::Deadline { after, of, .. } => vec![after, of],
        }
    }

    /// The metric whose measurements it judges.
    #[must_use]
    pub fn metric(&self) -> Option<&Metric> {
        match self.values() {
            Some(Values::Metric(metric)) => Some(metric),
            _ => None,
        }
    }

    /// The values that it judges.
    #[must_use]
    pub const fn values(&self) -> Option<&Values> {
        match self {
            Self::Bounds { of, .. } | Self::Quantile { of, .. } | Self::Spread { of, .. } => {
                Some(of)
            }
            _ => None,
        }
    }
}

fn check(demand: &Demand, catalogue: &Catalogue) -> Result<(), ConstraintError> {
    if let Some(Values::Field { of, field, .. }) = demand.values() {
        of.check_number(field, catalogue)
            .map_err(ConstraintError::Field)?;
    }
    let zero = |what, length: &Nanos| match *length {
        Nanos::ZERO => Err(ConstraintError::Zero(what)),
        _ => Ok(()),
    };
    match demand {
        Demand::Bounds { min, max, .. } => {
            for bound in [min, max].into_iter().flatten() {
                number(*bound)?;
            }
            ordered(*min, *max)
        }
        Demand::Quantile {
            fraction, at_most, ..
        } => {
            number(*at_most)?;
            match *fraction > 0.0 && *fraction <= 1.0 {
                true => Ok(()),
                false => Err(ConstraintError::Fraction(fraction.to_string())),
            }
        }
        Demand::Spread { at_most, .. } => match *at_most < 0.0 {
            true => Err(ConstraintError::Negative(at_most.to_string())),
            false => number(*at_most),
        },
        Demand::Rate {
            window,
            at_least,
            at_most,
            ..
        } => {
            zero("window", window)?;
            let most = at_least.max(at_most).unwrap_or(0);
            if most > MOST_IN_WINDOW {
                return Err(ConstraintError::Window(most));
            }
            ordered(*at_least, *at_most)
        }
        Demand::Period { period, .. } => zero("period", period),
        Demand::Absence { at_most, .. } => zero("longest absence", at_most),
        Demand::Never { .. } | Demand::Anomalies { .. } => Ok(()),
        Demand::Order { of } => {
            if of.len() < 2 {
                return Err(ConstraintError::OneEvent);
            }
            let twice = (1..of.len()).find(|&index| of[..index].contains(&of[index]));
            match twice {
                Some(index) => Err(ConstraintError::TwiceInOrder(of[index].to_string())),
                None => Ok(()),
            }
        }
        Demand::Deadline { within, .. } => zero("deadline", within),
    }
}

fn number(bound: f64) -> Result<(), ConstraintError> {
    match bound.is_nan() {
        true => Err(ConstraintError::NotANumber),
        false => Ok(()),
    }
}

fn ordered<T: PartialOrd + fmt::Display>(
    least: Option<T>,
    most: Option<T>,
) -> Result<(), ConstraintError> {
    match (least, most) {
        (None, None) => Err(ConstraintError::Boundless),
        (Some(least), Some(most)) if least > most => Err(ConstraintError::Contradiction {
            least: least.to_string(),
            most: most.to_string(),
        }),
        _ => Ok(()),
    }
}
