// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel sensors and probes in a budget: their prices, and the state in which they are off.
//!
//! An event of the kernel costs something also if no element is written: its BPF program runs, and
//! a probe of a program interrupts the program. So there are two prices, of a written and of a
//! skipped event, and two states of being off. *Counted* events have the price of a skipped one,
//! which is charged as a cost of control. If this cost would take a good part of the target, the
//! programs are detached. Then an event costs nothing, and is not counted.

use std::collections::BTreeMap;

use overhear_budget::EventPrice;
use overhear_event::Nanos;
use overhear_kernel::{BudgetState, KernelWrites};
use overhear_metrics::{price_name, ENTRIES, RETURNS, STATIC_PROBES};

use super::learning::Work;
use super::prices::price_of;
use crate::calibrate::{self, CalibratedSensor, Calibration, KernelCost};

/// Rounds of the measurement at the start, if there is no calibration.
const ROUNDS: u64 = 3;
/// Price of an element that nothing has measured, in ns, and its standard error. The price is
/// learned if the sensor is switched without being detached.
const UNKNOWN_NS: f64 = 300.0;
const UNKNOWN_ERROR_NS: f64 = 150.0;
/// Part of an unknown price that a skipped event costs as well.
const SKIPPED_PART: f64 = 0.6;
/// Part of the target that the counting of skipped events of all sensors may take.
const COUNTING_PART: f64 = 0.125;
/// CPU time over which the rate of skipped events is averaged, in ns.
const RATE_WINDOW_NS: f64 = 100e6;
/// CPU time after which the rate is known, in ns.
const LEAST_RATE_NS: f64 = 20e6;
/// Least time for which a sensor that can be detached stays as it is: the kernel takes some
/// milliseconds to attach programs.
pub(super) const DETACHABLE_DWELL: Nanos = Nanos::from_ms(20);

/// Prices of an event of a kernel sensor or a probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelPrice {
    pub(super) written: EventPrice,
    pub(super) skipped: EventPrice,
}

impl KernelPrice {
    fn of(cost: &KernelCost) -> Option<Self> {
        let written = price_of(&cost.cost_per_event)?;
        let skipped = cost.skipped.as_ref().and_then(price_of);
        Some(Self {
            written,
            skipped: skipped.map_or_else(|| part(written, SKIPPED_PART), |it| at_most(it, written)),
        })
    }

    fn unknown() -> Self {
        let written = EventPrice::from_ns(UNKNOWN_NS, UNKNOWN_ERROR_NS);
        let written = written.expect("the numbers are finite and not negative");
        Self {
            written,
            skipped: part(written, SKIPPED_PART),
        }
    }
}

fn part(price: EventPrice, part: f64) -> EventPrice {
    EventPrice::from_ns(price.as_ns() * part, price.error_ns() * part).unwrap_or(price)
}

fn at_most(price: EventPrice, most: EventPrice) -> EventPrice {
    match price.as_ns() > most.as_ns() {
        true => most,
        false => price,
    }
}

/// Prices of the kernel sensors of a run, by the name of the price.
#[derive(Clone, Debug, Default)]
pub(crate) struct KernelPrices {
    prices: BTreeMap<String, KernelPrice>,
}

impl KernelPrices {
    /// From a calibration; prices that it lacks are measured now. Sensors are given by name. Call
    /// it before their programs are attached, whose constant cost would be missing in the result.
    pub(crate) fn new<'a>(
        known: Option<&Calibration>,
        sensors: impl Iterator<Item = &'a str>,
    ) -> Self {
        let mut prices = BTreeMap::new();
        let costs = known.into_iter().flat_map(|known| &known.kernel);
        add(&mut prices, costs.filter(|cost| cost.skipped.is_some()));
        let mut names: Vec<&str> = sensors.map(price_name).collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| !prices.contains_key(*name));
        let missing: Vec<CalibratedSensor> =
            names.iter().filter_map(|name| name.parse().ok()).collect();
        if !missing.is_empty() {
            // In a thread of its own: the measurement binds its thread to a CPU.
            let measure = || calibrate::calibrate(ROUNDS, &missing, |_| {});
            let measured = std::thread::scope(|scope| scope.spawn(measure).join());
            if let Ok(Ok(measured)) = measured {
                add(&mut prices, measured.kernel.iter());
            }
        }
        // An older calibration is better than nothing.
        let costs = known.into_iter().flat_map(|known| &known.kernel);
        let costs: Vec<&KernelCost> = costs
            .filter(|cost| !prices.contains_key(&cost.sensor))
            .collect();
        add(&mut prices, costs.into_iter());
        Self { prices }
    }

    fn of(&self, sensor: &str) -> KernelPrice {
        let found = self.prices.get(price_name(sensor));
        found.copied().unwrap_or_else(KernelPrice::unknown)
    }
}

