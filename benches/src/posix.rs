// SPDX-License-Identifier: MIT OR Apache-2.0
//! The POSIX trace interface, called as C programs do, beside a simple sensor and LTTng.
//!
//! Two limits are times, not ratios: they are contenders that always take this time.

use std::hint::black_box;
use std::rc::Rc;

use anyhow::{ensure, Result};
use overhear_posixtrace::{
    open_event_type, ActiveStream, Attributes, EventTypeSet, FilterChange, Wait,
};

use crate::hot::USUAL;
use crate::native::{units, PLACES};
use crate::peers::Peer;
use crate::race::{race, time, Contender, Outcome};

const EVENT: &str = "POSIX trace: one event with 8 bytes";
const UNRECORDED: &str = "POSIX trace: an event that no stream records, the best of eight places";
const READ: &str = "POSIX trace: reading 8,000 events of 8 bytes by posix_trace_trygetnext_event";
const BATCH: u64 = 1000;
const UNRECORDED_BATCH: u64 = 10_000;
/// Less than the events of a stream of the default size.
const READ_EVENTS: u64 = 8000;
/// Bytes of an event with up to 80 bytes of data.
const EVENT_BYTES: usize = 128;

type Unrecorded = unsafe extern "C" fn(u32, u64);

extern "C" {
    fn posix_events(event: u32, elements: u64);
    static posix_unrecorded: [Unrecorded; PLACES];
    fn posix_read(stream: u64, sum: *mut u64) -> u64;
    fn posix_trace_create(pid: i32, attributes: *const u8, stream: *mut u64) -> i32;
    fn posix_trace_start(stream: u64) -> i32;
}

fn events(event: u32, elements: u64) {
    // SAFETY: the function reads memory of its own, and may be called by any thread.
    unsafe { posix_events(event, elements) }
}

/// Writes, does not write, and reads.
pub(crate) fn posix(rounds: usize, peers: &[Peer]) -> Result<Vec<Outcome>> {
    Ok([
        write(rounds, peers)?,
        unrecorded(rounds, peers)?,
        read(rounds)?,
    ]
    .concat())
}

/// A running stream of this many events, that records nothing but one event type.
fn stream(events: usize, name: &str) -> Result<(Rc<ActiveStream>, u32)> {
    let attributes = Attributes {
        stream_size: events * EVENT_BYTES,
        ..Attributes::default()
    };
    let event = open_event_type(name.as_bytes())?;
    let stream = ActiveStream::create(0, &attributes)?;
    let mut others = EventTypeSet::ALL;
    others.remove(event);
    stream.set_filter(others, FilterChange::Set)?;
    stream.start()?;
    Ok((Rc::new(stream), event.as_raw()))
}

fn write(rounds: usize, peers: &[Peer]) -> Result<Vec<Outcome>> {
    let (bytes, slots) = USUAL;
    let mut contenders = Vec::new();
    let mut base = None;
    for unit in units().into_iter().take(1) {
        let row = unit.row(bytes, slots);
        let put = row.enlist()?;
        let name = format!("{} {}, simple sensor", unit.compiler, unit.put);
        base = Some(name.clone());
        contenders.push(Contender::new(EVENT, name, move || {
            row.put(put, 64);
            time(BATCH, &mut |elements| row.put(put, elements))
        }));
    }
    for (events_of_stream, name, target) in [
        (
            slots as usize,
            "posix_trace_event, a stream of 64 events",
            Some(3.0),
        ),
        (
            8192,
            "posix_trace_event, a stream of the default size (8,192)",
            None,
        ),
    ] {
        let (stream, event) = stream(events_of_stream, name)?;
        let mut contender = Contender::new(EVENT, name, move || {
            let _stream = &stream;
            events(event, 64);
            time(BATCH, &mut |elements| events(event, elements))
        });
        contender.against.clone_from(&base);
        contender.target = target;
        contenders.push(contender);
    }
    for (name, run) in peers.iter().filter_map(|peer| peer.formatted) {
        let mut contender = Contender::new(EVENT, name, move || {
            run(64);
            time(200, &mut |elements| run(elements))
        });
        contender.against.clone_from(&base);
        contenders.push(contender);
    }
    for peer in peers.iter().filter(|peer| peer.name.starts_with("LTTng")) {
        let (run, elements) = (Rc::clone(&peer.run), peer.elements);
        let mut contender = Contender::new(EVENT, peer.name, move || {
            let run = &mut *run.borrow_mut();
            run(64);
            time(elements, run)
        });
        contender.against.clone_from(&base);
        contenders.push(contender);
    }
    Ok(race(rounds, contenders))
}

