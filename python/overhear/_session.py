# SPDX-License-Identifier: MIT OR Apache-2.0
"""The verbs of the command line: run a program, and evaluate recordings and plans."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any, Literal, Optional, Union, overload

from . import _core
from ._results import AdmissionReport, CheckReport, FitReport, MetricsReport, Report, from_json
from ._trace import Directory

Path = Union[str, "os.PathLike[str]"]
Command = Sequence[Union[str, bytes, "os.PathLike[str]"]]

CONFIG = "overhear.toml"


def run(
    command: Command,
    *,
    out: Optional[Path] = None,
    page: bool = True,
    kernel: Literal["auto", "bpf", "perf", "off"] = "auto",
    kernel_sensors: Sequence[str] = (),
    probes: Sequence[str] = (),
    usdt: Sequence[str] = (),
    tracepoints: Sequence[str] = (),
    kprobes: Sequence[str] = (),
    kretprobes: Sequence[str] = (),
    socket: Optional[Path] = None,
    check: Optional[Path] = None,
    junit: Optional[Path] = None,
    config: Optional[Path] = None,
    measure_wcet: bool = False,
    execute: bool = True,
    metrics: Sequence[str] = (),
    updates: Sequence[str] = (),
    disable_unused: bool = False,
    calibration: Optional[Path] = None,
    compensate: bool = False,
    budget: Optional[float] = None,
    disk_budget: Union[str, int, None] = None,
    max_size: Union[str, int, None] = None,
    until: Literal["ended", "all-ended"] = "ended",
    sample: Sequence[str] = (),
    every: Optional[str] = None,
    per: Optional[str] = None,
    min_interval: Optional[str] = None,
) -> Report:
    """Runs a program to its end, as ``overhear run`` does; the parameters are its options.

    The program has the standard streams, the folder and the environment of this process. While it runs, other threads
    of Python run. An exception of a signal handler, such as ``KeyboardInterrupt``, ends the program by a signal; a
    second one sends SIGTERM, a third one SIGKILL. It is raised when the recording is finished.

    :param out: the folder that keeps the recording, and ``report.html`` unless ``page`` is false.
    :param execute: whether plug-ins, programs and functions that the files name may run.
    :param budget: the monitoring overhead to keep, in per cent of the CPU time that the program takes without it.
    :param disk_budget: bytes per second that the recording grows by at most, or a text as ``"10MB/s"``.
    :param max_size: the size of the recording in bytes at most, or a text as ``"2GB"``.
    :param sample: the quantities of a sampler, such as ``["cpu-time", "page-faults"]``; it needs ``every`` or ``per``.
    :param every: the sampler's period, such as ``"1ms"``.
    :param per: the point at which the sampler takes samples, such as ``"switch"`` or ``"job=yield"``.
    :raises SessionError: if the program cannot be run or observed.
    """
    if (disk_budget is not None or max_size is not None) and out is None:
        raise ValueError("disk_budget and max_size need out, the folder of the recording")
    if measure_wcet and config is None:
        raise ValueError("measure_wcet needs config, the file with the monitor")
    options: dict[str, Any] = {
        "out": out,
        "page": page,
        "kernel": kernel,
        "kernel_sensors": list(kernel_sensors),
        "probes": list(probes),
        "usdt": list(usdt),
        "tracepoints": list(tracepoints),
        "kprobes": list(kprobes),
        "kretprobes": list(kretprobes),
        "socket": socket,
        "check": check,
        "junit": junit,
        "config": config,
        "measure_wcet": measure_wcet,
        "execute": execute,
        "metrics": list(metrics),
        "updates": list(updates),
        "disable_unused": disable_unused,
        "calibration": calibration,
        "compensate": compensate,
        "budget": budget,
        "disk_budget": None if disk_budget is None else str(disk_budget),
        "max_size": None if max_size is None else str(max_size),
        "until": until,
        "sample": [sample] if isinstance(sample, str) else list(sample),
        "every": every,
        "per": per,
        "min_interval": min_interval,
    }
    if isinstance(command, (str, bytes)):
        raise TypeError("the command is a list: the program and its arguments")
    report, messages = _core.run([os.fsdecode(word) for word in command], options)
    for message in messages:
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return from_json(Report, report)


def report(
    directory: Directory,
    *,
    updates: Sequence[str] = (),
    calibration: Optional[Path] = None,
    compensate: bool = False,
) -> Report:
    """The report of a recording, as of ``overhear report``."""
    return from_json(Report, _core.report(directory, list(updates), calibration, compensate))


# A text is a path, although it is a sequence of texts as well.
@overload
def check(  # type: ignore[overload-overlap]
    what: Directory,
    config: Path = CONFIG,
    *,
    junit: Optional[Path] = None,
    execute: bool = True,
) -> CheckReport: ...
@overload
def check(
    what: Command,
    config: Path = CONFIG,
    *,
    junit: Optional[Path] = None,
    execute: bool = True,
) -> Report: ...
def check(
    what: Union[Directory, Command],
    config: Path = CONFIG,
    *,
    junit: Optional[Path] = None,
    execute: bool = True,
) -> Union[CheckReport, Report]:
    """Judges by the constraints of a file, as ``overhear check`` does: a recording, or a program while it runs.

    Of a recording, a path, it gives the verdicts; of a command, a list, the report of the run, whose ``check`` has them.
    """
    if isinstance(what, (str, os.PathLike)):
        return from_json(CheckReport, _core.check(what, config, junit))
    return run(what, check=config, junit=junit, execute=execute)


def metrics(
    directory: Directory,
    names: Sequence[str] = (),
    *,
    config: Optional[Path] = None,
    element_cost_ns: Union[int, Literal["calibrated"]] = 0,
    compensate: bool = False,
    measurements: bool = False,
) -> MetricsReport:
    """Metrics over a recording, as of ``overhear metrics``: built-in ones by name, or files with one. Without names,
    the built-in ones whose kernel sensors were recorded.

    With ``measurements`` the metrics have their measurements one by one: ``metric.measurements["length_ns"]`` is an
    array. `measure` is for metrics that are made in Python.
    """
    if compensate and element_cost_ns != 0:
        raise ValueError("compensate subtracts the cost of elements already; leave element_cost_ns out")
    if isinstance(names, str):
        names = [names]
    cost = None if element_cost_ns == "calibrated" else element_cost_ns
    found = _core.metrics(directory, list(names), config, cost, compensate, measurements)
    return from_json(MetricsReport, found)


def admit(config: Path = CONFIG, *, execute: bool = True) -> AdmissionReport:
    """Whether every element will be evaluated in time, as of ``overhear admit``. A refusal is a report as well."""
    return from_json(AdmissionReport, _core.admit(config, execute))


def fit_rate(directory: Directory, sensor: str, *, period_ns: Optional[int] = None) -> FitReport:
    """The streams (T, D, tau) that cover a sensor in a recording, as of ``overhear fit-rate``."""
    return from_json(FitReport, _core.fit_rate(directory, sensor, period_ns))
