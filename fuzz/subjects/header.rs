// SPDX-License-Identifier: MIT OR Apache-2.0
//! Headers that a hostile process wrote: each is accepted if and only if it is the one expected,
//! and a refusal is a message.

use overhear_event::ClockId;
use overhear_stream::sync::Ordering;
use overhear_stream::{Geometry, Header, HeaderUntrusted, OwnedWords, Words, WriterKind};

/// Xored onto a good header, so that the fuzzer begins close to it.
pub(crate) type Input = [u64; 8];

/// Runs one input.
pub(crate) fn run(damage: Input) {
    let geometry = Geometry::new(24, 16).expect("a valid geometry");
    let expected = Header::new(&geometry, WriterKind::Simple, ClockId::X86Tsc, 9);
    let memory = OwnedWords::zeroed(geometry.words());
    expected.store(&memory);
    for (index, bits) in damage.into_iter().enumerate() {
        memory.word(index).fetch_xor(bits, Ordering::Relaxed);
    }
    let found = HeaderUntrusted::load(&memory).expect("there is room for a header");
    // The last word is reserved: ignored when read.
    let good = damage[..7].iter().all(|&bits| bits == 0);
    match found.check(&expected) {
        Ok(()) => assert!(good),
        Err(error) => assert!(!good && !error.to_string().is_empty()),
    }
}
