// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors of Python programs.
//!
//! # Threads
//!
//! A sensor without lanes and writers is a simple writer: one thread at a time. Python's threads
//! take turns already: a thread runs Python code, and these methods, only while it holds the
//! interpreter's lock, and no method here gives the lock back while it writes. A mutex makes that a
//! rule of this file and not of the interpreter; it is never contended, and never held while the
//! process is forked, because the thread that forks holds the interpreter's lock. Lanes or a queue
//! would not make it faster; a program uses them to find the writing thread.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use numpy::PyReadonlyArray1;
use overhear::{
    DynamicSensor, DynamicSharedError, DynamicSharedSensor, Nanos, Rate, Refused, SensorRequest,
    WriterKind,
};
use overhear_event::FieldKind;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::{
    pyclass, pymethods, Bound, Py, PyAny, PyAnyMethods, PyErr, PyListMethods, PyResult, Python,
};
use pyo3::types::{
    PyBytes, PyBytesMethods, PyDict, PyDictMethods, PyString, PyTuple, PyTupleMethods, PyType,
};

use crate::error::SensorError;
use crate::schema::{kind_name, schema, PlainField};

/// Elements that are written without letting other threads of the interpreter run: about a tenth
/// of a millisecond.
const TURN: usize = 8192;

/// How long a sleep lasts before Python may look for signals.
const LOOK_UP: Duration = Duration::from_millis(100);

/// One argument of `write`.
struct Argument {
    name: Py<PyString>,
    kind: FieldKind,
    offset: usize,
}

/// Why a disabled sensor is not connected.
pub(crate) const DISABLED: &str = "sensors are disabled: OVERHEAR_DISABLE is set";

/// Whether the environment disables sensors.
pub(crate) fn are_disabled() -> bool {
    std::env::var_os("OVERHEAR_DISABLE").is_some_and(|value| !value.is_empty() && value != "0")
}

/// The writer, by the requested number of lanes or writers.
enum Writer {
    /// None: nothing was registered.
    Disabled,
    Simple(Box<DynamicSensor>),
    Shared {
        sensor: DynamicSharedSensor,
        // Lanes have counters of their own, and a queue counts the writes of others too.
        written: u64,
    },
}

impl Writer {
    fn register(request: SensorRequest) -> Result<Self, overhear::SensorError> {
        if are_disabled() {
            return Ok(Self::Disabled);
        }
        match request.kind {
            WriterKind::Laned | WriterKind::Concurrent => Ok(Self::Shared {
                sensor: DynamicSharedSensor::register(request)?,
                written: 0,
            }),
            _ => {
                let sensor = DynamicSensor::register(request)?;
                Ok(Self::Simple(Box::new(sensor)))
            }
        }
    }

    /// Appends an element; the error is a message.
    #[inline]
    fn write(&mut self, payload: &[u8]) -> Result<(), String> {
        match self {
            Self::Disabled => Ok(()),
            Self::Simple(sensor) => sensor.write(payload).map_err(|error| error.to_string()),
            Self::Shared { sensor, written } => match sensor.write(payload) {
                Ok(()) => {
                    *written += 1;
                    Ok(())
                }
                // It may have been switched off meanwhile, which is no loss.
                Err(DynamicSharedError::Refused(Refused::Off)) => Ok(()),
                Err(error) => Err(error.to_string()),
            },
        }
    }

    /// Time until the declared rate allows the next element.
    fn pace_left(&mut self) -> Result<Nanos, String> {
        let left = match self {
            Self::Disabled => Ok(Nanos::ZERO),
            Self::Simple(sensor) => sensor.pace_left(),
            Self::Shared { sensor, .. } => sensor.pace_left(),
        };
        left.map_err(|error| error.to_string())
    }

    fn register_again(&mut self) -> Result<bool, overhear::SensorError> {
        match self {
            Self::Disabled => Ok(false),
            Self::Simple(sensor) => sensor.register_again(),
            Self::Shared { sensor, written } => {
                let was_connected = sensor.is_connected();
                let connected = sensor.register_again()?;
                if connected && !was_connected {
                    *written = 0;
                }
                Ok(connected)
            }
        }
    }

    fn is_connected(&self) -> bool {
        match self {
            Self::Disabled => false,
            Self::Simple(sensor) => sensor.is_connected(),
            Self::Shared { sensor, .. } => sensor.is_connected(),
        }
    }

    fn is_enabled(&self) -> bool {
        match self {
            Self::Disabled => false,
            Self::Simple(sensor) => sensor.is_enabled(),
            Self::Shared { sensor, .. } => sensor.is_enabled(),
        }
    }

    fn not_connected_reason(&self) -> Option<&str> {
        match self {
            Self::Disabled => Some(DISABLED),
            Self::Simple(sensor) => sensor.not_connected_reason(),
            Self::Shared { sensor, .. } => sensor.not_connected_reason(),
        }
    }

