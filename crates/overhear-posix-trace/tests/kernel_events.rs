// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events of the kernel in active streams, in one order with those of the program.
//!
//! Tests run at the same time in one process, whose streams all get the events of an event type:
//! each test has names of its own.

use std::time::{Duration, Instant};

use overhear_posixtrace::{
    open_event_type, record, ActiveStream, Attributes, EventId, EventTypeSet, FilterChange,
    Inheritance, TraceError, Wait,
};

fn set(events: &[EventId]) -> EventTypeSet {
    let mut set = EventTypeSet::EMPTY;
    events.iter().for_each(|event| set.insert(*event));
    set
}

fn tid() -> u32 {
    // SAFETY: the function has no conditions.
    unsafe { libc::gettid() as u32 }
}

/// A stream of this process that records these event types only.
fn stream_of(events: &[EventId]) -> Result<ActiveStream, TraceError> {
    let stream = ActiveStream::create(0, &Attributes::default())?;
    stream.set_filter(EventTypeSet::ALL, FilterChange::Set)?;
    stream.set_filter(set(events), FilterChange::Subtract)?;
    stream.start()?;
    Ok(stream)
}

/// The properties of an event that the tests compare.
#[derive(Clone, Debug)]
struct Seen {
    event: EventId,
    pid: u32,
    tid: u32,
    time: u64,
    data: Vec<u8>,
}

/// The events up to the one for which `is_last` holds.
fn until(stream: &ActiveStream, mut is_last: impl FnMut(&Seen) -> bool) -> Vec<Seen> {
    let mut all = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        let next = stream.next_event(Wait::Try, |event| Seen {
            event: event.event,
            pid: event.pid,
            tid: event.tid,
            time: event.time.as_monotonic_ns(),
            data: event.data.to_vec(),
        });
        let Some(seen) = next.unwrap() else {
            std::thread::sleep(Duration::from_micros(500));
            continue;
        };
        let ends = is_last(&seen);
        all.push(seen);
        if ends {
            return all;
        }
    }
    panic!(
        "the last event did not come; there were {} others",
        all.len()
    );
}

/// Whether the stream has recorded that events of the kernel are not permitted here.
fn is_refused(all: &[Seen]) -> bool {
    let Some(error) = all.iter().find(|seen| seen.event == EventId::ERROR) else {
        return false;
    };
    let errno = i32::from_ne_bytes(error.data[..4].try_into().unwrap());
    assert!([libc::EPERM, libc::ENOSYS].contains(&errno), "{errno}");
    println!("skipped: events of the kernel are refused, error {errno}");
    true
}

#[test]
fn events_of_the_kernel_are_in_one_order_with_those_of_the_program() {
    const ROUNDS: usize = 20;
    let call = EventId::kernel("syscall").unwrap();
    let [before, after] = ["before", "after"].map(|name| open_event_type(name.as_bytes()).unwrap());
    let stream = stream_of(&[EventId::ERROR, call, before, after]).unwrap();
    for _ in 0..ROUNDS {
        record(before, &[]);
        // SAFETY: the call has no conditions.
        unsafe { libc::syscall(libc::SYS_getppid) };
        record(after, &[]);
    }
    let mut rounds = 0;
    let all = until(&stream, |seen| {
        rounds += usize::from(seen.event == after);
        rounds == ROUNDS
    });
    if is_refused(&all) {
        return;
    }
    assert!(all.windows(2).all(|pair| pair[0].time <= pair[1].time));
    let own: Vec<&Seen> = all.iter().filter(|seen| seen.tid == tid()).collect();
    let schema = call.kernel_schema().unwrap();
    let number = schema.index_of("number").unwrap();
    let mut complete = 0;
    for (index, first) in own
        .iter()
        .enumerate()
        .filter(|(_, seen)| seen.event == before)
    {
        let between = own[index + 1..]
            .iter()
            .take_while(|seen| seen.event != after);
        let parents = between.filter(|seen| {
            let payload = seen.data.get(..schema.size() as usize).unwrap();
            let expected = overhear_event::Value::Unsigned(libc::SYS_getppid as u64);
            seen.event == call
                && seen.pid == first.pid
                && schema.read(number, payload) == Some(expected)
        });
        // The begin and the end of the call.
        complete += usize::from(parents.count() == 2);
    }
    assert_eq!(complete, ROUNDS);
    // The CPU is after the payload.
    let one = all.iter().find(|seen| seen.event == call).unwrap();
    assert_eq!(one.data.len(), schema.size() as usize + 4);
}

