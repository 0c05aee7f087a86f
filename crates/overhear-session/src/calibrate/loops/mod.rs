// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loops that fire one kind of kernel element over and over, on one CPU, and nothing else if that
//! can be helped ([MKM, section 5.5]: loops of two processes that make the kernel switch).

mod places;
mod players;
mod probed;

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::time::{Duration, Instant};

use overhear_kernel::Probe;
use overhear_monitor::scheduler::{allowed_cpus, bind_to, run_on, take_precedence};

use crate::error::{ErrorKind, SessionError};
use places::{datagrams, expire, timer, wait_for_other_value, Disk, Page};
use players::{keeper, nomad, own_tid, yielder, Answerer, Player};

/// One kind of loop. The order is that of the sums: what a loop fires besides its own elements is
/// known when its turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loop {
    /// Two threads yield to each other: context switches without wake-ups.
    Yield,
    /// Two processes pass a byte to and fro: switches and wake-ups.
    Pipe,
    /// The shortest system call.
    Call,
    /// A page is given back and touched again.
    Fault,
    /// A signal that is ignored.
    Signal,
    /// A wait for a futex that has another value already.
    Futex,
    /// A byte through a pipe of one's own.
    Message,
    /// A thread that waits for a CPU is moved to another one and back.
    Migrate,
    /// A thread yields to nobody.
    Alone,
    /// The same, for what the scheduler tells of itself.
    Schedule,
    /// A datagram to oneself: the network's soft interrupt delivers it.
    Datagram,
    /// A timer that expires at once, while the thread waits for it on its CPU.
    Timer,
    /// The same, for the interrupt by which it comes.
    Interrupt,
    /// A function of this program with a probe at its entry.
    Entry,
    /// One with a probe at its return.
    Return,
    /// A static probe of this program.
    Static,
    /// A thread begins and ends.
    Birth,
    /// A page is read from a device.
    Disk,
    /// The thread sleeps, and leaves its CPU with nothing to do.
    Sleep,
    /// Two threads want the same lock of the kernel.
    Contend,
    /// Work and sleep, for which CPUs choose their frequencies.
    Pace,
}

impl Loop {
    pub(super) const ALL: [Self; 21] = [
        Self::Yield,
        Self::Pipe,
        Self::Call,
        Self::Fault,
        Self::Signal,
        Self::Futex,
        Self::Message,
        Self::Migrate,
        Self::Alone,
        Self::Schedule,
        Self::Datagram,
        Self::Timer,
        Self::Interrupt,
        Self::Entry,
        Self::Return,
        Self::Static,
        Self::Birth,
        Self::Disk,
        Self::Sleep,
        Self::Contend,
        Self::Pace,
    ];

    /// The loops that measure these sensors, and those by which what they fire besides is known, or
    /// how the kernel's statistics are to be read; all of them if none is named.
    pub(super) fn sought(only: &[Sought]) -> impl Iterator<Item = Self> {
        let is_sought = |which: Self| only.iter().any(|sought| sought.0 == which);
        let has = |which: fn(Self) -> bool| only.iter().any(|sought| which(sought.0));
        let switches = has(Self::fires_switches);
        let statistics = has(|which| !which.is_even());
        let wanted = Self::ALL.map(|which| {
            only.is_empty()
                || is_sought(which)
                || match which {
                    Self::Yield => switches,
                    _ => statistics && which.is_reference(),
                }
        });
        Self::ALL
            .into_iter()
            .zip(wanted)
            .filter_map(|(which, wanted)| wanted.then_some(which))
    }

    /// Whether others than [`Loop::Yield`] pay for switches in it.
    const fn fires_switches(self) -> bool {
        matches!(self, Self::Pipe | Self::Migrate | Self::Birth)
    }

    /// Whether its turns are alike enough to show what an element costs. Of the others the kernel's
    /// statistics tell how long the programs have run.
    pub(super) const fn is_even(self) -> bool {
        !matches!(self, Self::Disk | Self::Sleep | Self::Contend | Self::Pace)
    }