fn add<'a>(
    prices: &mut BTreeMap<String, KernelPrice>,
    costs: impl Iterator<Item = &'a KernelCost>,
) {
    prices.extend(costs.filter_map(|cost| Some((cost.sensor.clone(), KernelPrice::of(cost)?))));
}

/// Costs of an interval by the calibration, in ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BookedCost {
    /// Of counting skipped events.
    pub(super) counting_ns: f64,
    /// Of all events, if the sensor is detached when it is off.
    pub(super) detachable_ns: f64,
}

/// A kernel sensor or a probe in the budget.
#[derive(Clone, Debug)]
pub(super) struct KernelSource {
    price: KernelPrice,
    is_detachable: bool,
    /// Whether it is detached when it is off.
    detaches: bool,
    was_detached: bool,
    /// Skipped events, in elements of the same cost.
    equivalents: f64,
    /// Decayed number of events, and the CPU time in which they were counted, in ns.
    recent_events: f64,
    recent_ns: f64,
}

impl KernelSource {
    pub(super) fn new(writes: &KernelWrites, prices: &KernelPrices) -> Self {
        let sensor = &writes.descriptor.sensor;
        Self::with_price(sensor, prices.of(sensor), writes.is_detachable)
    }

    fn with_price(sensor: &str, price: KernelPrice, is_detachable: bool) -> Self {
        // Counting does not avoid the interrupt, which is nearly all of a probe's cost.
        let is_probe = matches!(price_name(sensor), ENTRIES | RETURNS | STATIC_PROBES);
        Self {
            price,
            is_detachable,
            detaches: is_detachable && is_probe,
            was_detached: false,
            equivalents: 0.0,
            recent_events: 0.0,
            recent_ns: 0.0,
        }
    }

    pub(super) const fn is_detachable(&self) -> bool {
        self.is_detachable
    }

    /// Whether its events are counted from now on when it is off.
    pub(super) const fn counts_skipped(&self) -> bool {
        !self.detaches
    }

    /// The calibrated price of an element in ns, if it is detached when it is off.
    pub(super) fn detached_ns(&self) -> Option<f64> {
        self.detaches.then_some(self.price.written.as_ns())
    }

    /// The first price of an element less that of a skipped event.
    pub(super) fn first_difference(&self) -> EventPrice {
        let (written, skipped) = (self.price.written, self.price.skipped);
        let ns = (written.as_ns() - skipped.as_ns()).max(0.0);
        EventPrice::from_ns(ns, written.error_ns().hypot(skipped.error_ns())).unwrap_or(written)
    }

    /// The price of an element: the learned difference to a skipped event, and the price of that;
    /// if it is detached, the calibrated price times `factor`, which has this relative error.
    pub(super) fn price(&self, difference: EventPrice, factor: (f64, f64)) -> EventPrice {
        let skipped = self.price.skipped;
        if self.detaches {
            let ns = self.price.written.as_ns() * factor.0;
            let price = EventPrice::from_ns(ns, ns * factor.1);
            return price.unwrap_or(self.price.written);
        }
        let ns = difference.as_ns() + skipped.as_ns();
        let error_ns = difference.error_ns().hypot(skipped.error_ns());
        EventPrice::from_ns(ns, error_ns).unwrap_or(self.price.written)
    }

    /// Elements that cost as much as the skipped events that belong to its times on: those of a
    /// detached sensor while the kernel attaches or detaches it.
    pub(super) fn equivalents(&self) -> u64 {
        self.equivalents as u64
    }

    /// Books the events of an interval.
    pub(super) fn book(&mut self, work: Work, cpu_ns: f64) -> BookedCost {
        let decay = (-cpu_ns / RATE_WINDOW_NS).exp();
        self.recent_events = self.recent_events * decay + work.all();
        self.recent_ns = self.recent_ns * decay + cpu_ns;
        let skipped_ns = self.price.skipped.as_ns();
        if self.detaches {
            let written_ns = self.price.written.as_ns().max(f64::MIN_POSITIVE);
            let equivalents = work.skipped * (skipped_ns / written_ns).min(1.0);
            self.equivalents += equivalents;
            return BookedCost {
                counting_ns: 0.0,
                detachable_ns: (work.written + equivalents) * written_ns,
            };
        }
        BookedCost {
            counting_ns: work.skipped * skipped_ns,
            detachable_ns: 0.0,
        }
    }