#[test]
fn reader_that_waits_gets_an_event_of_the_kernel() {
    let call = EventId::kernel("syscall").unwrap();
    let stream = stream_of(&[EventId::ERROR, call]).unwrap();
    let seen = stream.next_event(Wait::Forever, |event| {
        if event.event == EventId::ERROR {
            println!("skipped: events of the kernel are refused");
            return true;
        }
        event.event == call
    });
    assert_eq!(seen, Ok(Some(true)));
}

#[test]
fn kernel_events_are_recorded_only_if_the_filter_lets_them_through() {
    let mark = open_event_type(b"mark").unwrap();
    let stream = ActiveStream::create(0, &Attributes::default()).unwrap();
    stream.start().unwrap();
    record(mark, &[]);
    let all = until(&stream, |seen| seen.event == mark);
    assert!(all.iter().all(|seen| !seen.event.is_kernel()), "{all:?}");
    // A cleared stream is as a new one.
    let call = EventId::kernel("syscall").unwrap();
    stream.set_filter(set(&[call]), FilterChange::Set).unwrap();
    stream
        .set_filter(set(&[call]), FilterChange::Subtract)
        .unwrap();
    stream.clear().unwrap();
    // SAFETY: the call has no conditions.
    unsafe { libc::syscall(libc::SYS_getppid) };
    record(mark, &[]);
    let all = until(&stream, |seen| seen.event == mark);
    assert!(all.iter().all(|seen| !seen.event.is_kernel()), "{all:?}");
}

/// Set in a copy of this program that is in a folder without `liboverhear_kernel`.
const ALONE: &str = "OVERHEAR_TEST_WITHOUT_KERNEL_LIBRARY";

#[test]
fn stream_without_the_library_records_the_error() {
    if std::env::var_os(ALONE).is_none() {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("test");
        #[expect(clippy::disallowed_methods, reason = "a program, not a recording")]
        std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        let name = "stream_without_the_library_records_the_error";
        let output = std::process::Command::new(&copy)
            .args(["--exact", name])
            .env(ALONE, "1")
            .env_remove("LD_LIBRARY_PATH")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    let call = EventId::kernel("syscall").unwrap();
    let mark = open_event_type(b"mark alone").unwrap();
    let stream = stream_of(&[EventId::ERROR, call, mark]).unwrap();
    record(mark, &[]);
    let all = until(&stream, |seen| seen.event == mark);
    let errors: Vec<_> = all
        .iter()
        .filter(|seen| seen.event == EventId::ERROR)
        .collect();
    assert_eq!(errors.len(), 1, "{all:?}");
    assert_eq!(errors[0].data, libc::ENOSYS.to_ne_bytes());
}

/// A child of fork makes system calls; they are in the stream if it is inherited.
#[test]
fn events_of_children_are_recorded_if_the_stream_is_inherited() {
    let call = EventId::kernel("syscall").unwrap();
    let mark = open_event_type(b"mark of child").unwrap();
    for inheritance in [Inheritance::CloseForChild, Inheritance::Inherited] {
        let attributes = Attributes {
            inheritance,
            ..Attributes::default()
        };
        let stream = ActiveStream::create(0, &attributes).unwrap();
        stream
            .set_filter(EventTypeSet::ALL, FilterChange::Set)
            .unwrap();
        let recorded = set(&[EventId::ERROR, call, mark]);
        stream.set_filter(recorded, FilterChange::Subtract).unwrap();
        stream.start().unwrap();
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        assert!(child.wait().unwrap().success());
        record(mark, &[]);
        let all = until(&stream, |seen| seen.event == mark);
        if is_refused(&all) {
            return;
        }
        let of_child = all.iter().filter(|seen| seen.pid == child.id()).count();
        let is_inherited = inheritance == Inheritance::Inherited;
        assert_eq!(
            of_child > 0,
            is_inherited,
            "{of_child} events, {inheritance:?}"
        );
    }
}
