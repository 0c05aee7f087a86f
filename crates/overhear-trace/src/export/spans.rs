// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elements that tell where something begins and ends. Several may be under way at once, and a track
//! of Perfetto can only nest: each gets the first lane that is free.

use overhear_event::kernel::events::{BLOCK_IO, FUTEX, IRQ, SOFTIRQ, SYSCALL, TIMER};
use overhear_event::{ElementView, Origin, StreamDescriptor, Value, WRITER_TID};

/// What an element says of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    Begin,
    End,
}

/// What tells one span of a sensor from another.
pub(super) type Key = Vec<u64>;

/// Where the fields are that tell of spans.
#[derive(Clone, Debug)]
pub(super) struct SpanFields {
    edge: usize,
    begin: u64,
    keys: Vec<usize>,
    has_cpu: bool,
}

impl SpanFields {
    /// The kernel's elements have a `kind`, 1 at the begin and 2 at the end. Those of programs
    /// have an `edge`, 0 and 1, and are told apart by the writing thread and the first other number
    /// without a unit. (The page does the same.)
    pub(super) fn of(stream: &StreamDescriptor) -> Option<Self> {
        let fields = stream.schema.fields();
        let place = |name: &str| fields.iter().position(|field| field.name == name);
        if let Origin::Kernel { .. } = stream.origin {
            let (names, has_cpu): (&[&str], bool) = match stream.sensor.as_str() {
                IRQ | SOFTIRQ => (&["number"], true),
                TIMER => (&["function"], true),
                SYSCALL | FUTEX => (&["tid"], false),
                BLOCK_IO => (&["request", "device"], false),
                _ => return None,
            };
            return Some(Self {
                edge: place("kind")?,
                begin: 1,
                keys: names.iter().filter_map(|name| place(name)).collect(),
                has_cpu,
            });
        }
        let edge = place("edge").filter(|&edge| fields[edge].unit.is_empty())?;
        let plain = fields.iter().enumerate().position(|(index, field)| {
            let is_frame = field.name.starts_with("writer_");
            index != edge && field.kind.is_number() && field.unit.is_empty() && !is_frame
        });
        Some(Self {
            edge,
            begin: 0,
            keys: place(WRITER_TID).into_iter().chain(plain).collect(),
            has_cpu: false,
        })
    }

    /// What an element says; nothing if it is neither a begin nor an end.
    pub(super) fn read(&self, stream: &StreamDescriptor, payload: &[u8]) -> Option<(Edge, Key)> {
        let number = |index: usize| match stream.schema.read(index, payload)? {
            Value::Unsigned(value) => Some(value),
            Value::Signed(value) => Some(value.cast_unsigned()),
            Value::Float(value) => Some(value.to_bits()),
            Value::Text(_) => None,
        };
        let edge = match number(self.edge)?.checked_sub(self.begin)? {
            0 => Edge::Begin,
            1 => Edge::End,
            _ => return None,
        };
        let mut key: Key = self
            .keys
            .iter()
            .filter_map(|&index| number(index))
            .collect();
        if let (true, Origin::Kernel { cpu }) = (self.has_cpu, &stream.origin) {
            key.push(u64::from(*cpu));
        }
        Some((edge, key))
    }
}

/// Whether what it tells of happens on a CPU, to whichever thread is there.
pub(super) fn is_of_cpus(stream: &StreamDescriptor) -> bool {
    matches!(stream.origin, Origin::Kernel { .. })
        && [IRQ, SOFTIRQ, TIMER].contains(&stream.sensor.as_str())
}

/// The kernel's soft interrupts, by their numbers. (The page has the same.)
const SOFT_INTERRUPTS: [&str; 10] = [
    "high",
    "timer",
    "network send",
    "network receive",
    "block",
    "poll",
    "tasklet",
    "scheduler",
    "hrtimer",
    "RCU",
];

/// What the span is called that an element begins: an interrupt has a name of its own.
pub(super) fn name_of(element: &ElementView<'_>) -> String {
    let sensor = &element.stream.sensor;
    let own = match sensor.as_str() {
        _ if !is_of_cpus(element.stream) => None,
        IRQ => match element.field("name") {
            Some(Value::Text(name)) if !name.is_empty() => Some(name.to_string()),
            _ => None,
        },
        SOFTIRQ => {
            let number = element.field("number").and_then(|number| number.as_u64());
            let index = number.and_then(|number| usize::try_from(number).ok());
            let name = index.and_then(|index| SOFT_INTERRUPTS.get(index));
            name.map(|name| (*name).to_string())
        }
        _ => None,
    };
    own.unwrap_or_else(|| sensor.clone())
}

/// Which spans are under way, and in which lanes.
#[derive(Debug, Default)]
pub(super) struct Lanes(Vec<Option<Key>>);

impl Lanes {
    /// The lane for a span that begins, and whether one of the same key is under way there, whose
    /// end was missed.
    pub(super) fn begin(&mut self, key: Key) -> (usize, bool) {
        let same = self.0.iter().position(|open| open.as_ref() == Some(&key));
        if let Some(lane) = same {
            return (lane, true);
        }
        let free = self.0.iter().position(Option::is_none);
        let lane = free.unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[lane] = Some(key);
        (lane, false)
    }

    /// The lane of a span that ends, or `None` if its begin was not told.
    pub(super) fn end(&mut self, key: &Key) -> Option<usize> {
        let lane = self.0.iter().position(|open| open.as_ref() == Some(key))?;
        self.0[lane] = None;
        Some(lane)
    }
}

#[cfg(test)]
mod tests {
    use super::Lanes;

    #[test]
    fn a_span_has_the_first_lane_that_is_free() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.begin(vec![1]), (0, false));
        assert_eq!(lanes.begin(vec![2]), (1, false));
        assert_eq!(lanes.begin(vec![1]), (0, true));
        assert_eq!(lanes.end(&vec![3]), None);
        assert_eq!(lanes.end(&vec![1]), Some(0));
        assert_eq!(lanes.begin(vec![3]), (0, false));
        assert_eq!(lanes.begin(vec![4]), (2, false));
    }
}