    fn written(&self) -> u64 {
        match self {
            Self::Disabled => 0,
            Self::Simple(sensor) => sensor.written(),
            Self::Shared { written, .. } => *written,
        }
    }
}

/// A sensor: a place in a program that produces elements of one type.
#[pyclass(module = "overhear._core", subclass, frozen)]
pub(crate) struct Sensor {
    id: String,
    // In the order in which they were declared, which need not be that of the offsets.
    arguments: Vec<Argument>,
    record: Option<Py<PyType>>,
    payload_bytes: usize,
    pid: u32,
    // None once it is unregistered.
    open: Mutex<Option<Writer>>,
}

impl Sensor {
    fn lock(&self) -> MutexGuard<'_, Option<Writer>> {
        // A panic while it was held is a bug, but the writer's state changes in a single step.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gone(&self) -> PyErr {
        let id = &self.id;
        SensorError::new_err(format!(
            "sensor `{id}` was unregistered; make a new one to write on"
        ))
    }

    #[cold]
    fn refused(&self, message: &str) -> PyErr {
        SensorError::new_err(format!("sensor `{}`: {message}", self.id))
    }

    /// Why this argument was not found among the fields given by name.
    #[cold]
    fn not_given(&self, argument: &Argument, names: Option<&Bound<'_, PyDict>>) -> PyErr {
        let (id, name) = (&self.id, &argument.name);
        let keys = names.map(|names| names.keys());
        let is_known = |key: &Bound<'_, PyAny>| {
            let known = |argument: &Argument| key.eq(&argument.name).unwrap_or(false);
            self.arguments.iter().any(known)
        };
        let unknown = keys.and_then(|keys| keys.iter().find(|key| !is_known(key)));
        PyTypeError::new_err(match unknown {
            Some(unknown) => format!("sensor `{id}` has no field `{unknown}`"),
            None => format!("sensor `{id}`: field `{name}` is missing"),
        })
    }

    #[cold]
    fn too_many(&self, given: usize) -> PyErr {
        let (id, known) = (&self.id, self.arguments.len());
        let names: Vec<_> = self.arguments.iter().map(|a| a.name.to_string()).collect();
        PyTypeError::new_err(format!(
            "sensor `{id}` has {known} fields ({}), and {given} values were given",
            names.join(", ")
        ))
    }
}

#[pymethods]
impl Sensor {
    /// The Python class `overhear.Sensor` checks and completes the arguments.
    #[new]
    #[pyo3(signature = (id, type_id, size, fields, instance, rate, capacity, lanes, writers, record))]
    #[expect(clippy::too_many_arguments, reason = "called by one line of Python")]
    fn new(
        py: Python<'_>,
        id: String,
        type_id: String,
        size: u32,
        fields: Vec<PlainField>,
        instance: String,
        rate: Option<(u64, u64, u64)>,
        capacity: u64,
        lanes: Option<u32>,
        writers: Option<u32>,
        record: Option<Py<PyType>>,
    ) -> PyResult<Self> {
        let schema = schema(type_id, size, &fields)?;
        let kind = |name: &str| {
            let index = schema.index_of(name)?;
            Some(schema.fields()[index].kind)
        };
        let arguments = fields
            .iter()
            .filter_map(|(name, _, offset, _)| {
                Some(Argument {
                    name: PyString::intern(py, name).unbind(),
                    kind: kind(name)?,
                    offset: *offset as usize,
                })
            })
            .collect();
        let rate = rate.map(|(period, distance, jitter)| {
            Rate::new(
                Nanos::from_ns(period),
                Nanos::from_ns(distance),
                Nanos::from_ns(jitter),
            )
        });
        let rate = rate.transpose();
        let rate =
            rate.map_err(|error| PyValueError::new_err(format!("sensor `{id}`: {error}")))?;
        let payload_bytes = schema.size() as usize;
        let writer = match (lanes, writers) {
            (None, None) => WriterKind::Simple,
            (Some(_), None) => WriterKind::Laned,
            (None, Some(_)) => WriterKind::Concurrent,
            (Some(_), Some(_)) => {
                return Err(PyValueError::new_err(format!(
                    "sensor `{id}`: a sensor has `lanes` or `writers`, not both"
                )))
            }
        };
        let request = SensorRequest {
            sensor: id.clone(),
            instance,
            schema,
            rate,
            capacity,
            kind: writer,
            lanes: lanes.or(writers).unwrap_or(0),
        };
        // The directory may take its time; others go on.
        let sensor = py
            .detach(|| Writer::register(request))
            .map_err(|error| SensorError::new_err(format!("sensor `{id}`: {error}")))?;
        Ok(Self {
            id,
            arguments,
            record,
            payload_bytes,
            pid: std::process::id(),
            open: Mutex::new(Some(sensor)),
        })
    }

