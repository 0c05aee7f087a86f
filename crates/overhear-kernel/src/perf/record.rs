// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses the records of a perf ring. Pure: bytes in, records out.

use crate::fd_transfer::Decoder;

/// An event of a thread, from a record with the trailer `{pid, tid, time, cpu}` that
/// `sample_id_all` appends to every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub(super) time_ns: u64,
    pub(super) what: RecordKind,
}

/// The thread and process of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadIds {
    pub(super) pid: u32,
    pub(super) tid: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    Departure {
        thread: ThreadIds,
        still_runnable: bool,
    },
    Arrival {
        thread: ThreadIds,
    },
    Fork {
        child: ThreadIds,
        parent: ThreadIds,
    },
    Exit {
        thread: ThreadIds,
    },
    Name {
        thread: ThreadIds,
        comm: [u8; 16],
        exec: bool,
    },
    /// Memory with code was mapped. Every program that is executed maps its own.
    Mapping {
        thread: ThreadIds,
    },
    /// Not a record of the kernel: a thread is tracked individually from here on.
    Tracked {
        thread: ThreadIds,
        unique_id: u32,
    },
    /// Not a record of the kernel: a thread is no longer tracked.
    Untracked {
        thread: ThreadIds,
    },
    /// Number of records that found no room in the ring before this one.
    Lost {
        records: u64,
    },
    /// The remaining bytes do not have the form of records. The kernel does not do this. The number
    /// of records in them cannot be known, so they count as one.
    Damaged,
    /// A record that does not concern us.
    Other,
}

impl Record {
    /// The record as words, for another process: kind and time, thread ids, two numbers, a name.
    pub(super) fn to_words(self) -> [u64; 8] {
        let none = ThreadIds { pid: 0, tid: 0 };
        let (kind, thread, other, number, comm) = match self.what {
            RecordKind::Departure {
                thread,
                still_runnable,
            } => (0, thread, none, still_runnable.into(), [0; 16]),
            RecordKind::Arrival { thread } => (1, thread, none, 0, [0; 16]),
            RecordKind::Fork { child, parent } => (2, child, parent, 0, [0; 16]),
            RecordKind::Exit { thread } => (3, thread, none, 0, [0; 16]),
            RecordKind::Name { thread, comm, exec } => (4, thread, none, exec.into(), comm),
            RecordKind::Tracked { thread, unique_id } => {
                (5, thread, none, unique_id.into(), [0; 16])
            }
            RecordKind::Untracked { thread } => (6, thread, none, 0, [0; 16]),
            RecordKind::Lost { records } => (7, none, none, records, [0; 16]),
            RecordKind::Damaged => (8, none, none, 0, [0; 16]),
            RecordKind::Other => (9, none, none, 0, [0; 16]),
            RecordKind::Mapping { thread } => (10, thread, none, 0, [0; 16]),
        };
        let pair = |thread: ThreadIds| u64::from(thread.pid) << 32 | u64::from(thread.tid);
        let [first, second] = [0, 8].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&comm[at..at + 8]);
            u64::from_le_bytes(word)
        });
        let ids = [pair(thread), pair(other)];
        [kind, self.time_ns, ids[0], ids[1], number, first, second, 0]
    }

    /// Decodes words of another process; `None` if they are no record.
    pub(super) fn of_words(from_untrusted: &mut Decoder<'_>) -> Option<Self> {
        let mut words = [0; 8];
        for word in &mut words {
            *word = from_untrusted.word()?;
        }
        let [kind, time_ns, thread, other, number, first, second, _] = words;
        let pair = |word: u64| ThreadIds {
            pid: (word >> 32) as u32,
            tid: word as u32,
        };
        let (thread, other) = (pair(thread), pair(other));
        let mut comm = [0; 16];
        comm[..8].copy_from_slice(&first.to_le_bytes());
        comm[8..].copy_from_slice(&second.to_le_bytes());
        let what = match kind {
            0 => RecordKind::Departure {
                thread,
                still_runnable: number != 0,
            },
            1 => RecordKind::Arrival { thread },
            2 => RecordKind::Fork {
                child: thread,
                parent: other,
            },
            3 => RecordKind::Exit { thread },
            4 => RecordKind::Name {
                thread,
                comm,
                exec: number != 0,
            },
            5 => RecordKind::Tracked {
                thread,
                unique_id: number as u32,
            },
            6 => RecordKind::Untracked { thread },
            7 => RecordKind::Lost { records: number },
            8 => RecordKind::Damaged,
            9 => RecordKind::Other,
            10 => RecordKind::Mapping { thread },
            _ => return None,
        };
        Some(Self { time_ns, what })
    }
}

