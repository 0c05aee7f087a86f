// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loops that fire one kind of kernel element over and over, on one CPU, and nothing else if that can be
//! helped (seed 003, section 5.5: loops of two processes that make the kernel switch).

use std::io::{Read, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use overhear_monitor::scheduler::{allowed_cpus, run_on, take_precedence};
use rustix::io::Errno;

use crate::exit::{Failure, UNAVAILABLE};

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
    /// To another CPU and back.
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
}

impl Loop {
    pub(super) const ALL: [Self; 13] = [
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
    ];

    /// The loops that measure these sensors, and those by which what they fire besides is known; all of them if none is
    /// named.
    pub(super) fn sought(only: &[Sought]) -> impl Iterator<Item = Self> {
        let is_sought = |which: Self| only.iter().any(|sought| sought.0 == which);
        let switches = only.iter().any(|sought| sought.0.fires_switches());
        let wanted = Self::ALL
            .map(|which| only.is_empty() || is_sought(which) || (switches && which == Self::Yield));
        Self::ALL
            .into_iter()
            .zip(wanted)
            .filter_map(|(which, wanted)| wanted.then_some(which))
    }

    /// Whether others than [`Loop::Yield`] pay for switches in it.
    const fn fires_switches(self) -> bool {
        matches!(self, Self::Pipe | Self::Migrate)
    }

