// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elements that mark the begin and end of a span. Several spans may be open at once, and a track
//! of Perfetto can only nest: each span gets the first free lane.

use overhear_event::kernel::events::{BLOCK_IO, FUTEX, IRQ, LOCK, SOFTIRQ, SYSCALL, TIMER};
use overhear_event::{ElementView, Origin, StreamDescriptor, Value, WRITER_TID};

use crate::name_of_number;

/// The edge of a span that an element marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    Begin,
    End,
}

/// Maximum depth of recursive calls that are shown.
const MOST_CALLS: usize = 256;

/// Prefixes of the sensors of functions: of programs, and of the kernel. The function's name
/// follows.
const OF_FUNCTIONS: [&str; 2] = ["probe/", "kprobe/"];

/// The probed function of a stream of calls or returns, as the sensor of the calls; `None` for
/// other streams.
pub(super) fn function_of(stream: &StreamDescriptor) -> Option<(&str, Edge)> {
    let sensor = stream.sensor.as_str();
    let is_of_kernel = matches!(stream.origin, Origin::Kernel { .. });
    if !is_of_kernel || !OF_FUNCTIONS.iter().any(|of| sensor.starts_with(of)) {
        return None;
    }
    Some(match sensor.strip_suffix("/return") {
        Some(function) => (function, Edge::End),
        None => (sensor, Edge::Begin),
    })
}

/// The values that distinguish the open spans of a sensor.
pub(super) type Key = Vec<u64>;

/// The span that an element begins or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SpanEvent {
    pub(super) edge: Edge,
    pub(super) key: Key,
    /// Two begins with the same value are one span: there is an element for the CPU and one for the
    /// woken thread at the same timer.
    pub(super) same: Option<u64>,
}

/// Indices of the fields that describe spans.
#[derive(Clone, Debug)]
pub(super) struct SpanFields {
    /// Index of the kind; `None` for probes, whose streams have either calls or returns.
    edge: Option<usize>,
    /// The values that begin a span; the next value is the end of each.
    begins: &'static [u64],
    keys: Vec<usize>,
    has_cpu: bool,
    same: Option<usize>,
    /// Maximum number of open spans of one key; the inner one ends first.
    nested: usize,
}

impl SpanFields {
    /// The fields of a stream, by its sensor:
    ///
    /// - The kernel's elements have a `kind`, 1 at the begin and 2 at the end. Those of timers have
    ///   further pairs for high resolution and for woken threads; only the begin has the function.
    /// - Those of programs have an `edge`, 0 and 1. Their key is the writing thread and the first
    ///   other number without a unit.
    /// - Calls of a function are spans if there is a stream of its returns.
    ///
    /// The page does the same.
    pub(super) fn of(stream: &StreamDescriptor, returns: bool) -> Option<Self> {
        let fields = stream.schema.fields();
        let index_of = |name: &str| fields.iter().position(|field| field.name == name);
        if function_of(stream).is_some() {
            return returns.then(|| Self {
                edge: None,
                begins: &[],
                keys: index_of("tid").into_iter().collect(),
                has_cpu: false,
                same: None,
                nested: MOST_CALLS,
            });
        }
        if let Origin::Kernel { .. } = stream.origin {
            let names: &[&str] = match stream.sensor.as_str() {
                IRQ | SOFTIRQ => &["number"],
                SYSCALL | FUTEX | TIMER => &["tid"],
                LOCK => &["tid", "address"],
                BLOCK_IO => &["request", "device"],
                _ => return None,
            };
            let is_timer = stream.sensor == TIMER;
            return Some(Self {
                edge: Some(index_of("kind")?),
                begins: if is_timer { &[1, 3, 5] } else { &[1] },
                keys: names.iter().filter_map(|name| index_of(name)).collect(),
                has_cpu: is_of_cpus(stream),
                same: index_of("function").filter(|_| is_timer),
                // A hard handler interrupts a soft one.
                nested: if is_timer { 2 } else { 1 },
            });
        }
        let edge = index_of("edge").filter(|&edge| fields[edge].unit.is_empty())?;
        let plain = fields.iter().enumerate().position(|(index, field)| {
            let is_frame = field.name.starts_with("writer_");
            index != edge && field.kind.is_number() && field.unit.is_empty() && !is_frame
        });
        Some(Self {
            edge: Some(edge),
            begins: &[0],
            keys: index_of(WRITER_TID).into_iter().chain(plain).collect(),
            has_cpu: false,
            same: None,
            nested: 1,
        })
    }

    /// The edge that an element marks; `None` if it is neither a begin nor an end.
    pub(super) fn read(&self, stream: &StreamDescriptor, payload: &[u8]) -> Option<SpanEvent> {
        let number = |index: usize| match stream.schema.read(index, payload)? {
            Value::Unsigned(value) => Some(value),
            Value::Signed(value) => Some(value.cast_unsigned()),
            Value::Float(value) => Some(value.to_bits()),
            Value::Text(_) => None,
        };
        let (edge, begin) = match self.edge {
            Some(edge) => self.edge_of(number(edge)?)?,
            None => (function_of(stream)?.1, 0),
        };
        let mut key: Key = (self.keys.iter())
            .filter_map(|&index| number(index))
            .collect();
        if let (true, Origin::Kernel { cpu }) = (self.has_cpu, &stream.origin) {
            key.push(u64::from(*cpu));
        }
        key.push(begin);
        let same = self.same.and_then(number);
        Some(SpanEvent { edge, key, same })
    }

