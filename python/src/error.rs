// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exceptions. Their messages are those of the Rust errors.

use pyo3::create_exception;
use pyo3::exceptions::PyException;

create_exception!(
    overhear,
    OverhearError,
    PyException,
    "What every exception of this package is."
);
create_exception!(
    overhear,
    SchemaError,
    OverhearError,
    "Fields cannot be the payload of an element."
);
create_exception!(
    overhear,
    SensorError,
    OverhearError,
    "A sensor could not be made, or is not registered any more."
);
create_exception!(
    overhear,
    TraceError,
    OverhearError,
    "A trace cannot be read."
);
create_exception!(
    overhear,
    AttachError,
    OverhearError,
    "A directory cannot be reached, or refuses."
);
create_exception!(
    overhear,
    KernelError,
    OverhearError,
    "The kernel cannot be observed so, or a kernel monitor has ended."
);
create_exception!(
    overhear,
    SessionError,
    OverhearError,
    "A program cannot be run, or a recording or configuration cannot be evaluated. `kind` is the kind of the error."
);
