# SPDX-License-Identifier: MIT OR Apache-2.0
"""Batches: what was read at once, as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Optional, Union

import numpy as np

from ._gaps import GAP, GAP_WORDS, gap_columns
from ._items import Advance, Element, Gap
from ._stream import Stream


class Batch:
    """Elements, gaps and the advance of one read, in total order batch by batch.

    ``batch["queue"]`` is the array of all elements of the sensors with this id: a structured array
    with the columns ``sequence``, ``time_ns`` and the fields. Where several streams have the id
    (CPUs of the kernel, several programs), they are merged in total order; ``batch[stream]`` and
    ``batch[stream.id]`` give one alone. An array is made in one copy and belongs to the batch alone.

    Iterating over a batch gives its items one by one: `Element`, `Gap`, `Advance`. That is for
    small things; arrays are some hundred times faster.
    """

    #: Every stream known so far.
    streams: Sequence[Stream]
    #: The arrays of the streams of which there are elements.
    arrays: dict[Stream, np.ndarray]
    #: Gaps, in order: ``stream``, ``first``, ``missed``, ``from_ns``, ``to_ns``, ``cause``.
    gaps: np.ndarray
    #: Nothing older than this comes in a later batch; None if there was no advance since the last.
    advanced_to_ns: Optional[int]

    def __init__(
        self,
        streams: Sequence[Stream],
        arrays: dict[Stream, np.ndarray],
        gaps: np.ndarray,
        advanced_to_ns: Optional[int],
    ) -> None:
        self.streams, self.arrays = streams, arrays
        self.gaps, self.advanced_to_ns = gaps, advanced_to_ns

    @classmethod
    def _from_plain(cls, streams: list[Stream], plain: dict[str, Any]) -> Batch:
        """What the native half has collected; new streams join ``streams``."""
        streams.extend(Stream._from_plain(opened) for opened in plain["opened"])
        arrays = {
            streams[index]: words.view(streams[index].dtype)
            for index, words in plain["blocks"].items()
        }
        gaps = np.empty(plain["gaps"].size // GAP_WORDS, GAP)
        for name, column in gap_columns(plain["gaps"]).items():
            gaps[name] = column
        return cls(streams, arrays, gaps, plain["advanced_to"])

    def _stream(self, id: int) -> Stream:
        """The stream of this number; the newest, if a directory that began anew gave it again."""
        for stream in reversed(self.streams):
            if stream.id == id:
                return stream
        raise KeyError(f"there is no stream of number {id}")

    @property
    def elements(self) -> int:
        """How many elements there are."""
        return sum(array.size for array in self.arrays.values())

    @property
    def missed(self) -> int:
        """How many elements the gaps stand for."""
        return int(self.gaps["missed"].sum())

    def __len__(self) -> int:
        return self.elements

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, key: Union[str, int, Stream]) -> np.ndarray:
        """The elements of a sensor id, a stream's number, or a stream; empty if there are none.

        :raises KeyError: if no such stream is known.
        :raises ValueError: if streams of this sensor id have payloads of different types.
        """
        if not isinstance(key, str):
            stream = key if isinstance(key, Stream) else self._stream(key)
            array = self.arrays.get(stream)
            return np.empty(0, stream.dtype) if array is None else array
        streams = [stream for stream in self.streams if stream.sensor == key]
        if not streams:
            known = sorted({stream.sensor for stream in self.streams})
            raise KeyError(f"no stream of a sensor `{key}`; there are {', '.join(known) or 'none'}")
        dtypes = {stream.dtype for stream in streams}
        if len(dtypes) > 1:
            raise ValueError(
                f"the streams of `{key}` have different types; ask for each of them by its number"
            )
        streams.sort(key=lambda stream: stream.id)
        arrays = [self.arrays[stream] for stream in streams if stream in self.arrays]
        if len(arrays) == 1:
            return arrays[0]
        if not arrays:
            return np.empty(0, dtypes.pop())
        merged = np.concatenate(arrays)
        # Stable, and the streams are in the order of their numbers: (time, stream, sequence).
        return merged[np.argsort(merged["time_ns"], kind="stable")]

    def __iter__(self) -> Iterator[Union[Element, Gap, Advance]]:
        """The items in total order: by time, stream and sequence. A gap stands right before the
        first element after it; the advance comes last."""
        keys = []
        sources: list[Iterator[Union[Element, Gap]]] = []
        for stream, array in self.arrays.items():
            keys.append((array["time_ns"], np.full(array.size, stream.id, "u8"), array["sequence"]))
            sources.append(_elements(stream, array))
        if self.gaps.size:
            keys.append((self.gaps["to_ns"], self.gaps["stream"], self.gaps["first"]))
            sources.append(
                Gap(self._stream(stream), first, missed, from_ns, to_ns, cause)
                for stream, first, missed, from_ns, to_ns, cause in self.gaps.tolist()
            )
        if keys:
            times, streams, sequences = (np.concatenate(key) for key in zip(*keys))
            source = np.repeat(np.arange(len(keys)), [key[0].size for key in keys])
            # Each source ascends in itself, so taking its next item is taking the right one.
            for index in source[np.lexsort((sequences, streams, times))].tolist():
                yield next(sources[index])
        if self.advanced_to_ns is not None:
            yield Advance(self.advanced_to_ns)

    def __repr__(self) -> str:
        return (
            f"<overhear.Batch: {self.elements} elements of {len(self.arrays)} streams, "
            f"{self.missed} missed>"
        )


def _elements(stream: Stream, array: np.ndarray) -> Iterator[Element]:
    names = [field.name for field in stream.fields]
    texts = [field.name for field in stream.fields if field.kind.startswith("text")]
    for sequence, time_ns, *values in array.tolist():
        named = dict(zip(names, values))
        for text in texts:
            named[text] = decode(named[text])
        yield Element(stream, sequence, time_ns, named)


def decode(text: bytes) -> str:
    """The text before the first zero byte; what is not UTF-8 is replaced."""
    return text.split(b"\0", 1)[0].decode("utf-8", "replace")
