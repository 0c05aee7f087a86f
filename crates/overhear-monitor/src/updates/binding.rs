// SPDX-License-Identifier: MIT OR Apache-2.0
//! What connects an update with the sensors: which of them it wants, from when on, and what it does
//! about elements that were missed.

use std::fmt;

use overhear_event::{EventSet, StreamDescriptor, Timestamp, TypeSchema, Update};

/// Which streams an update is called for. Every condition that is set must hold; none is set at
/// first, and that is every stream.
#[derive(Default)]
pub struct Subscription {
    events: EventSet,
    matching: Option<Matching>,
    expected: Option<TypeSchema>,
}

type Matching = Box<dyn Fn(&StreamDescriptor) -> bool + Send>;

/// What a subscription says to a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    No,
    /// It would, but the elements are not what the update can evaluate.
    OtherType(String),
}

impl Subscription {
    /// Every stream.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// The streams that the update itself asks for ([`Update::requires`]).
    #[must_use]
    pub fn of(update: &(impl Update + ?Sized)) -> Self {
        Self {
            events: update.requires(),
            ..Self::default()
        }
    }

    /// Only streams of these events; an empty set stands for all that there are.
    #[must_use]
    pub fn events(mut self, events: EventSet) -> Self {
        self.events = events;
        self
    }

    /// Only streams that this function says yes to: by a glob over names, by the task. It is asked
    /// once per stream.
    #[must_use]
    pub fn matching(
        mut self,
        matching: impl Fn(&StreamDescriptor) -> bool + Send + 'static,
    ) -> Self {
        self.matching = Some(Box::new(matching));
        self
    }

    /// Elements must be of this type: of a stream that is meant and has another one nothing is
    /// evaluated, and there is a complaint. Sensors that name their writers have two fields more
    /// in front ([`TypeSchema::with_writer`]), and are of the type all the same.
    #[must_use]
    pub fn expecting(mut self, schema: TypeSchema) -> Self {
        self.expected = Some(schema);
        self
    }

    pub(crate) fn answer(&self, stream: &StreamDescriptor) -> Answer {
        if !self.events.is_empty() && !self.events.contains(&stream.event()) {
            return Answer::No;
        }
        if self
            .matching
            .as_ref()
            .is_some_and(|matching| !matching(stream))
        {
            return Answer::No;
        }
        match &self.expected {
            Some(expected) if !is_of_type(stream, expected) => Answer::OtherType(format!(
                "{} writes {}, and the update evaluates {}: nothing of this sensor is evaluated by it",
                stream.label(),
                describe(&stream.schema),
                describe(expected),
            )),
            _ => Answer::Yes,
        }
    }
}

/// Whether the elements of a stream are of a type, its writers before it or not.
pub(crate) fn is_of_type(stream: &StreamDescriptor, expected: &TypeSchema) -> bool {
    *stream.schema == *expected
        || expected
            .with_writer()
            .is_ok_and(|signed| signed == *stream.schema)
}

/// A type in a few words.
pub(crate) fn describe(schema: &TypeSchema) -> String {
    let fields: Vec<String> = schema
        .fields()
        .iter()
        .map(|field| format!("{} {:?}", field.name, field.kind))
        .collect();
    format!(
        "type `{}` of {} bytes ({})",
        schema.id(),
        schema.size(),
        fields.join(", ")
    )
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("events", &self.events)
            .field("matching", &self.matching.is_some())
            .field("expected", &self.expected)
            .finish()
    }
}

/// From when on an update evaluates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// Whatever its monitor reads next. A monitor that reads back what lies in the buffers begins
    /// with that.
    #[default]
    Buffer,
    /// What was stamped at this time or later; what was missed before is nothing to it. So a
    /// monitor that guarantees the evaluation of all elements discards what lies in the buffers
    /// when it starts, and has a known state to start from (seed 000, section 4.2.1).
    At(Timestamp),
}

impl Start {
    pub(crate) const fn time(self) -> Timestamp {
        match self {
            Self::Buffer => Timestamp::ZERO,
            Self::At(time) => time,
        }
    }
}

/// What happens to an update that misses elements it subscribed to. It learns of the gap in any
/// case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissedPolicy {
    /// It goes on, and what was missed is counted: it evaluates a part of the elements.
    #[default]
    Continue,
    /// It is stopped behind the gap, which is reported: an evaluation that must see every element
    /// has failed.
    Stop,
}

/// Settings of one update in an [`UpdateSet`](crate::UpdateSet).
#[derive(Debug, Default)]
pub struct Binding {
    pub(crate) name: String,
    pub(crate) subscription: Option<Subscription>,
    pub(crate) start: Start,
    pub(crate) missed: MissedPolicy,
}

impl Binding {
    /// The settings of an update with this name: it is called for the events that it requires, from
    /// the next element on, and goes on when elements are missed.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_string(),
            ..Self::default()
        }
    }

    /// The settings of an update that gets no elements and no gaps, only `advance`.
    #[must_use]
    pub fn without_streams(name: &str) -> Self {
        Self::new(name).subscribe(Subscription::all().matching(|_| false))
    }

    /// Calls it for these streams.
    #[must_use]
    pub fn subscribe(mut self, subscription: Subscription) -> Self {
        self.subscription = Some(subscription);
        self
    }

    /// Begins like this.
    #[must_use]
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Does this when elements were missed.
    #[must_use]
    pub fn on_missed(mut self, policy: MissedPolicy) -> Self {
        self.missed = policy;
        self
    }
}
