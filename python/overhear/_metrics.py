# SPDX-License-Identifier: MIT OR Apache-2.0
"""Metrics over recordings: what is measured, and the measurements as arrays."""

from __future__ import annotations

import os

import numpy as np

from . import _core
from ._core import Metric
from ._trace import Directory

#: A measurement: the five values of the seed's interface, and what was missed while it was running.
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
    ]
)


class MetricResult:
    """What a metric has measured in a recording."""

    #: The metric.
    metric: Metric
    #: The measurements in the order in which they were completed: a structured array.
    array: np.ndarray
    #: Elements of its events that were missed anywhere: measurements may be missing.
    missed: int
    #: Measurements that were running when their task or the recording ended.
    unfinished: int
    #: Elements and measurements that found no room.
    refused: int
    #: Events that it needs and of which the recording has no stream.
    unheard: list[str]
    #: Sentences about what of the recording cannot be read or used.
    damage: list[str]

    def __init__(self, metric: Metric, found: dict) -> None:
        self.metric = metric
        self.array = np.zeros(len(found["task"]), MEASUREMENT)
        for column in MEASUREMENT.names or ():
            self.array[column] = found[column]
        self.missed = found["total_missed"]
        self.unfinished = found["unfinished"]
        self.refused = found["refused"]
        self.unheard = found["unheard"]
        self.damage = found["damage"]

    @property
    def is_complete(self) -> bool:
        """Whether the measurements are all there are."""
        return not (self.missed or self.refused or self.unheard or self.damage)

    def __len__(self) -> int:
        return len(self.array)

    def __repr__(self) -> str:
        return f"<{len(self)} measurements of {self.metric.name}>"


def system_metrics() -> list[str]:
    """The names of the metrics that are built in."""
    return _core.system_metrics()


def system_metric(name: str) -> Metric:
    """The built-in metric of this name. `ValueError` if there is none, or none yet."""
    return _core.system_metric(name)


def new_user_metric(name: str, initial: str, final: str, include_system: bool = True) -> Metric:
    """The time that a task takes from one of its events (``"user:SENSOR"``) to another, without the
    time in which it is off the CPU; without `include_system`, without system calls as well."""
    return _core.of_user(name, initial, final, include_system)


def events_required_by(metric: Metric) -> set[str]:
    """The events on which a metric depends."""
    return set(metric._events())


def measure(directory: Directory, *metrics: Metric, element_cost_ns: int = 0) -> list[MetricResult]:
    """Measures a recording by all the metrics in one pass. `element_cost_ns` is subtracted from lengths
    for each element of the task itself that lies in them: what the observation took."""
    found = _core.measure(os.fspath(directory), list(metrics), element_cost_ns)
    return [MetricResult(metric, columns) for metric, columns in zip(metrics, found)]