    /// The edge of a kind, and the kind of the begin.
    fn edge_of(&self, kind: u64) -> Option<(Edge, u64)> {
        let begins = |kind: &u64| self.begins.contains(kind);
        match kind.checked_sub(1).filter(begins) {
            _ if begins(&kind) => Some((Edge::Begin, kind)),
            Some(begin) => Some((Edge::End, begin)),
            None => None,
        }
    }

    /// Maximum number of open spans of one key.
    pub(super) const fn nested(&self) -> usize {
        self.nested
    }
}

/// Whether a span is an activity of a thread: then it ends with the thread at the latest. The first
/// word of the key is the thread's id.
pub(super) fn is_of_threads(stream: &StreamDescriptor) -> bool {
    matches!(stream.origin, Origin::Kernel { .. })
        && ([SYSCALL, FUTEX, LOCK].contains(&stream.sensor.as_str())
            || function_of(stream).is_some())
}

/// Whether a span is an activity on a CPU, independent of the thread there.
pub(super) fn is_of_cpus(stream: &StreamDescriptor) -> bool {
    matches!(stream.origin, Origin::Kernel { .. })
        && [IRQ, SOFTIRQ, TIMER].contains(&stream.sensor.as_str())
}

/// The name of the span that an element begins: an interrupt, a system call and a function have
/// names of their own.
pub(super) fn name_of(element: &ElementView<'_>) -> String {
    if let Some((function, _)) = function_of(element.stream) {
        let name = function.split_once('/').map_or(function, |(_, name)| name);
        return name.to_string();
    }
    let sensor = element.stream.sensor.as_str();
    let own = match (sensor, element.field("name")) {
        _ if !matches!(element.stream.origin, Origin::Kernel { .. }) => None,
        (IRQ, Some(Value::Text(name))) if !name.is_empty() => Some(name),
        _ => {
            let number = element.field("number").and_then(|number| number.as_u64());
            number.and_then(|number| name_of_number(sensor, "number", number))
        }
    };
    own.unwrap_or(sensor).to_string()
}

/// An open span.
#[derive(Clone, Debug)]
struct Open {
    key: Key,
    same: Option<u64>,
    /// Increases with each begin.
    order: u64,
}

/// The open spans, and their lanes.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    open: Vec<Option<Open>>,
    begun: u64,
}

impl Lanes {
    /// The lane for a span that begins. The flag is true if an open span of the same key is there
    /// whose end was missed, because there cannot be so many of one key. `None` if the span is open
    /// already, by another element.
    pub(super) fn begin(
        &mut self,
        key: Key,
        same: Option<u64>,
        nested: usize,
    ) -> Option<(usize, bool)> {
        let mut under_way = self.open.iter().flatten();
        if same.is_some() && under_way.any(|open| open.same == same) {
            return None;
        }
        let is_key = |open: &Option<Open>| open.as_ref().is_some_and(|open| open.key == key);
        let others = self.open.iter().filter(|open| is_key(open)).count();
        let oldest = (0..self.open.len())
            .filter(|lane| is_key(&self.open[*lane]))
            .min_by_key(|lane| self.open[*lane].as_ref().map(|open| open.order));
        let free = self.open.iter().position(Option::is_none);
        let (lane, missed_end) = match oldest {
            Some(lane) if others >= nested => (lane, true),
            _ => (free.unwrap_or(self.open.len()), false),
        };
        if lane == self.open.len() {
            self.open.push(None);
        }
        self.begun += 1;
        let order = self.begun;
        self.open[lane] = Some(Open { key, same, order });
        Some((lane, missed_end))
    }

    /// The lane of a span that ends, the newest of its key; `None` if its begin was not recorded.
    pub(super) fn end(&mut self, key: &Key) -> Option<usize> {
        let of_key = |lane: &usize| self.open[*lane].as_ref().filter(|open| open.key == *key);
        let lane = (0..self.open.len())
            .filter(|lane| of_key(lane).is_some())
            .max_by_key(|lane| of_key(lane).map(|open| open.order))?;
        self.open[lane] = None;
        Some(lane)
    }

    /// Ends all spans whose key begins with this word, and returns their lanes.
    pub(super) fn end_all(&mut self, first: u64) -> Vec<usize> {
        let mut ended = Vec::new();
        for (lane, open) in self.open.iter_mut().enumerate() {
            let is_one = |open: &Open| open.key.first() == Some(&first);
            if open.as_ref().is_some_and(is_one) {
                *open = None;
                ended.push(lane);
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::Lanes;

    #[test]
    fn span_has_the_first_lane_that_is_free() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.begin(vec![1], None, 1), Some((0, false)));
        assert_eq!(lanes.begin(vec![2], None, 1), Some((1, false)));
        assert_eq!(lanes.begin(vec![1], None, 1), Some((0, true)));
        assert_eq!(lanes.end(&vec![3]), None);
        assert_eq!(lanes.end(&vec![1]), Some(0));
        assert_eq!(lanes.begin(vec![3], None, 1), Some((0, false)));
        assert_eq!(lanes.begin(vec![4], None, 1), Some((2, false)));
        assert_eq!(lanes.end_all(3), [0]);
        assert!(lanes.end_all(3).is_empty());
    }

    #[test]
    fn inner_span_ends_first_and_duplicates_are_joined() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.begin(vec![1], Some(7), 2), Some((0, false)));
        assert_eq!(lanes.begin(vec![1], Some(8), 2), Some((1, false)));
        assert_eq!(lanes.begin(vec![5], Some(8), 2), None);
        // There cannot be a third one: the end of the first was missed.
        assert_eq!(lanes.begin(vec![1], Some(9), 2), Some((0, true)));
        assert_eq!(lanes.end(&vec![1]), Some(0));
        assert_eq!(lanes.end(&vec![1]), Some(1));
        assert_eq!(lanes.end(&vec![1]), None);
    }
}
