// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every event that was written is read or counted as lost: threads write, signals interrupt their
//! writes, and handlers write, too.
#![allow(
    clippy::disallowed_types,
    reason = "threads and handlers count by hand"
)]

use std::cell::Cell;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use overhear_posixtrace::{
    open_event_type, record, ActiveStream, Attributes, EventId, StreamFullPolicy, Wait,
};
use overhear_stream::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

const THREADS: usize = 8;
const SIGNALS: u64 = 1000;
const SLOT_BYTES: usize = 128;

static WRITTEN: AtomicU64 = AtomicU64::new(0);
static HANDLED: AtomicU64 = AtomicU64::new(0);
static OVERRUN: AtomicBool = AtomicBool::new(false);
static EVENT: AtomicU32 = AtomicU32::new(0);
/// One storm at a time: they share the counters, and a stream gets all events of the process.
static ONE: Mutex<()> = Mutex::new(());

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

fn put(number: u64) {
    let event = EventId::from_raw(EVENT.load(Ordering::Relaxed)).unwrap();
    record(event, &number.to_ne_bytes());
    WRITTEN.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn handle(_signal: i32) {
    put(NUMBER.with(Cell::get));
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

fn attributes(policy: StreamFullPolicy, events: usize) -> Attributes {
    Attributes {
        stream_full: Some(policy),
        stream_size: events * SLOT_BYTES,
        ..Attributes::default()
    }
}

/// Threads that write until enough signals have interrupted them.
fn storm() {
    static ENDED: AtomicBool = AtomicBool::new(false);
    let signal = libc::SIGRTMIN() + 3;
    // SAFETY: a handler of the right type, which calls async-signal-safe functions only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
    ENDED.store(false, Ordering::Relaxed);
    HANDLED.store(0, Ordering::Relaxed);
    let writers: Vec<_> = (0..THREADS as u64)
        .map(|number| {
            thread::spawn(move || {
                NUMBER.with(|own| own.set(number));
                // Relaxed: an event more or less does not matter.
                while !ENDED.load(Ordering::Relaxed) {
                    put(number);
                }
            })
        })
        .collect();
    while HANDLED.load(Ordering::Relaxed) < SIGNALS {
        for writer in &writers {
            use std::os::unix::thread::JoinHandleExt as _;
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(writer.as_pthread_t(), signal) };
        }
        thread::sleep(Duration::from_micros(100));
    }
    ENDED.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().unwrap();
    }
}

/// Reads what is there; returns the number of user events. An overrun that a status reports is
/// noted.
fn drain(stream: &ActiveStream) -> u64 {
    let mut users = 0;
    let patience = Instant::now() + Duration::from_secs(20);
    loop {
        match stream
            .next_event(Wait::Try, |event| event.event.is_user())
            .unwrap()
        {
            Some(is_user) => users += u64::from(is_user),
            // A writer that was preempted holds up the reader.
            None => {
                let status = stream.status().unwrap();
                OVERRUN.fetch_or(status.overrun, Ordering::Relaxed);
                if !status.full {
                    return users;
                }
                assert!(Instant::now() < patience);
            }
        }
    }
}

fn account(policy: StreamFullPolicy, events: usize, reads_meanwhile: bool) {
    let _one = ONE.lock();
    EVENT.store(
        open_event_type(b"accounting").unwrap().as_raw(),
        Ordering::Relaxed,
    );
    WRITTEN.store(0, Ordering::Relaxed);
    OVERRUN.store(false, Ordering::Relaxed);
    let stream = ActiveStream::create(0, &attributes(policy, events)).unwrap();
    stream.start().unwrap();
    let ended = AtomicBool::new(false);
    let read = thread::scope(|scope| {
        let meanwhile = scope.spawn(|| {
            let mut users = 0;
            while reads_meanwhile && !ended.load(Ordering::Relaxed) {
                users += drain(&stream);
            }
            users
        });
        storm();
        ended.store(true, Ordering::Relaxed);
        meanwhile.join().unwrap()
    });
    let read = read + drain(&stream);
    let (written, lost) = (WRITTEN.load(Ordering::Relaxed), stream.lost().unwrap());
    // The START of a looping stream may be overwritten, too.
    let system = u64::from(policy == StreamFullPolicy::Loop);
    assert!(
        (written..=written + system).contains(&(read + lost)),
        "{policy:?}: {written} written, {read} read, {lost} lost"
    );
    assert!(lost > 0 && read > 0, "{read} read, {lost} lost");
    assert!(OVERRUN.load(Ordering::Relaxed));
    assert!(!stream.status().unwrap().overrun, "it is reported once");
}

#[test]
fn looping_stream_accounts_for_every_event() {
    account(StreamFullPolicy::Loop, 256, true);
}

#[test]
fn looping_stream_that_is_read_at_the_end_accounts_for_every_event() {
    account(StreamFullPolicy::Loop, 64, false);
}

#[test]
fn stream_until_full_accounts_for_every_event() {
    account(StreamFullPolicy::UntilFull, 256, true);
}

#[test]
fn stream_that_became_full_once_accounts_for_every_event() {
    account(StreamFullPolicy::UntilFull, 64, false);
}
