// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the samples of one sampler.

use overhear_event::{ElementView, SampleHeader, SampleLayout, SampledQuantity, StreamDescriptor};

use super::TaskKey;

/// Reads the elements of one sampler as samples.
#[derive(Clone, Debug)]
pub(crate) struct SampleReader {
    layout: SampleLayout,
    sample: Sample,
}

/// A sample.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) header: SampleHeader,
    /// The value of each quantity.
    pub(crate) values: Vec<Option<f64>>,
    /// One count for each quantity; 0 for a level.
    pub(crate) counts: Vec<u64>,
}

impl Sample {
    pub(crate) const fn key(&self) -> TaskKey {
        (self.header.pid, self.header.tid)
    }
}

impl SampleReader {
    /// A reader of a sampler's streams; `None` if their elements are not samples.
    pub(crate) fn of(stream: &StreamDescriptor) -> Option<Self> {
        let header = SampleHeader {
            tid: 0,
            pid: 0,
            point: None,
            cpu: 0,
            duration_ns: 0,
        };
        Some(Self {
            layout: SampleLayout::of(&stream.schema)?,
            sample: Sample {
                header,
                values: Vec::new(),
                counts: Vec::new(),
            },
        })
    }

    pub(crate) fn quantities(&self) -> &[SampledQuantity] {
        self.layout.quantities()
    }

    /// Reads an element; `None` if it is too short.
    pub(crate) fn read(&mut self, element: &ElementView<'_>) -> Option<&Sample> {
        let schema = &element.stream.schema;
        let sample = &mut self.sample;
        sample.header = self.layout.header(schema, element.payload)?;
        sample.counts.clear();
        sample.values.clear();
        for quantity in self.layout.quantities() {
            let value = schema.read(quantity.field, element.payload);
            let count = value.and_then(|value| value.as_u64());
            let count = count.filter(|_| quantity.is_count());
            sample.counts.push(count.unwrap_or(0));
            sample.values.push(value.and_then(|value| value.as_f64()));
        }
        Some(&self.sample)
    }
}
