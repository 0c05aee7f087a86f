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

    /// Of an element of this stream.
    pub(super) fn written(&self, stream: &StreamDescriptor) -> EventPrice {
        match stream.lane {
            Some(_) => self.laned,
            None if stream.schema.index_of(WRITER_TID) == Some(0) => self.concurrent,
            None => self.simple,
        }
    }
}

/// A measured cost as a price.
pub(super) fn price_of(cost: &Cost) -> Option<EventPrice> {
    EventPrice::from_ns(cost.mean_ns.max(0.0), cost.within_ns / WITHIN).ok()
}
