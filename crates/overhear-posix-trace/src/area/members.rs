// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes that share an area.

use overhear_stream::sync::{AtomicU64, Ordering};
use overhear_stream::Words as _;

use super::{Area, AreaLock, MEMBER_TABLE, SLOTS};
use crate::TraceError;

/// Processes that an area has room for.
pub(super) const COUNT: usize = 1024;
/// Words of an entry; each has a cache line of its own.
pub(super) const WORDS: usize = 8;

const PID: usize = 0;
const START_TIME: usize = 1;
const MASK: usize = 2;

/// A process that shares the area. It may have ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Member<'a> {
    /// Its number, `None` if the entry is free.
    pub(crate) fn pid(self) -> Option<u32> {
        let raw_untrusted = self.words[PID].load(Ordering::Relaxed);
        u32::try_from(raw_untrusted).ok().filter(|pid| *pid != 0)
    }

    /// The streams that trace it, a bit for each slot.
    pub(crate) fn mask(self) -> &'a AtomicU64 {
        &self.words[MASK]
    }

    /// Whether the stream of a slot traces it.
    pub(crate) fn traces(self, index: usize) -> bool {
        self.mask().load(Ordering::Relaxed) >> index & 1 == 1
    }

    /// Whether the entry is of the process that has its number now.
    pub(crate) fn is_alive(self) -> bool {
        // Relaxed: written under the lock, under which this is called.
        let start_time = self.words[START_TIME].load(Ordering::Relaxed);
        self.pid()
            .is_some_and(|pid| start_time_of(pid) == Some(start_time))
    }

    /// Gives the entry back.
    pub(crate) fn leave(self) {
        self.words[MASK].store(0, Ordering::Relaxed);
        self.words[PID].store(0, Ordering::Relaxed);
    }
}

impl Area {
    fn member(&self, index: usize) -> Member<'_> {
        Member {
            words: self.words.range(MEMBER_TABLE + index * WORDS, WORDS),
        }
    }

    /// The entries in use.
    pub(crate) fn members(&self) -> impl Iterator<Item = Member<'_>> {
        let entries = (0..COUNT).map(|index| self.member(index));
        entries.filter(|member| member.pid().is_some())
    }

    /// The entry of a process that is alive.
    pub(crate) fn member_of(&self, pid: u32, _lock: &AreaLock<'_>) -> Option<Member<'_>> {
        let mut entries = self.members();
        entries.find(|member| member.pid() == Some(pid) && member.is_alive())
    }

    /// Whether a process that is alive shares the area.
    ///
    /// # Errors
    /// Those of [`Area::lock`].
    pub(crate) fn has_member(&self, pid: u32) -> Result<bool, TraceError> {
        let lock = self.lock()?;
        Ok(self.member_of(pid, &lock).is_some())
    }

    /// Enters a process that is traced by the streams of a mask; `None` if there is no room. An
    /// entry that an earlier process of its number left is replaced.
    pub(crate) fn join(&self, pid: u32, mask: u64, lock: &AreaLock<'_>) -> Option<Member<'_>> {
        let entries = || (0..COUNT).map(|index| self.member(index));
        let stale = || self.members().find(|member| member.pid() == Some(pid));
        let free = || entries().find(|member| member.pid().is_none());
        let dead = || self.members().find(|member| !member.is_alive());
        let member = stale().or_else(free).or_else(dead)?;
        let start_time = start_time_of(pid)?;
        let mask = mask & self.active(lock);
        // Relaxed: the process itself reads its mask, others under the lock.
        member.words[START_TIME].store(start_time, Ordering::Relaxed);
        member.words[MASK].store(mask, Ordering::Relaxed);
        member.words[PID].store(pid.into(), Ordering::Relaxed);
        Some(member)
    }

    /// Ends the tracing of every process by the stream of a slot.
    pub(crate) fn untrace(&self, index: usize, _lock: &AreaLock<'_>) {
        debug_assert!(index < SLOTS);
        for member in self.members() {
            member.mask().fetch_and(!(1 << index), Ordering::Relaxed);
        }
    }
}

/// When a process started, in ticks since boot: with its number, its identity. It is the same after
/// `exec`. `None` if there is no such process, or no `/proc`.
pub(crate) fn start_time_of(pid: u32) -> Option<u64> {
    stat_field(&stat_of(pid)?, 22)
}

/// The parent of a process that runs its program, because it has not executed one since the `fork`.
pub(crate) fn forked_from(pid: u32) -> Option<u32> {
    /// `PF_FORKNOEXEC` of the kernel.
    const FORKED: u64 = 0x40;
    let stat = stat_of(pid)?;
    let is_forked = stat_field(&stat, 9)? & FORKED != 0;
    is_forked.then(|| u32::try_from(stat_field(&stat, 4)?).ok())?
}

fn stat_of(pid: u32) -> Option<Vec<u8>> {
    let path = format!("/proc/{pid}/stat");
    #[expect(
        clippy::disallowed_methods,
        reason = "a file of the kernel, not of a recording"
    )]
    std::fs::read(path).ok()
}

/// A field of `/proc/PID/stat` from the third on. The second one, the name, may contain blanks and
/// parentheses.
fn stat_field(text: &[u8], field: usize) -> Option<u64> {
    let end_of_name = text.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&text[end_of_name + 1..]).ok()?;
    rest.split_ascii_whitespace().nth(field - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_fields_follow_any_name() {
        let numbers: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let line = format!("77 (a) b (c) S {}", numbers.join(" "));
        assert_eq!(stat_field(line.as_bytes(), 22), Some(22));
        assert_eq!(stat_field(line.as_bytes(), 4), Some(4));
        assert_eq!(stat_field(b"77 (a", 22), None);
        // A test is an executed program.
        assert_eq!(forked_from(std::process::id()), None);
        let own = start_time_of(std::process::id());
        assert!(own.is_some_and(|ticks| ticks > 0));
        assert_eq!(start_time_of(0), None);
    }
}
