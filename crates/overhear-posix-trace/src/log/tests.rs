// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs of every policy, whole, cut at every byte, damaged, and on every kind of descriptor.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};

use overhear_event::{GapCause, Timestamp};

use super::{FinalStatus, LogError, LogHeader, LogItem, LogReader, LogWriter};
use crate::{Attributes, EventId, LogFullPolicy, LostEvents, TraceEvent, Truncation};

fn header(log_full: LogFullPolicy, log_size: usize) -> LogHeader {
    LogHeader {
        attributes: Attributes {
            name: b"test \xFF".to_vec(),
            creation_ns: 5,
            clock_resolution_ns: 7,
            log_size,
            log_full,
            ..Attributes::default()
        },
        pid: 12,
        comm: "program".to_owned(),
        realtime_offset_ns: -3,
        clock_resolution_ns: 7,
    }
}

fn event(number: u64, data: &[u8]) -> TraceEvent<'_> {
    TraceEvent {
        time: Timestamp::from_monotonic_ns(1_000 + number),
        event: EventId::user(1 + number as usize % 3).unwrap(),
        pid: 12,
        tid: 13,
        thread: number << 32,
        address: number,
        truncation: match number % 5 {
            0 => Truncation::Record,
            _ => Truncation::None,
        },
        data,
    }
}

/// Data of a length that depends on the number.
fn data(number: u64) -> Vec<u8> {
    number.to_ne_bytes().repeat(8)[..(number * 7 % 60) as usize].to_vec()
}

fn write(writer: &mut LogWriter, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let _ = writer.event(&event(number, &data(number))).unwrap();
    }
}

/// Reads all; returns the numbers of the events and the losses. Other properties are compared here.
fn read(reader: &mut LogReader) -> (Vec<u64>, Vec<(u64, GapCause)>) {
    let (mut numbers, mut lost) = (Vec::new(), Vec::new());
    while let Some(item) = reader.next().unwrap() {
        match item {
            LogItem::Event(found) => {
                let number = found.address;
                assert_eq!(found, event(number, &data(number)));
                numbers.push(number);
            }
            LogItem::Lost(LostEvents { missed, cause, .. }) => lost.push((missed, cause)),
        }
    }
    (numbers, lost)
}

fn temporary() -> File {
    tempfile::tempfile().unwrap()
}

fn fd(file: &File) -> OwnedFd {
    file.try_clone().unwrap().into()
}

fn file_of(bytes: &[u8]) -> File {
    let mut file = temporary();
    file.write_all(bytes).unwrap();
    file
}

