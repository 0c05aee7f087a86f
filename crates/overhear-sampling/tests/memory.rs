// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that is stated for a sampler is the memory that it takes. One test: the memory of a
//! process belongs to all of its threads.

use std::sync::Arc;

use overhear_event::{Nanos, Origin, StreamDescriptor, StreamIdRange};
use overhear_sampling::{sample_ring, Quantity, QuantityKind, RingSize, SampleForm};

/// A line of `/proc/self/status`, in bytes.
fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .unwrap();
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().unwrap();
    kib * 1024
}

#[test]
fn stated_memory_is_locked_memory() {
    let quantities = [Quantity::new("q", "", QuantityKind::Count)];
    let form = SampleForm::new(quantities.iter()).unwrap();
    let size = RingSize::of(form.payload_bytes(), Nanos::from_us(500), 1).unwrap();
    let id = StreamIdRange::LOCAL.first();
    let stream = || {
        Arc::new(StreamDescriptor::new(
            id,
            Origin::Sampler,
            "s",
            form.schema(),
        ))
    };
    let mut rings = Vec::new();
    let before = status("VmLck:");
    for number in 1..=4 {
        let ring = sample_ring(stream(), size).unwrap();
        assert_eq!(ring.0.bytes(), size.bytes());
        if !ring.0.is_locked() {
            println!(
                "skipped: this user may not lock {} bytes of memory",
                size.bytes()
            );
            return;
        }
        rings.push(ring);
        let locked = status("VmLck:") - before;
        let stated = number * size.bytes();
        // Whole pages are locked: at most one more at each end of a ring.
        assert!(
            (stated..=stated + number * 8192).contains(&locked),
            "{locked} {stated}"
        );
    }
}
