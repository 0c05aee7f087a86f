// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of an observation for the observed program: estimates from measurements, and the sum
//! over the elements of a run.
//!
//! A calibration measures the cost of one element of a sensor [MKM, section 5.5]. [`Costs`] keeps
//! the means, and [`Intrusion`] adds them up as elements come: per thread for kernel elements that
//! were written in the context of a thread, per process for sensors of programs, and in one sum for
//! elements that were written in interrupts.

use std::collections::BTreeMap;

use overhear_event::{
    ElementView, EventName, Gap, Nanos, Origin, StreamDescriptor, StreamId, Timestamp, Update,
    WRITER_TID,
};

use crate::context::{is_of_interrupts, WriterContext};

/// A mean with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Number of measurements.
    pub samples: u64,
    /// Mean of the measurements, in nanoseconds.
    pub mean_ns: f64,
    /// Standard deviation of the measurements, in nanoseconds.
    pub deviation_ns: f64,
    /// Half of the 99 % confidence interval around `mean_ns`, in nanoseconds, for independent
    /// measurements with a normal distribution (Student's distribution).
    pub within_ns: f64,
}

impl Estimate {
    /// From measurements in nanoseconds; `None` for fewer than two, whose spread is not known.
    ///
    /// ```
    /// use overhear_metrics::Estimate;
    ///
    /// let estimate = Estimate::of(&[10.0, 12.0, 11.0, 13.0, 9.0]).unwrap();
    /// assert_eq!(estimate.mean_ns, 11.0);
    /// assert!((estimate.within_ns - 4.604 * (2.5_f64 / 5.0).sqrt()).abs() < 0.05);
    /// ```
    #[must_use]
    pub fn of(measurements: &[f64]) -> Option<Self> {
        let count = measurements.len();
        if count < 2 {
            return None;
        }
        let mean = measurements.iter().sum::<f64>() / count as f64;
        let squares: f64 = measurements.iter().map(|one| (one - mean).powi(2)).sum();
        let deviation = (squares / (count - 1) as f64).sqrt();
        Some(Self {
            samples: count as u64,
            mean_ns: mean,
            deviation_ns: deviation,
            within_ns: student_995(count - 1) * deviation / (count as f64).sqrt(),
        })
    }

    /// Whether the confidence interval contains zero.
    #[must_use]
    pub fn may_be_zero(&self) -> bool {
        self.mean_ns.abs() <= self.within_ns
    }
}

/// The 0.995 quantile of Student's t, to 0.01 from six degrees of freedom on (Abramowitz and
/// Stegun, 26.7.5); exact below.
fn student_995(degrees: usize) -> f64 {
    const FEW: [f64; 5] = [63.657, 9.925, 5.841, 4.604, 4.032];
    /// The 0.995 quantile of the normal distribution.
    const Z: f64 = 2.575_829_3;
    if let Some(exact) = FEW.get(degrees.wrapping_sub(1)) {
        return *exact;
    }
    let n = degrees as f64;
    let (z3, z5, z7, z9) = (Z.powi(3), Z.powi(5), Z.powi(7), Z.powi(9));
    Z + (z3 + Z) / (4.0 * n)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * Z) / (96.0 * n * n)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * Z) / (384.0 * n.powi(3))
        + (79.0 * z9 + 776.0 * z7 + 1482.0 * z5 - 1920.0 * z3 - 945.0 * Z) / (92_160.0 * n.powi(4))
}

/// Name in [`Costs::kernel`] of probes at entries of functions.
pub const ENTRIES: &str = "probe";
/// Name of probes at returns of functions.
pub const RETURNS: &str = "probe/return";
/// Name of static probes.
pub const STATIC_PROBES: &str = "usdt";

/// The name under which the price of a kernel sensor is kept: its own, or that of its kind of
/// probe.
///
/// ```
/// use overhear_metrics::price_name;
///
/// assert_eq!(price_name("syscall"), "syscall");
/// assert_eq!(price_name("probe/handle_request"), "probe");
/// assert_eq!(price_name("probe/handle_request/return"), "probe/return");
/// assert_eq!(price_name("usdt/app/phase"), "usdt");
/// ```
#[must_use]
pub fn price_name(sensor: &str) -> &str {
    match sensor.split_once('/') {
        Some(("probe", place)) if place.ends_with("/return") => RETURNS,
        Some(("probe", _)) => ENTRIES,
        Some(("usdt", _)) => STATIC_PROBES,
        _ => sensor,
    }
}

