// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sum of the costs of all elements of a run.

use std::collections::{BTreeMap, BTreeSet};

use overhear_event::{
    Analysis, ElementView, Gap, Nanos, Origin, StreamDescriptor, StreamId, Timestamp,
};

use super::costs::nanos;
use super::{price_name, Costs};
use crate::context::{is_of_interrupts, WriterContext};

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

/// Elements of an event whose price was not measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssumedElements {
    /// Name of the event.
    pub event: String,
    /// Name of the price ([`price_name`]).
    pub price: String,
    /// Number of elements, missed ones included.
    pub elements: u64,
}

/// Adds up the cost of the elements of a run, as an [`Analysis`].
///
/// An element is charged to the thread in whose context it was written. The sum is the time that
/// these threads lost, and not the time by which the run ended later: delays of threads that wait
/// for each other overlap.
#[derive(Clone, Debug, Default)]
pub struct OverheadMeter {
    costs: Costs,
    /// Names of prices that were not measured ([`price_name`]).
    assumed: BTreeSet<String>,
    /// Elements of the kernel's streams whose price is assumed.
    assumed_elements: BTreeMap<StreamId, AssumedElements>,
    /// Newest names of processes.
    names: BTreeMap<u32, String>,
    streams: BTreeMap<StreamId, (Payer, Option<f64>)>,
    threads: BTreeMap<u32, f64>,
    processes: BTreeMap<u32, f64>,
    interrupts: f64,
    missed: f64,
    elements: u64,
    unpriced: BTreeMap<String, u64>,
}

impl OverheadMeter {
    /// With these prices.
    #[must_use]
    pub fn new(costs: Costs) -> Self {
        Self {
            costs,
            ..Self::default()
        }
    }

    /// Counts the elements of the kernel with one of these prices, which were not measured, by the
    /// names of the prices ([`price_name`]).
    #[must_use]
    pub fn with_assumed(mut self, prices: impl IntoIterator<Item = String>) -> Self {
        self.assumed = prices.into_iter().collect();
        self
    }

    /// The prices.
    #[must_use]
    pub const fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Cost of all elements, missed ones included.
    #[must_use]
    pub fn total(&self) -> Nanos {
        let sum = self.threads.values().sum::<f64>() + self.processes.values().sum::<f64>();
        nanos(sum + self.interrupts + self.missed)
    }

    /// The total as a share of `run`, the time that threads ran; `None` if that is zero.
    #[must_use]
    pub fn share(&self, run: Nanos) -> Option<f64> {
        (run > Nanos::ZERO).then(|| self.total().as_ns() as f64 / run.as_ns() as f64)
    }

    /// Cost of kernel elements per thread, by thread id, largest first.
    #[must_use]
    pub fn threads(&self) -> Vec<(u32, Nanos)> {
        largest_first(&self.threads)
    }

    /// Cost of the elements of program sensors per process, by process id, largest first.
    #[must_use]
    pub fn processes(&self) -> Vec<(u32, Nanos)> {
        largest_first(&self.processes)
    }

