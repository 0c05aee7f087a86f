// SPDX-License-Identifier: MIT OR Apache-2.0
//! From one process to another: a monitor as a message with descriptors.
//!
//! All that a monitor is lies in objects of the kernel, which last as long as anybody has a descriptor of
//! them: links that keep the programs attached, the programs, the maps. So whoever has them all has the
//! monitor, and when the giver closes its own it has lost it, without an instant at which nobody
//! records. The message says what each descriptor is, and how far the giver has read.
//!
//! 1. A monitor that shares its programs with others of its process cannot be given: the receiver
//!    could reach those, too, because the words that say who is tracked are one page
//!    (`monitors.h`, rule 3). Nor can probes on kernels before 6.6, where each place is a perf event that
//!    ends with who attached it; later ones have links for them.
//! 2. What comes is not believed. A ring or the page is mapped only if the descriptor is a map of the
//!    very shape that is needed (and rings are frozen), so that no access leaves a map; numbers that
//!    do not fit are refused. What cannot be told from outside is whether the programs do what
//!    they should: a receiver trusts the giver with what it hears, as it must anyway.
//! 3. While the message is under way the socket has the descriptors: the monitor goes on recording, and
//!    ends if nobody takes it.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use overhear_event::kernel::is_probe;
use overhear_event::{FieldKind, TypeSchema};

use super::host::NotEntered;
use super::shared::{MONITORS, SHARED_BYTES, SLOTS};
use crate::machine;
use crate::passing::{self, Packer, Unpacker};
use crate::streams::{stride_of, Feed, Hook, Numbering, PAGE_BYTES};

/// Changes with the message and with what programs and owner share.
const VERSION: u64 = 3;
/// Descriptors before those of rings, links and programs: four maps and `select`.
const FIXED: usize = 5;

/// How far a stream was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) position: u64,
    pub(crate) refused: u64,
    pub(crate) nested_seen: u64,
    pub(crate) inherit_seen: u64,
    pub(crate) last_ns: u64,
    pub(crate) damaged: bool,
}

/// What a monitor hears of one hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    /// The number of the feed, by which its streams are numbered.
    pub(crate) number: u32,
    pub(crate) feed: Feed,
    /// By CPU.
    pub(crate) progress: Vec<Progress>,
}

/// All that is said of a monitor beside its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parcel {
    pub(crate) numbering: Numbering,
    /// The monitor's among those that the programs serve.
    pub(crate) number: u32,
    pub(crate) moves_seen: Option<u64>,
    pub(crate) heard: Vec<Heard>,
    pub(crate) links: usize,
    /// Whose rings each of the programs writes to.
    pub(crate) writers: Vec<Hook>,
    /// Likewise of the programs of points, by the number of the rings.
    pub(crate) points: Vec<u32>,
    pub(crate) before: NotEntered,
    /// The status.
    pub(crate) sentence: String,
}

/// The descriptors of a monitor, in the order in which they are sent.
pub(crate) struct Files<T> {
    pub(crate) shared: T,
    pub(crate) rings: T,
    pub(crate) tracked: T,
    pub(crate) cgroups: T,
    pub(crate) select: T,
    /// By feed.
    pub(crate) buffers: Vec<T>,
    pub(crate) links: Vec<T>,
    pub(crate) writers: Vec<T>,
    pub(crate) points: Vec<T>,
}

impl<'a> Files<BorrowedFd<'a>> {
    pub(crate) fn in_order(self) -> Vec<BorrowedFd<'a>> {
        let mut all = vec![
            self.shared,
            self.rings,
            self.tracked,
            self.cgroups,
            self.select,
        ];
        all.extend(self.buffers);
        all.extend(self.links);
        all.extend(self.writers);
        all.extend(self.points);
        all
    }
}

impl Files<OwnedFd> {
    /// Sorts what came by what the parcel says; `None` if the numbers differ.
    fn sorted(files: Vec<OwnedFd>, parcel: &Parcel) -> Option<Self> {
        let programs = parcel.writers.len() + parcel.points.len();
        let expected = FIXED + parcel.heard.len() + parcel.links + programs;
        if files.len() != expected {
            return None;
        }
        let mut files = files.into_iter();
        let mut next = || files.next();
        let [shared, rings, tracked, cgroups, select] =
            [next()?, next()?, next()?, next()?, next()?];
        let mut several = |count| (0..count).map(|_| next()).collect::<Option<Vec<_>>>();
        Some(Self {
            shared,
            rings,
            tracked,
            cgroups,
            select,
            buffers: several(parcel.heard.len())?,
            links: several(parcel.links)?,
            writers: several(parcel.writers.len())?,
            points: several(parcel.points.len())?,
        })
    }
}

