# SPDX-License-Identifier: MIT OR Apache-2.0
"""Overhear: runtime monitoring that listens without interrupting.

A program writes *elements* into a *sensor*::

    import overhear

    with overhear.Sensor("queue", {"depth": ("u64", "requests"), "load": "f64"}) as queue:
        queue.write(depth=3, load=0.5)

Run it with ``overhear run --out DIR -- python3 program.py``, or from Python with `run`; without, it works just the
same, and nobody hears it. The recorded trace comes back as numpy arrays, one per stream::

    for batch in overhear.replay("DIR"):
        print(batch["queue"]["depth"].mean(), batch.missed)

Sensors of a program that runs are read in the same way, while it runs: see `attach`.

Times are nanoseconds of ``CLOCK_MONOTONIC``. Elements that were missed are counted in *gaps*.
Everything here is a thin layer over the Rust crates of the same project; the names are those of its
glossary.
"""

from ._attach import Attachment, SensorRecord, attach, sensors, set_enabled
from ._core import (
    CAUSES,
    AttachError,
    KernelError,
    Metric,
    OverhearError,
    SchemaError,
    SensorError,
    SessionError,
    TraceError,
    job_end,
)
from ._fields import Field
from ._items import Advance, Element, Gap
from ._batch import Batch
from ._image import read_image
from ._kernel import KernelMonitor, kernel_sensors
from ._metrics import (
    Measuring,
    MetricResult,
    events_required_by,
    measure,
    measuring,
    new_user_metric,
    system_metric,
    system_metrics,
)
from ._messages import Message, Messages, MessageSensor
from ._results import (
    AdmissionReport,
    CheckReport,
    FitReport,
    MetricsReport,
    Record,
    Report,
    Rows,
)
from ._sampler import Sampler
from ._sensor import Rate, Sensor
from ._session import admit, check, fit_rate, metrics, report, run
from ._stream import Stream
from ._trace import Replay, read, replay
from ._updates import Analysis, evaluate

__all__ = [
    "CAUSES",
    "AdmissionReport",
    "Advance",
    "AttachError",
    "Attachment",
    "Batch",
    "CheckReport",
    "Element",
    "Field",
    "FitReport",
    "Gap",
    "KernelError",
    "KernelMonitor",
    "Measuring",
    "Message",
    "MessageSensor",
    "Messages",
    "Metric",
    "MetricResult",
    "MetricsReport",
    "OverhearError",
    "Rate",
    "Record",
    "Replay",
    "Report",
    "Rows",
    "Sampler",
    "SchemaError",
    "Sensor",
    "SensorError",
    "SensorRecord",
    "SessionError",
    "Stream",
    "TraceError",
    "Analysis",
    "admit",
    "attach",
    "check",
    "evaluate",
    "events_required_by",
    "fit_rate",
    "job_end",
    "kernel_sensors",
    "measure",
    "measuring",
    "metrics",
    "new_user_metric",
    "read",
    "read_image",
    "replay",
    "report",
    "run",
    "sensors",
    "set_enabled",
    "system_metric",
    "system_metrics",
]
