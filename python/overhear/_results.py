# SPDX-License-Identifier: MIT OR Apache-2.0
"""The results of the application as objects: what the command line prints with ``--json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Optional,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import numpy as np


@dataclass(frozen=True, eq=False, repr=False)
class Record:
    """An object of a result.

    Its members are attributes. Members that its class does not declare, of a newer version or with names of their own,
    are kept: they are attributes as well, and ``record["name"]`` has all members.
    """

    #: Members of the data that the class does not declare.
    _others: ClassVar[Mapping[str, Any]] = {}
    #: All members of the data, in its order.
    _names: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Any:
        """Makes the object, with those in it, from data of JSON."""
        hints = _hints(cls)
        declared = {name: _value(hint, data[name]) for name, hint in hints.items() if name in data}
        others = {name: _value(Any, data[name]) for name in data if name not in hints}
        made = cls(**declared)
        object.__setattr__(made, "_others", others)
        object.__setattr__(made, "_names", tuple(data))
        return made

    def to_dict(self) -> dict[str, Any]:
        """The data of JSON that the object was made from."""
        names = self._names or tuple(_hints(type(self)))
        return {name: _plain(self[name]) for name in names}

    def __getitem__(self, name: str) -> Any:
        if name in _hints(type(self)):
            return getattr(self, name)
        return self._others[name]

    if not TYPE_CHECKING:
        # Hidden from type checkers, so that they find misspelt names.
        def __getattr__(self, name: str) -> Any:
            try:
                return self._others[name]
            except KeyError:
                message = f"{type(self).__name__} has no member {name!r}"
                raise AttributeError(message) from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return type(self) is type(other) and self.to_dict() == other.to_dict()

    def __repr__(self) -> str:
        names = self._names or tuple(_hints(type(self)))
        members = ", ".join(f"{name}={self[name]!r}" for name in names)
        return f"{type(self).__name__}({members})"


T = TypeVar("T", bound=Record)


class Rows(Sequence[T], Generic[T]):
    """Objects of one kind: a sequence, and a table whose columns are numpy arrays.

    ``rows[0]`` is an object, ``rows["run_ns"]`` the values of all of them as an array. Where some are null, it is a
    masked array: what was not observed is not zero.
    """

    def __init__(self, data: Sequence[Mapping[str, Any]], row: Any = Record) -> None:
        self._data = data
        self._row = row

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the members that the rows have."""
        names = dict.fromkeys(_hints(self._row))
        for data in self._data:
            names.update(dict.fromkeys(data))
        return tuple(names)

    def __len__(self) -> int:
        return len(self._data)

    @overload
    def __getitem__(self, key: int) -> T: ...
    @overload
    def __getitem__(self, key: slice) -> Rows[T]: ...
    @overload
    def __getitem__(self, key: str) -> np.ndarray: ...
    def __getitem__(self, key: Union[int, slice, str]) -> Union[T, Rows[T], np.ndarray]:
        if isinstance(key, str):
            return self._column(key)
        if isinstance(key, slice):
            return Rows(self._data[key], self._row)
        return self._row.from_dict(self._data[key])

    def __iter__(self) -> Iterator[T]:
        return (self._row.from_dict(data) for data in self._data)

    def to_list(self) -> list[dict[str, Any]]:
        """The data of JSON that the rows were made from."""
        return [deepcopy(dict(data)) for data in self._data]

    def _column(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise KeyError(f"{name!r}; there are {', '.join(self.columns) or 'no rows'}")
        values = [data.get(name) for data in self._data]
        present = [value for value in values if value is not None]
        if any(isinstance(value, (dict, list)) for value in present):
            raise TypeError(f"{name!r} has objects; take them row by row")
        kind = _kind(present, _hints(self._row).get(name))
        if len(present) == len(values):
            return np.array(values, kind)
        filled = [kind.type() if value is None else value for value in values]
        return np.ma.array(filled, kind, mask=[value is None for value in values])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and self._row is other._row and self._data == other._data

    def __repr__(self) -> str:
        return repr(list(self))


def _kind(values: list[Any], hint: Any) -> np.dtype:
    """The dtype of a column; that of the declared type where it has no values."""
    types = {type(value) for value in values} or {_without_none(hint)}
    if types == {bool}:
        return np.dtype("?")
    if types == {str}:
        return np.dtype(f"U{max(map(len, values), default=1) or 1}")
    if types == {int}:
        return np.dtype("i8" if values and min(values) < 0 else "u8")
    return np.dtype("f8")


def _without_none(hint: Any) -> Any:
    if get_origin(hint) is Union:
        return next(it for it in get_args(hint) if it is not type(None))
    return hint


def _hints(cls: Any) -> dict[str, Any]:
    """The declared members of a class, with their types."""
    return _hints_of(cls)


@lru_cache(maxsize=None)
def _hints_of(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: _without_none(hints[field.name]) for field in fields(cls)}


def _value(hint: Any, data: Any) -> Any:
    """Data of JSON as the declared type has it."""
    if isinstance(data, dict):
        of_record = isinstance(hint, type) and issubclass(hint, Record)
        return (hint if of_record else Record).from_dict(data)
    if isinstance(data, list):
        if get_origin(hint) is Rows:
            return Rows(data, get_args(hint)[0])
        if data and all(isinstance(item, dict) for item in data):
            return Rows(data)
        return [_value(Any, item) for item in data]
    return data


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Rows):
        return value.to_list()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