    /// Whether it fires programs on tracepoints and nothing else: what its turns take longer than
    /// these run is the way to the programs and back.
    pub(super) const fn is_reference(self) -> bool {
        matches!(self, Self::Signal | Self::Alone | Self::Schedule)
    }

    /// Whether its elements come from CPUs, whoever is tracked.
    pub(super) const fn is_of_cpus(self) -> bool {
        matches!(self, Self::Sleep | Self::Pace)
    }

    /// Whether it is followed as a process, with the threads that it creates.
    pub(super) const fn has_children(self) -> bool {
        matches!(self, Self::Birth)
    }

    /// The place in this program that it passes, if it is a probe.
    pub(super) fn probe(self) -> Option<Probe> {
        match self {
            Self::Entry => probed::entry(),
            Self::Return => probed::back(),
            Self::Static => probed::fixed(),
            _ => None,
        }
    }

    /// The kernel sensor that the loop is there for.
    pub(super) const fn sensor(self) -> &'static str {
        use overhear_event::kernel::{events, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE};
        use overhear_metrics::{ENTRIES, RETURNS, STATIC_PROBES};
        match self {
            Self::Yield => SCHED_SWITCH,
            Self::Pipe => SCHED_WAKE,
            Self::Call => events::SYSCALL,
            Self::Fault => events::PAGE_FAULT,
            Self::Signal => events::SIGNAL,
            Self::Futex => events::FUTEX,
            Self::Message => events::IPC,
            Self::Migrate => events::SCHED_MIGRATE,
            Self::Alone => events::FLUTTER,
            Self::Schedule => events::SCHEDULE,
            Self::Datagram => events::SOFTIRQ,
            Self::Timer => events::TIMER,
            Self::Interrupt => events::IRQ,
            Self::Entry => ENTRIES,
            Self::Return => RETURNS,
            Self::Static => STATIC_PROBES,
            Self::Birth => TASK_LIFE,
            Self::Disk => events::BLOCK_IO,
            Self::Sleep => events::CPU_IDLE,
            Self::Contend => events::LOCK,
            Self::Pace => events::CPU_FREQUENCY,
        }
    }

    /// Turns of one measurement: about a quarter of a millisecond, so that many fit between two
    /// disturbances.
    pub(super) const fn turns(self) -> u64 {
        match self {
            Self::Pace => 4,
            Self::Disk | Self::Sleep => 5,
            Self::Birth => 10,
            Self::Pipe | Self::Timer | Self::Interrupt | Self::Contend => 40,
            Self::Datagram => 60,
            Self::Migrate | Self::Entry | Self::Return | Self::Static => 100,
            Self::Yield | Self::Fault | Self::Signal | Self::Message => 200,
            Self::Call | Self::Futex | Self::Alone | Self::Schedule => 1_000,
        }
    }

    /// In words, for the table.
    pub(super) const fn about(self) -> &'static str {
        match self {
            Self::Yield => "two threads that yield to each other",
            Self::Pipe => "two processes that pass a byte to and fro",
            Self::Call => "getppid",
            Self::Fault => "a page that is given back and touched",
            Self::Signal => "a signal that is ignored",
            Self::Futex => "a futex that need not be waited for",
            Self::Message => "a byte through a pipe",
            Self::Migrate => "a waiting thread moved to another CPU and back",
            Self::Alone | Self::Schedule => "a thread that yields to nobody",
            Self::Datagram => "a datagram to oneself",
            Self::Timer | Self::Interrupt => "a timer that expires at once",
            Self::Entry | Self::Return => "a function of overhear",
            Self::Static => "a static probe of overhear",
            Self::Birth => "a thread that begins and ends",
            Self::Disk => "a page that is read from a device",
            Self::Sleep => "a CPU that falls idle",
            Self::Contend => "two threads that want the same lock",
            Self::Pace => "work and sleep",
        }
    }
}

/// A kernel sensor that can be calibrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sought(pub(super) Loop);