/// Prices of elements in nanoseconds: by sensor for the kernel, by kind of sensor for programs.
/// Negative means are not kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    every: Option<f64>,
    kernel: BTreeMap<String, f64>,
    simple: Option<f64>,
    laned: Option<f64>,
    concurrent: Option<f64>,
}

impl Costs {
    /// Sets the price of a kernel sensor, by its name without `kernel:`, or of a kind of probe
    /// ([`price_name`]).
    pub fn kernel(&mut self, sensor: &str, ns: f64) {
        self.kernel.insert(sensor.to_string(), ns.max(0.0));
    }

    /// Sets the price of an element of a program's simple sensor.
    pub fn simple(&mut self, ns: f64) {
        self.simple = Some(ns.max(0.0));
    }

    /// Sets the price of an element of a program's laned sensor.
    pub fn laned(&mut self, ns: f64) {
        self.laned = Some(ns.max(0.0));
    }

    /// Sets the price of an element of a program's concurrent sensor.
    pub fn concurrent(&mut self, ns: f64) {
        self.concurrent = Some(ns.max(0.0));
    }

    /// Price of an element of this event, rounded to a nanosecond; `None` if unknown. An event of
    /// programs has the price of a simple sensor.
    #[must_use]
    pub fn of_event(&self, event: &EventName) -> Option<Nanos> {
        let named = match event.as_str().split_once(':') {
            Some(("kernel", sensor)) => self.of_kernel(sensor),
            Some(("user", _)) => self.simple,
            _ => Some(0.0),
        };
        named.or(self.every).map(nanos)
    }

    /// Price of an element of this stream, rounded to a nanosecond; `None` if unknown.
    #[must_use]
    pub fn of_stream(&self, stream: &StreamDescriptor) -> Option<Nanos> {
        self.of(stream).map(nanos)
    }

    /// Price of an element of this stream, in nanoseconds; zero if unknown.
    #[must_use]
    pub fn of_stream_ns(&self, stream: &StreamDescriptor) -> f64 {
        self.of(stream).unwrap_or(0.0)
    }

    /// Whether all prices are zero.
    pub(crate) fn are_zero(&self) -> bool {
        let programs = [self.every, self.simple, self.laned, self.concurrent];
        let programs = programs.into_iter().flatten();
        programs
            .chain(self.kernel.values().copied())
            .all(|ns| ns == 0.0)
    }

    fn of_kernel(&self, sensor: &str) -> Option<f64> {
        let own = self.kernel.get(sensor);
        own.or_else(|| self.kernel.get(price_name(sensor))).copied()
    }

    fn of(&self, stream: &StreamDescriptor) -> Option<f64> {
        let named = match &stream.origin {
            Origin::Kernel { .. } => self.of_kernel(&stream.sensor),
            Origin::Program(_) if stream.lane.is_some() => self.laned,
            // Its elements name their writers, and it is no lane. Without a price of its own it has
            // that of a simple sensor.
            Origin::Program(_) if stream.schema.index_of(WRITER_TID) == Some(0) => {
                self.concurrent.or(self.simple)
            }
            Origin::Program(_) => self.simple,
            // A sampler runs on a thread of its own.
            Origin::Sampler => Some(0.0),
        };
        named.or(self.every)
    }
}

/// Every element has this price.
impl From<Nanos> for Costs {
    fn from(every: Nanos) -> Self {
        Self {
            every: Some(every.as_ns() as f64),
            ..Self::default()
        }
    }
}

/// The party that an element is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payer {
    /// The thread in whose context it was written.
    Thread(WriterContext),
    /// This process.
    Process(u32),
    /// An interrupted thread that is unknown.
    Interrupts,
}

/// Adds up the cost of the elements of a run, as an [`Update`].
///
/// An element is charged to the thread in whose context it was written. The sum is the time that
/// these threads lost, and not the time by which the run ended later: delays of threads that wait
/// for each other overlap.
#[derive(Clone, Debug, Default)]
pub struct Intrusion {
    costs: Costs,
    streams: BTreeMap<StreamId, (Payer, Option<f64>)>,
    threads: BTreeMap<u32, f64>,
    processes: BTreeMap<u32, f64>,
    interrupts: f64,
    missed: f64,
    elements: u64,
    unpriced: BTreeMap<String, u64>,
}