    /// Newest name of a process with sensors.
    #[must_use]
    pub fn process_name(&self, pid: u32) -> Option<&str> {
        self.names.get(&pid).map(String::as_str)
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

    /// Elements of the kernel with a price that was not measured, missed ones included, by event.
    #[must_use]
    pub fn assumed(&self) -> Vec<AssumedElements> {
        let mut found: Vec<AssumedElements> = Vec::new();
        for one in self.assumed_elements.values().filter(|it| it.elements > 0) {
            match found.iter_mut().find(|known| known.event == one.event) {
                Some(known) => known.elements = known.elements.saturating_add(one.elements),
                None => found.push(one.clone()),
            }
        }
        found
    }

    fn count_assumed(&mut self, stream: StreamId, elements: u64) {
        if let Some(one) = self.assumed_elements.get_mut(&stream) {
            one.elements = one.elements.saturating_add(elements);
        }
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

fn largest_first(sums: &BTreeMap<u32, f64>) -> Vec<(u32, Nanos)> {
    let mut sums: Vec<_> = sums.iter().map(|(id, ns)| (*id, nanos(*ns))).collect();
    sums.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
    sums
}

impl Analysis for OverheadMeter {
    fn open(&mut self, stream: &StreamDescriptor) {
        match &stream.origin {
            Origin::Program(task) => {
                self.names.insert(task.pid, task.comm.clone());
            }
            Origin::Kernel { .. } => {
                let price = price_name(&stream.sensor);
                if self.assumed.contains(price) {
                    let none_yet = AssumedElements {
                        event: stream.event().to_string(),
                        price: price.to_string(),
                        elements: 0,
                    };
                    self.assumed_elements.insert(stream.id, none_yet);
                }
            }
            Origin::Sampler => {}
        }
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.count_assumed(element.stream.id, 1);
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
        self.count_assumed(stream.id, gap.missed);
        match self.price(stream).1 {
            Some(ns) => self.missed += ns * gap.missed as f64,
            None => self.leave_out(stream, gap.missed),
        }
    }

    fn advance(&mut self, _: Timestamp) {}
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use overhear_event::kernel::{Switch, Wake, SCHED_SWITCH, SCHED_WAKE};
    use overhear_event::{
        Analysis, ElementView, Gap, GapCause, Nanos, Origin, StreamDescriptor, StreamId, Task,
        Timestamp, TypeSchema,
    };

    use super::{AssumedElements, Costs, OverheadMeter};

    fn stream(id: u32, origin: Origin, sensor: &str, schema: TypeSchema) -> StreamDescriptor {
        StreamDescriptor {
            id: StreamId::from_raw(id),
            origin,
            sensor: sensor.to_string(),
            instance: String::new(),
            lane: None,
            schema: Arc::new(schema),
            rate: None,
            capacity: 64,
        }
    }

    fn gap(stream: &StreamDescriptor, missed: u64) -> Gap {
        Gap {
            stream: stream.id,
            first: 2,
            missed,
            from: Timestamp::ZERO,
            to: Timestamp::ZERO,
            cause: GapCause::Overwritten,
        }
    }

    fn feed(update: &mut OverheadMeter, stream: &StreamDescriptor, payload: &[u8]) {
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
        let mut meter = OverheadMeter::new(costs);
        let kernel = Origin::Kernel { cpu: 0 };
        let switches = stream(1, kernel.clone(), SCHED_SWITCH, Switch::schema());
        let wakes = stream(2, kernel.clone(), SCHED_WAKE, Wake::schema());
        let calls = stream(3, kernel, "syscall", Wake::schema());
        let task = Task {
            pid: 50,
            start: Timestamp::ZERO,
            comm: "player".to_string(),
        };
        let own = stream(
            4,
            Origin::Program(task),
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
        feed(&mut meter, &switches, &switch.to_payload());
        switch.flags = Switch::NEXT_TRACKED;
        feed(&mut meter, &switches, &switch.to_payload());
        let wake = Wake {
            tid: 7,
            pid: 7,
            waker_tid: 8,
            waker_pid: 7,
            target_cpu: 0,
            kind: Wake::WAKEUP,
        };
        feed(&mut meter, &wakes, &wake.to_payload());
        feed(
            &mut meter,
            &wakes,
            &Wake {
                waker_tid: 0,
                ..wake
            }
            .to_payload(),
        );
        feed(&mut meter, &calls, &wake.to_payload());
        feed(&mut meter, &own, &[]);
        meter.gap(&wakes, &gap(&wakes, 3));

        assert_eq!(
            meter.threads(),
            [(8, Nanos::from_ns(110)), (7, Nanos::from_ns(100))]
        );
        assert_eq!(meter.processes(), [(50, Nanos::from_ns(8))]);
        assert_eq!(meter.interrupts(), Nanos::from_ns(10));
        assert_eq!(meter.missed(), Nanos::from_ns(30));
        assert_eq!(meter.total(), Nanos::from_ns(258));
        assert_eq!(meter.elements(), 5);
        assert_eq!(
            meter.unpriced().collect::<Vec<_>>(),
            [("kernel:syscall", 1)]
        );
    }
    #[test]
    fn share_is_unknown_if_no_thread_ran() {
        let mut meter = OverheadMeter::new(Costs::from(Nanos::from_ns(10)));
        let kernel = Origin::Kernel { cpu: 0 };
        let wakes = stream(1, kernel, SCHED_WAKE, Wake::schema());
        meter.gap(&wakes, &gap(&wakes, 5));
        assert_eq!(meter.share(Nanos::ZERO), None);
        assert_eq!(meter.share(Nanos::from_ns(200)), Some(0.25));
    }

    #[test]
    fn assumed_prices_are_counted_by_event() {
        let mut costs = Costs::default();
        for sensor in [SCHED_WAKE, "syscall", "probe"] {
            costs.kernel(sensor, 10.0);
        }
        let assumed = ["probe", "syscall", "timer"].map(String::from);
        let mut meter = OverheadMeter::new(costs).with_assumed(assumed);
        let cpu = |cpu| Origin::Kernel { cpu };
        let streams = [
            stream(1, cpu(0), SCHED_WAKE, Wake::schema()),
            stream(2, cpu(0), "probe/main", Wake::schema()),
            stream(3, cpu(1), "probe/main", Wake::schema()),
            stream(4, cpu(0), "syscall", Wake::schema()),
        ];
        streams.iter().for_each(|stream| meter.open(stream));
        let idle = Wake {
            tid: 7,
            pid: 7,
            waker_tid: 0,
            waker_pid: 0,
            target_cpu: 0,
            kind: Wake::WAKEUP,
        };
        for stream in &streams[..3] {
            feed(&mut meter, stream, &idle.to_payload());
        }
        meter.gap(&streams[2], &gap(&streams[2], 4));
        // Without elements `syscall` is not listed.
        let probes = AssumedElements {
            event: "kernel:probe/main".to_string(),
            price: "probe".to_string(),
            elements: 6,
        };
        assert_eq!(meter.assumed(), [probes]);
        assert_eq!(meter.total(), Nanos::from_ns(70));
    }

    #[test]
    fn process_has_the_name_of_its_newest_stream() {
        let mut meter = OverheadMeter::default();
        for (id, comm) in [(1, "sh"), (2, "player")] {
            let task = Task {
                pid: 50,
                start: Timestamp::ZERO,
                comm: comm.to_string(),
            };
            let schema = TypeSchema::builder("f").build().unwrap();
            meter.open(&stream(id, Origin::Program(task), "frame", schema));
        }
        assert_eq!(meter.process_name(50), Some("player"));
        assert_eq!(meter.process_name(51), None);
    }
}
