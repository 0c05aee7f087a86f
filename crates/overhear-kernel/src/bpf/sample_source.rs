// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SampleSource`]: a sampler in the kernel, with its rings and streams.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use overhear_event::{GapCause, Inbox, SourceError, StreamId};
use overhear_stream::Reader;

use super::program_set::recursion_misses;
use super::rings::Rings;
use super::sample_layout::{RingShape, SampleSettings, SamplerOperation, SamplerWord};
use super::sample_programs::SamplePrograms;
use super::select::{visit, Target};
use super::stream::KernelStream;
use super::{name, Phase, FOLLOW_PASSES, LAST_DEPARTURE_STEP};
use crate::machine;
use crate::samples::{ResolvedSampler, SamplerError};
use crate::streams::{Feed, Hook, Numbering};
use crate::{BudgetState, KernelWrites, SelectError};

/// Maximum time that `finish` waits for last samples, in steps: 2 s. A missing one is a gap, and
/// its counts are in no total.
const LAST_SAMPLE_STEPS: u32 = 4_000;

/// A sampler: its programs, and its rings.
pub(crate) struct SampleSource {
    /// `None` after the end.
    programs: Option<SamplePrograms>,
    streams: Vec<KernelStream>,
    rings: Rings,
    numbering: Numbering,
    phase: Phase,
    /// Problems of the end, until the next poll.
    problems: Vec<String>,
    /// Samples that were not taken, because the kernel skipped the program or a thread has not left
    /// its CPU in time; until the next poll.
    not_taken: u64,
}

impl SampleSource {
    /// Loads the programs of a sampler, suspended.
    pub(crate) fn start(
        sampler: &ResolvedSampler,
        first: StreamId,
        mask_interrupts: bool,
    ) -> Result<Self, SamplerError> {
        let numbering = Numbering::new(first, machine::possible_cpus(), 1);
        // A sampler has a schema of its own, as a probe has, and rings in no slot of a monitor.
        let feed = Feed {
            hook: Hook::Probe,
            slot: Hook::Probe as u32,
            sensor: sampler.name.clone(),
            instance: String::new(),
            schema: Arc::clone(&sampler.schema),
            capacity: sampler.elements,
        };
        let refused = |why: String| SamplerError::Refused {
            name: sampler.name.clone(),
            why,
        };
        let rings = Rings::create(0, &feed, numbering);
        let rings = rings.map_err(|error| {
            let why = machine::error_text(error);
            refused(format!("its rings could not be made ({why})"))
        })?;
        let geometry = rings.geometry();
        let shape = RingShape {
            words: (8 + sampler.schema.size()).div_ceil(8),
            stride_shift: feed.stride_bytes().trailing_zeros(),
            pages: rings.pages,
            capacity: geometry.capacity(),
        };
        let settings = SampleSettings::new(sampler, &shape, mask_interrupts);
        let programs = SamplePrograms::start(sampler, &settings, &rings)?;
        let streams = (0..numbering.cpus()).map(|cpu| {
            let reader = Reader::from_start(rings.of_cpu(cpu), geometry);
            let reader = reader.map_err(|error| refused(error.to_string()))?;
            let descriptor = numbering.describe(0, &feed, cpu, geometry.capacity());
            Ok(KernelStream::new(descriptor, &feed, reader))
        });
        let streams = streams.collect::<Result<Vec<_>, _>>()?;
        programs.words.store(SamplerWord::Live, 1);
        Ok(Self {
            programs: Some(programs),
            streams,
            rings,
            numbering,
            phase: Phase::New,
            problems: Vec::new(),
            not_taken: 0,
        })
    }

    /// Number of reserved stream numbers.
    pub(crate) const fn stream_ids_used(&self) -> u32 {
        self.numbering.used()
    }

    /// Size of all rings in bytes.
    pub(crate) fn granted_bytes(&self) -> u64 {
        self.rings.element_bytes()
    }

    /// Number of samples that the programs have committed to a stream.
    pub(crate) fn committed(&self, id: StreamId) -> Option<u64> {
        let stream = self.streams.iter().find(|s| s.descriptor.id == id)?;
        Some(stream.reader.published())
    }

    /// Resumes or suspends the sampler. Accounts go on.
    pub(crate) fn set_active(&mut self, active: bool) {
        if let Some(programs) = &self.programs {
            programs.words.store(SamplerWord::Active, active.into());
        }
    }

    /// Totals of the sampler.
    pub(crate) fn writes(&self) -> Option<KernelWrites> {
        let first = self.streams.first()?;
        Some(KernelWrites {
            descriptor: Arc::clone(&first.descriptor),
            written: self.streams.iter().map(|it| it.reader.published()).sum(),
            skipped: self.streams.iter().map(KernelStream::skipped).sum(),
            is_detachable: false,
            is_attached: true,
        })
    }

    /// Whether this is the sampler with this first stream; then a budget switches it. While it is
    /// off, differences are kept for the next sample.
    pub(crate) fn switch(&mut self, id: StreamId, to: BudgetState) -> bool {
        let is_this = self.numbering.id(0, 0) == id;
        if let (true, Some(programs)) = (is_this, &self.programs) {
            let is_off = to != BudgetState::On;
            programs.words.store(SamplerWord::Off, is_off.into());
        }
        is_this
    }

