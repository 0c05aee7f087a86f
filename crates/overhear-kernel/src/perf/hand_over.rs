// SPDX-License-Identifier: MIT OR Apache-2.0
//! From one process to another: a monitor of perf records as a message with descriptors.
//!
//! An event lasts as long as anybody has a descriptor of it. But a ring lasts only as long as somebody has
//! it mapped: the kernel takes it away from its events with the last mapping, and what they record then is
//! nowhere, uncounted. So both have it mapped for a while:
//!
//! 1. The giver copies what is in the rings, and says what it has not delivered yet, how far its streams
//!    are, whom it follows, and what the descriptors are. From here on it reads no more.
//! 2. The receiver maps the rings, and answers.
//! 3. Only then does the giver let go. If there is no answer the monitor is still the giver's.
//!
//! What comes is not believed: descriptors must be perf events, or a word of a ring could lie behind the end
//! of a file; sizes are those that rings can have.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::record::Record;
use super::ring::{is_ring_size, CpuRing, Knowledge, Names, RingProgress};
use super::PerfSource;
use crate::machine;
use crate::passing::{self, Packer, Unpacker};
use crate::schedstat::Clerk;
use crate::streams::Numbering;
use crate::{GiveError, ReceiveError};

/// What a message about a monitor of perf records begins with.
pub(crate) const KIND: u64 = 2;
/// Changes with the message.
const VERSION: u64 = 3;
/// As many feeds as a monitor can have.
const MOST_FEEDS: u32 = 64;

/// What is said of a ring. Its descriptors are the anchor's and those of the events, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RingParcel {
    cpu: u32,
    data_bytes: u64,
    progress: RingProgress,
    /// Whose events there are.
    events: Vec<u32>,
    pending: Vec<Record>,
}

/// All that is said beside the descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parcel {
    numbering: Numbering,
    active: bool,
    /// Those that are monitored by themselves, with their processes.
    threads: Vec<(u32, u32)>,
    names: Vec<(u32, [u8; 16])>,
    /// Those that have executed a program of which nothing was mapped yet.
    executing: Vec<u32>,
    /// The processes that the clerk samples, and how many samples it has handed out.
    sampled: (Vec<u32>, u64),
    rings: Vec<RingParcel>,
    sentence: String,
}

impl Parcel {
    fn pack(&self) -> Vec<u8> {
        let mut into = Packer::default();
        into.words([KIND, VERSION]);
        into.words(self.numbering.as_raw().map(u64::from));
        into.words([self.active.into()]);
        let word = |into: &mut Packer, word: &u32| into.words([u64::from(*word)]);
        into.list(self.threads.iter(), |into, (tid, pid)| {
            into.words([*tid, *pid].map(u64::from));
        });
        into.list(self.names.iter(), |into, (tid, name)| {
            into.words([u64::from(*tid)]);
            into.bytes(name);
        });
        into.list(self.executing.iter(), word);
        into.list(self.sampled.0.iter(), word);
        into.words([self.sampled.1]);
        into.list(self.rings.iter(), |into, ring| {
            into.words([ring.cpu.into(), ring.data_bytes]);
            into.words(ring.progress.outputs.into_iter().flatten());
            into.words([ring.progress.lost_seen, ring.progress.lost_by_closed]);
            into.list(ring.events.iter(), word);
            into.list(ring.pending.iter(), |into, record| {
                into.words(record.to_words());
            });
        });
        into.bytes(self.sentence.as_bytes());
        into.0
    }

    /// Behind the word that says what kind of monitor it is.
    fn unpack(mut body_untrusted: Unpacker<'_>) -> Option<Self> {
        let from = &mut body_untrusted;
        if from.word()? != VERSION {
            return None;
        }
        let numbering = Numbering::unpack(from, MOST_FEEDS)?;
        let active = from.flag()?;
        let threads = from.list(|from| Some((from.half()?, from.half()?)))?;
        let names = from.list(|from| Some((from.half()?, from.bytes()?.try_into().ok()?)))?;
        let executing = from.list(Unpacker::half)?;
        let sampled = (from.list(Unpacker::half)?, from.word()?);
        let rings = from.list(|from| {
            let cpu = from.half().filter(|cpu| *cpu < numbering.cpus())?;
            let data_bytes = from.word().filter(|bytes| is_ring_size(*bytes))?;
            let mut words = [0; 6];
            for word in &mut words {
                *word = from.word()?;
            }
            let [switches, switch_ns, lives, life_ns, lost_seen, lost_by_closed] = words;
            let progress = RingProgress {
                outputs: [[switches, switch_ns], [lives, life_ns]],
                lost_seen,
                lost_by_closed,
            };
            Some(RingParcel {
                cpu,
                data_bytes,
                progress,
                events: from.list(Unpacker::half)?,
                pending: from.list(Record::of_words)?,
            })
        })?;
        // Each once: their streams are numbered by them.
        let cpus: BTreeSet<u32> = rings.iter().map(|ring| ring.cpu).collect();
        let parcel = Self {
            numbering,
            active,
            threads,
            names,
            executing,
            sampled,
            sentence: from.text()?,
            rings,
        };
        (from.is_empty() && cpus.len() == parcel.rings.len()).then_some(parcel)
    }
}

