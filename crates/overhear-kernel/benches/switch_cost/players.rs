// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two processes on one CPU that pass a byte to and fro, and may invoke a sensor each time.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::exit;
use std::time::Instant;

use overhear_event::ClockId;
use overhear_monitor::interference::{median, InterferenceProbe, Measured, OrdinarySpeed};
use overhear_monitor::scheduler::take_precedence;
use overhear_stream::sync::Ordering;
use overhear_stream::{
    read_hardware_ticks, read_hardware_ticks_ordered, Geometry, OwnedWords, QueueGeometry,
    QueueWriter, Shape, SimpleWriter, Words,
};

/// The sensor that the sending process invokes before each byte [GRTMon, table 3].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Invoked {
    Nothing,
    Simple,
    Concurrent,
}

impl Invoked {
    pub(crate) const ALL: [Self; 3] = [Self::Nothing, Self::Simple, Self::Concurrent];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "no sensor",
            Self::Simple => "a simple sensor",
            Self::Concurrent => "a concurrent sensor",
        }
    }
}

/// Sizes as in MKM: 4 bytes of data, and large buffers.
const PAYLOAD_BYTES: u32 = 4;
const ELEMENTS: u64 = 65_536;

/// Both sensors, in memory that is paged in.
struct Sensors {
    simple: SimpleWriter<OwnedWords>,
    concurrent: QueueWriter<OwnedWords>,
    tid: u32,
}

impl Sensors {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let ring = Geometry::new(PAYLOAD_BYTES, ELEMENTS)?;
        let queue = QueueGeometry::new(PAYLOAD_BYTES, ELEMENTS)?;
        let memory = OwnedWords::zeroed(queue.bytes().div_ceil(8));
        for (at, words) in Shape::Concurrent(queue).initial(ClockId::X86Tsc, 1) {
            for (index, word) in words.into_iter().enumerate() {
                memory.word(at / 8 + index).store(word, Ordering::Relaxed);
            }
        }
        Ok(Self {
            simple: SimpleWriter::new(OwnedWords::zeroed(ring.bytes().div_ceil(8)), ring)?,
            concurrent: QueueWriter::new(memory, queue)?,
            tid: std::process::id(),
        })
    }

    fn invoke(&mut self, which: Invoked, number: u64) {
        let payload = (number as u32).to_ne_bytes();
        match which {
            Invoked::Nothing => {}
            Invoked::Simple => self.simple.write(&payload, read_hardware_ticks),
            Invoked::Concurrent => {
                // A single thread never finds the queue empty.
                let _ = self
                    .concurrent
                    .write(self.tid, &payload, read_hardware_ticks_ordered);
            }
        }
    }
}

