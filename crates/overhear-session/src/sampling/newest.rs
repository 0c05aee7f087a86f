// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`NewestElements`]: keeps fields of the newest elements of sensors, for samplers.

use std::collections::BTreeMap;

use overhear_event::{
    Analysis, ElementView, EventName, EventSet, Gap, Origin, StreamDescriptor, StreamId, Timestamp,
};
use overhear_sampling::sources::NewestValue;

use super::SamplingRequest;

/// A field that a sampler reads.
#[derive(Debug)]
struct Field {
    sensor: String,
    field: String,
    value: NewestValue,
    // The field's index in the schema of each stream of the sensor.
    streams: BTreeMap<StreamId, usize>,
}

/// The fields of sensors that samplers read, by their names.
#[derive(Debug, Default)]
pub(crate) struct NewestElements(BTreeMap<String, Field>);

impl NewestElements {
    /// The fields that these samplers name.
    pub(crate) fn of(requests: &[SamplingRequest]) -> Self {
        let names = requests.iter().flat_map(|request| &request.sample);
        let fields = names.filter_map(|name| {
            let (sensor, field) = NewestValue::parse(name)?;
            let field = Field {
                sensor: sensor.to_owned(),
                field: field.to_owned(),
                value: NewestValue::default(),
                streams: BTreeMap::new(),
            };
            Some((name.clone(), field))
        });
        Self(fields.collect())
    }

    /// A note about each field that no sensor had.
    pub(crate) fn absent(&self) -> impl Iterator<Item = String> + '_ {
        let absent = self.0.iter().filter(|(_, field)| field.streams.is_empty());
        absent.map(|(name, Field { sensor, field, .. })| {
            format!(
                "`{name}` is 0 in all samples: no sensor `{sensor}` of the program had a numeric \
                 field `{field}`"
            )
        })
    }

    /// The values by name.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&str, NewestValue)> {
        let all = self.0.iter();
        all.map(|(name, field)| (name.as_str(), field.value.clone()))
    }
}

impl Analysis for NewestElements {
    fn requires(&self) -> EventSet {
        self.0
            .values()
            .map(|field| EventName::user(&field.sensor))
            .collect()
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        if !matches!(stream.origin, Origin::Program(_)) {
            return;
        }
        for field in self
            .0
            .values_mut()
            .filter(|field| field.sensor == stream.sensor)
        {
            let index = stream.schema.index_of(&field.field);
            let is_number = |index: &usize| stream.schema.fields()[*index].kind.is_number();
            if let Some(index) = index.filter(is_number) {
                field.streams.insert(stream.id, index);
            }
        }
    }

    fn element(&mut self, element: &ElementView<'_>) {
        for field in self.0.values() {
            let Some(index) = field.streams.get(&element.stream.id) else {
                continue;
            };
            let value = element.stream.schema.read(*index, element.payload);
            if let Some(value) = value.and_then(|value| value.as_f64()) {
                field.value.set(value);
            }
        }
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

#[cfg(test)]
mod tests {
    use overhear_event::{
        Analysis, ElementView, FieldKind, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
    };
    use overhear_sampling::sources::SourceFinder;

    use super::{NewestElements, SamplingRequest};

    #[test]
    fn newest_element_is_sampled() {
        let names = [
            "sensor=queue.depth",
            "sensor=queue.absent",
            "meminfo:MemTotal",
        ];
        let request = SamplingRequest::parse(&names, Some("1ms"), None, None).unwrap();
        let mut newest = NewestElements::of(&[request]);
        let required: Vec<String> = newest.requires().iter().map(ToString::to_string).collect();
        assert_eq!(required, ["user:queue"]);
        let values = newest.values();
        let finder = values.fold(SourceFinder::default(), |finder, (name, value)| {
            finder.newest(name, value)
        });
        let mut reading = finder.find(&names).unwrap();
        let mut sample = || {
            let mut values = [0; 3];
            reading.read(&mut values).unwrap();
            [f64::from_bits(values[0]), f64::from_bits(values[1])]
        };
        let schema = TypeSchema::builder("t").field("id", FieldKind::U32, "");
        let schema = schema.field("depth", FieldKind::I32, "").build().unwrap();
        let stream = |id, sensor: &str, origin| {
            let id = StreamId::from_raw(id);
            StreamDescriptor::new(id, origin, sensor, schema.clone())
        };
        let queue = stream(1, "queue", Origin::program(7, "task"));
        let others = [
            stream(2, "other", Origin::program(7, "task")),
            stream(3, "queue", Origin::Sampler),
        ];
        let mut write = |stream: &StreamDescriptor, depth: i32| {
            newest.open(stream);
            let payload = [7_u32.to_ne_bytes(), depth.to_ne_bytes()].concat();
            newest.element(&ElementView {
                stream,
                sequence: 0,
                time: Timestamp::ZERO,
                payload: &payload,
            });
        };
        assert_eq!(sample(), [0.0, 0.0]);
        write(&queue, -3);
        assert_eq!(sample(), [-3.0, 0.0]);
        others.iter().for_each(|other| write(other, 9));
        assert_eq!(sample(), [-3.0, 0.0]);
        write(&queue, 4);
        assert_eq!(sample(), [4.0, 0.0]);
        let absent: Vec<String> = newest.absent().collect();
        assert_eq!(
            absent,
            ["`sensor=queue.absent` is 0 in all samples: no sensor `queue` of the program had a \
              numeric field `absent`"]
        );
    }
}