fn bytes_of(file: &File) -> Vec<u8> {
    let mut file = file.try_clone().unwrap();
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn log_in_a_file_gives_what_was_written() {
    let file = temporary();
    let header = header(LogFullPolicy::Append, 0);
    let mut writer = LogWriter::create(fd(&file), &header).unwrap();
    let names: Vec<(EventId, Vec<u8>)> = (1..4)
        .map(|index| {
            (
                EventId::user(index).unwrap(),
                format!("event {index}\u{e9}").into_bytes(),
            )
        })
        .collect();
    for (event, name) in &names {
        writer.define(*event, name).unwrap();
    }
    write(&mut writer, 0..2_000);
    let (from, to) = (
        Timestamp::from_monotonic_ns(3_000),
        Timestamp::from_monotonic_ns(3_001),
    );
    let _ = writer
        .lost(LostEvents {
            from,
            to,
            missed: 17,
            cause: GapCause::Overwritten,
        })
        .unwrap();
    write(&mut writer, 2_001..2_010);
    let status = FinalStatus {
        full: true,
        flush_error: 9,
        ..FinalStatus::default()
    };
    writer.finish(&status).unwrap();

    let mut reader = LogReader::open(fd(&file)).unwrap();
    assert_eq!(reader.header(), &header);
    assert_eq!(reader.names(), names);
    assert!(reader.is_complete());
    assert_eq!(
        reader.status(),
        FinalStatus {
            overrun: true,
            ..status
        }
    );
    for _ in 0..2 {
        let (numbers, lost) = read(&mut reader);
        assert_eq!(numbers, (0..2_000).chain(2_001..2_010).collect::<Vec<_>>());
        assert_eq!(lost, [(17, GapCause::Overwritten)]);
        reader.rewind().unwrap();
    }
    assert_eq!((reader.damaged(), reader.cut_bytes()), (0, 0));
}

#[test]
fn log_cut_at_any_byte_gives_every_whole_frame() {
    let file = temporary();
    let mut writer = LogWriter::create(fd(&file), &header(LogFullPolicy::Append, 0)).unwrap();
    writer.define(EventId::user(1).unwrap(), b"one").unwrap();
    // The size of the file after each flush, and the events in it.
    let mut flushed = Vec::new();
    for number in 0..20 {
        write(&mut writer, number..number + 1);
        writer.flush().unwrap();
        flushed.push(bytes_of(&file).len());
    }
    writer.finish(&FinalStatus::default()).unwrap();
    let bytes = bytes_of(&file);
    let mut begun = false;
    for cut in 0..=bytes.len() {
        let whole = flushed.iter().filter(|size| **size <= cut).count() as u64;
        match LogReader::open(fd(&file_of(&bytes[..cut]))) {
            Ok(mut reader) => {
                begun = true;
                assert_eq!(
                    read(&mut reader),
                    ((0..whole).collect(), vec![]),
                    "cut at {cut}"
                );
                assert!(reader.cut_bytes() as usize <= cut);
            }
            Err(error) => {
                assert!(!begun && whole == 0, "cut at {cut}");
                assert_eq!(error.errno(), libc::EINVAL);
            }
        }
    }
    assert!(begun);
}

#[test]
fn damaged_byte_costs_one_packet_at_most() {
    let file = temporary();
    let mut writer = LogWriter::create(fd(&file), &header(LogFullPolicy::Append, 0)).unwrap();
    for number in 0..8 {
        write(&mut writer, number..number + 1);
        writer.flush().unwrap();
    }
    writer.finish(&FinalStatus::default()).unwrap();
    let mut bytes = bytes_of(&file);
    for at in 0..bytes.len() {
        bytes[at] ^= 0x10;
        let mut reader = LogReader::open(fd(&file_of(&bytes))).unwrap();
        let (numbers, lost) = read(&mut reader);
        let missed: u64 = lost.iter().map(|(missed, _)| missed).sum();
        assert_eq!(numbers.len() as u64 + missed, 8, "byte {at}");
        assert!(missed <= 1 && numbers.is_sorted(), "byte {at}");
        assert_eq!(reader.damaged(), 1, "byte {at}");
        bytes[at] ^= 0x10;
    }
}

#[test]
fn until_full_stops_at_its_size() {
    let file = temporary();
    // Ten events, and the end of the log.
    let size = 10 * 76 + 48;
    let header = header(LogFullPolicy::UntilFull, size);
    let mut writer = LogWriter::create(fd(&file), &header).unwrap();
    let states: Vec<bool> = (0..12)
        .map(|number| writer.event(&event(number, &[0; 32])).unwrap().full)
        .collect();
    assert_eq!(states, [[false; 10].as_slice(), &[true; 2]].concat());
    let stop = TraceEvent {
        event: EventId::STOP,
        ..event(12, &[0; 4])
    };
    for overrun in [false, true] {
        let state = writer.event(&stop).unwrap();
        assert_eq!((state.full, state.overrun), (true, overrun));
    }
    writer.finish(&FinalStatus::default()).unwrap();
    let mut reader = LogReader::open(fd(&file)).unwrap();
    assert_eq!(reader.refused(), 3);
    assert!(reader.status().log_full && reader.status().log_overrun);
    let mut events = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        if let LogItem::Event(event) = item {
            events.push(event.event);
        }
    }
    assert_eq!((events.len(), events.last()), (11, Some(&EventId::STOP)));
}

