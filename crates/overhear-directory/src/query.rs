// SPDX-License-Identifier: MIT OR Apache-2.0
//! Selects sensors by globs over their names.
//!
//! `TASK/SENSOR#INSTANCE`, where each part is a glob with `*`, `?`, `[abc]` and `{this,that}`:
//!
//! - TASK matches the process' short name (`server`), its label (`server(4711)`) or its process id
//!   (`4711`); it ends at the first `/`. A pattern without a `/` matches any task.
//! - SENSOR matches the sensor's id. Empty matches any sensor.
//! - INSTANCE matches the sensor's instance; it follows the last `#`. A pattern without a `#`
//!   matches any instance; nothing after the `#` matches the empty instance.
//!
//! The name of an event is a pattern for its streams: `user:queue` means `queue`, and
//! `kernel:probe/read`, as exports print it, means `kernel/probe/read`.
//!
//! So `*`, or an empty pattern, matches everything, `queue` every sensor `queue`, `server/*` all
//! sensors of all processes `server`, and `4711/queue#2` one sensor.

use overhear_event::{Origin, StreamDescriptor, StreamId};
use serde::{Deserialize, Serialize};

use crate::glob::Glob;

/// Longer patterns are refused, because they cost the directory time and memory.
const MAX_PATTERN_BYTES: usize = 512;

/// A selection of sensors; the module's documentation has the grammar.
///
/// ```
/// use overhear_directory::Query;
///
/// let query = Query::parse("server/{queue,cache}#*")?.of_type("queue_*")?;
/// assert_eq!(query.to_string(), "server/{queue,cache}#* of type queue_*");
/// assert!(Query::parse("server/[").is_err());
/// # Ok::<(), overhear_directory::QueryError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Query {
    /// `TASK/SENSOR#INSTANCE`.
    #[serde(default)]
    names: String,
    /// A glob over type ids; every type if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    type_id: Option<String>,
    /// One sensor, by the number of its first stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stream: Option<StreamId>,
}

/// Why a pattern is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// It is not a glob.
    #[error("`{glob}` is not a pattern for sensors: {reason}; write TASK/SENSOR#INSTANCE with `*`, `?`, `[abc]`, `{{a,b}}`")]
    BadGlob {
        /// The pattern.
        glob: String,
        /// The error in it.
        reason: String,
    },
    /// It is too long.
    #[error("a pattern of {0} bytes is too long; use at most 512")]
    TooLong(usize),
}

impl Query {
    /// Every sensor.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// The sensors whose names match.
    ///
    /// # Errors
    /// [`QueryError`] if the text is no pattern.
    pub fn parse(names: &str) -> Result<Self, QueryError> {
        let query = Self {
            names: names.to_string(),
            ..Self::default()
        };
        query.compile()?;
        Ok(query)
    }

    /// One sensor, by the number of its first stream.
    #[must_use]
    pub fn stream(stream: StreamId) -> Self {
        Self {
            stream: Some(stream),
            ..Self::default()
        }
    }

    /// Restricts the selection to sensors whose type id matches.
    ///
    /// # Errors
    /// [`QueryError`] if the text is no pattern.
    pub fn of_type(mut self, glob: &str) -> Result<Self, QueryError> {
        self.type_id = Some(glob.to_string());
        self.compile()?;
        Ok(self)
    }

    /// Whether this sensor is selected. It compiles the query each time; for many sensors use
    /// [`Self::compile`].
    #[must_use]
    pub fn matches(&self, sensor: &StreamDescriptor) -> bool {
        // Every query was compiled when it was made.
        self.compile().is_ok_and(|matcher| matcher.matches(sensor))
    }

    /// Whether a sensor with this id could be selected, for some task and instance.
    #[must_use]
    pub fn may_name(&self, sensor: &str) -> bool {
        let matcher = self.compile().ok();
        matcher.is_some_and(|it| it.sensor.is_none_or(|glob| glob.is_match(sensor)))
    }