/// The bytes do not have the form of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

const RECORD_MMAP: u32 = 1;
const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;
const RECORD_SWITCH: u32 = 14;
const MISC_COMM_EXEC: u16 = 1 << 13;
const MISC_SWITCH_OUT: u16 = 1 << 13;
const MISC_SWITCH_OUT_PREEMPT: u16 = 1 << 14;
const HEADER_BYTES: usize = 8;
const TRAILER_BYTES: usize = 24;

/// The first record, and the bytes after it.
pub(super) fn split_first(bytes: &[u8]) -> Result<(Record, &[u8]), Malformed> {
    let kind = word(bytes, 0)?;
    let misc = half(bytes, 4)?;
    let size = usize::from(half(bytes, 6)?);
    if size < HEADER_BYTES || size % 8 != 0 {
        return Err(Malformed);
    }
    let (record, rest) = bytes.split_at_checked(size).ok_or(Malformed)?;
    let (time_ns, what) = match kind {
        RECORD_MMAP | RECORD_LOST | RECORD_COMM | RECORD_EXIT | RECORD_FORK | RECORD_SWITCH => {
            known(kind, misc, record)?
        }
        _ => (0, RecordKind::Other),
    };
    Ok((Record { time_ns, what }, rest))
}

fn known(kind: u32, misc: u16, record: &[u8]) -> Result<(u64, RecordKind), Malformed> {
    let trailer = record
        .len()
        .checked_sub(TRAILER_BYTES)
        .filter(|&trailer| trailer >= HEADER_BYTES)
        .ok_or(Malformed)?;
    let time_ns = double(record, trailer + 8)?;
    let body = &record[HEADER_BYTES..trailer];
    let what = match kind {
        RECORD_SWITCH => {
            let thread = thread_ids(record, trailer, trailer + 4)?;
            if misc & MISC_SWITCH_OUT == 0 {
                RecordKind::Arrival { thread }
            } else {
                RecordKind::Departure {
                    thread,
                    still_runnable: misc & MISC_SWITCH_OUT_PREEMPT != 0,
                }
            }
        }
        // Both have pid, ppid, tid, ptid.
        RECORD_FORK => RecordKind::Fork {
            child: thread_ids(body, 0, 8)?,
            parent: thread_ids(body, 4, 12)?,
        },
        RECORD_EXIT => RecordKind::Exit {
            thread: thread_ids(body, 0, 8)?,
        },
        RECORD_COMM => {
            let mut comm = [0; 16];
            let name = body.get(8..).ok_or(Malformed)?;
            // The kernel pads the name with zeros to a multiple of 8.
            for (to, from) in comm.iter_mut().zip(name) {
                *to = *from;
            }
            RecordKind::Name {
                thread: thread_ids(body, 0, 4)?,
                comm,
                exec: misc & MISC_COMM_EXEC != 0,
            }
        }
        // It begins with pid and tid; the rest, the place and the file of the mapping, is not
        // needed.
        RECORD_MMAP => RecordKind::Mapping {
            thread: thread_ids(body, 0, 4)?,
        },
        // RECORD_LOST: the event's id, then the count.
        _ => RecordKind::Lost {
            records: double(body, 8)?,
        },
    };
    Ok((time_ns, what))
}

fn thread_ids(bytes: &[u8], pid: usize, tid: usize) -> Result<ThreadIds, Malformed> {
    Ok(ThreadIds {
        pid: word(bytes, pid)?,
        tid: word(bytes, tid)?,
    })
}

fn take<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], Malformed> {
    let bytes = bytes.get(offset..).ok_or(Malformed)?;
    bytes.first_chunk().copied().ok_or(Malformed)
}

