// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hand-over of a monitor of BPF programs to another process, as a message with descriptors.
//!
//! Needed by: a program without privileges that reads kernel events. A small service with
//! CAP_BPF and CAP_PERFMON creates the monitor, selects its threads, and gives it away. [MKM]
//! requires that the rights to a monitor can be passed on.
//!
//! A monitor consists of kernel objects: programs, maps, and the links that keep the programs
//! attached. An object exists as long as a process has a descriptor of it. So the process that has
//! all descriptors has the monitor. Recording goes on without interruption when the giver closes
//! its own descriptors. The message names the purpose of each descriptor and the position up to
//! which the giver has read each stream.
//!
//! 1. A monitor that shares its programs with other monitors of its process cannot be handed over.
//!    All of them use one page of shared words (`monitors.h`, rule 3), so the receiver could change
//!    the others, too. Nor can a monitor with probes before Linux 6.6: there each probe is a perf
//!    event that ends with the process that attached it. Later kernels have links for probes.
//! 2. The receiver checks the message. It maps a ring or the page only if the descriptor is a map
//!    of exactly the expected shape, and rings must be frozen; so no access leaves a map. Numbers
//!    out of range are refused. The receiver cannot check what the programs do: it trusts the giver
//!    for the content of the events.
//! 3. While the message is in the socket, the socket owns the descriptors. The monitor goes on
//!    recording, and ends if no process receives it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use overhear_event::kernel::is_probe;
use overhear_event::{FieldKind, TypeSchema};
use overhear_stream::Skips;

use super::map::{shape, MapShape, ARRAY, ARRAY_OF_MAPS, HASH};
use super::shared::{MONITORS, SHARED_BYTES, SLOTS};
use super::types::{FeedState, Files, HandoverMessage, ReadProgress};
use crate::fd_transfer::{self, Decoder, Encoder};
use crate::streams::{stride_of, Feed, Hook, Numbering, PAGE_BYTES};

/// Version of the message and of `struct shared`.
const VERSION: u64 = 4;

/// Rule 2 for the maps that all hooks share: whether they have the expected shapes.
fn are_shared_maps(files: &Files<OwnedFd>) -> bool {
    let is = |fd: &OwnedFd, kind, key_bytes, value_bytes, entries| {
        let wanted = MapShape {
            kind,
            key_bytes,
            value_bytes,
            entries,
        };
        shape(fd.as_fd()).is_some_and(|(shape, _)| shape == wanted)
    };
    let cgroups = shape(files.cgroups.as_fd());
    is(&files.shared, ARRAY, 4, SHARED_BYTES as u32, 1)
        && is(&files.rings, ARRAY_OF_MAPS, 4, 4, MONITORS * SLOTS)
        && cgroups.is_some_and(|(found, _)| {
            (found.kind, found.key_bytes, found.value_bytes) == (HASH, 8, 8)
        })
}

/// Encodes the message. The kind of the monitor comes before it.
pub(crate) fn pack(handover: &HandoverMessage, into: &mut Encoder) {
    into.words([VERSION]);
    into.words(handover.numbering.as_raw().map(u64::from));
    into.words([
        handover.number.into(),
        handover.moves_seen.is_some().into(),
        handover.moves_seen.unwrap_or(0),
    ]);
    into.list(handover.feeds.iter(), |into, feeds| {
        let feed = &feeds.feed;
        into.words([feeds.number, feed.hook as u32, feed.capacity].map(u64::from));
        // The schemas of all other hooks are known to the receiver.
        if feed.hook == Hook::Probe {
            pack_probe(feed, into);
        }
        for progress in &feeds.progress {
            into.words([
                progress.position,
                progress.refused,
                progress.nested_seen,
                progress.inherit_seen,
                progress.last_ns,
                progress.skips.count,
                progress.skips.at,
                progress.skips.runs,
                progress.damaged.into(),
            ]);
        }
    });
    into.words([handover.links as u64]);
    into.list(handover.writers.iter(), |into, hook| {
        into.words([*hook as u64]);
    });
    into.list(handover.points.iter(), |into, slot| {
        into.words([u64::from(*slot)]);
    });
    into.list(handover.baseline.iter(), |into, (slot, count)| {
        into.words([u64::from(*slot), *count]);
    });
    into.bytes(handover.message.as_bytes());
}

