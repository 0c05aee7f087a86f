// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hand-over of a monitor of perf records to another process, as a message with descriptors.
//! `bpf/hand_over.rs` names the use.
//!
//! An event exists as long as a process has a descriptor of it. A ring exists only as long as a
//! process has it mapped: with the last mapping the kernel takes the ring away from its events, and
//! their records are lost, uncounted. So for a while both processes have it mapped:
//!
//! 1. The giver copies the records from the rings. It sends the undelivered ones, the positions of
//!    its streams, the followed threads, and the purpose of each descriptor. From then on it reads
//!    nothing.
//! 2. The receiver maps the rings, and acknowledges.
//! 3. Only then the giver releases the rings. Without the acknowledgement, the giver keeps the
//!    monitor.
//!
//! The receiver checks the message. Each descriptor must be a perf event, because in another file a
//! word of a ring could be beyond the end of the file. Each size must be a valid size of a ring.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::record::Record;
use super::ring::{is_ring_size, CpuRing, Names, RingProgress, ThreadStates};
use super::PerfSource;
use crate::fd_transfer::{self, Decoder, Encoder};
use crate::machine;
use crate::sampler::Sampler;
use crate::streams::Numbering;
use crate::{GiveError, ReceiveError};

/// First word of a message about a monitor of perf records.
pub(crate) const KIND: u64 = 2;
/// Version of the message.
const VERSION: u64 = 3;
/// Maximum number of feeds of a monitor.
const MAX_FEEDS: u32 = 64;

/// State of a ring. Its descriptors are that of the anchor and those of the events, in the order of
/// `events`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RingState {
    cpu: u32,
    data_bytes: u64,
    progress: RingProgress,
    /// The followed threads of its events.
    events: Vec<u32>,
    pending: Vec<Record>,
}

/// Everything about a monitor except its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HandoverMessage {
    numbering: Numbering,
    active: bool,
    /// Threads that are tracked individually, with their processes.
    threads: Vec<(u32, u32)>,
    names: Vec<(u32, [u8; 16])>,
    /// Threads that have executed a program of which nothing was mapped yet.
    executing: Vec<u32>,
    /// The processes that the sampler samples, and the number of samples that it has delivered.
    sampled: (Vec<u32>, u64),
    rings: Vec<RingState>,
    message: String,
}

impl HandoverMessage {
    fn pack(&self) -> Vec<u8> {
        let mut into = Encoder::default();
        into.words([KIND, VERSION]);
        into.words(self.numbering.as_raw().map(u64::from));
        into.words([self.active.into()]);
        let word = |into: &mut Encoder, word: &u32| into.words([u64::from(*word)]);
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
        into.bytes(self.message.as_bytes());
        into.0
    }

    /// Decodes the message after its first word, the kind of the monitor.
    fn unpack(mut body_untrusted: Decoder<'_>) -> Option<Self> {
        let from = &mut body_untrusted;
        if from.word()? != VERSION {
            return None;
        }
        let numbering = Numbering::unpack(from, MAX_FEEDS)?;
        let active = from.flag()?;
        let threads = from.list(|from| Some((from.half()?, from.half()?)))?;
        let names = from.list(|from| Some((from.half()?, from.bytes()?.try_into().ok()?)))?;
        let executing = from.list(Decoder::half)?;
        let sampled = (from.list(Decoder::half)?, from.word()?);
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
            Some(RingState {
                cpu,
                data_bytes,
                progress,
                events: from.list(Decoder::half)?,
                pending: from.list(Record::of_words)?,
            })
        })?;
        // Each CPU at most once: it determines the stream numbers.
        let cpus: BTreeSet<u32> = rings.iter().map(|ring| ring.cpu).collect();
        let handover = Self {
            numbering,
            active,
            threads,
            names,
            executing,
            sampled,
            message: from.text()?,
            rings,
        };
        (from.is_empty() && cpus.len() == handover.rings.len()).then_some(handover)
    }
}

impl PerfSource {
    /// Hands the monitor over, and waits until it is received; on failure it stays here.
    pub(crate) fn give(&mut self, to: BorrowedFd<'_>, message: &str) -> Result<(), GiveError> {
        if self.finished {
            return Err(GiveError::Finished);
        }
        self.rings.iter_mut().for_each(CpuRing::fetch);
        let handover = self.handover(message);
        let files: Vec<BorrowedFd<'_>> = (self.rings.iter())
            .flat_map(|ring| {
                let events = ring.events.iter().map(|(_, event)| event.as_fd());
                std::iter::once(ring.anchor.as_fd()).chain(events)
            })
            .collect();
        let taken = fd_transfer::send_message(to, &handover.pack(), &files)
            .and_then(|()| fd_transfer::await_ack(to));
        taken.map_err(|error| GiveError::Send {
            why: match error.kind() {
                io::ErrorKind::UnexpectedEof => "the other side has closed the socket".to_owned(),
                _ => machine::error_text(error),
            },
        })
    }

