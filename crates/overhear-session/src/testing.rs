// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stream that the tests of this crate share.

use std::sync::Arc;

use overhear_event::{FieldKind, Origin, StreamDescriptor, StreamId, Task, Timestamp, TypeSchema};

/// `server(4711)/job`, nothing declared, one field.
pub(crate) fn plain_stream() -> StreamDescriptor {
    let schema = TypeSchema::builder("job").field("number", FieldKind::I64, "");
    StreamDescriptor {
        id: StreamId::from_raw(4),
        origin: Origin::Program(Task {
            pid: 4711,
            start: Timestamp::ZERO,
            comm: "server".to_string(),
        }),
        sensor: "job".to_string(),
        instance: String::new(),
        lane: None,
        schema: Arc::new(schema.build().unwrap()),
        rate: None,
        capacity: 4096,
    }
}
