// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Kernel`]: whichever kernel sensor this machine and this user permit.

use overhear_event::{Inbox, Source, SourceError, StreamId};

use crate::bpf::{BpfSource, Settings};
use crate::machine;
use crate::perf::PerfSource;
use crate::streams::Numbering;
use crate::{FollowError, StartError};

/// Which kernel sensor to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// BPF, else perf, else none; never an error.
    #[default]
    Auto,
    /// BPF or an error.
    Bpf,
    /// perf records or an error.
    Perf,
    /// None.
    Off,
}

/// Which kernel sensor is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Active {
    /// BPF programs: switches, wake-ups, lives of threads.
    Bpf,
    /// perf records: switches, lives of threads, and schedstat samples.
    Perf,
    /// Nothing comes from the kernel.
    None,
}

/// What the user gets from the kernel, and why not more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Which sensor is at work.
    pub active: Active,
    /// The same for people: one sentence without its full stop.
    pub sentence: String,
}

/// Settings of the kernel sensors, checked by [`KernelBuilder::build`].
#[derive(Clone, Debug)]
pub struct KernelBuilder {
    choice: Choice,
    elements: u32,
    life_elements: u32,
    first_stream: StreamId,
    perf_pages: u32,
    mask_interrupts: bool,
}

/// The sizes of a BPF ring, in elements. The largest keeps a ring of switches well below the 4 MiB
/// that older kernels permit for one value of a map.
const RING_ELEMENTS: std::ops::RangeInclusive<u32> = 8..=65_536;

impl KernelBuilder {
    /// Which sensor; [`Choice::Auto`] by default.
    #[must_use]
    pub fn choice(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }

    /// Elements per CPU in each of the BPF rings of switches and wake-ups: a power of two from 8
    /// to 65,536, the default, which takes 2 MiB.
    #[must_use]
    pub fn elements(mut self, elements: u32) -> Self {
        self.elements = elements;
        self
    }

    /// Elements per CPU in the BPF ring of lives; 4096 by default, which takes 256 KiB.
    #[must_use]
    pub fn life_elements(mut self, elements: u32) -> Self {
        self.life_elements = elements;
        self
    }

    /// The number of the first stream; 0 by default.
    #[must_use]
    pub fn first_stream(mut self, id: StreamId) -> Self {
        self.first_stream = id;
        self
    }

    /// The most pages a perf ring may have; 128 by default. Less is taken where less is allowed.
    #[must_use]
    pub fn perf_pages(mut self, pages: u32) -> Self {
        self.perf_pages = pages;
        self
    }

    /// For tests of the busy word: do as if the kernel could not mask interrupts.
    #[doc(hidden)]
    #[must_use]
    pub fn without_interrupt_masking(mut self) -> Self {
        self.mask_interrupts = false;
        self
    }

    /// Starts what was chosen. Nothing is followed yet.
    ///
    /// # Errors
    /// [`StartError`] if a ring size is not usable, or if the sensor that was asked for by name
    /// is not available.
    pub fn build(self) -> Result<Kernel, StartError> {
        for given in [self.elements, self.life_elements] {
            if !given.is_power_of_two() || !RING_ELEMENTS.contains(&given) {
                return Err(StartError::RingSize {
                    given,
                    least: *RING_ELEMENTS.start(),
                    most: *RING_ELEMENTS.end(),
                });
            }
        }
        let numbering = Numbering::new(self.first_stream, machine::possible_cpus());
        let settings = Settings {
            numbering,
            capacities: [self.elements, self.elements, self.life_elements],
            mask_interrupts: self.mask_interrupts,
        };
        let bpf = || BpfSource::start(&settings);
        let perf = || PerfSource::start(numbering, self.perf_pages as usize);
        let (engine, sentence) = match self.choice {
            Choice::Off => (Engine::None, "kernel sensors: off, as asked for".to_owned()),
            Choice::Bpf => with_bpf(bpf().map_err(|why| StartError::Bpf { why })?),
            Choice::Perf => {
                let source = perf().map_err(|why| StartError::Perf { why })?;
                with_perf(source, "as asked for")
            }
            Choice::Auto => match bpf() {
                Ok(source) => with_bpf(source),
                Err(no_bpf) => match perf() {
                    Ok(source) => with_perf(source, &format!("because {no_bpf}")),
                    Err(no_perf) => (
                        Engine::None,
                        format!("kernel sensors: none, because {no_bpf}, and {no_perf}"),
                    ),
                },
            },
        };
        Ok(Kernel {
            status: Status {
                active: engine.active(),
                sentence,
            },
            engine,
            numbering,
        })
    }
}

