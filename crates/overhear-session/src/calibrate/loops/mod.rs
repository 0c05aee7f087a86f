// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loops that cause one kind of kernel event repeatedly on one CPU, and as few other events as
//! possible ([MKM, section 5.5]: loops of two processes that cause context switches).

mod helpers;
mod objects;
mod probed;

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::time::{Duration, Instant};

use overhear_kernel::Probe;
use overhear_monitor::scheduler::{allowed_cpus, bind_to, run_on, take_precedence};

use crate::error::{ErrorKind, SessionError};
use helpers::{migrant, own_tid, spinner, yielder, EchoProcess, Helper};
use objects::{datagrams, expire, timer, wait_for_other_value, Disk, Page};

/// One kind of loop. The order is that of the computation: the price of each other event that a
/// loop causes is known from an earlier loop.
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
    /// A wait for a futex that already has another value.
    Futex,
    /// A byte through a pipe within one thread.
    Message,
    /// A runnable thread is moved to another CPU and back.
    Migrate,
    /// A thread yields while no other thread is runnable.
    Alone,
    /// As [`Loop::Alone`], for the sensor `schedule`.
    Schedule,
    /// A datagram over the loopback network, which a soft interrupt delivers.
    Datagram,
    /// A timer that expires at once, while the thread polls it.
    Timer,
    /// As [`Loop::Timer`], for the sensor `irq`.
    Interrupt,
    /// A function of this program with a probe at its entry.
    Entry,
    /// A function of this program with a probe at its return.
    Return,
    /// A static probe of this program.
    Static,
    /// A thread begins and ends.
    Birth,
    /// A page is read from a device.
    Disk,
    /// The thread sleeps, so that its CPU is idle.
    Sleep,
    /// Two threads contend for a lock of the kernel.
    Contend,
    /// Work and sleep, so that the CPU changes its frequency.
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

    /// The loops that measure these sensors, and the loops that their prices depend on: for other
    /// events that they cause, and for the cost of entering a program. All loops without a sensor.
    pub(super) fn for_sensors(only: &[CalibratedSensor]) -> impl Iterator<Item = Self> {
        let is_named = |which: Self| only.iter().any(|sensor| sensor.0 == which);
        let has = |property: fn(Self) -> bool| only.iter().any(|sensor| property(sensor.0));
        let switches = has(Self::causes_switches);
        let statistics = has(|which| !which.is_even());
        let is_needed = Self::ALL.map(|which| {
            only.is_empty()
                || is_named(which)
                || match which {
                    Self::Yield => switches,
                    _ => statistics && which.is_reference(),
                }
        });
        Self::ALL
            .into_iter()
            .zip(is_needed)
            .filter_map(|(which, is_needed)| is_needed.then_some(which))
    }

    /// Whether it causes context switches although they are not what it measures.
    const fn causes_switches(self) -> bool {
        matches!(self, Self::Pipe | Self::Migrate | Self::Birth)
    }

    /// Whether its turns take similar times, so that their difference is the cost of an element.
    /// The other loops are measured by the kernel's statistics.
    pub(super) const fn is_even(self) -> bool {
        !matches!(self, Self::Disk | Self::Sleep | Self::Contend | Self::Pace)
    }

    /// Whether it causes runs of tracepoint programs only. The rest of its cost is that of entering
    /// programs.
    pub(super) const fn is_reference(self) -> bool {
        matches!(self, Self::Signal | Self::Alone | Self::Schedule)
    }

    /// Whether its elements are those of CPUs, independent of the tracked threads.
    pub(super) const fn is_of_cpus(self) -> bool {
        matches!(self, Self::Sleep | Self::Pace)
    }

    /// Whether the process is followed, with the threads that it creates.
    pub(super) const fn has_children(self) -> bool {
        matches!(self, Self::Birth)
    }

    /// The probe of this program that it executes, if it is a loop for probes.
    pub(super) fn probe(self) -> Option<Probe> {
        match self {
            Self::Entry => probed::entry_probe(),
            Self::Return => probed::return_probe(),
            Self::Static => probed::static_probe(),
            _ => None,
        }
    }

    /// The kernel sensor that the loop measures.
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

    /// Number of turns of a measurement. It takes about a quarter of a millisecond, so that most
    /// measurements are undisturbed.
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

    /// Description of the loop in words.
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
            Self::Alone | Self::Schedule => "a thread that yields alone",
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
pub struct CalibratedSensor(pub(super) Loop);

impl FromStr for CalibratedSensor {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Loop::ALL.into_iter().find(|which| which.sensor() == name);
        found.map(Self).ok_or_else(|| {
            let names = Loop::ALL.map(Loop::sensor).join(", ");
            format!("nothing measures {name:?}; what can be measured are {names}")
        })
    }
}

