// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SamplingRequest`]: a sampler as a user asks for it.

use std::fmt;

use overhear_event::Nanos;
use overhear_sampling::sources::split_names;

/// The name of a sampler that has none of its own.
const DEFAULT_NAME: &str = "samples";

/// A sampler: what it reads, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplingRequest {
    /// The name of its stream: `samples`, unless `overhear.toml` names it.
    pub name: String,
    /// The quantities in the order of the sample's fields, as the user writes them: `cycles`,
    /// `cpu-time`, `psi:cpu`. At least one, none of them twice.
    pub sample: Vec<String>,
    /// When samples are taken.
    pub policy: SamplingPolicy,
}

/// When a sampler takes samples ([EPOS, section III]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SamplingPolicy {
    /// Once in each period.
    Periodic {
        /// The period, more than zero.
        period: Nanos,
    },
    /// At points of the execution flow, or at the ends of jobs.
    Flow {
        /// The point.
        point: SamplingPoint,
        /// A point within this time after the thread's previous sample takes none. Zero at the end
        /// of a job: each job has a sample.
        min_interval: Nanos,
    },
    /// At points of the execution flow, and once in each period that has none.
    Hybrid {
        /// The point.
        point: SamplingPoint,
        /// The period, more than zero.
        period: Nanos,
        /// As in [`Self::Flow`].
        min_interval: Nanos,
    },
}

impl SamplingPolicy {
    /// The period, if there is one.
    #[must_use]
    pub const fn period(&self) -> Option<Nanos> {
        match self {
            Self::Periodic { period } | Self::Hybrid { period, .. } => Some(*period),
            Self::Flow { .. } => None,
        }
    }

    /// The point of the execution flow, if there is one.
    #[must_use]
    pub const fn point(&self) -> Option<&SamplingPoint> {
        match self {
            Self::Flow { point, .. } | Self::Hybrid { point, .. } => Some(point),
            Self::Periodic { .. } => None,
        }
    }
}

/// A point of the execution flow at which samples are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SamplingPoint {
    /// `switch`: a thread leaves the CPU.
    Switch,
    /// `wake-up`: a thread is woken.
    WakeUp,
    /// `system-call`: a system call begins, and it ends.
    SystemCall,
    /// `function=NAME`: a function of a program begins, named as in probes.
    Function(String),
    /// `line=SOURCE:LINE`: a line of the program's source begins.
    Line {
        /// The end of the path of the source, `server.c`; with `FILE:` before it, the source of
        /// another program or library.
        source: String,
        /// The number of the line.
        line: u32,
    },
    /// `thread`: a thread ends; one sample with its totals.
    Thread,
    /// `job`, `job=RULE`: a job of a thread ends; without a rule, wherever the thread sleeps,
    /// yields as a deadline thread, or calls `oh_job_end()`.
    Job(Option<JobEndRule>),
}

/// Where a job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEndRule {
    /// `yield`: `sched_yield` of the thread.
    Yield,
    /// `sleep`: `clock_nanosleep`, `nanosleep`, or a read of a timer.
    Sleep,
    /// `futex=ADDRESS` or `futex=NAME`: the thread waits for this futex.
    Futex(String),
    /// `read=FD` or `read=PATH`: the thread reads this file descriptor or file.
    Read(String),
    /// `function=NAME`: this function returns, named as in probes.
    Function(String),
    /// `metric=NAME`: a measurement of this metric ends.
    Metric(String),
    /// `call`: the program calls `oh_job_end()`.
    Call,
}

/// Why a sampler is not possible as requested: a sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplingRequestError {
    /// There is no quantity.
    #[error("a sampler has nothing to sample; name quantities such as `cpu-time,page-faults`")]
    NothingSampled,
    /// A quantity is there twice.
    #[error("`{0}` is sampled twice; name it once")]
    Twice(String),
    /// There is no time.
    #[error("it is not said when to sample {0}; add a period such as `1ms`, or a point such as `switch`")]
    NoPolicy(String),
    /// A period or a point, and nothing to sample.
    #[error("a period or point of samples is given, and nothing to sample; name quantities such as `cpu-time`")]
    OnlyPolicy,
    /// A length of time is not readable.
    #[error("`{text}` is no {what}: {reason}; write for example `1ms`")]
    Length {
        /// What it should be.
        what: &'static str,
        /// The text.
        text: String,
        /// The reason.
        reason: String,
    },
    /// A point is unknown.
    #[error(
        "`{0}` is no point at which samples can be taken; points are `switch`, `wake-up`, \
             `system-call`, `function=NAME`, `line=SOURCE:LINE`, `thread`, `job` and `job=RULE`"
    )]
    Point(String),
    /// A rule of jobs is unknown.
    #[error(
        "`{0}` does not say where a job ends; rules are `yield`, `sleep`, `futex=ADDRESS`, \
             `read=FD`, `function=NAME`, `metric=NAME` and `call`"
    )]
    Rule(String),
    /// A least time between samples without points.
    #[error("a least time between samples needs a point such as `switch`; a period needs none")]
    IntervalWithoutPoint,
    /// A least time between samples of jobs.
    #[error("each job has one sample, so a least time between samples has no meaning with `{0}`")]
    IntervalOfJobs(&'static str),
}