    /// The streams that the pattern of an update selects. Patterns select sensors of programs;
    /// other streams only if the pattern names their origin.
    ///
    /// # Errors
    /// [`QueryError`] if it is no pattern.
    pub fn streams(pattern: &str) -> Result<impl Fn(&StreamDescriptor) -> bool, QueryError> {
        let matcher = Self::parse(pattern)?.compile()?;
        let is_named = !matches!(task_and_sensor(pattern).0, "" | "*");
        Ok(move |stream: &StreamDescriptor| {
            (is_named || matches!(stream.origin, Origin::Program(_))) && matcher.matches(stream)
        })
    }

    /// Characters of all patterns, and one for the query itself.
    pub(crate) fn pattern_characters(&self) -> u64 {
        let type_id = self.type_id.as_ref().map_or(0, String::len);
        (1 + self.names.len() + type_id) as u64
    }

    /// Compiles the query. It may come from another process, so it is checked here.
    ///
    /// # Errors
    /// [`QueryError`] if one of its parts is no pattern.
    pub fn compile(&self) -> Result<Matcher, QueryError> {
        let (task, rest) = task_and_sensor(&self.names);
        let (sensor, instance) = match rest.rsplit_once('#') {
            Some((sensor, instance)) => (sensor, Some(instance)),
            None => (rest, None),
        };
        let unless_empty = |glob: &str| match glob {
            "" | "*" => Ok(None),
            glob => compile_glob(glob).map(Some),
        };
        Ok(Matcher {
            task: unless_empty(task)?,
            sensor: unless_empty(sensor)?,
            instance: instance.map(compile_glob).transpose()?,
            type_id: self.type_id.as_deref().map(compile_glob).transpose()?,
            stream: self.stream,
        })
    }
}

impl std::fmt::Display for Query {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.names.as_str(), self.stream) {
            (_, Some(stream)) => write!(f, "stream {stream}")?,
            ("", None) => write!(f, "*")?,
            (names, None) => write!(f, "{names}")?,
        }
        match &self.type_id {
            Some(type_id) => write!(f, " of type {type_id}"),
            None => Ok(()),
        }
    }
}

/// Splits off the glob of the task; it is empty if there is none.
fn task_and_sensor(names: &str) -> (&str, &str) {
    match names.split_once(':') {
        Some(("user", sensor)) => return ("", sensor),
        Some((origin @ ("kernel" | "sampler"), sensor)) => return (origin, sensor),
        // The name of samplers in older configurations.
        Some(("clerk", sensor)) => return ("sampler", sensor),
        _ => {}
    }
    names.split_once('/').unwrap_or(("", names))
}

/// A glob over a name; `*` also stands for `/`, because ids may contain it.
fn compile_glob(glob: &str) -> Result<Glob, QueryError> {
    if glob.len() > MAX_PATTERN_BYTES {
        return Err(QueryError::TooLong(glob.len()));
    }
    Glob::new(glob).map_err(|error| QueryError::BadGlob {
        glob: glob.to_string(),
        reason: error.to_string(),
    })
}

/// A query, ready to decide.
#[derive(Clone, Debug)]
pub struct Matcher {
    task: Option<Glob>,
    sensor: Option<Glob>,
    instance: Option<Glob>,
    type_id: Option<Glob>,
    stream: Option<StreamId>,
}

impl Matcher {
    fn globs(&self) -> impl Iterator<Item = &Glob> {
        let all = [&self.task, &self.sensor, &self.instance, &self.type_id];
        all.into_iter().flatten()
    }