impl FromStr for Sought {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Loop::ALL.into_iter().find(|which| which.sensor() == name);
        found.map(Self).ok_or_else(|| {
            let names = Loop::ALL.map(Loop::sensor).join(", ");
            format!("nothing measures {name:?}; what can be measured are {names}")
        })
    }
}

/// Answers each byte of standard input, to its end.
///
/// # Errors
/// [`SessionError`] if it cannot write.
pub fn answer() -> Result<(), SessionError> {
    let (mut input, mut output) = (std::io::stdin(), std::io::stdout());
    let mut byte = [0];
    while input.read_exact(&mut byte).is_ok() {
        let written = output.write_all(&byte).and_then(|()| output.flush());
        written.map_err(|error| SessionError::new(ErrorKind::Unavailable, error.to_string()))?;
    }
    Ok(())
}

/// All loops, bound to one CPU.
pub(super) struct Loops {
    cpu: u32,
    other: Option<u32>,
    yielder: Player,
    answerer: Answerer,
    page: Page,
    pipe: (std::io::PipeReader, std::io::PipeWriter),
    datagrams: Option<UdpSocket>,
    timer: OwnedFd,
    /// Made when it is wanted.
    disk: Option<Result<Disk, String>>,
    /// On the other CPU, if there is one.
    afar: Option<Afar>,
}

/// Who plays on the other CPU, and who is moved there.
struct Afar {
    keeper: Player,
    nomad: Player,
    rival: Player,
    /// The pipe whose lock two threads want.
    wanted: (std::io::PipeReader, std::io::PipeWriter),
}

impl Afar {
    fn start(here: u32, there: u32) -> std::io::Result<Self> {
        let wanted = std::io::pipe()?;
        let (mut reader, mut writer) = (wanted.0.try_clone()?, wanted.1.try_clone()?);
        let prepare = move || {
            let _ = run_on(there);
        };
        let rival = Player::start("rival", prepare, move || {
            pass_a_byte(&mut reader, &mut writer);
        })?;
        Ok(Self {
            keeper: keeper(there)?,
            nomad: nomad(here)?,
            rival,
            wanted,
        })
    }
}

/// Each puts a byte in before taking one out, so nobody waits for a byte.
fn pass_a_byte(reader: &mut std::io::PipeReader, writer: &mut std::io::PipeWriter) {
    let mut byte = [0];
    let _ = writer.write_all(&byte);
    let _ = reader.read_exact(&mut byte);
}

impl Loops {
    /// Binds the calling thread to the last of its CPUs, where it gets precedence if that is
    /// permitted: what else the machine does there waits.
    pub(super) fn new() -> std::io::Result<Self> {
        let cpus = allowed_cpus();
        let cpu = cpus.last().copied().unwrap_or(0);
        let other = cpus.first().copied().filter(|other| *other != cpu);
        // Before there is precedence: they would inherit it.
        let afar = other.map(|other| Afar::start(cpu, other)).transpose()?;
        run_on(cpu)?;
        // The other players inherit it.
        let _ = take_precedence();
        Ok(Self {
            cpu,
            other,
            yielder: yielder(cpu)?,
            answerer: Answerer::start()?,
            page: Page::new(),
            pipe: std::io::pipe()?,
            datagrams: datagrams().ok(),
            timer: timer()?,
            disk: None,
            afar,
        })
    }

    /// The threads that must be tracked so that all elements of a loop are heard.
    pub(super) fn players(&self, which: Loop) -> Vec<u32> {
        let me = own_tid();
        match (which, &self.afar) {
            (Loop::Pipe, _) => vec![me, self.answerer.pid()],
            (Loop::Migrate, Some(afar)) => vec![afar.nomad.tid],
            (Loop::Contend, Some(afar)) => vec![me, afar.rival.tid],
            _ => vec![me],
        }
    }