fn pack_probe(feed: &Feed, into: &mut Encoder) {
    into.words([u64::from(feed.slot)]);
    for text in [&feed.sensor, &feed.instance, feed.schema.id()] {
        into.bytes(text.as_bytes());
    }
    into.list(feed.schema.fields().iter(), |into, field| {
        into.bytes(field.name.as_bytes());
        into.words([field.kind.as_raw(), field.kind.size()].map(u64::from));
        into.bytes(field.unit.as_bytes());
    });
}

/// The received message, checked; `None` if it is not a valid one.
pub(crate) fn unpack(
    body_untrusted: Decoder<'_>,
    files_untrusted: Vec<OwnedFd>,
) -> Option<(HandoverMessage, Files<OwnedFd>)> {
    let handover = parse(body_untrusted)?;
    let files = Files::sorted(files_untrusted, &handover)?;
    are_shared_maps(&files).then_some((handover, files))
}

fn parse(mut body_untrusted: Decoder<'_>) -> Option<HandoverMessage> {
    let from = &mut body_untrusted;
    if from.word()? != VERSION {
        return None;
    }
    let numbering = Numbering::unpack(from, SLOTS)?;
    let max_feeds = numbering.as_raw()[2];
    let number = from.up_to(u64::from(MONITORS - 1))? as u32;
    let (has_moves, moves) = (from.flag()?, from.word()?);
    let mut feeds: Vec<FeedState> = Vec::new();
    for one in from.list(|from| parse_feed(from, numbering))? {
        // Feeds and slots are unique, because stream numbers are derived from them.
        let is_known =
            |known: &FeedState| known.number == one.number || known.feed.slot == one.feed.slot;
        if feeds.iter().any(is_known) {
            return None;
        }
        feeds.push(one);
    }
    let links = from.up_to(fd_transfer::MAX_FILES as u64)? as usize;
    let writers = from.list(parse_hook)?;
    let parse_slot = |from: &mut Decoder<'_>| Some(from.up_to(u64::from(SLOTS - 1))? as u32);
    let points = from.list(parse_slot)?;
    let baseline = from.list(|from| Some((parse_slot(from)?, from.word()?)))?;
    let message = from.text()?;
    (from.is_empty() && feeds.len() <= max_feeds as usize).then(|| HandoverMessage {
        numbering,
        number,
        moves_seen: has_moves.then_some(moves),
        feeds,
        links,
        writers,
        points,
        baseline: baseline.into_iter().collect(),
        message,
    })
}

fn parse_hook(from: &mut Decoder<'_>) -> Option<Hook> {
    let value = from.word()?;
    let mut all = Hook::SCHED.into_iter().chain(Hook::OPTIONAL);
    all.find(|hook| *hook as u64 == value)
        .or_else(|| (value == Hook::Probe as u64).then_some(Hook::Probe))
}

fn parse_feed(from: &mut Decoder<'_>, numbering: Numbering) -> Option<FeedState> {
    let [_, cpus, feeds] = numbering.as_raw();
    let number = from.up_to(u64::from(feeds.checked_sub(1)?))? as u32;
    let hook = parse_hook(from)?;
    let capacity = from.up_to(65_536)? as u32;
    if !capacity.is_power_of_two() || capacity < 8 {
        return None;
    }
    let feed = match hook {
        Hook::Probe => parse_probe(from, capacity)?,
        hook => hook.feed(capacity),
    };
    let mut progress = Vec::new();
    for _ in 0..cpus {
        progress.push(ReadProgress {
            position: from.word()?,
            refused: from.word()?,
            nested_seen: from.word()?,
            inherit_seen: from.word()?,
            last_ns: from.word()?,
            skips: Skips {
                count: from.word()?,
                at: from.word()?,
                runs: from.word()?,
            },
            damaged: from.flag()?,
        });
    }
    Some(FeedState {
        number,
        feed,
        progress,
    })
}