fn half(bytes: &[u8], offset: usize) -> Result<u16, Malformed> {
    take(bytes, offset).map(u16::from_ne_bytes)
}

fn word(bytes: &[u8], offset: usize) -> Result<u32, Malformed> {
    take(bytes, offset).map(u32::from_ne_bytes)
}

fn double(bytes: &[u8], offset: usize) -> Result<u64, Malformed> {
    take(bytes, offset).map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::{split_first, Decoder, Malformed, Record, RecordKind, ThreadIds};

    fn record(kind: u32, misc: u16, body: &[u8], pid: u32, tid: u32, time: u64) -> Vec<u8> {
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend(((8 + body.len() + 24) as u16).to_ne_bytes());
        bytes.extend(body);
        bytes.extend(pid.to_ne_bytes());
        bytes.extend(tid.to_ne_bytes());
        bytes.extend(time.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes
    }

    #[test]
    fn records_of_every_kind() {
        let four: Vec<u8> = [1_u32, 2, 3, 4]
            .iter()
            .flat_map(|w| w.to_ne_bytes())
            .collect();
        let with_time = [four.clone(), 9_u64.to_ne_bytes().to_vec()].concat();
        let name = [&four[..8], b"thread-one\0\0\0\0\0\0"].concat();
        let mut bytes = record(14, 1 << 13 | 1 << 14, &[], 7, 8, 100);
        bytes.extend(record(14, 0, &[], 7, 8, 101));
        bytes.extend(record(7, 0, &with_time, 1, 1, 102));
        bytes.extend(record(4, 0, &with_time, 1, 1, 103));
        bytes.extend(record(3, 1 << 13, &name, 1, 1, 104));
        bytes.extend(record(2, 0, &four, 1, 1, 105));
        bytes.extend(record(99, 0, &[], 1, 1, 106));
        bytes.extend(record(1, 0, &[&four[..], &[0; 32]].concat(), 1, 1, 107));
        let mut rest = bytes.as_slice();
        let mut seen = Vec::new();
        while !rest.is_empty() {
            let (record, after) = split_first(rest).unwrap();
            seen.push(record);
            rest = after;
        }
        let child = ThreadIds { pid: 1, tid: 3 };
        let thread = ThreadIds { pid: 7, tid: 8 };
        let expected = [
            RecordKind::Departure {
                thread,
                still_runnable: true,
            },
            RecordKind::Arrival { thread },
            RecordKind::Fork {
                child,
                parent: ThreadIds { pid: 2, tid: 4 },
            },
            RecordKind::Exit { thread: child },
            RecordKind::Name {
                thread: ThreadIds { pid: 1, tid: 2 },
                comm: *b"thread-one\0\0\0\0\0\0",
                exec: true,
            },
            RecordKind::Lost {
                records: 3 | 4 << 32,
            },
            RecordKind::Other,
            RecordKind::Mapping {
                thread: ThreadIds { pid: 1, tid: 2 },
            },
        ];
        assert_eq!(seen.iter().map(|r| r.what).collect::<Vec<_>>(), expected);
        // All kinds of records, encoded as words.
        let more = [
            RecordKind::Tracked {
                thread,
                unique_id: 5,
            },
            RecordKind::Untracked { thread },
            RecordKind::Damaged,
        ];
        let more = more.map(|what| Record { time_ns: 9, what });
        for record in seen.iter().copied().chain(more) {
            let words = record.to_words();
            let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            let again = Record::of_words(&mut Decoder::new(&bytes));
            assert_eq!(again, Some(record));
        }
        assert_eq!(seen[5].time_ns, 105);
    }

    #[test]
    fn prefixes_are_refused_without_panic() {
        let whole = record(7, 0, &[0; 24], 1, 1, 1);
        for length in 0..whole.len() {
            assert_eq!(split_first(&whole[..length]), Err(Malformed));
        }
        for size in 0..40_u16 {
            let mut short = record(7, 0, &[0; 24], 1, 1, 1);
            short[6..8].copy_from_slice(&size.to_ne_bytes());
            assert_eq!(split_first(&short), Err(Malformed));
        }
    }
}
