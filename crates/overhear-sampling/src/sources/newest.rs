// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`NewestValue`]: a field of the newest element of a sensor, as a quantity.

use std::sync::{Arc, Mutex, PoisonError};

use super::name::identifier;
use crate::{CostClass, DataSource, Quantity, QuantityKind, SourceReadError};

/// What a name of a sensor's field begins with: `sensor=NAME.FIELD`.
pub const SENSOR: &str = "sensor=";

/// A field of the newest element of a sensor. Its owner sets the value when an element comes; a
/// sampler reads it. It is 0 before the first element.
#[derive(Clone, Debug, Default)]
pub struct NewestValue(Arc<Mutex<f64>>);

impl NewestValue {
    /// Sets the value of the newest element.
    pub fn set(&self, value: f64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }

    /// The sensor and the field of a name; `None` if it is another name.
    #[must_use]
    pub fn parse(name: &str) -> Option<(&str, &str)> {
        let (sensor, field) = name.strip_prefix(SENSOR)?.rsplit_once('.')?;
        (!sensor.is_empty() && !field.is_empty()).then_some((sensor, field))
    }

    /// The source of the value, for a quantity of this name.
    pub(super) fn source(&self, name: &str) -> NewestSource {
        NewestSource {
            value: self.clone(),
            last: 0.0,
            quantities: [Quantity::new(identifier(name), "", QuantityKind::RealLevel)],
        }
    }
}

/// Reads a [`NewestValue`].
pub(super) struct NewestSource {
    value: NewestValue,
    last: f64,
    quantities: [Quantity; 1],
}

impl DataSource for NewestSource {
    fn quantities(&self) -> &[Quantity] {
        &self.quantities
    }

    fn cost(&self) -> CostClass {
        CostClass::Instruction
    }

    fn read(&mut self, values: &mut [u64]) -> Result<(), SourceReadError> {
        // A sample never waits for the owner: while the value is being set, the one before counts.
        if let Ok(value) = self.value.0.try_lock() {
            self.last = *value;
        }
        values[0] = self.last.to_bits();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::NewestValue;
    use crate::DataSource;

    #[test]
    fn newest_value_is_read_without_waiting() {
        assert_eq!(
            NewestValue::parse("sensor=a.b.depth"),
            Some(("a.b", "depth"))
        );
        assert_eq!(NewestValue::parse("sensor=depth"), None);
        let value = NewestValue::default();
        let mut source = value.source("sensor=queue.depth");
        assert_eq!(source.quantities()[0].name, "sensor_queue_depth");
        let mut read = || {
            let mut values = [1];
            source.read(&mut values).unwrap();
            f64::from_bits(values[0])
        };
        assert_eq!(read(), 0.0);
        value.set(-2.5);
        assert_eq!(read(), -2.5);
        let held = value.0.lock().unwrap();
        assert_eq!(read(), -2.5);
        drop(held);
    }
}