/// What the kernel says of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
}

/// Of a descriptor that may be anything; `None` if it is no map.
fn shape(fd: BorrowedFd<'_>) -> Option<(Shape, String)> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    let number = |key| machine::field(&info, key)?.parse().ok();
    let shape = Shape {
        kind: number("map_type:")?,
        key_bytes: number("key_size:")?,
        value_bytes: number("value_size:")?,
        entries: number("max_entries:")?,
    };
    Some((shape, info))
}

const ARRAY: u32 = 2;
const ARRAY_OF_MAPS: u32 = 12;
const HASH: u32 = 1;

/// Rule 2, for a ring map of so many values of a page.
pub(crate) fn is_ring_map(fd: BorrowedFd<'_>, page_bytes: u32, pages: u32) -> bool {
    let wanted = Shape {
        kind: ARRAY,
        key_bytes: 4,
        value_bytes: page_bytes,
        entries: pages,
    };
    let frozen = |info: &str| machine::field(info, "frozen:") == Some("1");
    shape(fd).is_some_and(|(shape, info)| shape == wanted && frozen(&info))
}

/// Rule 2, for the maps that all hooks share.
fn are_shared_maps(files: &Files<OwnedFd>) -> bool {
    let is = |fd: &OwnedFd, kind, key_bytes, value_bytes, entries| {
        let wanted = Shape {
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

/// The message behind the word that says what kind of monitor it is.
pub(crate) fn pack(parcel: &Parcel, into: &mut Packer) {
    into.words([VERSION]);
    into.words(parcel.numbering.as_raw().map(u64::from));
    into.words([
        parcel.number.into(),
        parcel.moves_seen.is_some().into(),
        parcel.moves_seen.unwrap_or(0),
    ]);
    into.list(parcel.heard.iter(), |into, heard| {
        let feed = &heard.feed;
        into.words([heard.number, feed.hook as u32, feed.capacity].map(u64::from));
        // What the others consist of is known.
        if feed.hook == Hook::Probe {
            pack_probe(feed, into);
        }
        for progress in &heard.progress {
            into.words([
                progress.position,
                progress.refused,
                progress.nested_seen,
                progress.inherit_seen,
                progress.last_ns,
                progress.damaged.into(),
            ]);
        }
    });
    into.words([parcel.links as u64]);
    into.list(parcel.writers.iter(), |into, hook| {
        into.words([*hook as u64]);
    });
    into.list(parcel.points.iter(), |into, slot| {
        into.words([u64::from(*slot)]);
    });
    into.list(parcel.before.iter(), |into, (slot, count)| {
        into.words([u64::from(*slot), *count]);
    });
    into.bytes(parcel.sentence.as_bytes());
}

fn pack_probe(feed: &Feed, into: &mut Packer) {
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

/// What came, checked; `None` if it is not to be understood.
pub(crate) fn unpack(
    body_untrusted: Unpacker<'_>,
    files_untrusted: Vec<OwnedFd>,
) -> Option<(Parcel, Files<OwnedFd>)> {
    let parcel = parse(body_untrusted)?;
    let files = Files::sorted(files_untrusted, &parcel)?;
    are_shared_maps(&files).then_some((parcel, files))
}

fn parse(mut body_untrusted: Unpacker<'_>) -> Option<Parcel> {
    let from = &mut body_untrusted;
    if from.word()? != VERSION {
        return None;
    }
    let numbering = Numbering::unpack(from, SLOTS)?;
    let feeds = numbering.as_raw()[2];
    let number = from.up_to(u64::from(MONITORS - 1))? as u32;
    let (has_moves, moves) = (from.flag()?, from.word()?);
    let mut heard: Vec<Heard> = Vec::new();
    for one in from.list(|from| parse_heard(from, numbering))? {
        // Each once: their streams are numbered by them.
        let is_known =
            |known: &Heard| known.number == one.number || known.feed.slot == one.feed.slot;
        if heard.iter().any(is_known) {
            return None;
        }
        heard.push(one);
    }
    let links = from.up_to(passing::MOST_FILES as u64)? as usize;
    let writers = from.list(parse_hook)?;
    let parse_slot = |from: &mut Unpacker<'_>| Some(from.up_to(u64::from(SLOTS - 1))? as u32);
    let points = from.list(parse_slot)?;
    let before = from.list(|from| Some((parse_slot(from)?, from.word()?)))?;
    let sentence = from.text()?;
    (from.is_empty() && heard.len() <= feeds as usize).then(|| Parcel {
        numbering,
        number,
        moves_seen: has_moves.then_some(moves),
        heard,
        links,
        writers,
        points,
        before: before.into_iter().collect(),
        sentence,
    })
}

fn parse_hook(from: &mut Unpacker<'_>) -> Option<Hook> {
    let value = from.word()?;
    let mut all = Hook::SCHED.into_iter().chain(Hook::MORE);
    all.find(|hook| *hook as u64 == value)
        .or_else(|| (value == Hook::Probe as u64).then_some(Hook::Probe))
}

fn parse_heard(from: &mut Unpacker<'_>, numbering: Numbering) -> Option<Heard> {
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
        progress.push(Progress {
            position: from.word()?,
            refused: from.word()?,
            nested_seen: from.word()?,
            inherit_seen: from.word()?,
            last_ns: from.word()?,
            damaged: from.flag()?,
        });
    }
    Some(Heard {
        number,
        feed,
        progress,
    })
}

fn parse_probe(from: &mut Unpacker<'_>, capacity: u32) -> Option<Feed> {
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

    use super::{Arc, AsFd, Feed, Hook, Numbering, Packer, Unpacker};
    use super::{Heard, Parcel, Progress};

    fn pack(parcel: &Parcel) -> Vec<u8> {
        let mut packer = Packer::default();
        super::pack(parcel, &mut packer);
        packer.0
    }

    fn parse(bytes: &[u8]) -> Option<Parcel> {
        super::parse(Unpacker::new(bytes))
    }

    fn parcel() -> Parcel {
        let progress = |position| Progress {
            position,
            refused: 1,
            nested_seen: 2,
            inherit_seen: 3,
            last_ns: 4,
            damaged: false,
        };
        let heard = |number, hook: Hook| Heard {
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
        Parcel {
            numbering: Numbering::new(StreamId::from_raw(5), 2, 4),
            number: 3,
            moves_seen: Some(9),
            heard: vec![
                heard(0, Hook::Switch),
                heard(1, Hook::Irq),
                heard(2, Hook::Probe),
                heard(3, Hook::Probe),
            ],
            links: 12,
            writers: vec![Hook::Switch, Hook::Life, Hook::Irq],
            points: vec![21],
            before: [(Hook::Life as u32, 6)].into(),
            sentence: "kernel sensors: BPF".to_owned(),
        }
    }

    #[test]
    fn what_is_packed_is_unpacked() {
        assert_eq!(parse(&pack(&parcel())), Some(parcel()));
    }

    #[test]
    fn files_that_are_no_maps_are_refused() {
        let file = || rustix::fs::memfd_create("no map", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let parcel = parcel();
        let whole = pack(&parcel);
        let programs = parcel.writers.len() + parcel.points.len();
        let expected = super::FIXED + parcel.heard.len() + parcel.links + programs;
        for files in [0, 1, expected, expected + 1] {
            let files = (0..files).map(|_| file()).collect();
            assert!(super::unpack(Unpacker::new(&whole), files).is_none());
        }
        assert!(!super::is_ring_map(file().as_fd(), 4096, 1));
    }

    #[test]
    fn nothing_else_is_understood() {
        let whole = pack(&parcel());
        for bytes in 0..whole.len() {
            assert_eq!(parse(&whole[..bytes]), None, "{bytes} bytes");
        }
        // Whatever stands anywhere, it is refused or changes nothing but numbers and names.
        for at in 0..whole.len() - 8 {
            let mut changed = whole.clone();
            changed[at..at + 8].fill(0xff);
            if let Some(understood) = parse(&changed) {
                assert_eq!(understood.heard.len(), parcel().heard.len());
            }
        }
    }
}