impl SamplingRequest {
    /// The sampler of `sample`, as a user writes the parts of it: quantities, or lists of them with
    /// commas, a period `every`
    /// (`1ms`), a point `per` (`switch`, `job=yield`), and the least time between two samples of a
    /// thread at points.
    ///
    /// # Errors
    /// [`SamplingRequestError`] with a sentence about the part that is wrong.
    pub fn parse(
        sample: &[impl AsRef<str>],
        every: Option<&str>,
        per: Option<&str>,
        min_interval: Option<&str>,
    ) -> Result<Self, SamplingRequestError> {
        let names = sample.iter().flat_map(|names| split_names(names.as_ref()));
        let sample: Vec<String> = names.map(str::to_owned).collect();
        if sample.is_empty() {
            return Err(match (every, per) {
                (None, None) => SamplingRequestError::NothingSampled,
                _ => SamplingRequestError::OnlyPolicy,
            });
        }
        for (index, name) in sample.iter().enumerate() {
            if sample[..index].contains(name) {
                return Err(SamplingRequestError::Twice(name.clone()));
            }
        }
        let period = every.map(|text| length("period", text)).transpose()?;
        let point = per.map(SamplingPoint::parse).transpose()?;
        let least = min_interval.map(|text| length("least time between samples", text));
        let least = least.transpose()?;
        match (&point, least) {
            (None, Some(_)) => return Err(SamplingRequestError::IntervalWithoutPoint),
            (Some(SamplingPoint::Job(_)), Some(_)) => {
                return Err(SamplingRequestError::IntervalOfJobs("job"))
            }
            (Some(SamplingPoint::Thread), Some(_)) => {
                return Err(SamplingRequestError::IntervalOfJobs("thread"))
            }
            _ => {}
        }
        let min_interval = least.unwrap_or(Nanos::ZERO);
        let policy = match (point, period) {
            (None, None) => return Err(SamplingRequestError::NoPolicy(sample.join(","))),
            (None, Some(period)) => SamplingPolicy::Periodic { period },
            (Some(point), None) => SamplingPolicy::Flow {
                point,
                min_interval,
            },
            (Some(point), Some(period)) => SamplingPolicy::Hybrid {
                point,
                period,
                min_interval,
            },
        };
        Ok(Self {
            name: DEFAULT_NAME.to_owned(),
            sample,
            policy,
        })
    }

    /// The sampler of options of which each may be absent; `None` without all of them.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn of_options(
        sample: &[String],
        every: Option<&str>,
        per: Option<&str>,
        min_interval: Option<&str>,
    ) -> Result<Option<Self>, SamplingRequestError> {
        let nothing = every.is_none() && per.is_none() && min_interval.is_none();
        if sample.is_empty() && nothing {
            return Ok(None);
        }
        Self::parse(sample, every, per, min_interval).map(Some)
    }

    /// Names the sampler's stream.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..self
        }
    }
}

impl SamplingPoint {
    /// The point that a user writes: `switch`, `job=yield`.
    ///
    /// # Errors
    /// [`SamplingRequestError`] if there is none.
    pub fn parse(text: &str) -> Result<Self, SamplingRequestError> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        match (name, value) {
            ("switch", None) => Ok(Self::Switch),
            ("wake-up", None) => Ok(Self::WakeUp),
            ("system-call", None) => Ok(Self::SystemCall),
            ("thread", None) => Ok(Self::Thread),
            ("function", Some(name)) if !name.is_empty() => Ok(Self::Function(name.to_owned())),
            ("line", Some(place)) => {
                let parsed = place.rsplit_once(':').and_then(|(source, line)| {
                    let line = line.parse().ok().filter(|line| *line > 0)?;
                    (!source.is_empty()).then(|| (source.to_owned(), line))
                });
                let (source, line) =
                    parsed.ok_or_else(|| SamplingRequestError::Point(text.to_owned()))?;
                Ok(Self::Line { source, line })
            }
            ("job", None) => Ok(Self::Job(None)),
            ("job", Some(rule)) => JobEndRule::parse(rule).map(|rule| Self::Job(Some(rule))),
            _ => Err(SamplingRequestError::Point(text.to_owned())),
        }
    }
}

impl fmt::Display for SamplingPoint {
    /// As a user writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch => f.write_str("switch"),
            Self::WakeUp => f.write_str("wake-up"),
            Self::SystemCall => f.write_str("system-call"),
            Self::Function(name) => write!(f, "function={name}"),
            Self::Line { source, line } => write!(f, "line={source}:{line}"),
            Self::Thread => f.write_str("thread"),
            Self::Job(None) => f.write_str("job"),
            Self::Job(Some(rule)) => write!(f, "job={rule}"),
        }
    }
}

