// SPDX-License-Identifier: MIT OR Apache-2.0
//! Output of variable size: messages, split over elements and rejoined.

use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::PyReadonlyArray1;
use overhear::MessageSensor as Splitter;
use overhear_event::parts::{PartLayout, Rejoined, Rejoiner as Parts};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::{pyclass, pymethods, Py, PyErr, PyResult, Python};
use pyo3::types::PyBytes;

use crate::collect::HEAD_WORDS;
use crate::error::SensorError;
use crate::sensor::{are_disabled, DISABLED};

/// The writer; `None` where sensors are disabled.
type Open = Option<Splitter>;

/// A sensor whose elements are parts of messages. Threads take turns, as those of `Sensor` do.
#[pyclass(module = "overhear._core", subclass, frozen)]
pub(crate) struct MessageSensor {
    id: String,
    // None once it is unregistered.
    open: Mutex<Option<Open>>,
}

impl MessageSensor {
    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gone(&self) -> PyErr {
        let id = &self.id;
        SensorError::new_err(format!(
            "sensor `{id}` was unregistered; make a new one to write on"
        ))
    }
}

#[pymethods]
impl MessageSensor {
    #[new]
    fn new(
        py: Python<'_>,
        id: String,
        type_id: &str,
        instance: &str,
        data_bytes: u32,
        capacity: u64,
    ) -> PyResult<Self> {
        let builder = Splitter::builder(&id).type_id(type_id).instance(instance);
        let builder = builder.data_bytes(data_bytes).capacity(capacity);
        let sensor = py
            .detach(|| (!are_disabled()).then(|| builder.register()).transpose())
            .map_err(|error| SensorError::new_err(error.to_string()))?;
        Ok(Self {
            id,
            open: Mutex::new(Some(sensor)),
        })
    }

    /// Writes one message.
    fn write_bytes(&self, message: &[u8]) -> PyResult<()> {
        let mut open = self.lock();
        let Some(sensor) = open.as_mut().ok_or_else(|| self.gone())? else {
            return Ok(());
        };
        let id = &self.id;
        let written = sensor.write(message);
        written.map_err(|error| PyValueError::new_err(format!("sensor `{id}`: {error}")))
    }

    /// register_again()
    ///
    /// As of `Sensor`; messages are numbered from 0 in the new stream.
    fn register_again(&self) -> PyResult<bool> {
        let mut open = self.lock();
        let Some(sensor) = open.as_mut().ok_or_else(|| self.gone())? else {
            return Ok(false);
        };
        let again = sensor.register_again();
        again.map_err(|error| SensorError::new_err(format!("sensor `{}`: {error}", self.id)))
    }

    /// unregister()
    ///
    /// Takes the sensor out of the directory. Monitors read what it has written.
    fn unregister(&self, py: Python<'_>) {
        let open = self.lock().take();
        py.detach(|| drop(open));
    }

    /// Whether a directory owns the stream, so that monitors can read it.
    #[getter]
    fn is_connected(&self) -> bool {
        let open = self.lock();
        let open = open.iter().flatten().next();
        open.is_some_and(|open| open.parts().is_connected())
    }

    /// Why the sensor is not connected, as a message; None if it is.
    #[getter]
    fn not_connected_reason(&self) -> Option<String> {
        let open = self.lock();
        let Some(sensor) = open.as_ref() else {
            return Some(format!("sensor `{}` was unregistered", self.id));
        };
        let because = sensor
            .as_ref()
            .map(|sensor| sensor.parts().not_connected_reason());
        because.unwrap_or(Some(DISABLED)).map(str::to_owned)
    }

    /// Whether the sensor is switched on.
    #[getter]
    fn is_enabled(&self) -> bool {
        let open = self.lock();
        let open = open.iter().flatten().next();
        open.is_some_and(|open| open.parts().is_enabled())
    }

    /// How many parts were written since the start of the stream.
    #[getter]
    fn written(&self) -> u64 {
        let open = self.lock();
        let open = open.iter().flatten().next();
        open.map_or(0, |open| open.parts().written())
    }
}

/// Rejoins the messages of one stream.
#[pyclass(module = "overhear._core")]
pub(crate) struct Rejoiner {
    parts: Parts,
    row_bytes: usize,
    payload_bytes: usize,
}

/// The index of the row that completed a message, its number, and its bytes.
type Whole = (usize, u64, Py<PyBytes>);

#[pymethods]
impl Rejoiner {
    /// For a stream whose parts carry so many bytes each, read from its start or from now on.
    #[new]
    fn new(data_bytes: u32, from_start: bool) -> PyResult<Self> {
        let layout = PartLayout::new(data_bytes)
            .ok_or_else(|| PyValueError::new_err(format!("no part has {data_bytes} bytes")))?;
        let payload_bytes = layout.payload_bytes();
        Ok(Self {
            parts: if from_start {
                Parts::from_start(layout)
            } else {
                Parts::from_now(layout)
            },
            row_bytes: (HEAD_WORDS + payload_bytes.div_ceil(8)) * 8,
            payload_bytes,
        })
    }

    /// The next rows of the stream's array, as bytes; the messages that they complete.
    fn rows(&mut self, py: Python<'_>, rows: PyReadonlyArray1<'_, u8>) -> PyResult<Vec<Whole>> {
        let rows = rows
            .as_slice()
            .map_err(|error| PyTypeError::new_err(error.to_string()))?;
        let mut whole = Vec::new();
        for (index, row) in rows.chunks_exact(self.row_bytes).enumerate() {
            let payload = &row[HEAD_WORDS * 8..][..self.payload_bytes];
            self.parts.part(payload, |found| {
                if let Rejoined::Message { number, bytes } = found {
                    whole.push((index, number, PyBytes::new(py, bytes).unbind()));
                }
            });
        }
        Ok(whole)
    }

    /// The stream has ended: a message that is not whole is lost.
    fn end(&mut self) {
        self.parts.interrupted(|_| {});
    }

    /// Messages lost, and parts that were rejected.
    fn counts(&self) -> (u64, u64) {
        (self.parts.lost(), self.parts.rejected_corrupt())
    }
}