R = TypeVar("R", bound=Record)


def from_json(cls: type[R], text: str) -> R:
    """The result that a document of the native half has."""
    made: R = cls.from_dict(json.loads(text))
    return made


@dataclass(frozen=True, eq=False, repr=False)
class Quantiles(Record):
    """A distribution in few numbers."""

    count: int
    min: int
    median: int
    p99: int
    max: int


@dataclass(frozen=True, eq=False, repr=False)
class Exit(Record):
    """How a program ended: by itself with a status, or by a signal."""

    code: Optional[int] = None
    signal: Optional[int] = None


@dataclass(frozen=True, eq=False, repr=False)
class SourceReport(Record):
    """One kind of source: the kernel, or programs."""

    name: str
    active: str
    message: str
    sensors: list[str]


@dataclass(frozen=True, eq=False, repr=False)
class TraceReport(Record):
    """The recording of a run."""

    directory: Optional[str]
    events: int
    bytes: int
    unrecorded: int
    left_out: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class ThreadReport(Record):
    """One thread. What was not observed is None, never zero."""

    pid: int
    tid: int
    comm: str
    run_ns: int
    runnable_ns: Optional[int]
    blocked_ns: Optional[int]
    unknown_ns: int
    switches_voluntary: int
    switches_involuntary: int
    migrations: int
    wakeup_latency_ns: Optional[Quantiles]
    cpu_at_exit_ns: Optional[int]


@dataclass(frozen=True, eq=False, repr=False)
class FieldReport(Record):
    """The values of a numeric field."""

    name: str
    unit: str
    min: Optional[float]
    mean: Optional[float]
    max: Optional[float]
    median: Optional[float]
    p99: Optional[float]


@dataclass(frozen=True, eq=False, repr=False)
class SensorReport(Record):
    """One sensor of a program."""

    task: str
    pid: int
    id: str
    instance: str
    type: str
    elements: int
    missed: int
    rate_hz: Optional[float]
    declared: Optional[Record]
    interval_ns: Optional[Quantiles]
    fields: Rows[FieldReport]


@dataclass(frozen=True, eq=False, repr=False)
class KernelSensorReport(Record):
    """One sensor of the kernel, of all CPUs together."""

    id: str
    event: str
    instance: str
    type: str
    elements: int
    missed: int
    rate_hz: Optional[float]
    interval_ns: Optional[Quantiles]
    fields: Rows[FieldReport]


