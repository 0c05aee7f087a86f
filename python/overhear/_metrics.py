# SPDX-License-Identifier: MIT OR Apache-2.0
"""Metrics live and over recordings: what is measured, and the measurements as arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal, Optional, Union

import numpy as np

from . import _core
from ._attach import Socket
from ._core import Metric
from ._gaps import GAP, GAP_WORDS, gap_columns
from ._trace import Directory

#: A measurement: the five values of the paper's interface, and what was missed while it was running.
MEASUREMENT = np.dtype(
    [
        ("task", "u4"),
        ("length_ns", "u8"),
        ("begin_ns", "u8"),
        ("end_ns", "u8"),
        ("intermediate_events", "u8"),
        ("own_events", "u8"),
        ("key", "u8"),
        ("missed", "u8"),
        ("has_key", "?"),
    ]
)

#: A gap that fell into a measurement: the measurement's place in the array, and the gap as batches have them.
MEASUREMENT_GAP = np.dtype([("measurement", "u8"), *GAP.descr])


class MetricResult:
    """What a metric has measured in a recording, or live since it was last read."""

    #: The metric.
    metric: Metric
    #: The measurements in the order in which they were completed: a structured array.
    array: np.ndarray
    #: The gaps that fell into measurements, as far as they are named: a structured array with `measurement`, `stream`,
    #: `first`, `missed`, `from_ns`, `to_ns` and `cause`.
    gaps: np.ndarray
    #: Elements of its events that were missed anywhere so far: measurements may be missing.
    missed: int
    #: Measurements that were running when their task or the recording ended.
    unfinished: int
    #: Elements and measurements that found no room.
    refused: int
    #: Required events without a stream so far.
    absent_events: list[str]
    #: Messages about what cannot be read or used.
    damage: list[str]

    def __init__(self, metric: Metric, found: dict) -> None:
        self.metric = metric
        self.array = np.zeros(len(found["task"]), MEASUREMENT)
        for column in MEASUREMENT.names or ():
            self.array[column] = found[column]
        gaps = found["gaps"].reshape(-1, 1 + GAP_WORDS)
        self.gaps = np.empty(len(gaps), MEASUREMENT_GAP)
        self.gaps["measurement"] = gaps[:, 0]
        for column, values in gap_columns(gaps[:, 1:]).items():
            self.gaps[column] = values
        self.missed = found["total_missed"]
        self.unfinished = found["unfinished"]
        self.refused = found["refused"]
        self.absent_events = found["absent_events"]
        self.damage = found["damage"]

    @property
    def is_complete(self) -> bool:
        """Whether the measurements are all there are."""
        return not (self.missed or self.refused or self.absent_events or self.damage)

    def __len__(self) -> int:
        return len(self.array)

    def __repr__(self) -> str:
        return f"<{len(self)} measurements of {self.metric.name}>"


def system_metrics() -> list[str]:
    """The names of the metrics that are built in."""
    return _core.system_metrics()


def system_metric(name: str) -> Metric:
    """The built-in metric of this name. `ValueError` if there is none."""
    return _core.system_metric(name)


def new_user_metric(name: str, initial: str, final: str, include_system: bool = True) -> Metric:
    """The time that a task takes from one of its events to another, without the time in which it is off the CPU or
    interrupted; without `include_system`, without system calls and page faults as well.

    An event is a sensor, ``"user:SENSOR"``, or one with conditions as in the text of a metric:
    ``"kernel:probe/SYMBOL"``, ``"user:queue [depth == 0]"``, ``"kernel:syscall [kind == 2 and number == 0]"``. An element of the kernel about a thread
    belongs to it; where an element names several, ``task FIELD`` selects one.
    """
    return _core.of_user(name, initial, final, include_system)


def events_required_by(metric: Metric) -> set[str]:
    """The events on which a metric depends."""
    return set(metric._events())


def measure(
    directory: Directory, *metrics: Metric, element_cost_ns: Union[int, Literal["calibrated"]] = 0
) -> list[MetricResult]:
    """Measures a recording by all the metrics in one pass. `element_cost_ns` is subtracted from lengths
    for each element of the task itself that lies in them: what the observation took. ``"calibrated"`` subtracts
    what ``overhear calibrate`` had found for each sensor before the recording."""
    cost = None if element_cost_ns == "calibrated" else element_cost_ns
    found = _core.measure(os.fspath(directory), list(metrics), cost)
    return [MetricResult(metric, columns) for metric, columns in zip(metrics, found)]


class Measuring:
    """Metrics that are being measured, by a thread of its own; made by `measuring`.

    It is a context manager: at the end of ``with`` it is closed.
    """

    #: The metrics, in the order of the results.
    metrics: tuple[Metric, ...]

    def __init__(self, metrics: tuple[Metric, ...], measuring: _core.Measuring) -> None:
        self.metrics = metrics
        self._measuring = measuring

    def read(self, timeout_s: Optional[float] = None) -> list[MetricResult]:
        """What each metric has measured since the last call.

        Waits until everything that was written before the call is evaluated, some milliseconds.

        :raises TimeoutError: if that takes longer than ``timeout_s`` seconds; nothing is lost then.
        """
        found = self._measuring.read(timeout_s)
        if found is None:
            raise TimeoutError(f"the metrics are not evaluated up to now after {timeout_s} s")
        return [MetricResult(metric, columns) for metric, columns in zip(self.metrics, found)]

    def close(self) -> None:
        """Measures no more. What was measured before can still be read."""
        self._measuring.close()

    def __enter__(self) -> Measuring:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def measuring(
    *metrics: Metric,
    names: str = "*",
    processes: Iterable[int] = (),
    directory: Socket = None,
    disable_unused: bool = False,
    element_cost_ns: int = 0,
) -> Measuring:
    """Measures live, by the engine that measures recordings: whatever is written from now on.

    What the metrics require is switched on: the directory's sensors, and the kernel's.

    :param names: the sensors that are read, as of `attach`.
    :param processes: the processes, with all that they create, whose kernel events are observed, where a metric
        requires such.
    :param directory: the directory's socket; by default the one of this environment. Metrics of the kernel alone
        need none.
    :param disable_unused: switches sensors off meanwhile that no monitor needs.
    :param element_cost_ns: as of `measure`, in nanoseconds.
    :raises AttachError: if a directory is needed, and there is none, or it refuses.
    :raises KernelError: if the kernel cannot be observed.
    """
    socket = None if directory is None else os.fspath(directory)
    begun = _core.Measuring(
        list(metrics), names, socket, list(processes), disable_unused, element_cost_ns
    )
    return Measuring(metrics, begun)
