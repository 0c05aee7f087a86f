// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elements as comma-separated values.
//!
//! Each line begins with the same columns; the fields of the sensor's type follow. A type's line
//! of heads comes before its first element, so the output of sensors of one type is a plain table
//! with one line of heads, and the first column separates several types. With chosen fields all
//! lines have the same columns.

use std::collections::BTreeSet;

use overhear_event::{csv_line, ElementView, Gap, StreamDescriptor};

use super::{value_text, Layout, Summary};
use overhear_session::budget::BudgetOutcome;
use overhear_session::identity::task_and_pid;

/// The columns that every line has.
pub(crate) const COLUMNS: [&str; 10] = [
    "type", "time_ns", "stream", "task", "pid", "id", "instance", "sequence", "missed", "cause",
];

/// Comma-separated values.
#[derive(Debug, Default)]
pub(crate) struct Csv {
    fields: Option<Vec<String>>,
    // Types whose heads were written, with the names of their fields: two programs may use one type
    // id for different types.
    headed: BTreeSet<Vec<String>>,
}

impl Csv {
    /// With these fields, or with the columns of each type.
    #[must_use]
    pub(crate) fn new(fields: Option<Vec<String>>) -> Self {
        Self {
            fields,
            headed: BTreeSet::new(),
        }
    }

    fn heads(&mut self, stream: &StreamDescriptor, out: &mut Vec<u8>) {
        let own = || {
            let fields = stream.schema.fields().iter();
            fields.map(|field| field.name.clone()).collect()
        };
        let columns = self.fields.clone().unwrap_or_else(own);
        let mut key = columns.clone();
        if self.fields.is_none() {
            key.insert(0, stream.schema.id().to_string());
        }
        if self.headed.insert(key) {
            let heads = COLUMNS.iter().map(ToString::to_string);
            out.extend(csv_line(heads.chain(columns)).into_bytes());
        }
    }
}

fn begin(stream: &StreamDescriptor, time_ns: u64, sequence: u64) -> Vec<String> {
    let (task, pid) = task_and_pid(&stream.origin);
    vec![
        stream.schema.id().to_string(),
        time_ns.to_string(),
        stream.id.to_string(),
        task,
        pid.to_string(),
        stream.sensor.clone(),
        stream.instance.clone(),
        sequence.to_string(),
    ]
}

impl Layout for Csv {
    fn stream(&mut self, stream: &StreamDescriptor, out: &mut Vec<u8>) {
        self.heads(stream, out);
    }

    fn element(&mut self, element: &ElementView<'_>, out: &mut Vec<u8>) {
        self.heads(element.stream, out);
        let time_ns = element.time.as_monotonic_ns();
        let mut line = begin(element.stream, time_ns, element.sequence);
        line.extend(["0".to_string(), String::new()]);
        let schema = &element.stream.schema;
        let value = |index: usize| {
            let field = &schema.fields()[index];
            let value = schema.read(index, element.payload);
            value.map_or_else(String::new, |value| value_text(field, value))
        };
        match &self.fields {
            Some(fields) => line.extend(
                fields
                    .iter()
                    .map(|name| schema.index_of(name).map_or_else(String::new, value)),
            ),
            None => line.extend((0..schema.fields().len()).map(value)),
        }
        out.extend(csv_line(line).into_bytes());
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap, out: &mut Vec<u8>) {
        self.heads(stream, out);
        let mut line = begin(stream, gap.to.as_monotonic_ns(), gap.first);
        line.extend([gap.missed.to_string(), gap.cause.name().to_string()]);
        let fields = match &self.fields {
            Some(fields) => fields.len(),
            None => stream.schema.fields().len(),
        };
        line.extend((0..fields).map(|_| String::new()));
        out.extend(csv_line(line).into_bytes());
    }

    /// The command prints notes and the end on standard error.
    fn note(&mut self, _: &str, _: &mut Vec<u8>) {}

    fn budget(&mut self, _: &BudgetOutcome, _: &mut Vec<u8>) {}

    fn summary(&mut self, _: &Summary, _: &mut Vec<u8>) {}
}

#[cfg(test)]
mod tests {
    use overhear_event::ElementView;

    use super::{Csv, Layout};
    use crate::testing::{at, declared_stream, gap, plain_stream, queue_payload};

    fn feed(mut csv: Csv) -> String {
        let (queue, job) = (declared_stream(), plain_stream());
        let mut out = Vec::new();
        let element = |stream, time, payload| ElementView {
            stream,
            sequence: 8,
            time: at(time),
            payload,
        };
        let payload = queue_payload(5, 0.25, "a,\"b");
        csv.element(&element(&queue, 100, &payload), &mut out);
        csv.gap(&queue, &gap(&queue, 9, 3, 100, 200), &mut out);
        csv.element(&element(&queue, 200, &payload), &mut out);
        let number = 7_i64.to_ne_bytes();
        csv.element(&element(&job, 300, &number), &mut out);
        csv.element(&element(&queue, 400, &payload), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_type_has_its_heads_once_and_gaps_are_lines_of_their_own() {
        insta::assert_snapshot!(feed(Csv::new(None)), @r#"
        type,time_ns,stream,task,pid,id,instance,sequence,missed,cause,wait,load,label
        queue,100,3,server(4711),4711,queue,in,8,0,,5,0.25,"a,""b"
        queue,200,3,server(4711),4711,queue,in,9,3,overwritten,,,
        queue,200,3,server(4711),4711,queue,in,8,0,,5,0.25,"a,""b"
        type,time_ns,stream,task,pid,id,instance,sequence,missed,cause,number
        job,300,4,server(4711),4711,job,,8,0,,7
        queue,400,3,server(4711),4711,queue,in,8,0,,5,0.25,"a,""b"
        "#);
    }

    #[test]
    fn chosen_fields_make_one_table() {
        let fields = ["number", "wait"].map(String::from).to_vec();
        insta::assert_snapshot!(feed(Csv::new(Some(fields))), @r#"
        type,time_ns,stream,task,pid,id,instance,sequence,missed,cause,number,wait
        queue,100,3,server(4711),4711,queue,in,8,0,,,5
        queue,200,3,server(4711),4711,queue,in,9,3,overwritten,,
        queue,200,3,server(4711),4711,queue,in,8,0,,,5
        job,300,4,server(4711),4711,job,,8,0,,7,
        queue,400,3,server(4711),4711,queue,in,8,0,,,5
        "#);
    }
}
