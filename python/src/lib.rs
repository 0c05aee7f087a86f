// SPDX-License-Identifier: MIT OR Apache-2.0
//! The native half of the Python package `overhear`.
//!
//! Field values and payload arrays flow from Python into a `Sensor`, which writes them as elements.
//! Elements flow from a trace or a running directory through a `Collector` into rows of words, one
//! block per stream, and Python gets each block as one numpy array: nothing is done element by
//! element in Python. Runs, reports and other results of `overhear-session` flow to Python as JSON
//! documents, which `overhear/_results.py` turns into objects.
//!
//! Everything that Python code can express (what a field may be declared as, how a batch is
//! indexed) is in the folder `python/overhear`. This half decides nothing; it packs, copies and
//! keeps the interpreter free while it waits.
//!
//! # Design constraints
//!
//! - No panic crosses the border: `PyO3` turns what is left of them into exceptions.
//! - The interpreter's lock is given back during every call that reads or waits.
//! - The stable ABI of Python 3.9: one wheel serves all later versions.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::too_many_lines))]

mod attach;
mod collect;
mod error;
mod image;
mod kernel;
mod measuring;
mod message;
mod metrics;
mod replay;
mod sampler;
mod schema;
mod sensor;
mod session;

use overhear_event::GapCause;
use overhear_session::signals::reset_for_programs;
use pyo3::prelude::{pymodule, Bound, PyModule, PyModuleMethods, PyResult};

/// See the package `overhear`.
#[pymodule]
mod _core {
    #[pymodule_export]
    use crate::attach::{sensors, set_enabled, Attachment};
    #[pymodule_export]
    use crate::error::{
        AttachError, KernelError, OverhearError, SchemaError, SensorError, SessionError, TraceError,
    };
    #[pymodule_export]
    use crate::image::read_image;
    #[pymodule_export]
    use crate::kernel::{kernel_sensors, KernelMonitor};
    #[pymodule_export]
    use crate::measuring::Measuring;
    #[pymodule_export]
    use crate::message::{MessageSensor, Rejoiner};
    #[pymodule_export]
    use crate::metrics::{measure, names, of_system, of_user, Metric};
    #[pymodule_export]
    use crate::replay::Replay;
    #[pymodule_export]
    use crate::sampler::{job_end, Sampler};
    #[pymodule_export]
    use crate::sensor::Sensor;
    #[pymodule_export]
    use crate::session::{admit_plan, check_recording, fit_sensor, metrics_of, report, run};

    #[pymodule_init]
    fn init(module: &super::Bound<'_, super::PyModule>) -> super::PyResult<()> {
        super::init(module)
    }
}

fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Python ignores them; programs that it runs do not inherit that.
    reset_for_programs(&[libc::SIGPIPE, libc::SIGXFSZ]);
    module.add("CAUSES", GapCause::ALL.map(GapCause::name))
}