    /// The kernel sensor that the loop is there for.
    pub(super) const fn sensor(self) -> &'static str {
        use overhear_event::kernel::{events, SCHED_SWITCH, SCHED_WAKE};
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
        }
    }

    /// Turns of one measurement: about a quarter of a millisecond, so that many fit between two disturbances.
    pub(super) const fn turns(self) -> u64 {
        match self {
            Self::Pipe | Self::Migrate | Self::Timer | Self::Interrupt => 40,
            Self::Datagram => 60,
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
            Self::Migrate => "a move to another CPU and back",
            Self::Alone | Self::Schedule => "a thread that yields to nobody",
            Self::Datagram => "a datagram to oneself",
            Self::Timer | Self::Interrupt => "a timer that expires at once",
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

/// The other thread of [`Loop::Yield`]: it yields while it is told to.
struct Yielder {
    // To begin, and to end.
    orders: Sender<()>,
    resting: Receiver<()>,
}

impl Yielder {
    fn start(cpu: u32) -> std::io::Result<Self> {
        let (orders, told) = mpsc::channel();
        let (rests, resting) = mpsc::channel();
        std::thread::Builder::new()
            .name("yielder".to_string())
            .spawn(move || {
                let _ = run_on(cpu);
                while told.recv().is_ok() {
                    while told.try_recv() == Err(TryRecvError::Empty) {
                        rustix::thread::sched_yield();
                    }
                    if rests.send(()).is_err() {
                        break;
                    }
                }
            })?;
        Ok(Self { orders, resting })
    }

    fn while_busy<T>(&self, run: impl FnOnce() -> T) -> T {
        let _ = self.orders.send(());
        let result = run();
        let _ = self.orders.send(());
        let _ = self.resting.recv();
        result
    }
}

/// The other process of [`Loop::Pipe`]: this program again, which answers each byte.
struct Answerer(Child);

impl Answerer {
    fn start() -> std::io::Result<Self> {
        // It inherits the CPU.
        Command::new("/proc/self/exe")
            .args(["calibrate", "--answer"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map(Self)
    }

    fn trip(&mut self) -> Option<()> {
        let (stdin, stdout) = (self.0.stdin.as_mut()?, self.0.stdout.as_mut()?);
        stdin.write_all(&[0]).ok()?;
        stdout.read_exact(&mut [0]).ok()
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Answers each byte of standard input, to its end.
///
/// # Errors
/// [`Failure`] if it cannot write.
pub fn answer() -> Result<(), Failure> {
    let (mut input, mut output) = (std::io::stdin(), std::io::stdout());
    let mut byte = [0];
    while input.read_exact(&mut byte).is_ok() {
        let written = output.write_all(&byte).and_then(|()| output.flush());
        written.map_err(|error| Failure::new(UNAVAILABLE, error.to_string()))?;
    }
    Ok(())
}

/// A page of memory that is touched and given back.
struct Page {
    memory: Vec<u8>,
    offset: usize,
}

const PAGE_BYTES: usize = 4096;

impl Page {
    fn new() -> Self {
        let memory = vec![0; 2 * PAGE_BYTES];
        let offset = memory.as_ptr().align_offset(PAGE_BYTES);
        Self { memory, offset }
    }

    fn fault(&mut self) {
        let page = &mut self.memory[self.offset..self.offset + PAGE_BYTES];
        // SAFETY: a whole page of our own vector; its bytes become zero, which a vector of bytes may
        // hold at any time.
        let given =
            unsafe { libc::madvise(page.as_mut_ptr().cast(), page.len(), libc::MADV_DONTNEED) };
        debug_assert_eq!(given, 0);
        // SAFETY: a byte of the same slice; volatile, so that it is touched.
        unsafe { page.as_mut_ptr().write_volatile(1) };
    }
}

/// A socket of the loopback network that talks to itself.
fn datagrams() -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(socket.local_addr()?)?;
    // One can be lost where memory is short.
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    Ok(socket)
}

/// A timer that is read without waiting for it.
fn timer() -> std::io::Result<OwnedFd> {
    // SAFETY: it takes no pointers.
    let descriptor = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: it is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Lets the timer expire as soon as it can, and looks until it has.
fn expire(timer: &OwnedFd) {
    let nothing = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let soon = libc::itimerspec {
        it_interval: nothing,
        it_value: libc::timespec {
            tv_sec: 0,
            tv_nsec: 1,
        },
    };
    let unwanted = std::ptr::null_mut();
    // SAFETY: the kernel reads the times, which are alive, and returns no old ones.
    let armed = unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &raw const soon, unwanted) };
    while armed == 0 && rustix::io::read(timer, &mut [0; 8]) == Err(Errno::AGAIN) {}
}

/// All loops, bound to one CPU.
pub(super) struct Loops {
    cpu: u32,
    other: Option<u32>,
    yielder: Yielder,
    answerer: Answerer,
    page: Page,
    pipe: (std::io::PipeReader, std::io::PipeWriter),
    datagrams: Option<UdpSocket>,
    timer: OwnedFd,
}

impl Loops {
    /// Binds the calling thread to the last of its CPUs, where it gets precedence if that is permitted: what
    /// else the machine does there waits.
    pub(super) fn new() -> std::io::Result<Self> {
        let cpus = allowed_cpus();
        let cpu = cpus.last().copied().unwrap_or(0);
        run_on(cpu)?;
        // The other players inherit it.
        let _ = take_precedence();
        Ok(Self {
            cpu,
            other: cpus.first().copied().filter(|other| *other != cpu),
            yielder: Yielder::start(cpu)?,
            answerer: Answerer::start()?,
            page: Page::new(),
            pipe: std::io::pipe()?,
            datagrams: datagrams().ok(),
            timer: timer()?,
        })
    }

    /// The threads that must be tracked so that all elements of a loop are heard.
    pub(super) fn players(&self, which: Loop) -> Vec<u32> {
        let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        match which {
            Loop::Pipe => vec![me, self.answerer.0.id()],
            _ => vec![me],
        }
    }

    /// Why a loop cannot run here.
    pub(super) fn lacks(&self, which: Loop) -> Option<&'static str> {
        match which {
            Loop::Migrate if self.other.is_none() => Some("there is one CPU"),
            Loop::Datagram if self.datagrams.is_none() => Some("there is no loopback network"),
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
                let mut byte = [0];
                let (reader, writer) = (&mut self.pipe.0, &mut self.pipe.1);
                time(turns, || {
                    let _ = writer.write_all(&byte);
                    let _ = reader.read_exact(&mut byte);
                })
            }
            Loop::Migrate => {
                let (here, there) = (self.cpu, self.other.unwrap_or(self.cpu));
                time(turns, || {
                    let _ = run_on(there).and_then(|()| run_on(here));
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
        };
        spent / turns as f64
    }
}

/// Waits for the word to change from what it is not: the kernel returns at once.
fn wait_for_other_value(word: &u32) {
    let nobody = std::ptr::null::<libc::timespec>();
    // SAFETY: the kernel reads the word, which is alive, and nothing else.
    unsafe {
        let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, word, wait, *word ^ 1, nobody);
    }
}

fn time(turns: u64, mut turn: impl FnMut()) -> f64 {
    let begun = Instant::now();
    for _ in 0..turns {
        turn();
    }
    begun.elapsed().as_nanos() as f64
}
