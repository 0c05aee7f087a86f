// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elements as JSON: one document per line (`docs/live.md` describes them).

use std::collections::BTreeSet;

use overhear_event::{
    printable_json, ElementView, FieldKind, Gap, StreamDescriptor, StreamId, Value,
};
use serde::ser::{SerializeMap, Serializer};
use serde::Serialize;

use super::{Layout, Summary};
use overhear_session::budget::BudgetOutcome;
use overhear_session::identity::Identity;

/// JSON lines.
#[derive(Debug, Default)]
pub(crate) struct Json {
    announced: BTreeSet<StreamId>,
}

#[derive(Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Record<'a> {
    Stream {
        #[serde(flatten)]
        identity: Identity,
        event: String,
        lane: Option<u32>,
        capacity: u64,
    },
    Element {
        time_ns: u64,
        stream: StreamId,
        sensor: String,
        sequence: u64,
        values: Values<'a>,
    },
    Gap {
        time_ns: u64,
        stream: StreamId,
        sensor: String,
        sequence: u64,
        missed: u64,
        cause: &'static str,
        from_ns: u64,
    },
    Note {
        message: &'a str,
    },
    Budget(&'a BudgetOutcome),
    Summary(&'a Summary),
}

/// The values of an element, by name.
struct Values<'a>(ElementView<'a>);

impl Serialize for Values<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let schema = &self.0.stream.schema;
        let mut map = serializer.serialize_map(Some(schema.fields().len()))?;
        for (index, field) in schema.fields().iter().enumerate() {
            match (field.kind, schema.read(index, self.0.payload)) {
                (FieldKind::F32, Some(Value::Float(value))) => {
                    map.serialize_entry(&field.name, &(value as f32))?;
                }
                (_, value) => map.serialize_entry(&field.name, &value)?,
            }
        }
        map.end()
    }
}

fn put(record: &Record<'_>, out: &mut Vec<u8>) {
    // This does not fail, because keys are strings.
    let json = serde_json::to_string(record).unwrap_or_default();
    out.extend_from_slice(printable_json(&json).as_bytes());
    out.push(b'\n');
}

impl Layout for Json {
    fn stream(&mut self, stream: &StreamDescriptor, out: &mut Vec<u8>) {
        if self.announced.insert(stream.id) {
            let record = Record::Stream {
                identity: Identity::of(stream),
                event: stream.event().to_string(),
                lane: stream.lane,
                capacity: stream.capacity,
            };
            put(&record, out);
        }
    }

    fn element(&mut self, element: &ElementView<'_>, out: &mut Vec<u8>) {
        self.stream(element.stream, out);
        let record = Record::Element {
            time_ns: element.time.as_monotonic_ns(),
            stream: element.stream.id,
            sensor: element.stream.sensor_label(),
            sequence: element.sequence,
            values: Values(*element),
        };
        put(&record, out);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap, out: &mut Vec<u8>) {
        self.stream(stream, out);
        let record = Record::Gap {
            time_ns: gap.to.as_monotonic_ns(),
            stream: gap.stream,
            sensor: stream.sensor_label(),
            sequence: gap.first,
            missed: gap.missed,
            cause: gap.cause.name(),
            from_ns: gap.from.as_monotonic_ns(),
        };
        put(&record, out);
    }

    fn note(&mut self, message: &str, out: &mut Vec<u8>) {
        put(&Record::Note { message }, out);
    }

    fn budget(&mut self, budget: &BudgetOutcome, out: &mut Vec<u8>) {
        put(&Record::Budget(budget), out);
    }

    fn summary(&mut self, summary: &Summary, out: &mut Vec<u8>) {
        put(&Record::Summary(summary), out);
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Analysis, ElementView};

    use super::Json;
    use crate::attach::Feed;
    use crate::testing::{at, declared_stream, gap, plain_stream, queue_payload};

    #[test]
    fn records_are_one_document_per_line_with_gaps_in_place_and_a_summary() {
        let queue = declared_stream();
        let mut out = Vec::new();
        let mut feed = Feed::new(Box::new(Json::default()), &mut out, None);
        feed.announce(&plain_stream());
        for (sequence, wait, load) in [(0, u64::MAX, 0.1), (5, 1, f32::NAN)] {
            if sequence == 5 {
                feed.gap(&queue, &gap(&queue, 1, 4, 100, 300));
            }
            feed.element(&ElementView {
                stream: &queue,
                sequence,
                time: at(100 + 40 * sequence),
                payload: &queue_payload(wait, load, "a\"b"),
            });
        }
        feed.note("its header is damaged");
        let _ = feed.finish(1_000, "interrupted");
        let text = String::from_utf8(out).unwrap();
        for line in text.lines() {
            let _: serde_json::Value = serde_json::from_str(line).unwrap();
        }
        insta::assert_snapshot!(text, @r#"
        {"record":"stream","stream":4,"task":"server(4711)","pid":4711,"id":"job","instance":"","type":"job","fields":[{"name":"number","kind":"i64","unit":""}],"declared":null,"event":"user:job","lane":null,"capacity":4096}
        {"record":"stream","stream":3,"task":"server(4711)","pid":4711,"id":"queue","instance":"in","type":"queue","fields":[{"name":"wait","kind":"u64","unit":"ns"},{"name":"load","kind":"f32","unit":"%"},{"name":"label","kind":"text[12]","unit":""}],"declared":{"period_ns":1000000,"distance_ns":100000,"jitter_ns":5000000},"event":"user:queue","lane":null,"capacity":4096}
        {"record":"element","time_ns":100,"stream":3,"sensor":"server(4711)/queue#in","sequence":0,"values":{"wait":18446744073709551615,"load":0.1,"label":"a\"b"}}
        {"record":"gap","time_ns":300,"stream":3,"sensor":"server(4711)/queue#in","sequence":1,"missed":4,"cause":"overwritten","from_ns":100}
        {"record":"element","time_ns":300,"stream":3,"sensor":"server(4711)/queue#in","sequence":5,"values":{"wait":1,"load":null,"label":"a\"b"}}
        {"record":"note","message":"its header is damaged"}
        {"record":"summary","elements":2,"missed":4,"gaps":1,"complete":false,"duration_ns":1000,"ended_by":"interrupted","sensors":[{"sensor":"server(4711)/queue#in","elements":2,"missed":4},{"sensor":"server(4711)/job","elements":0,"missed":0}]}
        "#);
    }
}
