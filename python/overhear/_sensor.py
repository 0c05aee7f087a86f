# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import numpy as np

from . import _core
from ._fields import Declarable, declare


class Rate(NamedTuple):
    """A declared production rate: the jitter-constrained stream (T, D, tau).

    Any two elements i <= j keep a distance of at least ``max((j - i) * D, (j - i) * T - tau)``.
    """

    #: T: the mean distance of two elements, at least 1 ns.
    period_ns: int
    #: D: the least distance of two elements, at most T.
    distance_ns: int
    #: tau: by how much elements may come early in sum.
    jitter_ns: int = 0


class Sensor(_core.Sensor):
    """A place in a program that produces elements of one type.

    ``fields`` declares the payload, as one of:

    - a mapping of names to kinds: ``{"depth": ("u64", "requests"), "load": "f64"}``. Kinds are
      ``u8`` to ``u64``, ``i8`` to ``i64``, ``f32``, ``f64``, ``text[BYTES]``, or a type of
      Python (int, float, bool) or numpy; with a unit they are a pair.
    - a dataclass, whose annotations are such types, or ``Annotated[int, "u64", "requests"]``.
      Instances of it can be written then. Fields of mappings and dataclasses are laid out by falling
      alignment, which leaves no padding.
    - a structured numpy dtype, taken as it is; with ``units`` beside it. It must have no padding.

    Where no directory answers, the sensor writes into private memory and the program runs on
    unchanged: see `is_connected` and `not_connected_reason`.

    A sensor may be used by several threads, which take turns. After a fork the child's copy stays
    usable but not connected; the child makes sensors of its own to be read.

    It is a context manager: at the end of ``with`` it is unregistered.

    :param id: what it measures, from the view of who evaluates: ``queue``.
    :param fields: what an element contains.
    :param type: the name of the payload's type, a C identifier; the sensor's id by default.
    :param instance: which one of several sensors with the same id this is.
    :param units: units of fields that have none in `fields`.
    :param rate: the declared rate (T, D, tau); the directory sizes the stream by it.
    :param capacity: the least number of elements the stream shall hold; 0: the directory's choice.
    :param lanes: makes a laned sensor, whose elements say which thread wrote them, in the columns
        ``writer_tid`` and ``writer_flags``: for so many threads at once, 0: twice as many as CPUs,
        at least 16.
    :param writers: makes a concurrent sensor, whose threads share one stream with one order, in the
        same columns: for so many writes at the same moment, 0: as above. For few elements of many
        threads; not together with ``lanes``.
    :raises SchemaError: if the fields cannot be a payload.
    :raises SensorError: if there is no memory even for a private stream.
    :raises ValueError: if the rate is impossible, or both ``lanes`` and ``writers`` are given.
    """

    #: What it measures.
    id: str
    #: Which one of several; empty where there is one.
    instance: str
    #: The payload in numpy, without time and sequence, for `write_many`.
    dtype: np.dtype

    def __new__(
        cls,
        id: str,
        fields: Declarable,
        *,
        type: Optional[str] = None,
        instance: str = "",
        units: Optional[Mapping[str, str]] = None,
        rate: Optional[Rate] = None,
        capacity: int = 0,
        lanes: Optional[int] = None,
        writers: Optional[int] = None,
    ) -> Sensor:
        declaration = declare(fields, units)
        type_id = type if type is not None else re.sub(r"\W", "_", id, flags=re.ASCII)
        rate = Rate(*rate) if rate is not None else None
        plain = [tuple(field) for field in declaration.fields]
        self = super().__new__(
            cls,
            id,
            type_id,
            declaration.size,
            plain,
            instance,
            rate,
            capacity,
            lanes,
            writers,
            declaration.record,
        )
        self.id, self.instance, self.dtype = id, instance, declaration.dtype
        return self

    def write_many(self, elements: Any = None, /, **columns: Any) -> int:
        """Appends many elements, without a loop in Python, and returns their number. A sensor that
        is switched off does not write them.

        ``elements`` is a structured array with the sensor's fields, in any order; for a sensor of
        one field a plain array will do. Or each field is given as an array of its own, by name.
        Each element is stamped when it is written. Other threads run now and then in between.

        :raises TypeError: if fields are missing, unknown, or of another kind.
        :raises OverflowError: if a number does not fit its field; then nothing is written.
        :raises ValueError: if a text does not fit its field, or columns differ in length; then
            nothing is written.
        """
        own = self.dtype.names or ()
        if elements is not None:
            if columns:
                raise TypeError(f"sensor `{self.id}`: give an array or columns, not both")
            elements = np.atleast_1d(np.asarray(elements))
            if elements.dtype == self.dtype:
                return self.write_payloads(_bytes(elements))
            names = elements.dtype.names
            if names is not None:
                columns = {name: elements[name] for name in names}
            elif len(own) == 1:
                columns = {own[0]: elements}
            else:
                raise TypeError(
                    f"sensor `{self.id}` has {len(own)} fields; give a structured array"
                )
        if set(columns) != set(own):
            raise TypeError(
                f"sensor `{self.id}` has the fields {', '.join(own)}, "
                f"not {', '.join(columns)}"
            )
        fitted = {
            name: _fit(f"sensor `{self.id}`: field `{name}`", np.atleast_1d(values), self.dtype[name])
            for name, values in columns.items()
        }
        lengths = {values.size for values in fitted.values()}
        if len(lengths) != 1:
            raise ValueError(f"sensor `{self.id}`: the columns differ in length: {sorted(lengths)}")
        payloads = np.empty(lengths.pop(), self.dtype)
        for name, values in fitted.items():
            payloads[name] = values.reshape(-1)
        return self.write_payloads(_bytes(payloads))

    def __enter__(self) -> Sensor:
        return self

    def __exit__(self, *_: object) -> None:
        self.unregister()

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "not connected"
        return f"<overhear.Sensor `{self.id}`: {state}, {self.written} written>"


def _bytes(payloads: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(payloads).reshape(-1).view(np.uint8)


def _fit(what: str, values: np.ndarray, target: np.dtype) -> np.ndarray:
    """The values, if each one can be kept in the target's type without becoming another."""
    kind = values.dtype.kind
    if target.kind == "S":
        if kind == "U":
            values = np.char.encode(values, "utf-8")
        elif kind != "S":
            raise TypeError(f"{what} is text, not {values.dtype}")
        if values.size and values.dtype.itemsize:
            lengths = np.char.str_len(values).reshape(-1)
            letters = _bytes(values).reshape(values.size, -1)
            # A zero byte before the end would end the text for readers.
            if lengths.max() > target.itemsize or ((letters != 0).sum(axis=1) != lengths).any():
                raise ValueError(
                    f"{what}: a text has more than {target.itemsize} bytes, or a zero byte in it"
                )
    elif target.kind == "f":
        if kind not in "uibf":
            raise TypeError(f"{what} is a number, not {values.dtype}")
    elif kind not in "uib":
        raise TypeError(f"{what} is an integer, not {values.dtype}")
    elif values.size and not np.can_cast(values.dtype, target, "safe"):
        least, most = int(values.min()), int(values.max())
        limits = np.iinfo(target)
        if least < limits.min or most > limits.max:
            raise OverflowError(f"{what} is {target} and cannot hold {least} to {most}")
    return values
