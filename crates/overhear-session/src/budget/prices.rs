// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prices of sensors of programs: by the calibration of the machine, else measured at the start.

use overhear_budget::EventPrice;
use overhear_event::{StreamDescriptor, WRITER_TID};

use crate::calibrate::{self, Calibration, Cost, ProgramCost};
use crate::error::{ErrorKind, SessionError};

/// Rounds of the measurement at the start: some milliseconds in all.
const ROUNDS: u64 = 15;
/// Half the width of an interval of 99 %, in standard errors.
const WITHIN: f64 = 2.576;

/// Kinds of sensors of programs, by their names in a calibration.
pub(super) const KINDS: [&str; 3] = ["simple", "laned", "concurrent"];

/// Index in [`KINDS`] of the sensor that writes this stream.
pub(super) fn kind_of(stream: &StreamDescriptor) -> usize {
    match stream.lane {
        Some(_) => 1,
        None if stream.schema.index_of(WRITER_TID) == Some(0) => 2,
        None => 0,
    }
}

/// What the writes of sensors cost, indexed by [`KINDS`].
#[derive(Clone, Debug)]
pub(crate) struct WritePrices {
    /// Of an element that is written.
    pub(super) written: [EventPrice; 3],
    /// Of a write that is skipped and counted.
    pub(super) skipped: [EventPrice; 3],
}

impl WritePrices {
    /// From a calibration that knows skipped writes; else they are measured now.
    pub(crate) fn new(known: Option<&Calibration>) -> Result<Self, SessionError> {
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
        let mut found = [None; 3];
        for (kind, found) in KINDS.iter().zip(&mut found) {
            let cost = costs.iter().find(|cost| cost.kind == *kind)?;
            *found = Some((price(&cost.write)?, price(cost.skipped.as_ref()?)?));
        }
        let [simple, laned, concurrent] = found;
        let all = [simple?, laned?, concurrent?];
        Some(Self {
            written: all.map(|(written, _)| written),
            skipped: all.map(|(_, skipped)| skipped),
        })
    }
}

fn price(cost: &Cost) -> Option<EventPrice> {
    EventPrice::from_ns(cost.mean_ns.max(0.0), cost.within_ns / WITHIN).ok()
}
