# SPDX-License-Identifier: MIT OR Apache-2.0
"""Streams: their writers, and the layout of their elements as rows of an array."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from ._fields import Field
from ._sensor import Rate

#: The columns that every row begins with.
_HEAD = ("sequence", "time_ns")


@dataclass(frozen=True, eq=False, repr=False)
class Stream:
    """All that is known of a stream besides its elements."""

    #: Its number, the second key of the total order.
    id: int
    #: What it measures; for kernel streams, the hook.
    sensor: str
    #: Which instance of the sensor this is; empty where there is one.
    instance: str
    #: The name for people: ``comm(pid)/sensor#instance``, ``kernel/hook@cpu``, ``sampler/sensor``.
    label: str
    #: The type id of its payload.
    type: str
    #: The fields of the payload, in the order they have in memory.
    fields: tuple[Field, ...]
    #: ``program``, ``kernel`` or ``sampler``.
    origin: str
    #: The process that writes, of programs.
    pid: Optional[int]
    #: Its short name, of programs.
    comm: Optional[str]
    #: The CPU, of the kernel.
    cpu: Optional[int]
    #: The declared rate, if any.
    rate: Optional[Rate]
    #: How many elements the buffer held.
    capacity: int

    def __repr__(self) -> str:
        return f"<overhear.Stream {self.id}: {self.label}>"

    @classmethod
    def _from_plain(cls, plain: dict[str, Any]) -> Stream:
        plain["fields"] = tuple(Field(*field) for field in plain["fields"])
        plain["rate"] = None if plain["rate"] is None else Rate(*plain["rate"])
        return cls(**plain)

    @functools.cached_property
    def columns(self) -> dict[str, str]:
        """Which column of an array holds which field: the one of its name, except that a field
        called ``sequence`` or ``time_ns`` gives way to the element's own and gets a ``_``."""
        taken = set(_HEAD) | {field.name for field in self.fields}
        columns = {}
        for field in self.fields:
            column = field.name
            if column in _HEAD:
                while column in taken:
                    column += "_"
                taken.add(column)
            columns[field.name] = column
        return columns

    @functools.cached_property
    def units(self) -> dict[str, str]:
        """The units of an array's columns; empty for plain numbers."""
        units = {"sequence": "", "time_ns": "ns"}
        units.update((self.columns[field.name], field.unit) for field in self.fields)
        return units

    @functools.cached_property
    def dtype(self) -> np.dtype:
        """A row: ``sequence``, ``time_ns`` and the payload, filled up to whole words."""
        return row_dtype(self.fields, self.columns, "time_ns")


def row_dtype(fields: tuple[Field, ...], columns: dict[str, str], time: str) -> np.dtype:
    """The numpy type of rows that the native half makes."""
    head = 16
    end = max((field.offset + field.dtype.itemsize for field in fields), default=0)
    return np.dtype(
        {
            "names": ["sequence", time, *(columns[field.name] for field in fields)],
            "formats": ["u8", "u8", *(field.dtype for field in fields)],
            "offsets": [0, 8, *(head + field.offset for field in fields)],
            "itemsize": head + -(-end // 8) * 8,
        }
    )
