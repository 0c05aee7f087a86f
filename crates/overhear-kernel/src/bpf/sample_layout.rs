// SPDX-License-Identifier: MIT OR Apache-2.0
//! The settings and the words that the programs of a sampler have (`samples.h`).

use overhear_event::SamplePoint;
use overhear_stream::sync::Ordering;
use overhear_stream::Words;

use crate::mapping::MappedWords;
use crate::samples::{ResolvedSampler, MAX_QUANTITIES};

/// Settings before those of the quantities.
const SETTINGS: usize = 29;

/// The settings as words, in the order of `struct sampler`.
pub(crate) struct SampleSettings([u64; SETTINGS + MAX_QUANTITIES]);

/// What the settings say of the rings.
pub(crate) struct RingShape {
    /// Words of an element with its stamp.
    pub(crate) words: u32,
    pub(crate) stride_shift: u32,
    /// Pages of a ring.
    pub(crate) pages: u32,
    pub(crate) capacity: u64,
}

impl SampleSettings {
    pub(crate) fn new(sampler: &ResolvedSampler, shape: &RingShape, mask_interrupts: bool) -> Self {
        let points = [
            (SamplePoint::Switch, sampler.at_switches),
            (SamplePoint::WakeUp, sampler.at_wake_ups),
            (SamplePoint::SystemCallEntry, sampler.at_entries),
            (SamplePoint::SystemCallExit, sampler.at_exits),
        ];
        let points = points.iter().filter(|(_, is_chosen)| *is_chosen);
        let points: u64 = points.map(|(point, _)| 1 << point.as_raw()).sum();
        let call = |number: libc::c_long| u64::from(u32::try_from(number).unwrap_or(u32::MAX));
        let ends = &sampler.job_ends;
        let settings: [u64; SETTINGS] = [
            mask_interrupts.into(),
            shape.words.into(),
            shape.stride_shift.into(),
            shape.pages.into(),
            shape.capacity - 1,
            rustix::param::page_size() as u64,
            points,
            ends.kinds.as_raw(),
            sampler.least_distance.as_ns(),
            sampler.period.map_or(0, |period| period.as_ns()),
            sampler.has_two_series().into(),
            sampler.samples_within_slices().into(),
            sampler.quantities.len() as u64,
            sampler.counters().count() as u64,
            ends.futex,
            ends.is_futex_relative.into(),
            ends.file.0,
            ends.file.1,
            ends.descriptor.into(),
            call(libc::SYS_sched_yield),
            call(libc::SYS_nanosleep),
            call(libc::SYS_clock_nanosleep),
            call(libc::SYS_futex),
            call(libc::SYS_read),
            call(libc::SYS_readv),
            call(libc::SYS_pread64),
            call(libc::SYS_preadv),
            call(libc::SYS_recvfrom),
            call(libc::SYS_recvmsg),
        ];
        let mut words = [0; SETTINGS + MAX_QUANTITIES];
        words[..SETTINGS].copy_from_slice(&settings);
        for (word, quantity) in words[SETTINGS..].iter_mut().zip(&sampler.quantities) {
            *word = quantity.source();
        }
        Self(words)
    }

    pub(crate) fn as_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }
}

/// Words that a sampler shares with its programs, in the order of `struct sampler_words`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SamplerWord {
    Live = 0,
    Active = 1,
    Off = 2,
    Operation = 3,
    Inherit = 4,
    Held = 5,
    Seen = 6,
    Changed = 7,
    Failed = 8,
    Exits = 9,
    Ends = 10,
    Unread = 11,
}

/// Size of the words in bytes.
pub(crate) const SAMPLER_WORDS_BYTES: usize = 12 * 8;

/// Operation of the program `select` on the tasks that it visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SamplerOperation {
    Follow = 1,
    Leave = 2,
}

/// Access to the words. As in [`SharedPage`](super::shared::SharedPage), no word orders other
/// memory.
pub(crate) struct SamplerWords(pub(crate) MappedWords);

impl SamplerWords {
    pub(crate) fn load(&self, word: SamplerWord) -> u64 {
        self.0.word(word as usize).load(Ordering::Relaxed)
    }

    pub(crate) fn store(&self, word: SamplerWord, value: u64) {
        self.0.word(word as usize).store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use crate::samples::MAX_COUNTERS;

    use super::{SamplePoint, SamplerWord, MAX_QUANTITIES, SAMPLER_WORDS_BYTES, SETTINGS};

    const HEADER: &str = include_str!("samples.h");

    fn body(begin: &str) -> &str {
        let (_, body) = HEADER.split_once(begin).unwrap();
        body.split_once("};").unwrap().0
    }

    fn members(begin: &str) -> Vec<&str> {
        let lines = body(begin).lines().map(str::trim);
        let members = lines.filter_map(|line| line.strip_prefix("u64 "));
        members
            .map(|line| line.split_once(';').unwrap().0)
            .collect()
    }

    #[test]
    fn c_settings_have_the_same_number_of_words() {
        let members = members("struct sampler {");
        assert_eq!(members.len(), SETTINGS + 1);
        assert_eq!(members[SETTINGS], "source[MAX_QUANTITIES]");
        // The order of a few, of which the rest follows.
        for (place, name) in [
            (3, "pages"),
            (6, "points"),
            (13, "counters"),
            (18, "descriptor"),
        ] {
            assert_eq!(members[place], name);
        }
        assert_eq!(members[SETTINGS - 1], "call_recvmsg");
        assert!(HEADER.contains(&format!("MAX_QUANTITIES = {MAX_QUANTITIES},")));
        assert!(HEADER.contains(&format!("MAX_COUNTERS = {MAX_COUNTERS},")));
    }

    #[test]
    fn c_words_have_the_same_order() {
        let members = members("struct sampler_words {");
        assert_eq!(members.len() * 8, SAMPLER_WORDS_BYTES);
        for (name, word) in [
            ("live", SamplerWord::Live),
            ("active", SamplerWord::Active),
            ("off", SamplerWord::Off),
            ("operation", SamplerWord::Operation),
            ("inherit", SamplerWord::Inherit),
            ("held", SamplerWord::Held),
            ("seen", SamplerWord::Seen),
            ("changed", SamplerWord::Changed),
            ("failed", SamplerWord::Failed),
            ("exits", SamplerWord::Exits),
            ("ends", SamplerWord::Ends),
            ("unread", SamplerWord::Unread),
        ] {
            assert_eq!(members[word as usize], name);
        }
    }

    #[test]
    fn c_points_have_the_numbers_of_samples() {
        let points = body("enum point {");
        for (name, point) in [
            ("SWITCH", SamplePoint::Switch),
            ("WAKE_UP", SamplePoint::WakeUp),
            ("CALL_ENTRY", SamplePoint::SystemCallEntry),
            ("CALL_EXIT", SamplePoint::SystemCallExit),
            ("TIMER", SamplePoint::Timer),
            ("PROBE", SamplePoint::Probe),
            ("JOB_END", SamplePoint::JobEnd),
            ("THREAD_END", SamplePoint::ThreadEnd),
        ] {
            let line = format!("POINT_{name} = {},", point.as_raw());
            assert!(points.contains(&line), "samples.h lacks `{line}`");
        }
    }
}
