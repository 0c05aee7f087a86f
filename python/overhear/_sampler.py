# SPDX-License-Identifier: MIT OR Apache-2.0
"""Samplers: counters of a thread, at points of the program and at ends of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Optional

from . import _core
from ._sensor import Rate


class Sampler(_core.Sampler):
    """Samples what the CPU and the kernel count for the thread that makes it.

    `sample` divides the thread's time: each sample has the counts since the previous one. ``with
    sampler.job():`` divides it into jobs. The two kinds of samples are independent of each other.
    ``overhear doctor --counters`` lists the counters of a machine.

    A sampler belongs to its thread: calls from others raise `SensorError`. It is a context manager:
    at the end of ``with`` it is unregistered.

    :param id: what is sampled.
    :param counters: the names of 1 to 32 counters.
    :param instance: which one of several samplers with the same id this is.
    :param every_ns: `sample` takes a sample only if the last one is at least this old. Ends of jobs
        are always sampled.
    :param rate: the declared rate (T, D, tau); the directory sizes the stream by it.
    :param capacity: the least number of samples the stream shall hold; 0: the directory's choice.
    :param user_only: count in user mode only.
    :param skip_missing: leave out counters that cannot be used here; `missing` has the reasons.
    :raises SensorError: if a counter is unknown, not permitted, does not exist here or does not fit.
    :raises ValueError: if the rate is impossible.
    """

    #: What is sampled.
    id: str

    def __new__(
        cls,
        id: str,
        counters: Sequence[str],
        *,
        instance: str = "",
        every_ns: int = 0,
        rate: Optional[Rate] = None,
        capacity: int = 0,
        user_only: bool = False,
        skip_missing: bool = False,
    ) -> Sampler:
        rate = Rate(*rate) if rate is not None else None
        self = super().__new__(
            cls, id, list(counters), instance, every_ns, rate, capacity, user_only, skip_missing
        )
        self.id = id
        return self

    @contextmanager
    def job(self) -> Iterator[Sampler]:
        """A job: begins here, and ends with ``with``, also by an exception."""
        self.begin_job()
        try:
            yield self
        finally:
            self.end_job()

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.unregister()

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "not connected"
        return f"<overhear.Sampler `{self.id}`: {state}, {self.written} taken>"