    /// Why a loop cannot run here.
    pub(super) fn lacks(&mut self, which: Loop) -> Option<String> {
        let because = |lacking: bool, why: &str| lacking.then(|| why.to_string());
        match which {
            Loop::Migrate | Loop::Contend => because(self.afar.is_none(), "there is one CPU"),
            Loop::Datagram => because(self.datagrams.is_none(), "there is no loopback network"),
            Loop::Disk => self
                .disk
                .get_or_insert_with(Disk::find)
                .as_ref()
                .err()
                .cloned(),
            Loop::Entry | Loop::Return | Loop::Static => because(
                which.probe().is_none(),
                "on this architecture overhear has no place for it",
            ),
            Loop::Pace => because(!has_frequencies(), "this machine has no cpufreq"),
            _ => None,
        }
    }

    /// Nanoseconds per turn.
    pub(super) fn run(&mut self, which: Loop, turns: u64) -> f64 {
        let spent = match which {
            Loop::Yield => self
                .yielder
                .while_busy(|| time(turns, rustix::thread::sched_yield)),
            Loop::Pipe => time(turns, || {
                let _ = self.answerer.trip();
            }),
            Loop::Call => time(turns, || {
                std::hint::black_box(rustix::process::getppid());
            }),
            Loop::Fault => time(turns, || self.page.fault()),
            Loop::Signal => time(turns, || {
                let _ = signal_hook::low_level::raise(libc::SIGURG);
            }),
            Loop::Futex => {
                let word = 1_u32;
                time(turns, || wait_for_other_value(&word))
            }
            Loop::Message => {
                let (reader, writer) = (&mut self.pipe.0, &mut self.pipe.1);
                time(turns, || pass_a_byte(reader, writer))
            }
            Loop::Migrate => {
                let (here, there) = (self.cpu, self.other.unwrap_or(self.cpu));
                self.afar.as_ref().map_or(0.0, |afar| {
                    let tid = afar.nomad.tid;
                    let both = || {
                        time(turns, || {
                            let _ = bind_to(tid, there).and_then(|()| bind_to(tid, here));
                        })
                    };
                    // The other CPU is kept from everybody for no longer than it takes.
                    afar.nomad.while_busy(|| afar.keeper.while_busy(both))
                })
            }
            Loop::Alone | Loop::Schedule => time(turns, rustix::thread::sched_yield),
            Loop::Datagram => {
                let mut byte = [0];
                time(turns, || {
                    if let Some(socket) = &self.datagrams {
                        let _ = socket.send(&byte).and_then(|_| socket.recv(&mut byte));
                    }
                })
            }
            Loop::Timer | Loop::Interrupt => time(turns, || expire(&self.timer)),
            Loop::Entry | Loop::Return => time(turns, probed::pass),
            Loop::Static => time(turns, probed::pass_static),
            Loop::Birth => time(turns, || {
                let _ = std::thread::spawn(|| {}).join();
            }),
            Loop::Disk => time(turns, || {
                if let Some(Ok(disk)) = &mut self.disk {
                    let _ = disk.read();
                }
            }),
            Loop::Sleep => time(turns, || std::thread::sleep(Duration::from_micros(50))),
            Loop::Contend => self.afar.as_mut().map_or(0.0, |afar| {
                let (reader, writer) = (&mut afar.wanted.0, &mut afar.wanted.1);
                // The lock is not wanted by both at once each time.
                let often = || {
                    for _ in 0..10 {
                        pass_a_byte(reader, writer);
                    }
                };
                afar.rival.while_busy(|| time(turns, often))
            }),
            Loop::Pace => time(turns, || {
                const PHASE: Duration = Duration::from_millis(5);
                std::thread::sleep(PHASE);
                let begun = Instant::now();
                while begun.elapsed() < PHASE {}
            }),
        };
        spent / turns as f64
    }
}

/// Whether the kernel sets frequencies of CPUs, and so can tell of them.
#[expect(clippy::disallowed_methods, reason = "of /sys")]
fn has_frequencies() -> bool {
    let policies = std::fs::read_dir("/sys/devices/system/cpu/cpufreq");
    policies.is_ok_and(|mut policies| policies.next().is_some())
}

fn time(turns: u64, mut turn: impl FnMut()) -> f64 {
    let begun = Instant::now();
    for _ in 0..turns {
        turn();
    }
    begun.elapsed().as_nanos() as f64
}