    /// Decides whether its programs are detached from now on when it is off: if counting all its
    /// events would cost more than a part of the target, shared by `sensors` kernel sensors. True
    /// if that is new. It is never taken back: the number of events is then unknown.
    pub(super) fn decide(&mut self, target_share: f64, sensors: usize) -> bool {
        if self.detaches || !self.is_detachable || self.recent_ns < LEAST_RATE_NS {
            return false;
        }
        let share = self.recent_events * self.price.skipped.as_ns() / self.recent_ns;
        self.detaches = share > COUNTING_PART * target_share / sensors.max(1) as f64;
        self.detaches
    }

    /// Its state when it is switched on or off.
    pub(super) fn state(&mut self, is_on: bool) -> BudgetState {
        self.was_detached |= self.detaches && !is_on;
        match (is_on, self.detaches) {
            (true, _) => BudgetState::On,
            (false, true) => BudgetState::Detached,
            (false, false) => BudgetState::Counted,
        }
    }

    /// Whether some of its events were not counted.
    pub(super) const fn was_detached(&self) -> bool {
        self.was_detached
    }
}

/// The entry probe that a return probe belongs to, by the name of its sensor.
pub(super) fn entry_of(sensor: &str) -> Option<&str> {
    let entry = sensor.strip_suffix("/return")?;
    entry.starts_with("probe/").then_some(entry)
}

#[cfg(test)]
mod tests {
    use overhear_budget::EventPrice;
    use overhear_kernel::BudgetState;

    use super::{entry_of, KernelPrice, KernelSource, Work};

    fn source(sensor: &str, written: f64, skipped: f64, is_detachable: bool) -> KernelSource {
        let [written, skipped] = [written, skipped].map(|ns| EventPrice::from_ns(ns, 1.0).unwrap());
        KernelSource::with_price(sensor, KernelPrice { written, skipped }, is_detachable)
    }

    fn work(written: f64, skipped: f64) -> Work {
        Work { written, skipped }
    }

    #[test]
    fn skipped_events_are_a_cost_of_control_until_the_sensor_is_detached() {
        let mut source = source("syscall", 200.0, 100.0, true);
        assert_eq!(source.state(false), BudgetState::Counted);
        assert_eq!(source.book(work(0.0, 10.0), 1e7).counting_ns, 1_000.0);
        // 0.01 % of the time, and a target of 5 %: counting is cheap enough.
        assert!(!source.decide(0.05, 1));
        assert_eq!(source.book(work(0.0, 10_000.0), 1e7).counting_ns, 1e6);
        source.book(work(0.0, 10_000.0), 1e7);
        assert!(source.decide(0.05, 1));
        assert!(!source.decide(0.05, 1));
        assert_eq!(source.state(false), BudgetState::Detached);
        assert_eq!(source.state(true), BudgetState::On);
        let cost = source.book(work(20.0, 10.0), 1e6);
        assert_eq!(cost.counting_ns, 0.0);
        assert_eq!(cost.detachable_ns, 5_000.0);
        assert_eq!(source.equivalents(), 5);
    }

    #[test]
    fn probe_is_detached_from_the_start() {
        let probe = source("probe/f", 10_000.0, 7_000.0, true);
        assert!(!probe.counts_skipped());
        // Its price is the calibrated one times the learned factor.
        let price = probe.price(probe.first_difference(), (1.5, 0.1));
        assert_eq!((price.as_ns(), price.error_ns()), (15_000.0, 1_500.0));
        // A sensor with state cannot be detached.
        let mut sensor = source("futex", 10_000.0, 9_900.0, false);
        sensor.book(work(0.0, 1e6), 1e8);
        assert!(!sensor.decide(0.01, 1));
        assert!(sensor.counts_skipped());
    }

    #[test]
    fn price_of_an_element_contains_that_of_a_skipped_event() {
        let source = source("syscall", 200.0, 120.0, true);
        assert_eq!(source.first_difference().as_ns(), 80.0);
        let learned = EventPrice::from_ns(50.0, 0.0).unwrap();
        assert_eq!(source.price(learned, (7.0, 0.1)).as_ns(), 170.0);
    }

    #[test]
    fn return_probe_belongs_to_the_entry_of_its_function() {
        assert_eq!(entry_of("probe/handle/return"), Some("probe/handle"));
        assert_eq!(entry_of("probe/handle"), None);
        assert_eq!(entry_of("usdt/app/return"), None);
    }
}