#[test]
fn loop_keeps_the_newest_events() {
    // One event in a packet, and many.
    for (log_size, flush_each) in [(4_000, true), (4_000, false), (200_000, false), (1, true)] {
        let file = temporary();
        let header = header(LogFullPolicy::Loop, log_size);
        let mut writer = LogWriter::create(fd(&file), &header).unwrap();
        let total = 8_000.min(40 * log_size as u64);
        let mut largest = 0;
        let mut overrun = false;
        for number in 0..total {
            let data = data(number);
            overrun |= writer.event(&event(number, &data)).unwrap().overrun;
            if flush_each {
                writer.flush().unwrap();
            }
            largest = largest.max(file.metadata().unwrap().len());
        }
        let written: u64 = (0..total)
            .map(|number| 44 + data(number).len() as u64)
            .sum();
        writer.flush().unwrap();
        // As if the writer were killed, and completed.
        for complete in [false, true] {
            let mut reader = LogReader::open(fd(&file)).unwrap();
            let (numbers, lost) = read(&mut reader);
            let first = numbers[0];
            assert_eq!(numbers, (first..total).collect::<Vec<_>>());
            let kept: u64 = numbers
                .iter()
                .map(|number| 44 + data(*number).len() as u64)
                .sum();
            // At most the size, and most of it: an eighth is free for the next segment. A log of
            // one byte has an event.
            let size = log_size as u64;
            assert!(
                kept >= (size / 4 * 3).saturating_sub(300).min(written),
                "{kept} of {log_size}"
            );
            assert!(kept <= size.max(4 * 110), "{kept} of {log_size}");
            assert_eq!(reader.status().log_overrun, overrun);
            assert_eq!(overrun, first > 0);
            let overwritten = (first, GapCause::Overwritten);
            assert_eq!(lost, Vec::from_iter((first > 0).then_some(overwritten)));
            assert_eq!(reader.is_complete(), complete);
            if !complete {
                let status = FinalStatus::default();
                std::mem::replace(
                    &mut writer,
                    LogWriter::create(fd(&temporary()), &header).unwrap(),
                )
                .finish(&status)
                .unwrap();
            }
        }
        assert!(
            largest <= 30 * (48 << 10) + 4 * log_size as u64,
            "{largest}"
        );
    }
}

#[test]
fn loop_damaged_anywhere_stays_in_order() {
    let file = temporary();
    let header = header(LogFullPolicy::Loop, 600);
    let mut writer = LogWriter::create(fd(&file), &header).unwrap();
    for number in 0..60 {
        write(&mut writer, number..number + 1);
        writer.flush().unwrap();
    }
    writer.finish(&FinalStatus::default()).unwrap();
    let bytes = bytes_of(&file);
    let mut reader = LogReader::open(fd(&file)).unwrap();
    let whole = read(&mut reader).0;
    // Between the segments are holes.
    let places: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    for (index, &at) in places
        .iter()
        .enumerate()
        .filter(|(index, _)| index % 37 == 0)
    {
        let mut damaged = bytes.clone();
        damaged[at] = !damaged[at];
        let mut reader = LogReader::open(fd(&file_of(&damaged))).unwrap();
        let (numbers, lost) = read(&mut reader);
        assert!(numbers.is_sorted() && numbers.windows(2).all(|two| two[0] < two[1]));
        let missed: u64 = lost.iter().map(|(missed, _)| missed).sum();
        assert_eq!(numbers.len() as u64 + missed, 60, "byte {at} of {index}");
        assert!(numbers.len() + 2 >= whole.len(), "byte {at}: {numbers:?}");
    }
}