@dataclass(frozen=True, eq=False, repr=False)
class AnomalyReport(Record):
    """An anomaly: a job, or several consecutive ones of a thread."""

    pid: int
    tid: int
    comm: str
    job: int
    jobs: int
    end_ns: int
    duration_ns: int
    last_end_ns: int
    deviations: Rows[Record]
    message: str


@dataclass(frozen=True, eq=False, repr=False)
class SamplerReport(Record):
    """One sampler: its samples by thread, and the anomalous jobs."""

    task: str
    pid: Optional[int]
    id: str
    instance: str
    samples: int
    missed: int
    missed_by_cause: Record
    refused: int
    complete: bool
    quantities: Rows[Record]
    tasks: Rows[Record]
    judged_from: int
    not_judged: int
    anomalies: Rows[AnomalyReport]
    anomalies_not_listed: int


@dataclass(frozen=True, eq=False, repr=False)
class LossReport(Record):
    """The elements that one stream missed for one cause."""

    stream: str
    cause: str
    missed: int
    gaps: int


@dataclass(frozen=True, eq=False, repr=False)
class Finding(Record):
    """The outcome of one part of a report."""

    of: str
    verdict: str
    message: str


@dataclass(frozen=True, eq=False, repr=False)
class BucketReport(Record):
    """One bar of a histogram."""

    low: float
    high: float
    count: int


@dataclass(frozen=True, eq=False, repr=False)
class HistogramReport(Record):
    """A distribution for a picture."""

    title: str
    unit: str
    buckets: Rows[BucketReport]
    fractions: bool


@dataclass(frozen=True, eq=False, repr=False)
class ElementReport(Record):
    """The position of an element."""

    stream: str
    sequence: int


@dataclass(frozen=True, eq=False, repr=False)
class OffenceReport(Record):
    """One offence against a constraint."""

    message: str
    begin_ns: int
    end_ns: int
    task: Optional[int]
    elements: Rows[ElementReport]


@dataclass(frozen=True, eq=False, repr=False)
class VerdictReport(Record):
    """The verdict on one constraint: ``held``, ``violated`` or ``inconclusive``."""

    name: str
    verdict: str
    judged: int
    offences: int
    first: Optional[OffenceReport]
    reasons: list[str]


@dataclass(frozen=True, eq=False, repr=False)
class CheckReport(Record):
    """The verdicts on a recording or a run, and the worst of them."""

    verdict: str
    constraints: Rows[VerdictReport]


@dataclass(frozen=True, eq=False, repr=False)
class GapReport(Record):
    """A gap that fell into a measurement."""

    stream: int
    first: int
    missed: int
    from_ns: int
    to_ns: int
    cause: str


@dataclass(frozen=True, eq=False, repr=False)
class MeasurementReport(Record):
    """One measurement of a metric."""

    task: int
    comm: str
    key: Optional[int]
    key_name: Optional[str]
    length_ns: int
    begin_ns: int
    end_ns: int
    intermediate_events: int
    own_events: int
    missed: int
    gaps: Rows[GapReport]


@dataclass(frozen=True, eq=False, repr=False)
class TaskReport(Record):
    """The measurements of one task and kind."""

    task: int
    comm: str
    key: Optional[int]
    key_name: Optional[str]
    count: int
    incomplete: int
    total_ns: int
    min_ns: int
    median_ns: int
    p99_ns: int
    max_ns: int


@dataclass(frozen=True, eq=False, repr=False)
class MetricReport(Record):
    """One metric over a recording or a run."""

    name: str
    description: str
    absent_events: list[str]
    completed: int
    incomplete: int
    unfinished: int
    missed: int
    #: Those of them that were not observed to keep a budget.
    unobserved: int
    refused: int
    tasks: Rows[TaskReport]
    #: One by one, where they were requested.
    measurements: Optional[Rows[MeasurementReport]] = None


@dataclass(frozen=True, eq=False, repr=False)
class MetricsReport(Record):
    """Metrics over a recording or a run."""

    metrics: Rows[MetricReport]
    notes: list[str]
    quantile_error: float


