// SPDX-License-Identifier: MIT OR Apache-2.0
//! First prices of sensors of programs: by the calibration of the machine, else measured at the
//! start.

use overhear_budget::EventPrice;
use overhear_event::{StreamDescriptor, WRITER_TID};

use crate::calibrate::{self, Calibration, Cost, ProgramCost};
use crate::error::{ErrorKind, SessionError};

/// Rounds of the measurement at the start: some milliseconds in all.
const ROUNDS: u64 = 15;
/// Half the width of an interval of 99 %, in standard errors.
const WITHIN: f64 = 2.576;

/// Bytes that a write copies in a nanosecond, about.
const COPIED_PER_NS: f64 = 32.0;

/// What an element costs its program, by the kind of the sensor.
#[derive(Clone, Debug)]
pub struct WritePrices {
    simple: EventPrice,
    laned: EventPrice,
    concurrent: EventPrice,
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
        let (measured, _) = calibrate::measure_programs(ROUNDS)?;
        Self::of(&measured).ok_or_else(|| {
            let message = "the prices of sensors cannot be measured, so no budget can be kept";
            SessionError::new(ErrorKind::Unavailable, message)
        })
    }

    fn of(costs: &[ProgramCost]) -> Option<Self> {
        let of_kind = |kind: &str| costs.iter().find(|cost| cost.kind == kind);
        let written = |kind: &str| price_of(&of_kind(kind)?.write);
        Some(Self {
            simple: written("simple")?,
            laned: written("laned")?,
            concurrent: written("concurrent")?,
        })
    }

    /// Of an element of this kind. The calibration's elements are small; the copy of a larger one
    /// is added.
    pub(super) fn written(&self, kind: SensorKind) -> EventPrice {
        let price = match kind.way {
            Way::Simple => self.simple,
            Way::Laned => self.laned,
            Way::Concurrent => self.concurrent,
        };
        let copied_ns = f64::from(1_u32 << kind.size_log2) / COPIED_PER_NS;
        EventPrice::from_ns(price.as_ns() + copied_ns, price.error_ns()).unwrap_or(price)
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