#[test]
fn pipes_and_sockets_take_logs_and_give_them() {
    let (pipe_out, pipe_in) = std::io::pipe().unwrap();
    let (socket_out, socket_in) = std::os::unix::net::UnixStream::pair().unwrap();
    // Non-blocking descriptors wait, too.
    rustix::io::ioctl_fionbio(&pipe_in, true).unwrap();
    rustix::io::ioctl_fionbio(&pipe_out, true).unwrap();
    let ends: [(OwnedFd, OwnedFd); 2] = [
        (pipe_out.into(), pipe_in.into()),
        (socket_out.into(), socket_in.into()),
    ];
    for (output, input) in ends {
        let error = LogWriter::check(input.as_fd(), LogFullPolicy::Loop).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
        let thread = std::thread::spawn(move || {
            let header = header(LogFullPolicy::Append, 0);
            let mut writer = LogWriter::create(input, &header).unwrap();
            writer.define(EventId::user(1).unwrap(), b"one").unwrap();
            write(&mut writer, 0..20_000);
            writer.finish(&FinalStatus::default()).unwrap();
        });
        let mut reader = LogReader::open(output).unwrap();
        assert_eq!(reader.header().pid, 12);
        assert_eq!(read(&mut reader), ((0..20_000).collect(), vec![]));
        assert_eq!(
            reader.names(),
            [(EventId::user(1).unwrap(), b"one".to_vec())]
        );
        assert!(reader.is_complete());
        assert_eq!(reader.rewind().unwrap_err().errno(), libc::EINVAL);
        thread.join().unwrap();
    }
}

#[test]
fn closed_pipe_is_an_error_and_no_signal() {
    let (output, input) = std::io::pipe().unwrap();
    let header = header(LogFullPolicy::Append, 0);
    let mut writer = LogWriter::create(input.into(), &header).unwrap();
    drop(output);
    write(&mut writer, 0..1);
    assert_eq!(writer.flush().unwrap_err().errno(), libc::EPIPE);
    // SAFETY: a set of signals is plain data, filled in by the call.
    let pending = unsafe {
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&raw mut pending);
        libc::sigismember(&raw const pending, libc::SIGPIPE)
    };
    assert_eq!(pending, 0);
}

#[test]
fn descriptors_must_fit_the_policy() {
    let errno = |result: Result<(), LogError>| result.map_err(|error| error.errno());
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    let open = |options: &mut std::fs::OpenOptions| options.open(&path).unwrap();
    let mut options = std::fs::OpenOptions::new();
    let read_only = open(options.read(true));
    let both = open(options.write(true));
    let append = open(std::fs::OpenOptions::new().append(true).read(true));
    let write_only = open(std::fs::OpenOptions::new().write(true));
    use LogFullPolicy::{Append, Loop, UntilFull};
    for policy in [Loop, UntilFull, Append] {
        let check = |file: &File| errno(LogWriter::check(file.as_fd(), policy));
        assert_eq!(check(&read_only), Err(libc::EBADF));
        assert_eq!(check(&both), Ok(()));
        let expected = match policy {
            Loop => Err(libc::EINVAL),
            _ => Ok(()),
        };
        assert_eq!(check(&append), expected);
        assert_eq!(check(&write_only), expected);
    }
    let folder = File::open("/").unwrap();
    assert_eq!(
        errno(LogWriter::check(folder.as_fd(), Append)),
        Err(libc::EBADF)
    );
    assert_eq!(
        LogReader::open(folder.into()).unwrap_err().errno(),
        libc::EINVAL
    );
    assert_eq!(
        LogReader::open(write_only.into()).unwrap_err().errno(),
        libc::EBADF
    );
    let other = file_of(b"no log at all");
    assert_eq!(
        LogReader::open(other.into()).unwrap_err().errno(),
        libc::EINVAL
    );
    assert_eq!(
        LogReader::open(temporary().into()).unwrap_err().errno(),
        libc::EINVAL
    );
}

#[test]
fn appending_descriptor_keeps_what_was_before() {
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    std::fs::write(&path, "first line\n").unwrap();
    let append = std::fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap();
    let header = header(LogFullPolicy::Append, 0);
    let mut writer = LogWriter::create(append.into(), &header).unwrap();
    write(&mut writer, 0..10);
    writer.flush().unwrap();
    writer.clear().unwrap();
    write(&mut writer, 10..20);
    writer.finish(&FinalStatus::default()).unwrap();
    assert!(std::fs::read(&path).unwrap().starts_with(b"first line\n"));
    let mut reader = LogReader::open(File::open(&path).unwrap().into()).unwrap();
    assert_eq!(read(&mut reader), ((10..20).collect(), vec![]));
}

