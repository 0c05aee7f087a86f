// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs on a full disk, and at the largest size of a file: the error number comes back, nothing
//! that was flushed is lost, the status has the error, and the log continues when there is room.

#[path = "../../overhear-trace/tests/support/small_disk.rs"]
mod small_disk;

use std::fs::File;
use std::os::fd::OwnedFd;

use overhear_event::{GapCause, Timestamp};
use overhear_posixtrace::{
    Attributes, EventId, FinalStatus, LogFullPolicy, LogHeader, LogItem, LogReader, LogWriter,
    LostEvents, TraceEvent, Truncation,
};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use small_disk::SmallDisk;

/// A limit on the size of files of this process, removed at the end.
struct FileSizeLimit(Rlimit);

impl FileSizeLimit {
    fn set(bytes: u64) -> Self {
        let before = getrlimit(Resource::Fsize);
        let limit = Rlimit {
            current: Some(bytes),
            maximum: before.maximum,
        };
        setrlimit(Resource::Fsize, limit).unwrap();
        Self(before)
    }
}

impl Drop for FileSizeLimit {
    fn drop(&mut self) {
        setrlimit(Resource::Fsize, self.0).unwrap();
    }
}

fn header(log_full: LogFullPolicy) -> LogHeader {
    LogHeader {
        attributes: Attributes {
            log_full,
            log_size: 4 << 20,
            ..Attributes::default()
        },
        ..LogHeader::default()
    }
}

fn event(number: u64) -> TraceEvent<'static> {
    TraceEvent {
        time: Timestamp::from_monotonic_ns(number),
        event: EventId::UNNAMED,
        pid: 1,
        tid: 1,
        thread: 1,
        address: number,
        truncation: Truncation::None,
        data: &[1; 16],
    }
}

/// Writes events from this number on, until a call fails; returns the number of events and the
/// error.
fn write_until_error(writer: &mut LogWriter, first: u64) -> (u64, i32) {
    for number in first..first + 200_000 {
        if let Err(error) = writer.event(&event(number)) {
            return (number + 1 - first, error.errno());
        }
        if number % 1_000 == 999 {
            if let Err(error) = writer.flush() {
                return (number + 1 - first, error.errno());
            }
        }
    }
    panic!("there is room for everything");
}

fn fd(file: &File) -> OwnedFd {
    file.try_clone().unwrap().into()
}

/// The numbers of the events, and the lost ones.
fn read(file: &File) -> (Vec<u64>, u64, LogReader) {
    let mut reader = LogReader::open(fd(file)).unwrap();
    let (mut numbers, mut missed_events) = (Vec::new(), 0);
    while let Some(item) = reader.next().unwrap() {
        match item {
            LogItem::Event(event) => numbers.push(event.address),
            LogItem::Lost(LostEvents { missed, cause, .. }) => {
                assert!([GapCause::Full, GapCause::Overwritten].contains(&cause));
                missed_events += missed;
            }
        }
    }
    (numbers, missed_events, reader)
}

/// Writes until there is no room, makes room, and writes again.
fn without_room(file: &File, policy: LogFullPolicy, errno: i32, make_room: impl FnOnce()) {
    let mut writer = LogWriter::create(fd(file), &header(policy)).unwrap();
    let (written, error) = write_until_error(&mut writer, 0);
    assert_eq!(error, errno);
    // The log of a killed program has everything that was flushed, and the error.
    let (numbers, _, reader) = read(file);
    assert!(numbers.len() as u64 >= (written - 1) / 1_000 * 1_000);
    assert!(numbers.is_sorted());
    let status = reader.status();
    assert_eq!((reader.is_complete(), status.flush_error), (false, errno));

    make_room();
    writer.flush().unwrap();
    let _ = writer.event(&event(written)).unwrap();
    writer.finish(&FinalStatus::default()).unwrap();
    let (numbers, missed, reader) = read(file);
    assert_eq!(numbers.last(), Some(&written));
    assert_eq!(numbers.len() as u64 + missed, written + 1);
    let status = reader.status();
    assert_eq!((reader.is_complete(), status.flush_error), (true, errno));
    assert_eq!(reader.damaged(), 0);
}

/// Without room in memory, too, further events are counted.
fn without_memory(file: &File) {
    let limit = FileSizeLimit::set(300_000);
    let mut writer = LogWriter::create(fd(file), &header(LogFullPolicy::Append)).unwrap();
    let mut total = 0;
    while total < 300_000 {
        let result = writer.event(&event(total));
        assert!(result.is_ok() || total > 1_000);
        total += 1;
    }
    drop(limit);
    writer.finish(&FinalStatus::default()).unwrap();
    let (numbers, missed, _) = read(file);
    assert_eq!(numbers.len() as u64 + missed, total);
    assert!(missed > 100_000 && numbers.len() > 100_000, "{missed}");
}

/// One test, because limits are those of the process.
#[test]
fn log_without_room_returns_the_error_and_loses_nothing() {
    let file = tempfile::tempfile().unwrap();
    for policy in [LogFullPolicy::Append, LogFullPolicy::Loop] {
        let limit = FileSizeLimit::set(300_000);
        without_room(&file, policy, libc::EFBIG, || drop(limit));
    }
    without_memory(&file);

    // A device that never has room.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let error = LogWriter::create(full.into(), &header(LogFullPolicy::Append)).unwrap_err();
    assert_eq!(error.errno(), libc::ENOSPC);
    let message = error.to_string();
    assert!(message.contains("cannot write the log"), "{message}");

    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path(), "size=512k") else {
        println!("skipped: mounting a small file system needs root");
        return;
    };
    for policy in [LogFullPolicy::Append, LogFullPolicy::Loop] {
        let (log, ballast) = (dir.path().join("log"), dir.path().join("ballast"));
        std::fs::write(&ballast, vec![1; 256 << 10]).unwrap();
        let mut options = File::options();
        let options = options.create_new(true).read(true).write(true);
        let file = options.open(&log).unwrap();
        without_room(&file, policy, libc::ENOSPC, || {
            std::fs::remove_file(&ballast).unwrap();
        });
        std::fs::remove_file(&log).unwrap();
    }
    drop(disk);
}