/// Binds the calling thread, and the threads that it creates, to a CPU.
pub(crate) fn bind(cpu: usize) {
    // SAFETY: a set is plain data; the call concerns this thread alone.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// Number of round trips of a lap. A lap takes less than half a millisecond, so that many fit
/// between two disturbances.
const TRIPS: u64 = 40;
/// Number of laps of a batch.
const LAPS: u64 = 25;
/// Number of undisturbed laps that give a value.
const ENOUGH: usize = 15;
/// Maximum number of batches for a value.
const BATCHES: usize = 60;
/// Length of the interference probe before and after a lap.
const YARDSTICK_NS: u64 = 10_000;

/// The two processes.
pub(crate) struct Players {
    pub(crate) pids: [u32; 2],
    control: UnixStream,
    /// All times of the probe so far. Their mode is the ordinary speed of the core.
    probes_ns: Vec<u64>,
}

impl Players {
    pub(crate) fn start(cpu: usize) -> io::Result<Self> {
        let (control, requests) = UnixStream::pair()?;
        let (mut here, mut there) = (io::pipe()?, io::pipe()?);
        let mut byte = [0];
        // SAFETY: this program has one thread, so a child may go on as its parent does.
        let answering = unsafe { libc::fork() };
        if answering == 0 {
            bind(cpu);
            let _ = take_precedence();
            drop((control, requests));
            drop(here.1);
            while here.0.read_exact(&mut byte).is_ok() && there.1.write_all(&byte).is_ok() {}
            exit(0);
        }
        // SAFETY: as above.
        let sender = unsafe { libc::fork() };
        if sender == 0 {
            bind(cpu);
            let _ = take_precedence();
            drop(control);
            drop((here.0, there.1));
            run_sender(requests, here.1, there.0);
        }
        let pids = [answering, sender].map(|pid| pid as u32);
        let mut players = Self {
            pids,
            control,
            probes_ns: Vec::new(),
        };
        for _ in 0..BATCHES {
            players.laps(LAPS, Invoked::Nothing)?;
        }
        Ok(players)
    }

    /// Nanoseconds per switch on an undisturbed core; `None` if the core stays disturbed.
    pub(crate) fn play(&mut self) -> io::Result<Option<f64>> {
        Ok(self.play_with(Invoked::Nothing)?.map(|trip| trip / 2.0))
    }

    /// Nanoseconds per round trip, of two switches and one invocation; the median of laps during
    /// which the core was undisturbed, after some laps that do not count.
    pub(crate) fn play_with(&mut self, invoked: Invoked) -> io::Result<Option<f64>> {
        self.laps(LAPS / 5, invoked)?;
        let mut all: Vec<Measured> = Vec::new();
        for _ in 0..BATCHES {
            all.extend(self.laps(LAPS, invoked)?);
            let Some(speed) = OrdinarySpeed::of(&self.probes_ns) else {
                return Ok(None);
            };
            let calm = speed.undisturbed(&all);
            if calm.len() >= ENOUGH {
                return Ok(Some(median(&calm)));
            }
        }
        Ok(None)
    }

    /// Runs `laps` laps, and returns the time of a round trip in each.
    fn laps(&mut self, laps: u64, invoked: Invoked) -> io::Result<Vec<Measured>> {
        for word in [laps, invoked as u64] {
            self.control.write_all(&word.to_ne_bytes())?;
        }
        let mut all = Vec::new();
        for _ in 0..laps {
            let (mut spent, mut probe) = ([0; 8], [0; 8]);
            self.control.read_exact(&mut spent)?;
            self.control.read_exact(&mut probe)?;
            let probe_ns = u64::from_ne_bytes(probe);
            self.probes_ns.push(probe_ns);
            all.push(Measured {
                value: u64::from_ne_bytes(spent) as f64 / TRIPS as f64,
                probe_ns,
            });
        }
        Ok(all)
    }
}

impl Drop for Players {
    fn drop(&mut self) {
        for pid in self.pids {
            // SAFETY: ends our own children, and waits for them.
            unsafe {
                libc::kill(pid as i32, libc::SIGKILL);
                libc::waitpid(pid as i32, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// The sending process: runs the requested laps with the requested sensor.
fn run_sender(mut requests: UnixStream, mut out: io::PipeWriter, mut back: io::PipeReader) -> ! {
    let Ok(mut sensors) = Sensors::new() else {
        exit(1);
    };
    let yardstick = InterferenceProbe::with_length(YARDSTICK_NS);
    let (mut byte, mut words) = ([0], [[0; 8]; 2]);
    loop {
        for word in &mut words {
            if requests.read_exact(word).is_err() {
                exit(0);
            }
        }
        let [laps, which] = words.map(u64::from_ne_bytes);
        let which = Invoked::ALL[which as usize % Invoked::ALL.len()];
        let mut measured = Vec::new();
        for _ in 0..laps {
            let before = yardstick.time();
            let begun = Instant::now();
            for number in 0..TRIPS {
                sensors.invoke(which, number);
                let passed = out
                    .write_all(&byte)
                    .and_then(|()| back.read_exact(&mut byte));
                if passed.is_err() {
                    exit(1);
                }
            }
            let spent = begun.elapsed().as_nanos() as u64;
            measured.extend([spent, before.max(yardstick.time())]);
        }
        for word in measured {
            let _ = requests.write_all(&word.to_ne_bytes());
        }
    }
}