fn with_bpf(source: BpfSource) -> (Engine, String) {
    let mut sentence =
        "kernel sensors: BPF programs see context switches, wake-ups, and threads begin and end"
            .to_owned();
    let mut note = |text: &str| {
        sentence.push_str("; ");
        sentence.push_str(text);
    };
    for text in source.notes() {
        note(text);
    }
    if !machine::in_initial_pid_namespace() {
        note(
            "thread ids are those of the initial PID namespace, not of the one this process \
             runs in",
        );
    }
    (Engine::Bpf(Box::new(source)), sentence)
}

fn with_perf(source: PerfSource, why: &str) -> (Engine, String) {
    let sentence = format!(
        "kernel sensors: perf context-switch records, {why}; there are no wake-ups, runnable \
         time comes from schedstat"
    );
    (Engine::Perf(Box::new(source)), sentence)
}

enum Engine {
    Bpf(Box<BpfSource>),
    Perf(Box<PerfSource>),
    None,
}

impl Engine {
    const fn active(&self) -> Active {
        match self {
            Self::Bpf(_) => Active::Bpf,
            Self::Perf(_) => Active::Perf,
            Self::None => Active::None,
        }
    }
}

/// The kernel sensors at work: a [`Source`] of the streams of all CPUs.
///
/// Holding one does not prove that there is anything to hear: [`Kernel::status`] says what.
pub struct Kernel {
    engine: Engine,
    status: Status,
    numbering: Numbering,
}

impl Kernel {
    /// Default settings.
    #[must_use]
    pub const fn builder() -> KernelBuilder {
        KernelBuilder {
            choice: Choice::Auto,
            elements: 65_536,
            life_elements: 4_096,
            first_stream: StreamId::from_raw(0),
            perf_pages: 128,
            mask_interrupts: true,
        }
    }

    /// Which kernel sensor is active, and why.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// How many stream numbers from the first one on are reserved. It depends only on the number
    /// of possible CPUs, not on the sensor.
    #[must_use]
    pub fn stream_ids_used(&self) -> u32 {
        self.numbering.used()
    }

    /// How many elements the kernel has committed to a stream up to now; `None` for streams that
    /// are not BPF rings. What was delivered and what was missed as overwritten add up to it.
    #[must_use]
    pub fn committed(&self, id: StreamId) -> Option<u64> {
        match &self.engine {
            Engine::Bpf(source) => source.committed(id),
            Engine::Perf(_) | Engine::None => None,
        }
    }

    /// Tracks this process, all of its present threads, and all that they will create.
    ///
    /// Nothing of a process is missed if it is followed while stopped, before it executes the
    /// program. A process that runs can be followed as well, from now on; the first departure of
    /// a thread that is running at that moment may be taken for voluntary when it is not, or
    /// the other way round. A process that is already followed, also as a child of another, need
    /// not be followed again. Without an active sensor this does nothing.
    ///
    /// # Errors
    /// [`FollowError`] if there is no such process or the kernel refuses. Some of its threads
    /// may then be tracked already.
    pub fn follow(&mut self, pid: u32) -> Result<(), FollowError> {
        match &mut self.engine {
            Engine::Bpf(source) => source.follow(pid),
            Engine::Perf(source) => source.follow(pid),
            Engine::None => Ok(()),
        }
    }

    /// Takes the last samples and detaches from the kernel. One more [`Source::poll`] delivers
    /// what is left and closes the streams.
    ///
    /// Call it while the followed main process has ended but nobody has waited for it yet: then
    /// its last schedstat values can still be read.
    pub fn finish(&mut self) {
        match &mut self.engine {
            Engine::Bpf(source) => source.finish(),
            Engine::Perf(source) => source.finish(),
            Engine::None => {}
        }
    }
}

impl Source for Kernel {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        match &mut self.engine {
            Engine::Bpf(source) => return source.poll(inbox),
            Engine::Perf(source) => source.poll(inbox),
            Engine::None => {}
        }
        Ok(())
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{Choice, Kernel};

    #[test]
    fn a_monitor_may_run_on_any_thread() {
        fn may_move<T: Send>(_: &T) {}
        may_move(&Kernel::builder().choice(Choice::Off).build().unwrap());
    }
}
