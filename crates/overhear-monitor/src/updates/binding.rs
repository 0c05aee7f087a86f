// SPDX-License-Identifier: MIT OR Apache-2.0
//! The binding of an update to sensors: its subscription, its start, and its policy for missed
//! elements.

use std::fmt;

use overhear_event::{Analysis, EventSet, StreamDescriptor, Timestamp, TypeSchema};

/// The streams that an update is called for. All conditions that are set must hold. By default none
/// is set, and every stream matches.
#[derive(Default)]
pub struct Subscription {
    events: EventSet,
    matching: Option<Matching>,
    expected: Option<TypeSchema>,
}

type Matching = Box<dyn Fn(&StreamDescriptor) -> bool + Send>;

/// The match of a subscription with a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SubscriptionMatch {
    Yes,
    No,
    /// It matches, but the elements are of another type than the expected one.
    OtherType(String),
}

impl Subscription {
    /// Every stream.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// The streams that the update requires ([`Analysis::requires`]).
    #[must_use]
    pub fn of(update: &(impl Analysis + ?Sized)) -> Self {
        Self {
            events: update.requires(),
            ..Self::default()
        }
    }

    /// Only streams of these events; an empty set stands for all events.
    #[must_use]
    pub fn events(mut self, events: EventSet) -> Self {
        self.events = events;
        self
    }

    /// Only streams for which this function returns true, for example by a glob over names. It is
    /// called once per stream.
    #[must_use]
    pub fn matching(
        mut self,
        matching: impl Fn(&StreamDescriptor) -> bool + Send + 'static,
    ) -> Self {
        self.matching = Some(Box::new(matching));
        self
    }

    /// Elements must be of this type. A matching stream of another type is not evaluated, and there
    /// is a complaint. Sensors with several writers have two more fields in front
    /// ([`TypeSchema::with_writer`]), and still match.
    #[must_use]
    pub fn expecting(mut self, schema: TypeSchema) -> Self {
        self.expected = Some(schema);
        self
    }

    pub(crate) fn answer(&self, stream: &StreamDescriptor) -> SubscriptionMatch {
        if !self.events.is_empty() && !self.events.contains(&stream.event()) {
            return SubscriptionMatch::No;
        }
        if self
            .matching
            .as_ref()
            .is_some_and(|matching| !matching(stream))
        {
            return SubscriptionMatch::No;
        }
        match &self.expected {
            Some(expected) if !is_of_type(stream, expected) => SubscriptionMatch::OtherType(format!(
                "{} writes {}, and the update evaluates {}: nothing of this sensor is evaluated by it",
                stream.label(),
                describe(&stream.schema),
                describe(expected),
            )),
            _ => SubscriptionMatch::Yes,
        }
    }
}

/// Whether the elements of a stream are of a type, with or without the fields of the writer.
pub(crate) fn is_of_type(stream: &StreamDescriptor, expected: &TypeSchema) -> bool {
    *stream.schema == *expected
        || expected
            .with_writer()
            .is_ok_and(|signed| signed == *stream.schema)
}

/// A short description of a type.
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

/// The start of an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// The next item that its monitor reads. A monitor that reads old elements of the buffers
    /// starts with them.
    #[default]
    Buffer,
    /// The first item at this time or later; earlier gaps are ignored. So a monitor that guarantees
    /// the evaluation of all elements discards the contents of the buffers at its start, and begins
    /// with a known state [GRTMon, section 4.2.1].
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

/// The policy for an update that misses elements of its subscription. It gets the gap in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissedPolicy {
    /// It continues, and missed elements are counted.
    #[default]
    Continue,
    /// It is stopped after the gap, which is reported: for updates that need every element.
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

    /// Sets the start.
    #[must_use]
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Sets the policy for missed elements.
    #[must_use]
    pub fn on_missed(mut self, policy: MissedPolicy) -> Self {
        self.missed = policy;
        self
    }
}