    /// Follows all threads of a process, and all threads and processes that they create. A held
    /// process is followed from its execve on.
    pub(crate) fn follow(&mut self, pid: u32, is_held: bool) -> Result<(), SelectError> {
        match self.follow_all(Target::Process(pid), true, is_held)? {
            0 => Err(SelectError::NoSuchProcess { pid }),
            _ => Ok(()),
        }
    }

    /// Follows one thread, without what it creates.
    pub(crate) fn follow_thread(&mut self, tid: u32) -> Result<(), SelectError> {
        match self.follow_all(Target::Thread(tid), false, false)? {
            0 => Err(SelectError::NoSuchThread { tid }),
            _ => Ok(()),
        }
    }

    /// Follows all threads.
    pub(crate) fn follow_everything(&mut self) -> Result<(), SelectError> {
        self.follow_all(Target::All, true, false).map(drop)
    }

    /// Stops following a thread. It has no last sample.
    pub(crate) fn leave_thread(&mut self, tid: u32) -> Result<(), SelectError> {
        let Some(programs) = &self.programs else {
            return Ok(());
        };
        let words = &programs.words;
        words.store(SamplerWord::Operation, SamplerOperation::Leave as u64);
        run(programs, Target::Thread(tid))
    }

    /// Runs the selection until it changes nothing, as for kernel monitors. Returns the number of
    /// threads that the last pass visited.
    fn follow_all(
        &mut self,
        target: Target,
        inherit: bool,
        is_held: bool,
    ) -> Result<u64, SelectError> {
        let Some(programs) = &self.programs else {
            return Ok(0);
        };
        let words = &programs.words;
        let mut seen = 0;
        for _ in 0..FOLLOW_PASSES {
            words.store(SamplerWord::Operation, SamplerOperation::Follow as u64);
            words.store(SamplerWord::Inherit, inherit.into());
            words.store(SamplerWord::Held, is_held.into());
            for answer in [SamplerWord::Seen, SamplerWord::Changed, SamplerWord::Failed] {
                words.store(answer, 0);
            }
            run(programs, target)?;
            seen = words.load(SamplerWord::Seen);
            if words.load(SamplerWord::Failed) > 0 {
                return Err(SelectError::Refused {
                    what: name(target),
                    why: "it has no memory for the accounts of all threads".to_owned(),
                });
            }
            if words.load(SamplerWord::Changed) == 0 {
                break;
            }
        }
        Ok(seen)
    }

    pub(crate) fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        if self.phase == Phase::Closed {
            return Ok(());
        }
        if self.phase == Phase::New {
            for stream in &self.streams {
                inbox.open(Arc::clone(&stream.descriptor));
            }
            self.phase = Phase::Open;
        }
        for problem in self.problems.drain(..) {
            inbox.complain(SourceError(problem));
        }
        for stream in &mut self.streams {
            stream.limit = stream.reader.published();
        }
        let mut complaint = None;
        let mut is_all = true;
        for stream in &mut self.streams {
            match stream.poll(stream.limit, inbox) {
                Ok(read) => is_all &= read,
                Err(error) => {
                    complaint.get_or_insert(error);
                }
            }
        }
        if self.programs.is_none() && is_all {
            if let Some(first) = self.streams.first_mut() {
                first.refuse(self.not_taken, GapCause::Kernel, inbox);
            }
            for stream in self.streams.iter().filter(|stream| !stream.damaged) {
                inbox.close(stream.descriptor.id);
            }
            self.phase = Phase::Closed;
        }
        complaint.map_or(Ok(()), Err)
    }

    /// Waits until threads that have announced their end have taken their last samples, as
    /// `BpfSource::finish` does, then ends.
    pub(crate) fn finish(&mut self) {
        let Some(mut programs) = self.programs.take() else {
            return;
        };
        let words = &programs.words;
        words.store(SamplerWord::Live, 0);
        for _ in 0..LAST_SAMPLE_STEPS {
            if words.load(SamplerWord::Ends) >= words.load(SamplerWord::Exits) {
                break;
            }
            thread::sleep(LAST_DEPARTURE_STEP);
        }
        programs.detach();
        let words = &programs.words;
        let exits = words.load(SamplerWord::Exits);
        let without_end = exits.saturating_sub(words.load(SamplerWord::Ends));
        self.not_taken = without_end + recursion_misses(programs.on_switch.as_fd());
        let unread = programs.words.load(SamplerWord::Unread);
        if unread > 0 {
            let sampler = self.streams.first().map(|it| it.descriptor.label());
            self.problems.push(format!(
                "{unread} reads of counters failed for {}: the kernel has given the counters to \
                 others, or a CPU went online; counts of this sampler are too small",
                sampler.unwrap_or_default()
            ));
        }
    }
}

fn run(programs: &SamplePrograms, target: Target) -> Result<(), SelectError> {
    visit(programs.select.as_fd(), target).map_err(|error| SelectError::Refused {
        what: name(target),
        why: match error.raw_os_error() {
            Some(libc::EINVAL) => "visiting selected tasks needs Linux 6.1 or newer".to_owned(),
            _ => machine::error_text(error),
        },
    })
}