impl Intrusion {
    /// With these prices.
    #[must_use]
    pub fn new(costs: Costs) -> Self {
        Self {
            costs,
            ..Self::default()
        }
    }

    /// Cost of all elements, missed ones included.
    #[must_use]
    pub fn total(&self) -> Nanos {
        let sum = self.threads.values().sum::<f64>() + self.processes.values().sum::<f64>();
        nanos(sum + self.interrupts + self.missed)
    }

    /// Cost of kernel elements per thread, by thread id.
    pub fn threads(&self) -> impl Iterator<Item = (u32, Nanos)> + '_ {
        self.threads.iter().map(|(tid, ns)| (*tid, nanos(*ns)))
    }

    /// Cost of the elements of program sensors per process, by process id.
    pub fn processes(&self) -> impl Iterator<Item = (u32, Nanos)> + '_ {
        self.processes.iter().map(|(pid, ns)| (*pid, nanos(*ns)))
    }

    /// Cost of elements that were written in interrupts and by idle CPUs: no known thread was
    /// delayed.
    #[must_use]
    pub fn interrupts(&self) -> Nanos {
        nanos(self.interrupts)
    }

    /// Cost of missed elements, whose writers are unknown.
    #[must_use]
    pub fn missed(&self) -> Nanos {
        nanos(self.missed)
    }

    /// Number of elements that were added up.
    #[must_use]
    pub const fn elements(&self) -> u64 {
        self.elements
    }

    /// Number of elements without a price, which are left out, by the name of their event.
    pub fn unpriced(&self) -> impl Iterator<Item = (&str, u64)> {
        self.unpriced.iter().map(|(name, count)| (&**name, *count))
    }

    fn price(&mut self, stream: &StreamDescriptor) -> (Payer, Option<f64>) {
        let costs = &self.costs;
        *self.streams.entry(stream.id).or_insert_with(|| {
            let payer = match &stream.origin {
                Origin::Program(task) => Payer::Process(task.pid),
                _ if is_of_interrupts(stream) => Payer::Interrupts,
                _ => Payer::Thread(WriterContext::of(stream)),
            };
            (payer, costs.of(stream))
        })
    }

    fn leave_out(&mut self, stream: &StreamDescriptor, elements: u64) {
        let event = stream.event().to_string();
        *self.unpriced.entry(event).or_default() += elements;
    }
}

fn nanos(ns: f64) -> Nanos {
    Nanos::from_ns(ns.round() as u64)
}

impl Update for Intrusion {
    fn element(&mut self, element: &ElementView<'_>) {
        let (payer, cost) = self.price(element.stream);
        let Some(ns) = cost else {
            return self.leave_out(element.stream, 1);
        };
        self.elements += 1;
        let thread = match payer {
            Payer::Thread(context) => context.thread(element.payload),
            Payer::Process(pid) => {
                *self.processes.entry(pid).or_default() += ns;
                return;
            }
            Payer::Interrupts => None,
        };
        // The idle thread of a CPU spends time that no other thread used.
        match thread {
            Some(tid) => *self.threads.entry(tid).or_default() += ns,
            None => self.interrupts += ns,
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        match self.price(stream).1 {
            Some(ns) => self.missed += ns * gap.missed as f64,
            None => self.leave_out(stream, gap.missed),
        }
    }

    fn advance(&mut self, _: Timestamp) {}
}

#[cfg(test)]
mod tests {
    use overhear_event::kernel::{Switch, Wake, SCHED_SWITCH, SCHED_WAKE};
    use overhear_event::{
        ElementView, EventName, Gap, GapCause, Nanos, Origin, StreamDescriptor, StreamId,
        Timestamp, TypeSchema, Update,
    };

    use super::{student_995, Costs, Estimate, Intrusion};

    #[test]
    fn students_distribution_matches_the_tables() {
        for (degrees, value) in [
            (1, 63.657),
            (2, 9.925),
            (4, 4.604),
            (5, 4.032),
            (7, 3.499),
            (10, 3.169),
            (20, 2.845),
            (40, 2.704),
            (1_000, 2.581),
        ] {
            let near = (student_995(degrees) - value).abs();
            assert!(
                near < 0.02,
                "{degrees}: {} instead of {value}",
                student_995(degrees)
            );
        }
    }

