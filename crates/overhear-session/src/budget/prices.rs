// SPDX-License-Identifier: MIT OR Apache-2.0
//! First prices of sensors of programs: by the calibration of the machine, else measured at the
//! start.

use overhear_budget::EventPrice;
use overhear_event::{StreamDescriptor, WRITER_TID};

use crate::calibrate::{self, Calibration, Cost, Patience, ProgramCost};
use crate::error::{ErrorKind, SessionError};

/// Rounds of the measurement at the start: about 0.1 s in all, 0.2 s beside other load.
const ROUNDS: u64 = 15;
/// Half the width of an interval of 99 %, in standard errors.
const WITHIN: f64 = 2.576;

/// Bytes that a write copies in a nanosecond, about.
const COPIED_PER_NS: f64 = 32.0;

/// Most that a skipped write costs, in ns. Its code is inlined into programs, where it takes a
/// check and an addition. The loop of a calibration without optimisation takes far longer.
const MOST_SKIPPED_NS: f64 = 1.0;

/// What a write costs its program, by the kind of the sensor.
#[derive(Clone, Debug)]
pub struct WritePrices {
    simple: WritePrice,
    laned: WritePrice,
    concurrent: WritePrice,
}

/// What a write of one kind of sensor costs.
#[derive(Clone, Copy, Debug)]
struct WritePrice {
    written: EventPrice,
    skipped_ns: f64,
}

impl WritePrices {
    /// From a calibration; without one they are measured now.
    ///
    /// # Errors
    /// [`SessionError`] if they cannot be measured.
    pub fn new(known: Option<&Calibration>) -> Result<Self, SessionError> {
        let known = known.and_then(|known| Self::of(&known.programs));
        if let Some(known) = known {
            return Ok(known);
        }
        let (measured, _) = calibrate::measure_programs(ROUNDS, Patience::START)?;
        Self::of(&measured).ok_or_else(|| {
            let message = "the prices of sensors cannot be measured, so no budget can be kept";
            SessionError::new(ErrorKind::Unavailable, message)
        })
    }

    fn of(costs: &[ProgramCost]) -> Option<Self> {
        let of_kind = |kind: &str| costs.iter().find(|cost| cost.kind == kind);
        let price = |kind: &str| {
            let cost = of_kind(kind)?;
            Some(WritePrice {
                written: price_of(&cost.write)?,
                skipped_ns: price_of(&cost.switched_off)?.as_ns().min(MOST_SKIPPED_NS),
            })
        };
        Some(Self {
            simple: price("simple")?,
            laned: price("laned")?,
            concurrent: price("concurrent")?,
        })
    }

    /// Of an element of this kind. The calibration's elements are small; the copy of a larger one
    /// is added.
    pub(super) fn written(&self, kind: SensorKind) -> EventPrice {
        let price = self.of_way(kind.way).written;
        let copied_ns = f64::from(1_u32 << kind.size_log2) / COPIED_PER_NS;
        EventPrice::from_ns(price.as_ns() + copied_ns, price.error_ns()).unwrap_or(price)
    }

    /// Of a skipped write of this kind in ns: the check of the switch, and the count. A written
    /// element has this cost as well.
    pub(super) const fn skipped_ns(&self, kind: SensorKind) -> f64 {
        self.of_way(kind.way).skipped_ns
    }

    const fn of_way(&self, way: Way) -> WritePrice {
        match way {
            Way::Simple => self.simple,
            Way::Laned => self.laned,
            Way::Concurrent => self.concurrent,
        }
    }
}

/// Sensors whose elements cost about the same: one way of writing, and sizes within a factor of
/// two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SensorKind {
    way: Way,
    /// Logarithm of the size.
    size_log2: u32,
}

/// How a sensor is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Simple,
    Laned,
    Concurrent,
}

impl SensorKind {
    pub(super) fn of(stream: &StreamDescriptor) -> Self {
        let way = match stream.lane {
            Some(_) => Way::Laned,
            None if stream.schema.index_of(WRITER_TID) == Some(0) => Way::Concurrent,
            None => Way::Simple,
        };
        Self {
            way,
            size_log2: stream.schema.size().max(1).ilog2(),
        }
    }
}

/// A measured cost as a price.
pub(super) fn price_of(cost: &Cost) -> Option<EventPrice> {
    EventPrice::from_ns(cost.mean_ns.max(0.0), cost.within_ns / WITHIN).ok()
}

#[cfg(test)]
mod tests {
    use overhear_event::{Origin, StreamDescriptor, StreamId, TypeSchema};
    use serde_json::json;

    use super::{ProgramCost, SensorKind, WritePrices};

    #[test]
    fn skipped_write_costs_a_check_and_a_count_whatever_the_build_of_the_calibration() {
        let cost =
            |ns| json!({ "mean_ns": ns, "deviation_ns": 1.0, "within_ns": 0.5, "samples": 41 });
        let of = |kind, off| json!({ "kind": kind, "write": cost(9.0), "switched_off": cost(off) });
        let costs = [of("simple", 0.4), of("laned", 30.0), of("concurrent", -0.1)];
        let costs = costs.map(|it| serde_json::from_value::<ProgramCost>(it).unwrap());
        let prices = WritePrices::of(&costs).unwrap();
        let schema = TypeSchema::builder("tick").build().unwrap();
        let skipped_ns = |schema: TypeSchema, lane| {
            let origin = Origin::program(1, "test");
            let id = StreamId::from_raw(1);
            let stream = StreamDescriptor::new(id, origin, "tick".to_owned(), schema);
            prices.skipped_ns(SensorKind::of(&StreamDescriptor { lane, ..stream }))
        };
        assert_eq!(skipped_ns(schema.clone(), None), 0.4);
        assert_eq!(skipped_ns(schema.clone(), Some(0)), 1.0);
        assert_eq!(skipped_ns(schema.with_writer().unwrap(), None), 0.0);
    }
}