@dataclass(frozen=True, eq=False, repr=False)
class BudgetSensor(Record):
    """A sensor in a budget. Costs and prices are in nanoseconds."""

    name: str
    written: int
    skipped: Optional[int]
    share_on: Optional[float]
    cost_ns: float
    cost_error_ns: float
    price_ns: float
    price_error_ns: float


@dataclass(frozen=True, eq=False, repr=False)
class BudgetOutcome(Record):
    """What a budget allowed, and what was spent: fractions of the CPU time without observing."""

    target: float
    observed: float
    observed_error: float
    window_ns: int
    cpu_ns: int
    #: Cost of counting events of sensors that were off.
    counting_ns: int
    course: Rows[Record]
    sensors: Rows[BudgetSensor]


@dataclass(frozen=True, eq=False, repr=False)
class Report(Record):
    """The report of a run or a recording; docs/report.md describes its members."""

    overhear_version: str
    command: list[str]
    exit: Optional[Exit]
    duration_ns: int
    sources: Rows[SourceReport]
    trace: TraceReport
    threads: Rows[ThreadReport]
    sensors: Rows[SensorReport]
    kernel_sensors: Rows[KernelSensorReport]
    updates: Rows[Record]
    other_threads: Rows[Record]
    losses: Rows[LossReport]
    missed_total: int
    not_connected: int
    complete: bool
    outcome: str
    findings: Rows[Finding]
    notes: list[str]
    quantile_error: float
    histograms: Rows[HistogramReport]
    samplers: Optional[Rows[SamplerReport]] = None
    check: Optional[CheckReport] = None
    metrics: Optional[MetricsReport] = None
    guarantee: Optional[Record] = None
    budget: Optional[BudgetOutcome] = None
    overhead: Optional[Record] = None
    compensated: bool = False
    compensation: Optional[Record] = None
    reactions: Optional[Record] = None


@dataclass(frozen=True, eq=False, repr=False)
class SensorAdmission(Record):
    """The result of admission for one sensor."""

    id: str
    count: int
    in_place: bool
    rings: Optional[int]
    period_ns: int
    distance_ns: int
    jitter_ns: int
    wcet_ns: int
    burst_length: Optional[int]
    r_min: Optional[int]
    r_max: Optional[int]
    r: Optional[int]
    buffer_elements: int
    backlog: Optional[int]
    copies: Optional[int]
    latency_ns: Optional[int]


@dataclass(frozen=True, eq=False, repr=False)
class UpdateAdmission(Record):
    """The executor of an update, and its guarantee."""

    name: str
    executor: str
    requested_latency_ns: Optional[int]
    latency_ns: Optional[int]


@dataclass(frozen=True, eq=False, repr=False)
class AdmissionReport(Record):
    """The result of admission. The numbers of a plan that is not accepted are None."""

    accepted: bool
    reason: str
    level: str
    requested_latency_ns: int
    period_ns: Optional[int]
    deadline_ns: Optional[int]
    runtime_ns: Optional[int]
    utilisation: Optional[float]
    latency_ns: Optional[int]
    lateness_ns: int
    kernel: str
    lacking: Optional[str]
    others: int
    memory_bytes: int
    plugin_memory_bytes: int
    sensors: Rows[SensorAdmission]
    updates: Rows[UpdateAdmission]
    copying: Optional[Record]
    samplers: Rows[Record]


@dataclass(frozen=True, eq=False, repr=False)
class FrontPoint(Record):
    """A period and the least jitter that covers the recording with it."""

    period_ns: int
    jitter_ns: int


@dataclass(frozen=True, eq=False, repr=False)
class FitReport(Record):
    """The stream (T, D, tau) that covers a recorded sensor."""

    sensor: str
    elements: int
    missed: int
    #: Those of them that were not observed to keep a budget.
    unobserved: int
    mean_gap_ns: int
    least_gap_ns: int
    period_ns: int
    distance_ns: int
    jitter_ns: int
    front: Rows[FrontPoint]