    /// write(*values, **fields)
    ///
    /// Appends one element. Its fields are given by name, by place in the order of declaration,
    /// or as one instance of the dataclass that declared the sensor. Wait-free beyond the
    /// interpreter's own work: no system call. A sensor that is switched off does not look at them.
    ///
    /// Raises TypeError if a field is missing, unknown or of another kind, OverflowError if a
    /// number and ValueError if a text does not fit its field, SensorError after unregister() and
    /// where no lane is free for this thread, or no element of a concurrent sensor. Nothing is
    /// written then.
    #[pyo3(signature = (*values, **fields))]
    fn write(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyTuple>,
        fields: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let given = values.len();
        if given == 1 && fields.is_none() {
            if let Some(record) = &self.record {
                let value = values.get_item(0)?;
                if value.is_instance(record.bind(py))? {
                    return self.append(|argument| value.getattr(argument.name.bind(py)));
                }
            }
        }
        let named = fields.map_or(0, |fields| fields.len());
        let mut index = 0;
        if given + named > self.arguments.len() {
            return Err(self.too_many(given + named));
        }
        self.append(|argument| {
            let value = if index < given {
                Some(values.get_item(index)?)
            } else {
                let name = argument.name.bind(py);
                fields.map_or(Ok(None), |fields| fields.get_item(name))?
            };
            index += 1;
            value.ok_or_else(|| self.not_given(argument, fields))
        })
    }

    /// Appends the consecutive payloads in `bytes`; returns their number.
    fn write_payloads(&self, py: Python<'_>, bytes: PyReadonlyArray1<'_, u8>) -> PyResult<usize> {
        let bytes = bytes
            .as_slice()
            .map_err(|error| PyTypeError::new_err(error.to_string()))?;
        if self.payload_bytes == 0 || bytes.len() % self.payload_bytes != 0 {
            return Err(PyTypeError::new_err(format!(
                "sensor `{}`: {} bytes are no payloads of {} bytes",
                self.id,
                bytes.len(),
                self.payload_bytes
            )));
        }
        for turn in bytes.chunks(TURN * self.payload_bytes) {
            {
                let mut open = self.lock();
                let sensor = open.as_mut().ok_or_else(|| self.gone())?;
                for payload in turn.chunks_exact(self.payload_bytes) {
                    let written = sensor.write(payload);
                    written.map_err(|error| self.refused(&error))?;
                }
            }
            // The mutex is free again: whoever runs now may write to this very sensor, or fork.
            py.detach(|| {});
            py.check_signals()?;
        }
        Ok(bytes.len() / self.payload_bytes)
    }