    fn handover(&self, message: &str) -> HandoverMessage {
        let rings = self.rings.iter().map(|ring| RingState {
            cpu: ring.cpu,
            data_bytes: ring.data_bytes as u64,
            progress: ring.progress(),
            events: ring.events.iter().map(|(tid, _)| *tid).collect(),
            pending: ring.pending.clone(),
        });
        let names = &self.threads_state.names.0;
        HandoverMessage {
            numbering: self.numbering,
            active: self.active,
            threads: self.threads_state.sampler.threads().collect(),
            names: names.iter().map(|(tid, name)| (*tid, *name)).collect(),
            executing: self.threads_state.executing.iter().copied().collect(),
            sampled: self.threads_state.sampler.progress(),
            rings: rings.collect(),
            message: message.to_owned(),
        }
    }

    /// Receives a monitor that another process hands over, and the message of its status.
    pub(crate) fn receive(
        from: BorrowedFd<'_>,
        body_untrusted: Decoder<'_>,
        files_untrusted: Vec<OwnedFd>,
    ) -> Result<(Self, Numbering, String), ReceiveError> {
        let invalid_message = || ReceiveError::InvalidMessage;
        let refused = |error: io::Error| ReceiveError::Refused {
            why: machine::error_text(error),
        };
        let handover = HandoverMessage::unpack(body_untrusted).ok_or_else(invalid_message)?;
        let expected: usize = handover
            .rings
            .iter()
            .map(|ring| 1 + ring.events.len())
            .sum();
        let are_events = files_untrusted.iter().all(is_perf_event);
        if files_untrusted.len() != expected || !are_events {
            return Err(ReceiveError::InvalidMessage);
        }
        let numbering = handover.numbering;
        let (mut files, mut rings) = (files_untrusted.into_iter(), Vec::new());
        for one in handover.rings {
            let anchor = files.next().ok_or_else(invalid_message)?;
            let bytes = one.data_bytes as usize;
            let ring = CpuRing::received(anchor, bytes, one.cpu, numbering, one.progress);
            let mut ring = ring.map_err(refused)?;
            ring.events = one.events.into_iter().zip(files.by_ref()).collect();
            ring.pending = one.pending;
            rings.push(ring);
        }
        fd_transfer::send_ack(from).map_err(refused)?;
        let source = Self {
            rings,
            threads_state: ThreadStates {
                names: Names(handover.names.into_iter().collect()),
                sampler: Sampler::resumed(handover.sampled, handover.threads),
                executing: handover.executing.into_iter().collect(),
            },
            numbering,
            sampler_descriptor: numbering.describe_sampler(),
            active: handover.active,
            opened: false,
            finished: false,
            closed: false,
        };
        Ok((source, numbering, handover.message))
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

    use super::super::record::{RecordKind, ThreadIds};
    use super::{Decoder, HandoverMessage, Numbering, Record, RingProgress, RingState};

    fn handover() -> HandoverMessage {
        let thread = ThreadIds { pid: 7, tid: 8 };
        let ring = |cpu| RingState {
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
                    what: RecordKind::Arrival { thread },
                },
                Record {
                    time_ns: 11,
                    what: RecordKind::Name {
                        thread,
                        comm: *b"thread-one\0\0\0\0\0\0",
                        exec: true,
                    },
                },
            ],
        };
        HandoverMessage {
            numbering: Numbering::new(StreamId::from_raw(5), 2, 3),
            active: true,
            threads: vec![(8, 7)],
            names: vec![(8, *b"thread-one\0\0\0\0\0\0")],
            executing: vec![8],
            sampled: (vec![7], 12),
            rings: vec![ring(0), ring(1)],
            message: "kernel sensors: perf".to_owned(),
        }
    }

    fn unpack(bytes: &[u8]) -> Option<HandoverMessage> {
        let mut from = Decoder::new(bytes);
        from.word()?;
        HandoverMessage::unpack(from)
    }

    #[test]
    fn packed_message_is_unpacked_and_others_refused() {
        let whole = handover().pack();
        assert_eq!(unpack(&whole), Some(handover()));
        for bytes in 0..whole.len() {
            assert_eq!(unpack(&whole[..bytes]), None, "{bytes} bytes");
        }
        // Every changed word is either refused or changes only numbers.
        for at in 0..whole.len() - 8 {
            let mut changed = whole.clone();
            changed[at..at + 8].fill(0xff);
            if let Some(understood) = unpack(&changed) {
                assert_eq!(understood.rings.len(), 2);
            }
        }
        let mut twice = handover();
        twice.rings[1].cpu = 0;
        assert_eq!(unpack(&twice.pack()), None);
    }
}