#[test]
fn clear_begins_again() {
    for policy in [LogFullPolicy::Loop, LogFullPolicy::UntilFull] {
        let file = temporary();
        let mut writer = LogWriter::create(fd(&file), &header(policy, 3_000)).unwrap();
        writer.define(EventId::user(1).unwrap(), b"one").unwrap();
        for number in 0..100 {
            let _ = writer.event(&event(number, &data(number))).unwrap();
        }
        writer.clear().unwrap();
        let state = writer.event(&event(100, &data(100))).unwrap();
        assert_eq!((state.full, state.overrun), (false, false));
        writer.finish(&FinalStatus::default()).unwrap();
        let mut reader = LogReader::open(fd(&file)).unwrap();
        assert_eq!(read(&mut reader), (vec![100], vec![]));
        assert_eq!(reader.names().len(), 1);
        assert_eq!(reader.status(), FinalStatus::default());
    }
}

#[test]
fn loop_cut_anywhere_keeps_its_order() {
    let file = temporary();
    let mut writer = LogWriter::create(fd(&file), &header(LogFullPolicy::Loop, 600)).unwrap();
    for number in 0..200 {
        write(&mut writer, number..number + 1);
        writer.flush().unwrap();
        // As if the writer were killed here.
        let (numbers, lost) = read(&mut LogReader::open(fd(&file)).unwrap());
        let first = numbers[0];
        assert_eq!(numbers, (first..=number).collect::<Vec<_>>());
        let missed: u64 = lost.iter().map(|(missed, _)| missed).sum();
        assert_eq!(missed, first);
    }
    let bytes = bytes_of(&file);
    for cut in (0..bytes.len()).step_by(4_999) {
        let Ok(mut reader) = LogReader::open(fd(&file_of(&bytes[..cut]))) else {
            assert!(cut < 4_096);
            continue;
        };
        let (numbers, lost) = read(&mut reader);
        assert!(numbers.windows(2).all(|two| two[0] < two[1]));
        let missed: u64 = lost.iter().map(|(missed, _)| missed).sum();
        let after = numbers.last().map_or(0, |last| last + 1);
        assert_eq!(numbers.len() as u64 + missed, after.max(missed));
    }
}

#[test]
fn loop_cut_at_any_byte_of_a_write_keeps_the_newest_events() {
    let (file, size) = (temporary(), 600);
    let mut writer = LogWriter::create(fd(&file), &header(LogFullPolicy::Loop, size)).unwrap();
    let mut before = Vec::new();
    for number in 0..120 {
        write(&mut writer, number..number + 1);
        writer.flush().unwrap();
        let after = bytes_of(&file);
        if number > 90 {
            let differ = |at: &usize| before.get(*at) != Some(&after[*at]);
            let places: Vec<usize> = (0..after.len()).filter(differ).collect();
            // The write goes on from the first changed byte.
            for place in places.iter().step_by(41) {
                let mut image = before.clone();
                image.resize(image.len().max(*place), 0);
                image[..*place].copy_from_slice(&after[..*place]);
                let (numbers, _) = read(&mut LogReader::open(fd(&file_of(&image))).unwrap());
                let first = numbers[0];
                let last = *numbers.last().unwrap();
                assert!(
                    last == number || last + 1 == number,
                    "{numbers:?} at {number}"
                );
                assert_eq!(numbers, (first..=last).collect::<Vec<_>>());
                let kept: usize = numbers.iter().map(|it| 44 + data(*it).len()).sum();
                // The event itself may be written after the begin of the next segment here. The log
                // stays within its size, so it keeps room for a segment and two events with all
                // data, and has just overwritten a segment, which exceeded its part by such an
                // event.
                let (last_event, largest) = (44 + data(number).len(), 44 + 80);
                let unused = 2 * (size / 8) + 3 * largest;
                assert!(kept + last_event + unused >= size, "{kept} at {number}");
            }
        }
        before = after;
    }
}
