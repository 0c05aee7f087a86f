# SPDX-License-Identifier: MIT OR Apache-2.0
"""Recorded traces."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Optional, Union

import numpy as np

from . import _core
from ._batch import Batch
from ._stream import Stream

#: Elements of a batch by default: large enough that Python's share is small, small
#: enough for the caches of most machines.
BATCH = 65_536

Directory = Union[str, "os.PathLike[str]"]


class Replay:
    """A trace under replay: an iterator of batches, in the order the observation had live.

    Made by `replay`. It can be iterated over once.
    """

    #: The streams of the trace, by their numbers in ascending order.
    streams: list[Stream]
    #: How many elements the whole trace has.
    elements: int
    #: How many elements its gaps stand for: what the observation missed.
    missed: int
    #: From when to when there are elements or gaps; None where there are none.
    times_ns: Optional[tuple[int, int]]
    #: Nanoseconds to add to a time to get the wall clock's, since 1970.
    realtime_offset_ns: int
    #: How many elements each stream has, in the order of `streams`.
    rows: list[int]
    #: The machine it was recorded on.
    hostname: str
    #: Whether the recorder came to its end; a killed one leaves a readable trace all the same.
    is_whole: bool

    def __init__(self, directory: Directory, batch: int = BATCH) -> None:
        if batch < 1:
            raise ValueError(f"a batch has at least one element, not {batch}")
        self._replay = _core.Replay(os.fspath(directory))
        self._limit = batch
        for name, value in self._replay.facts().items():
            setattr(self, name, value)
        self.streams = [Stream._from_plain(plain) for plain in self._replay.take_opened()]

    @property
    def damage(self) -> list[str]:
        """Messages about what of the trace cannot be read: torn tails, broken streams. Some are
        known at the end only. How many elements are lost there is not known."""
        return self._replay.damage()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        plain = self._replay.step(self._limit)
        if plain is None:
            raise StopIteration
        return Batch._from_plain(self.streams, plain)

    def __repr__(self) -> str:
        return (
            f"<overhear.Replay: {self.elements} elements of {len(self.streams)} streams, "
            f"{self.missed} missed>"
        )


def replay(directory: Directory, *, batch: int = BATCH) -> Replay:
    """Opens the trace that ``overhear run --out DIRECTORY`` has recorded.

    :param batch: elements of one batch, over all streams.
    :raises TraceError: if there is no trace. Damage of streams is no error: see `Replay.damage`.
    """
    return Replay(directory, batch)


def read(directory: Directory) -> Batch:
    """Reads a whole trace at once: one batch with one array per stream.

    :raises TraceError: if there is no trace, or a stream of it cannot be read to its end: then
        `replay` gives what can be read, and reports what cannot.
    """
    whole = Replay(directory)
    # Batches are copied to their places while the caches hold them, and their memory is used again.
    # All at once would be slower: fresh memory costs more than the copy.
    words = {
        stream: np.empty(rows * (stream.dtype.itemsize // 8), np.uint64)
        for stream, rows in zip(whole.streams, whole.rows)
        if rows
    }
    filled = dict.fromkeys(words, 0)
    gaps, advanced_to_ns = [], None
    for batch in whole:
        for stream, array in batch.arrays.items():
            begin = filled[stream]
            filled[stream] = end = begin + array.size * (stream.dtype.itemsize // 8)
            words[stream][begin:end] = array.view(np.uint64)
        gaps.append(batch.gaps)
        if batch.advanced_to_ns is not None:
            advanced_to_ns = batch.advanced_to_ns
    if whole.damage:
        raise _core.TraceError("; ".join(whole.damage))
    arrays = {stream: block.view(stream.dtype) for stream, block in words.items()}
    return Batch(whole.streams, arrays, np.concatenate(gaps), advanced_to_ns)