impl fmt::Display for JobEndRule {
    /// As a user writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yield => f.write_str("yield"),
            Self::Sleep => f.write_str("sleep"),
            Self::Futex(place) => write!(f, "futex={place}"),
            Self::Read(place) => write!(f, "read={place}"),
            Self::Function(name) => write!(f, "function={name}"),
            Self::Metric(name) => write!(f, "metric={name}"),
            Self::Call => f.write_str("call"),
        }
    }
}

impl JobEndRule {
    /// The rule that a user writes: `yield`, `function=step`.
    ///
    /// # Errors
    /// [`SamplingRequestError`] if there is none.
    pub fn parse(text: &str) -> Result<Self, SamplingRequestError> {
        let unknown = || SamplingRequestError::Rule(text.to_owned());
        let Some((kind, value)) = text.split_once('=') else {
            return match text {
                "yield" => Ok(Self::Yield),
                "sleep" => Ok(Self::Sleep),
                "call" => Ok(Self::Call),
                _ => Err(unknown()),
            };
        };
        let value = match value {
            "" => return Err(unknown()),
            value => value.to_owned(),
        };
        match kind {
            "futex" => Ok(Self::Futex(value)),
            "read" => Ok(Self::Read(value)),
            "function" => Ok(Self::Function(value)),
            "metric" => Ok(Self::Metric(value)),
            _ => Err(unknown()),
        }
    }
}

/// A length of time that is more than zero.
fn length(what: &'static str, text: &str) -> Result<Nanos, SamplingRequestError> {
    let error = |reason: String| SamplingRequestError::Length {
        what,
        text: text.to_owned(),
        reason,
    };
    let length = humantime::parse_duration(text).map_err(|wrong| error(wrong.to_string()))?;
    match u64::try_from(length.as_nanos()) {
        Ok(0) => Err(error("it must be more than zero".to_owned())),
        Ok(ns) => Ok(Nanos::from_ns(ns)),
        Err(_) => Err(error("it is longer than 584 years".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::Nanos;

    use super::{JobEndRule, SamplingPoint, SamplingPolicy, SamplingRequest};

    const NAMES: &[&str] = &["cycles", "cpu-time"];

    fn refused(every: Option<&str>, per: Option<&str>, least: Option<&str>) -> String {
        let error = SamplingRequest::parse(NAMES, every, per, least);
        error.expect_err("it is wrong").to_string()
    }

    #[test]
    fn period_and_point_make_the_policy() {
        let policy = |every, per, least| {
            let request = SamplingRequest::parse(NAMES, every, per, least);
            request.expect("valid").policy
        };
        let period = Nanos::from_ms(1);
        assert_eq!(
            policy(Some("1ms"), None, None),
            SamplingPolicy::Periodic { period }
        );
        assert_eq!(
            policy(None, Some("switch"), Some("20us")),
            SamplingPolicy::Flow {
                point: SamplingPoint::Switch,
                min_interval: Nanos::from_us(20)
            }
        );
        assert_eq!(
            policy(Some("1ms"), Some("job=read=3"), None),
            SamplingPolicy::Hybrid {
                point: SamplingPoint::Job(Some(JobEndRule::Read("3".to_owned()))),
                period,
                min_interval: Nanos::ZERO
            }
        );
    }

    #[test]
    fn wrong_requests_are_one_sentence() {
        assert!(refused(None, None, None).contains("when to sample cycles,cpu-time"));
        assert!(refused(Some("0s"), None, None).contains("`0s` is no period: it must be more"));
        assert!(refused(Some("1 furlong"), None, None).contains("write for example `1ms`"));
        assert!(refused(None, Some("lunch"), None).starts_with("`lunch` is no point"));
        assert!(refused(None, Some("job=tired"), None).starts_with("`tired` does not say"));
        assert!(refused(None, Some("job=futex="), None).starts_with("`futex=` does not say"));
        assert!(refused(Some("1ms"), None, Some("1us")).contains("needs a point"));
        assert!(refused(None, Some("job"), Some("1us")).contains("no meaning with `job`"));
        let twice = SamplingRequest::parse(&["a", "b", "a"], Some("1s"), None, None);
        assert_eq!(
            twice.unwrap_err().to_string(),
            "`a` is sampled twice; name it once"
        );
    }

    #[test]
    fn absent_options_are_no_sampler() {
        let none = SamplingRequest::of_options(&[], None, None, None);
        assert_eq!(none, Ok(None));
        let only = SamplingRequest::of_options(&[], Some("1ms"), None, None);
        assert!(only.unwrap_err().to_string().contains("nothing to sample"));
    }
}