    /// pace()
    ///
    /// Waits until the declared rate (T, D, tau) allows the next element; returns how long, in
    /// nanoseconds. For producers that may wait: if they call it before each element, monitors find
    /// no two elements closer than declared. Other threads run meanwhile. Of a sensor with `lanes`
    /// the rate is that of each thread, of one with `writers` that of all threads together, which
    /// take turns; of any other only one thread should ask.
    ///
    /// Raises SensorError if the sensor has declared no rate, or was unregistered.
    fn pace(&self, py: Python<'_>) -> PyResult<u64> {
        let begin = Instant::now();
        loop {
            // The mutex is not held while others run: they may write, or fork.
            let left = {
                let mut open = self.lock();
                let sensor = open.as_mut().ok_or_else(|| self.gone())?;
                let left = sensor.pace_left();
                left.map_err(|error| {
                    SensorError::new_err(format!("sensor `{}`: {error}", self.id))
                })?
            };
            if left == Nanos::ZERO {
                return Ok(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
            }
            py.detach(|| std::thread::sleep(Duration::from_nanos(left.as_ns()).min(LOOK_UP)));
            py.check_signals()?;
        }
    }

    /// register_again()
    ///
    /// Registers the sensor again if it is not connected, and returns whether it is connected now:
    /// for a forked child, which gets a stream of its own, and for programs that were started
    /// before the directory. Earlier elements are lost. May wait half a second.
    ///
    /// Raises SensorError if the directory's stream makes no sense; the sensor goes on as it was.
    fn register_again(&self) -> PyResult<bool> {
        // The interpreter's lock is kept, because the mutex is held.
        let mut open = self.lock();
        let sensor = open.as_mut().ok_or_else(|| self.gone())?;
        let again = sensor.register_again();
        again.map_err(|error| SensorError::new_err(format!("sensor `{}`: {error}", self.id)))
    }

    /// unregister()
    ///
    /// Takes the sensor out of the directory. Monitors read what it has written. May be called
    /// again; writing afterwards is an error.
    fn unregister(&self, py: Python<'_>) {
        let open = self.lock().take();
        py.detach(|| drop(open));
    }

    /// Whether a directory owns the stream, so that monitors can read it.
    #[getter]
    fn is_connected(&self) -> bool {
        let open = self.lock();
        open.as_ref().is_some_and(Writer::is_connected)
    }

    /// Whether the sensor is switched on. Writing to one that is off does nothing; a monitor or a
    /// person switches it by the directory.
    #[getter]
    fn is_enabled(&self) -> bool {
        let open = self.lock();
        open.as_ref().is_some_and(Writer::is_enabled)
    }

    /// Why the sensor is not connected, as a message; None if it is.
    #[getter]
    fn not_connected_reason(&self) -> Option<String> {
        let open = self.lock();
        let Some(sensor) = open.as_ref() else {
            return Some(format!("sensor `{}` was unregistered", self.id));
        };
        if !sensor.is_connected() && self.pid != std::process::id() {
            return Some(format!(
                "sensor `{}` belongs to process {}, from which this one was forked; make a new one",
                self.id, self.pid
            ));
        }
        sensor.not_connected_reason().map(str::to_owned)
    }

    /// How many elements were written since the start of the stream.
    #[getter]
    fn written(&self) -> u64 {
        let open = self.lock();
        open.as_ref().map_or(0, Writer::written)
    }
}

impl Sensor {
    /// Packs one value per argument and writes the element.
    ///
    /// The values are fetched and converted before the mutex is taken: their methods are Python
    /// code, which may call anything, this sensor included.
    fn append<'py>(
        &self,
        mut value: impl FnMut(&Argument) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        if self
            .lock()
            .as_ref()
            .is_some_and(|sensor| !sensor.is_enabled())
        {
            return Ok(());
        }
        // Most payloads are small; the others may allocate.
        let mut small = [0; 256];
        let mut large = Vec::new();
        let payload = if self.payload_bytes <= small.len() {
            &mut small[..self.payload_bytes]
        } else {
            large.resize(self.payload_bytes, 0);
            &mut large[..]
        };
        for argument in &self.arguments {
            let value = value(argument)?;
            let size = argument.kind.size() as usize;
            let slot = &mut payload[argument.offset..argument.offset + size];
            pack(argument.kind, &value, slot)
                .map_err(|error| self.explain(argument, &value, error))?;
        }
        let mut open = self.lock();
        let sensor = open.as_mut().ok_or_else(|| self.gone())?;
        let written = sensor.write(payload);
        written.map_err(|error| self.refused(&error))
    }

    /// The same kind of exception, with a message that names the field.
    #[cold]
    fn explain(&self, argument: &Argument, value: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
        let py = value.py();
        let shown = value
            .repr()
            .map_or_else(|_| "a value".to_owned(), |text| text.to_string());
        let shown: String = shown.chars().take(64).collect();
        let (id, name, kind) = (&self.id, &argument.name, kind_name(argument.kind));
        let message = format!("sensor `{id}`: field `{name}` is {kind} and cannot hold {shown}");
        if error.is_instance_of::<PyOverflowError>(py) {
            PyOverflowError::new_err(message)
        } else if error.is_instance_of::<PyTypeError>(py) {
            PyTypeError::new_err(message)
        } else if error.is_instance_of::<PyValueError>(py) {
            PyValueError::new_err(message)
        } else {
            // What the value's own methods raised is theirs.
            error
        }
    }
}

/// Stores one value in its place.
#[inline]
fn pack(kind: FieldKind, value: &Bound<'_, PyAny>, slot: &mut [u8]) -> PyResult<()> {
    macro_rules! store {
        ($number:ty) => {
            slot.copy_from_slice(&value.extract::<$number>()?.to_ne_bytes())
        };
    }
    match kind {
        FieldKind::U8 => store!(u8),
        FieldKind::U16 => store!(u16),
        FieldKind::U32 => store!(u32),
        FieldKind::U64 => store!(u64),
        FieldKind::I8 => store!(i8),
        FieldKind::I16 => store!(i16),
        FieldKind::I32 => store!(i32),
        FieldKind::I64 => store!(i64),
        FieldKind::F32 => store!(f32),
        FieldKind::F64 => store!(f64),
        FieldKind::Text(_) => {
            let bytes = value.cast::<PyBytes>().map(|bytes| bytes.as_bytes());
            let text: String;
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(_) => {
                    text = value.extract()?;
                    text.as_bytes()
                }
            };
            // Cutting it would lose the program's text, and a zero byte would end it for
            // readers.
            if bytes.len() > slot.len() || bytes.contains(&0) {
                return Err(PyValueError::new_err(""));
            }
            slot[..bytes.len()].copy_from_slice(bytes);
        }
    }
    Ok(())
}