fn parse_probe(from: &mut Decoder<'_>, capacity: u32) -> Option<Feed> {
    let slot = from.up_to(u64::from(SLOTS - 1))? as u32;
    let (sensor, instance, id) = (from.text()?, from.text()?, from.text()?);
    let fields = from.list(|from| {
        let name = from.text()?;
        let kind = FieldKind::from_raw(from.half()?, from.half()?)?;
        Some((name, kind, from.text()?))
    })?;
    let mut schema = TypeSchema::builder(&id);
    for (name, kind, unit) in fields {
        schema = schema.field(&name, kind, &unit);
    }
    let schema = schema.build().ok()?;
    // No element straddles a page.
    let has_room = stride_of(&schema) <= PAGE_BYTES;
    let is_probe = slot >= Hook::Probe as u32 && is_probe(&sensor);
    (has_room && is_probe).then(|| Feed {
        hook: Hook::Probe,
        slot,
        sensor,
        instance,
        schema: Arc::new(schema),
        capacity,
    })
}

#[cfg(test)]
mod tests {
    use overhear_event::kernel::events;
    use overhear_event::StreamId;

    use super::{Arc, AsFd, Decoder, Encoder, Feed, Hook, Numbering};
    use super::{FeedState, HandoverMessage, ReadProgress, Skips};

    fn pack(handover: &HandoverMessage) -> Vec<u8> {
        let mut packer = Encoder::default();
        super::pack(handover, &mut packer);
        packer.0
    }

    fn parse(bytes: &[u8]) -> Option<HandoverMessage> {
        super::parse(Decoder::new(bytes))
    }

    fn handover() -> HandoverMessage {
        let progress = |position| ReadProgress {
            position,
            refused: 1,
            nested_seen: 2,
            skips: Skips {
                count: 9,
                at: 5,
                runs: 2,
            },
            inherit_seen: 3,
            last_ns: 4,
            damaged: false,
        };
        let feeds = |number, hook: Hook| FeedState {
            number,
            feed: match hook {
                Hook::Probe => Feed {
                    slot: hook as u32 + number,
                    sensor: "usdt/app/phase".to_owned(),
                    instance: "server".to_owned(),
                    schema: Arc::new(events::static_probe_schema([true, false])),
                    ..hook.feed(1024)
                },
                hook => hook.feed(1024),
            },
            progress: vec![progress(7), progress(8)],
        };
        HandoverMessage {
            numbering: Numbering::new(StreamId::from_raw(5), 2, 4),
            number: 3,
            moves_seen: Some(9),
            feeds: vec![
                feeds(0, Hook::Switch),
                feeds(1, Hook::Irq),
                feeds(2, Hook::Probe),
                feeds(3, Hook::Probe),
            ],
            links: 12,
            writers: vec![Hook::Switch, Hook::Life, Hook::Irq],
            points: vec![21],
            baseline: [(Hook::Life as u32, 6)].into(),
            message: "kernel sensors: BPF".to_owned(),
        }
    }

    #[test]
    fn packed_message_is_unpacked() {
        assert_eq!(parse(&pack(&handover())), Some(handover()));
    }

    #[test]
    fn files_other_than_maps_are_refused() {
        let file = || rustix::fs::memfd_create("no map", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let handover = handover();
        let whole = pack(&handover);
        let programs = handover.writers.len() + handover.points.len();
        let expected =
            super::super::types::FIXED_FILES + handover.feeds.len() + handover.links + programs;
        for files in [0, 1, expected, expected + 1] {
            let files = (0..files).map(|_| file()).collect();
            assert!(super::unpack(Decoder::new(&whole), files).is_none());
        }
        assert!(!super::super::map::is_ring_map(file().as_fd(), 4096, 1));
    }

    #[test]
    fn other_messages_are_refused() {
        let whole = pack(&handover());
        for bytes in 0..whole.len() {
            assert_eq!(parse(&whole[..bytes]), None, "{bytes} bytes");
        }
        // Every changed word is either refused or changes only numbers and names.
        for at in 0..whole.len() - 8 {
            let mut changed = whole.clone();
            changed[at..at + 8].fill(0xff);
            if let Some(understood) = parse(&changed) {
                assert_eq!(understood.feeds.len(), handover().feeds.len());
            }
        }
    }
}