    #[test]
    fn prices_are_found_by_event() {
        let mut costs = Costs::default();
        costs.kernel(SCHED_SWITCH, 263.4);
        costs.simple(8.6);
        let of = |costs: &Costs, event: EventName| costs.of_event(&event).map(Nanos::as_ns);
        assert_eq!(of(&costs, EventName::kernel(SCHED_SWITCH)), Some(263));
        assert_eq!(of(&costs, EventName::kernel(SCHED_WAKE)), None);
        assert_eq!(of(&costs, EventName::user("frame")), Some(9));
        assert_eq!(of(&costs, EventName::sampler("schedstat")), Some(0));
        let all = Costs::from(Nanos::from_ns(7));
        assert_eq!(of(&all, EventName::kernel(SCHED_WAKE)), Some(7));
        assert_eq!(of(&all, EventName::user("frame")), Some(7));
    }

    #[test]
    fn single_measurement_has_no_estimate() {
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(Estimate::of(&[1.0]), None);
        let zero = Estimate::of(&[-1.0, 1.0, -1.0, 1.0, 0.5]).unwrap();
        assert!(zero.may_be_zero());
        let some = Estimate::of(&[10.0, 10.1, 9.9, 10.0]).unwrap();
        assert!(!some.may_be_zero());
    }

    fn stream(id: u32, origin: Origin, sensor: &str, schema: TypeSchema) -> StreamDescriptor {
        StreamDescriptor::new(StreamId::from_raw(id), origin, sensor, schema)
    }

    fn feed(update: &mut Intrusion, stream: &StreamDescriptor, payload: &[u8]) {
        update.element(&ElementView {
            stream,
            sequence: 0,
            time: Timestamp::ZERO,
            payload,
        });
    }

    #[test]
    fn elements_are_charged_to_the_interrupted_thread() {
        let mut costs = Costs::default();
        costs.kernel(SCHED_SWITCH, 100.0);
        costs.kernel(SCHED_WAKE, 10.0);
        costs.simple(8.0);
        let mut intrusion = Intrusion::new(costs);
        let kernel = Origin::Kernel { cpu: 0 };
        let switches = stream(1, kernel.clone(), SCHED_SWITCH, Switch::schema());
        let wakes = stream(2, kernel.clone(), SCHED_WAKE, Wake::schema());
        let calls = stream(3, kernel, "syscall", Wake::schema());
        let own = stream(
            4,
            Origin::program(50, "player"),
            "frame",
            TypeSchema::builder("f").build().unwrap(),
        );
        let mut switch = Switch {
            prev_tid: 7,
            next_tid: 8,
            prev_pid: 7,
            next_pid: 7,
            prev_state: 1,
            flags: Switch::PREV_TRACKED | Switch::NEXT_TRACKED,
            prev_run_ns: 0,
        };
        feed(&mut intrusion, &switches, &switch.to_payload());
        switch.flags = Switch::NEXT_TRACKED;
        feed(&mut intrusion, &switches, &switch.to_payload());
        let wake = Wake {
            tid: 7,
            pid: 7,
            waker_tid: 8,
            waker_pid: 7,
            target_cpu: 0,
            kind: Wake::WAKEUP,
        };
        feed(&mut intrusion, &wakes, &wake.to_payload());
        feed(
            &mut intrusion,
            &wakes,
            &Wake {
                waker_tid: 0,
                ..wake
            }
            .to_payload(),
        );
        feed(&mut intrusion, &calls, &wake.to_payload());
        feed(&mut intrusion, &own, &[]);
        let gap = Gap {
            stream: wakes.id,
            first: 2,
            missed: 3,
            from: Timestamp::ZERO,
            to: Timestamp::ZERO,
            cause: GapCause::Overwritten,
        };
        intrusion.gap(&wakes, &gap);

        let threads: Vec<_> = intrusion.threads().collect();
        assert_eq!(
            threads,
            [(7, Nanos::from_ns(100)), (8, Nanos::from_ns(110))]
        );
        let processes: Vec<_> = intrusion.processes().collect();
        assert_eq!(processes, [(50, Nanos::from_ns(8))]);
        assert_eq!(intrusion.interrupts(), Nanos::from_ns(10));
        assert_eq!(intrusion.missed(), Nanos::from_ns(30));
        assert_eq!(intrusion.total(), Nanos::from_ns(258));
        assert_eq!(intrusion.elements(), 5);
        assert_eq!(
            intrusion.unpriced().collect::<Vec<_>>(),
            [("kernel:syscall", 1)]
        );
    }
}