impl PerfSource {
    /// Hands the monitor over, and waits until it is taken; on failure it stays.
    pub(crate) fn give(&mut self, to: BorrowedFd<'_>, sentence: &str) -> Result<(), GiveError> {
        if self.finished {
            return Err(GiveError::Finished);
        }
        self.rings.iter_mut().for_each(CpuRing::fetch);
        let parcel = self.parcel(sentence);
        let files: Vec<BorrowedFd<'_>> = (self.rings.iter())
            .flat_map(|ring| {
                let events = ring.events.iter().map(|(_, event)| event.as_fd());
                std::iter::once(ring.anchor.as_fd()).chain(events)
            })
            .collect();
        let taken = passing::pass(to, &parcel.pack(), &files)
            .and_then(|()| passing::await_acknowledgement(to));
        taken.map_err(|error| GiveError::Send {
            why: match error.kind() {
                io::ErrorKind::UnexpectedEof => "the other side has closed the socket".to_owned(),
                _ => machine::error_text(error),
            },
        })
    }

    fn parcel(&self, sentence: &str) -> Parcel {
        let rings = self.rings.iter().map(|ring| RingParcel {
            cpu: ring.cpu,
            data_bytes: ring.data_bytes as u64,
            progress: ring.progress(),
            events: ring.events.iter().map(|(tid, _)| *tid).collect(),
            pending: ring.pending.clone(),
        });
        let names = &self.knowledge.names.0;
        Parcel {
            numbering: self.numbering,
            active: self.active,
            threads: self.knowledge.clerk.threads().collect(),
            names: names.iter().map(|(tid, name)| (*tid, *name)).collect(),
            executing: self.knowledge.executing.iter().copied().collect(),
            sampled: self.knowledge.clerk.progress(),
            rings: rings.collect(),
            sentence: sentence.to_owned(),
        }
    }

    /// Takes a monitor that another process hands over, and the sentence of its status.
    pub(crate) fn receive(
        from: BorrowedFd<'_>,
        body_untrusted: Unpacker<'_>,
        files_untrusted: Vec<OwnedFd>,
    ) -> Result<(Self, Numbering, String), ReceiveError> {
        let misunderstood = || ReceiveError::Misunderstood;
        let refused = |error: io::Error| ReceiveError::Refused {
            why: machine::error_text(error),
        };
        let parcel = Parcel::unpack(body_untrusted).ok_or_else(misunderstood)?;
        let expected: usize = parcel.rings.iter().map(|ring| 1 + ring.events.len()).sum();
        let are_events = files_untrusted.iter().all(is_perf_event);
        if files_untrusted.len() != expected || !are_events {
            return Err(ReceiveError::Misunderstood);
        }
        let numbering = parcel.numbering;
        let (mut files, mut rings) = (files_untrusted.into_iter(), Vec::new());
        for one in parcel.rings {
            let anchor = files.next().ok_or_else(misunderstood)?;
            let bytes = one.data_bytes as usize;
            let ring = CpuRing::received(anchor, bytes, one.cpu, numbering, one.progress);
            let mut ring = ring.map_err(refused)?;
            ring.events = one.events.into_iter().zip(files.by_ref()).collect();
            ring.pending = one.pending;
            rings.push(ring);
        }
        passing::acknowledge(from).map_err(refused)?;
        let source = Self {
            rings,
            knowledge: Knowledge {
                names: Names(parcel.names.into_iter().collect()),
                clerk: Clerk::resumed(parcel.sampled, parcel.threads),
                executing: parcel.executing.into_iter().collect(),
            },
            numbering,
            clerk_descriptor: numbering.describe_clerk(),
            active: parcel.active,
            opened: false,
            finished: false,
            closed: false,
        };
        Ok((source, numbering, parcel.sentence))
    }
}

fn is_perf_event(file: &OwnedFd) -> bool {
    let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    name.is_ok_and(|name| name.as_os_str() == "anon_inode:[perf_event]")
}

#[cfg(test)]
mod tests {
    use overhear_event::StreamId;
    use rustix::param::page_size;

    use super::super::record::{What, Who};
    use super::{Numbering, Parcel, Record, RingParcel, RingProgress, Unpacker};

    fn parcel() -> Parcel {
        let who = Who { pid: 7, tid: 8 };
        let ring = |cpu| RingParcel {
            cpu,
            data_bytes: 8 * page_size() as u64,
            progress: RingProgress {
                outputs: [[1, 2], [3, 4]],
                lost_seen: 5,
                lost_by_closed: 6,
            },
            events: vec![8, 9],
            pending: vec![
                Record {
                    time_ns: 10,
                    what: What::Arrival { who },
                },
                Record {
                    time_ns: 11,
                    what: What::Name {
                        who,
                        comm: *b"thread-one\0\0\0\0\0\0",
                        exec: true,
                    },
                },
            ],
        };
        Parcel {
            numbering: Numbering::new(StreamId::from_raw(5), 2, 3),
            active: true,
            threads: vec![(8, 7)],
            names: vec![(8, *b"thread-one\0\0\0\0\0\0")],
            executing: vec![8],
            sampled: (vec![7], 12),
            rings: vec![ring(0), ring(1)],
            sentence: "kernel sensors: perf".to_owned(),
        }
    }

    fn unpack(bytes: &[u8]) -> Option<Parcel> {
        let mut from = Unpacker::new(bytes);
        from.word()?;
        Parcel::unpack(from)
    }

    #[test]
    fn what_is_packed_is_unpacked_and_nothing_else() {
        let whole = parcel().pack();
        assert_eq!(unpack(&whole), Some(parcel()));
        for bytes in 0..whole.len() {
            assert_eq!(unpack(&whole[..bytes]), None, "{bytes} bytes");
        }
        // Whatever stands anywhere, it is refused or changes nothing but numbers.
        for at in 0..whole.len() - 8 {
            let mut changed = whole.clone();
            changed[at..at + 8].fill(0xff);
            if let Some(understood) = unpack(&changed) {
                assert_eq!(understood.rings.len(), 2);
            }
        }
        let mut twice = parcel();
        twice.rings[1].cpu = 0;
        assert_eq!(unpack(&twice.pack()), None);
    }
}
