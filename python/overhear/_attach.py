# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sensors of a running directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple, Optional, Union

from . import _core
from ._batch import Batch
from ._results import BudgetOutcome, from_json
from ._stream import Stream

Socket = Union[str, "os.PathLike[str]", None]


class Attachment:
    """Sensors under observation: an iterator of batches that waits for what is written.

    Made by `attach`. Batches come in total order, held back by 2 ms. A thread of its own reads the
    sensors while Python computes; if Python is slower than the sensors for long, elements are missed,
    and counted.

    It is a context manager: at the end of ``with`` it is closed. Iteration ends when `close` was
    called and everything has been handed over; until then it waits for ever.
    """

    #: Every stream so far.
    streams: list[Stream]

    def __init__(
        self, names: str, directory: Socket, from_buffer: bool, budget: Optional[float] = None
    ) -> None:
        socket = None if directory is None else os.fspath(directory)
        self._attachment = _core.Attachment(names, socket, from_buffer, budget)
        self._complaints: list[str] = []
        self.streams = []

    def read(self, timeout_s: Optional[float] = None) -> Optional[Batch]:
        """The next batch.

        Waits until there is something, at most for ``timeout_s`` seconds: then the batch has no
        elements, and its advance is the time until which there were none. None is the end, after `close`.
        """
        plain = self._attachment.read(timeout_s)
        return None if plain is None else Batch._from_plain(self.streams, plain)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self.read()
        if batch is None:
            raise StopIteration
        return batch

    def close(self) -> None:
        """Stops reading. What was read before can still be taken."""
        self._attachment.close()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def elements(self) -> int:
        """How many elements were read since the start, taken or not."""
        return self._attachment.counts()[0]

    @property
    def missed(self) -> int:
        """How many elements were missed since the start."""
        return self._attachment.counts()[1]

    @property
    def budget(self) -> Optional[BudgetOutcome]:
        """What the budget allowed and what was spent, until now; None without a budget."""
        text = self._attachment.budget()
        return None if text is None else from_json(BudgetOutcome, text)

    @property
    def complaints(self) -> list[str]:
        """Messages about what broke or is damaged."""
        self._complaints.extend(self._attachment.take_complaints())
        return list(self._complaints)

    def __repr__(self) -> str:
        return f"<overhear.Attachment: {self.elements} elements, {self.missed} missed>"


class SensorRecord(NamedTuple):
    """The directory's record of a sensor."""

    #: Its first stream.
    stream: Stream
    #: Lanes of a laned sensor, 0 of others.
    lanes: int
    #: The user whose process registered it.
    uid: int
    #: ``live``, ``unregistered`` or ``retained``.
    state: str
    #: Whether it is switched on.
    is_enabled: bool
    #: Bytes of its memory.
    bytes: int
    #: Elements written since it was registered, over all lanes.
    written: int
    #: Writes that were refused because they were nested in another.
    lost_nested: int
    #: Writes that were refused because no element or lane was free.
    lost_full: int
    #: Monitors that are attached to it.
    monitors: int


def attach(
    names: str = "*",
    *,
    directory: Socket = None,
    from_buffer: bool = False,
    budget: Optional[float] = None,
) -> Attachment:
    """Attaches to the sensors that match, and to those that will appear.

    :param names: ``TASK/SENSOR#INSTANCE``, where each part is a pattern with ``*``, ``?``, ``[abc]`` and
        ``{a,b}``; TASK matches a process' name or number. ``queue`` is every sensor of this id.
    :param directory: the directory's socket; by default the one of this environment.
    :param from_buffer: begin with the oldest elements that are still there, not with the next.
    :param budget: the monitoring overhead to keep, in per cent of the CPU time that the sensors' processes take
        without it: sensors are switched off and on, and what is not observed is gaps of the cause ``budget``.
    :raises AttachError: if there is no directory, or it refuses, or the budget is below 0.
    """
    return Attachment(names, directory, from_buffer, budget)


def sensors(names: str = "*", *, directory: Socket = None) -> list[SensorRecord]:
    """The matching sensors that this user may read; parameters as of `attach`.

    :raises AttachError: if there is no directory, or it refuses.
    """
    records = _core.sensors(names, None if directory is None else os.fspath(directory))
    return [
        SensorRecord(**{**record, "stream": Stream._from_plain(record["stream"])})
        for record in records
    ]


def set_enabled(names: str, enabled: bool, *, directory: Socket = None) -> int:
    """Switches the matching sensors on or off, and returns the number of changed ones.

    A sensor that is off costs its program a load and a branch; what it does not write is not missed.

    :raises AttachError: if there is no directory, or it refuses.
    """
    return _core.set_enabled(names, enabled, None if directory is None else os.fspath(directory))