/// The other process of the loop for wake-ups: writes each byte of standard input to standard
/// output, to its end.
///
/// # Errors
/// [`SessionError`] if it cannot write.
pub fn echo() -> Result<(), SessionError> {
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
    yielder: Helper,
    echo: EchoProcess,
    page: Page,
    pipe: (std::io::PipeReader, std::io::PipeWriter),
    datagrams: Option<UdpSocket>,
    timer: OwnedFd,
    /// Created at its first use.
    disk: Option<Result<Disk, String>>,
    /// The helpers on another CPU, if there is one.
    other_cpu: Option<OtherCpu>,
}

/// The helpers of loops with a second CPU.
struct OtherCpu {
    spinner: Helper,
    migrant: Helper,
    contender: Helper,
    /// The pipe whose lock two threads contend for.
    contended: (std::io::PipeReader, std::io::PipeWriter),
}

impl OtherCpu {
    fn start(here: u32, there: u32) -> std::io::Result<Self> {
        let contended = std::io::pipe()?;
        let (mut reader, mut writer) = (contended.0.try_clone()?, contended.1.try_clone()?);
        let prepare = move || {
            let _ = run_on(there);
        };
        let contender = Helper::start("contender", prepare, move || {
            write_and_read_byte(&mut reader, &mut writer);
        })?;
        Ok(Self {
            spinner: spinner(there)?,
            migrant: migrant(here)?,
            contender,
            contended,
        })
    }
}

/// Writes a byte before it reads one, so that no thread waits for a byte.
fn write_and_read_byte(reader: &mut std::io::PipeReader, writer: &mut std::io::PipeWriter) {
    let mut byte = [0];
    let _ = writer.write_all(&byte);
    let _ = reader.read_exact(&mut byte);
}

impl Loops {
    /// Binds the calling thread to the last of its CPUs, with real-time priority if that is
    /// permitted.
    pub(super) fn new() -> std::io::Result<Self> {
        let cpus = allowed_cpus();
        let cpu = cpus.last().copied().unwrap_or(0);
        let other = cpus.first().copied().filter(|other| *other != cpu);
        // Before the change of priority, which they would inherit.
        let other_cpu = other.map(|other| OtherCpu::start(cpu, other)).transpose()?;
        run_on(cpu)?;
        // The other helpers inherit it.
        let _ = take_precedence();
        Ok(Self {
            cpu,
            other,
            yielder: yielder(cpu)?,
            echo: EchoProcess::start()?,
            page: Page::new(),
            pipe: std::io::pipe()?,
            datagrams: datagrams().ok(),
            timer: timer()?,
            disk: None,
            other_cpu,
        })
    }

    /// The threads to track for a loop.
    pub(super) fn threads(&self, which: Loop) -> Vec<u32> {
        let own = own_tid();
        match (which, &self.other_cpu) {
            (Loop::Pipe, _) => vec![own, self.echo.pid()],
            (Loop::Migrate, Some(other_cpu)) => vec![other_cpu.migrant.tid],
            (Loop::Contend, Some(other_cpu)) => vec![own, other_cpu.contender.tid],
            _ => vec![own],
        }
    }

    /// The reason that a loop cannot run here.
    pub(super) fn obstacle(&mut self, which: Loop) -> Option<String> {
        let because = |is_absent: bool, reason: &str| is_absent.then(|| reason.to_string());
        match which {
            Loop::Migrate | Loop::Contend => because(self.other_cpu.is_none(), "there is one CPU"),
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
                .while_active(|| time(turns, rustix::thread::sched_yield)),
            Loop::Pipe => time(turns, || {
                let _ = self.echo.round_trip();
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
                time(turns, || write_and_read_byte(reader, writer))
            }
            Loop::Migrate => {
                let (here, there) = (self.cpu, self.other.unwrap_or(self.cpu));
                self.other_cpu.as_ref().map_or(0.0, |other_cpu| {
                    let tid = other_cpu.migrant.tid;
                    let both = || {
                        time(turns, || {
                            let _ = bind_to(tid, there).and_then(|()| bind_to(tid, here));
                        })
                    };
                    // The other CPU is occupied for as short as possible.
                    other_cpu
                        .migrant
                        .while_active(|| other_cpu.spinner.while_active(both))
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
            Loop::Contend => self.other_cpu.as_mut().map_or(0.0, |other_cpu| {
                let (reader, writer) = (&mut other_cpu.contended.0, &mut other_cpu.contended.1);
                // Not every attempt contends.
                let often = || {
                    for _ in 0..10 {
                        write_and_read_byte(reader, writer);
                    }
                };
                other_cpu.contender.while_active(|| time(turns, often))
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

/// Whether the kernel sets the frequencies of CPUs.
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
