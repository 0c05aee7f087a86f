// SPDX-License-Identifier: MIT OR Apache-2.0
//! Assigns the streams of a merge to checks for missing context switches: one check per source.

use overhear_event::kernel::{Life, Switch, SCHED_SWITCH, TASK_LIFE};
use overhear_event::{Origin, StreamDescriptor, StreamId};

use crate::continuity::{Continuity, CpuIndex, Scope};
use crate::merge::QueueMemory;

/// The role of a stream in a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It is not checked.
    Unwatched,
    /// The switches of a CPU.
    Switches { watch: u32, cpu: CpuIndex },
    /// Lives of threads, on any CPU.
    Lives { watch: u32 },
}

/// The check of one source's streams, which share threads and CPUs.
#[derive(Debug)]
struct SourceCheck {
    /// `None` if no stream is left: the entry is free.
    source: Option<u32>,
    continuity: Continuity,
    /// The switches of each CPU.
    streams: Vec<StreamId>,
}

impl Default for SourceCheck {
    /// A free entry.
    fn default() -> Self {
        Self {
            source: None,
            continuity: Continuity::without_memory(),
            streams: Vec::new(),
        }
    }
}

/// The checks of a merge.
#[derive(Debug, Default)]
pub(crate) struct ContinuityChecks {
    watches: Vec<SourceCheck>,
    /// The source whose streams are being opened.
    source: u32,
}

impl ContinuityChecks {
    /// Largest number of sources with streams at the same time.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.watches.len()
    }

    /// Streams that are opened from now on are of this source.
    pub(crate) fn begin_source(&mut self, source: u32) {
        self.source = source;
    }

    /// The role of a new stream.
    pub(crate) fn open(&mut self, stream: &StreamDescriptor, room: QueueMemory) -> Role {
        if !matches!(stream.origin, Origin::Kernel { .. }) {
            return Role::Unwatched;
        }
        match stream.sensor.as_str() {
            SCHED_SWITCH if stream.schema.size() == Switch::schema().size() => {
                let watch = self.check_of_source(room);
                let SourceCheck {
                    continuity,
                    streams,
                    ..
                } = &mut self.watches[watch as usize];
                // A stream that is opened again is another one: the first element proves nothing.
                streams.push(stream.id);
                let cpu = continuity.add_cpu();
                Role::Switches { watch, cpu }
            }
            TASK_LIFE if stream.schema.size() == Life::schema().size() => Role::Lives {
                watch: self.check_of_source(room),
            },
            _ => Role::Unwatched,
        }
    }

    fn check_of_source(&mut self, room: QueueMemory) -> u32 {
        let index = |source| (self.watches.iter()).position(|watch| watch.source == source);
        if let Some(known) = index(Some(self.source)) {
            return known as u32;
        }
        let free = index(None).unwrap_or(self.watches.len());
        let continuity = Continuity::new(Scope::Tracked);
        let watch = SourceCheck {
            source: Some(self.source),
            continuity: match room {
                QueueMemory::Growing => continuity,
                QueueMemory::Reserved => continuity.with_fixed_memory(),
            },
            streams: Vec::new(),
        };
        match self.watches.get_mut(free) {
            Some(index) => *index = watch,
            None => self.watches.push(watch),
        }
        free as u32
    }

    /// Takes an element, unless it proves that others are missing; then nothing changes.
    #[inline(always)]
    pub(crate) fn take(&mut self, role: Role, payload: &[u8]) -> bool {
        if let Role::Switches { watch, cpu } = role {
            let Some(switch) = Switch::parse(payload) else {
                return true;
            };
            let continuity = &mut self.watches[watch as usize].continuity;
            return continuity.follow(cpu, &switch);
        }
        self.take_life(role, payload);
        true
    }

    #[inline(never)]
    fn take_life(&mut self, role: Role, payload: &[u8]) {
        if let (Role::Lives { watch }, Some(life)) = (role, Life::parse(payload)) {
            self.watches[watch as usize].continuity.life(&life);
        }
    }

    /// The first stream that lacks a switch, as an element that was not taken proves it; and its
    /// role.
    pub(crate) fn next_hole(&self, role: Role, payload: &[u8]) -> Option<(StreamId, Role)> {
        let (Role::Switches { watch, cpu }, Some(switch)) = (role, Switch::parse(payload)) else {
            return None;
        };
        let of_source = &self.watches[watch as usize];
        let cpu = of_source.continuity.holes(cpu, &switch).iter().next()?;
        let stream = of_source.streams[cpu.get()];
        Some((stream, Role::Switches { watch, cpu }))
    }

    /// Keeps the entries of these roles and frees the others.
    #[cold]
    pub(crate) fn retain(&mut self, roles: impl Iterator<Item = Role> + Clone) {
        for (number, watch) in (0..).zip(&mut self.watches) {
            let is_used = roles.clone().any(|role| match role {
                Role::Unwatched => false,
                Role::Switches { watch, .. } | Role::Lives { watch } => watch == number,
            });
            if !is_used {
                *watch = SourceCheck::default();
            }
        }
    }

    /// Notes a counted gap in a stream.
    pub(crate) fn gap(&mut self, role: Role) {
        match role {
            Role::Unwatched => {}
            Role::Switches { watch, cpu } => self.watches[watch as usize].continuity.gap(cpu),
            Role::Lives { watch } => self.watches[watch as usize].continuity.forget(),
        }
    }
}