    /// Upper bound of the memory that it takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        size_of::<Self>() as u64 + self.globs().map(Glob::heap_bytes).sum::<u64>()
    }

    /// Upper bound of the work of one match, in parts of patterns.
    pub(crate) fn cost(&self) -> u32 {
        // The task has three names.
        let task = self.task.as_ref().map_or(0, |glob| 2 * glob.cost());
        1 + task + self.globs().map(Glob::cost).sum::<u32>()
    }

    /// Whether this sensor is meant.
    #[must_use]
    pub fn matches(&self, sensor: &StreamDescriptor) -> bool {
        let holds =
            |glob: &Option<Glob>, name: &str| glob.as_ref().is_none_or(|glob| glob.is_match(name));
        self.stream.is_none_or(|stream| stream == sensor.id)
            && holds(&self.sensor, &sensor.sensor)
            && holds(&self.instance, &sensor.instance)
            && holds(&self.type_id, sensor.schema.id())
            && self.task.as_ref().is_none_or(|glob| match &sensor.origin {
                Origin::Program(task) => {
                    glob.is_match(&task.comm)
                        || glob.is_match(&task.pid.to_string())
                        || glob.is_match(&format!("{}({})", task.comm, task.pid))
                }
                Origin::Kernel { .. } => glob.is_match("kernel"),
                Origin::Sampler => glob.is_match("sampler"),
            })
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Origin, StreamDescriptor, StreamId, TypeSchema};

    use super::{Query, QueryError};

    fn sensor(comm: &str, pid: u32, sensor: &str, instance: &str) -> StreamDescriptor {
        StreamDescriptor {
            instance: instance.to_string(),
            capacity: 64,
            ..StreamDescriptor::new(
                StreamId::from_raw(7),
                Origin::program(pid, comm),
                sensor,
                TypeSchema::builder("queue_length").build().unwrap(),
            )
        }
    }

    #[test]
    fn each_part_is_held_against_its_name() {
        let one = sensor("server", 4711, "net/queue", "2");
        let matching = [
            "",
            "*",
            "*/",
            "server/",
            "server/*",
            "server(4711)/*",
            "4711/net/queue#2",
            "s?r*/net/q*",
            "*/{net/queue,other}",
            "*/net/queue#[123]",
            "*/*#*",
        ];
        for names in matching {
            let matcher = Query::parse(names).unwrap().compile().unwrap();
            assert!(matcher.matches(&one), "{names}");
        }
        for names in [
            "queue",
            "client/*",
            "471/*",
            "*/net/queue#",
            "*/*#1",
            "*/net/queue#22",
        ] {
            let matcher = Query::parse(names).unwrap().compile().unwrap();
            assert!(!matcher.matches(&one), "{names}");
        }
        let plain = sensor("a b", 1, "queue", "");
        for (names, may) in [("server/qu*#2", true), ("*", true), ("server/other", false)] {
            assert_eq!(
                Query::parse(names).unwrap().may_name("queue"),
                may,
                "{names}"
            );
        }
        for names in ["queue", "queue#", "a b/queue", "qu*"] {
            let matcher = Query::parse(names).unwrap().compile().unwrap();
            assert!(matcher.matches(&plain), "{names}");
        }
    }

    #[test]
    fn names_of_events_are_patterns_for_their_streams() {
        let of_program = sensor("server", 4711, "net/queue", "2");
        let probe = StreamDescriptor {
            origin: Origin::Kernel { cpu: 1 },
            ..sensor("", 0, "probe/shop::price(int)", "shop")
        };
        for (names, expected) in [
            ("user:net/queue", [true, false]),
            ("user:net/queue#2", [true, false]),
            ("user:queue", [false, false]),
            ("kernel:probe/shop::price(int)", [false, true]),
            ("kernel:probe/*#shop", [false, true]),
            ("kernel/probe/shop::price(int)", [false, true]),
            ("kernel:net/queue", [false, false]),
            ("sampler:net/queue", [false, false]),
        ] {
            let streams = Query::streams(names).unwrap();
            assert_eq!([&of_program, &probe].map(&streams), expected, "{names}");
        }
    }

    #[test]
    fn types_and_numbers_narrow_down() {
        let one = sensor("server", 4711, "queue", "");
        let matches = |query: Query| query.compile().unwrap().matches(&one);
        assert!(matches(Query::all().of_type("queue_*").unwrap()));
        assert!(!matches(Query::all().of_type("queue").unwrap()));
        assert!(matches(Query::stream(StreamId::from_raw(7))));
        assert!(!matches(Query::stream(StreamId::from_raw(8))));
    }

    #[test]
    fn invalid_pattern_is_refused_with_a_reason() {
        for names in ["[", "a/[b", "{a", "*/x#[9"] {
            let error = Query::parse(names).unwrap_err();
            assert!(matches!(error, QueryError::BadGlob { .. }), "{names}");
        }
        let long = "a".repeat(513);
        assert_eq!(Query::parse(&long), Err(QueryError::TooLong(513)));
    }
}
