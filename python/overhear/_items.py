# SPDX-License-Identifier: MIT OR Apache-2.0
"""Items one by one, for small things: elements, gaps and advances."""

from __future__ import annotations

from typing import Any, NamedTuple

from ._stream import Stream


class Element(NamedTuple):
    """One observation."""

    #: The stream it belongs to.
    stream: Stream
    #: Its position in the stream since the stream's start.
    sequence: int
    #: When it was committed.
    time_ns: int
    #: The payload: values by the names of the fields; text as str.
    values: dict[str, Any]

    def __getitem__(self, key: Any) -> Any:
        """``element["depth"]`` is the value of a field."""
        return self.values[key] if isinstance(key, str) else tuple.__getitem__(self, key)


class Gap(NamedTuple):
    """Elements of one stream that were missed."""

    #: The stream they belong to.
    stream: Stream
    #: The position of the first.
    first: int
    #: How many; exact for honest writers. 0 is a damage of unknown extent. With ``inconsistent`` the least number.
    missed: int
    #: The time of the last element before them, or the start of the observation.
    from_ns: int
    #: The time of the first element after them, or the end of the observation.
    to_ns: int
    #: Why: one of `CAUSES`: ``overwritten``, ``late``, ``nested``, ``full``, ``kernel``, ``corrupt``, ``epoch``,
    #: ``inconsistent``, ``budget``, ``disk``, ``unsampled``.
    cause: str


class Advance(NamedTuple):
    """The promise that nothing older can still come."""

    time_ns: int
