// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arbitrary patterns over arbitrary names: each is refused with a message, or matches or does not
//! match.

use overhear_directory::Query;
use overhear_event::{Origin, StreamDescriptor, StreamId, TypeSchema};

/// Runs one input: the pattern, and in further lines the sensor's id, its instance, its task and
/// its type.
pub(crate) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut lines = text.split('\n').map(str::to_owned);
    let mut next = || lines.next().unwrap_or_default();
    let (pattern, sensor, instance, comm) = (next(), next(), next(), next());
    let stream = StreamDescriptor {
        instance,
        capacity: 2,
        ..StreamDescriptor::new(
            StreamId::from_raw(1),
            Origin::program(42, comm),
            sensor,
            TypeSchema::builder("sample")
                .build()
                .expect("no fields are good"),
        )
    };
    let types = next();
    let query = Query::parse(&pattern).and_then(|query| query.of_type(&types));
    match query {
        Ok(query) => {
            let matcher = query.compile().expect("it was compiled before");
            assert_eq!(query.matches(&stream), matcher.matches(&stream));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(matches) = Query::streams(&pattern) {
        let _ = matches(&stream);
    }
}