fn unrecorded(rounds: usize, peers: &[Peer]) -> Result<Vec<Outcome>> {
    const LIMIT: &str = "the limit: 2 ns";
    let mut contenders = vec![Contender::new(UNRECORDED, LIMIT, || 2.0)];
    let (stream, _) = stream(64, "posix bench, another event")?;
    let filtered = open_event_type(b"posix bench, filtered out")?.as_raw();
    for place in 0..PLACES {
        let stream = Rc::clone(&stream);
        let run = move |elements| {
            let _stream = &stream;
            // SAFETY: the table is constant; the function reads memory of its own.
            unsafe { posix_unrecorded[place](filtered, elements) }
        };
        let contender = Contender::new(UNRECORDED, "posix_trace_event, filtered out", move || {
            run(64);
            time(UNRECORDED_BATCH, &mut |elements| run(elements))
        });
        contenders.push(contender.against(LIMIT).at_most(1.0));
    }
    for (name, run) in peers.iter().filter_map(|peer| Some((peer.name, peer.off?))) {
        for place in 0..PLACES {
            let name = format!("{name}, disabled");
            contenders.push(Contender::new(UNRECORDED, name, move || {
                run(place, 64);
                time(UNRECORDED_BATCH, &mut |elements| run(place, elements))
            }));
        }
    }
    Ok(crate::off::best(race(rounds, contenders)))
}

fn read(rounds: usize) -> Result<Vec<Outcome>> {
    const LIMIT: &str = "the limit: 200 ns, 5,000,000 events per second";
    let event = open_event_type(b"posix bench, read")?;
    let mut stream = 0;
    // SAFETY: no attributes are the default ones, and the place is a local variable's.
    let created = unsafe { posix_trace_create(0, std::ptr::null(), &raw mut stream) };
    // SAFETY: the function has no conditions.
    let started = unsafe { posix_trace_start(stream) };
    ensure!(
        created == 0 && started == 0,
        "no stream: {created}, {started}"
    );
    let in_c = move || {
        events(event.as_raw(), READ_EVENTS);
        let mut sum = 0;
        let mut read = 0;
        let span = time(READ_EVENTS, &mut |_| {
            // SAFETY: the place is a local variable's.
            read = unsafe { posix_read(stream, &raw mut sum) };
        });
        assert!(read >= READ_EVENTS, "{read} events");
        black_box(sum);
        span
    };
    let reader = ActiveStream::create(0, &Attributes::default())?;
    reader.start()?;
    let in_rust = move || {
        events(event.as_raw(), READ_EVENTS);
        let mut sum = 0;
        time(READ_EVENTS, &mut |_| {
            while let Ok(Some(())) = reader.next_event(Wait::Try, |event| {
                sum += event.time.as_monotonic_ns()
                    ^ u64::from(event.data.first().copied().unwrap_or(0));
            }) {}
            black_box(sum);
        })
    };
    Ok(race(
        rounds / 10 + 1,
        vec![
            Contender::new(READ, LIMIT, || 200.0),
            Contender::new(READ, "posix_trace_trygetnext_event", in_c)
                .against(LIMIT)
                .at_most(1.0),
            Contender::new(READ, "the same in Rust, ActiveStream::next_event", in_rust)
                .against(LIMIT),
        ],
    ))
}
