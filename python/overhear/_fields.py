# SPDX-License-Identifier: MIT OR Apache-2.0
"""Fields of a payload: how they are declared, and what they are in numpy."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from ._core import SchemaError

#: The kinds that are numbers, and what numpy calls them (whose digits count bytes, not bits).
_NUMPY = {
    "u8": "u1",
    "u16": "u2",
    "u32": "u4",
    "u64": "u8",
    "i8": "i1",
    "i16": "i2",
    "i32": "i4",
    "i64": "i8",
    "f32": "f4",
    "f64": "f8",
}
_KINDS = {np.dtype(code): kind for kind, code in _NUMPY.items()}
_PLAIN = {int: "i64", float: "f64", bool: "u8"}
_TEXT = re.compile(r"text\[([1-9][0-9]*)\]")


class Field(NamedTuple):
    """One field of a payload."""

    #: A C identifier.
    name: str
    #: ``u8`` to ``u64``, ``i8`` to ``i64``, ``f32``, ``f64`` or ``text[BYTES]``.
    kind: str
    #: Where it starts in the payload, in bytes.
    offset: int
    #: The unit of its values (``ns``, ``B``, ``1/s``), empty for a plain number.
    unit: str

    @property
    def dtype(self) -> np.dtype:
        """The kind in numpy; text is ``S``, bytes of UTF-8."""
        return numpy_of(self.kind)


class Declaration(NamedTuple):
    """What a sensor was declared with."""

    fields: tuple[Field, ...]
    size: int
    #: The dataclass that declared it, if one did.
    record: Optional[type]

    @property
    def dtype(self) -> np.dtype:
        """The payload in numpy, fields in the order of declaration."""
        return np.dtype(
            {
                "names": [field.name for field in self.fields],
                "formats": [field.dtype for field in self.fields],
                "offsets": [field.offset for field in self.fields],
                "itemsize": self.size,
            }
        )


#: What :class:`Sensor` takes as fields.
Declarable = Union[Mapping[str, Any], np.dtype, type]


def numpy_of(kind: str) -> np.dtype:
    """The numpy type of a kind."""
    if kind in _NUMPY:
        return np.dtype(_NUMPY[kind])
    text = _TEXT.fullmatch(kind)
    if text is None:
        raise SchemaError(
            f"there is no kind `{kind}`; use u8 to u64, i8 to i64, f32, f64 or text[BYTES]"
        )
    return np.dtype(f"S{text[1]}")


def declare(fields: Declarable, units: Optional[Mapping[str, str]] = None) -> Declaration:
    """Understands fields declared as a mapping, a dataclass or a numpy type.

    Raises SchemaError with a message for what cannot be a field.
    """
    if isinstance(fields, np.dtype):
        return _from_numpy(fields, units or {})
    if isinstance(fields, Mapping):
        plain = {name: _kind_and_unit(name, given) for name, given in fields.items()}
        return _lay_out(plain, units or {}, None)
    if isinstance(fields, type) and dataclasses.is_dataclass(fields):
        hints = typing.get_type_hints(fields, include_extras=True)
        plain = {
            field.name: _kind_and_unit(field.name, hints[field.name])
            for field in dataclasses.fields(fields)
        }
        return _lay_out(plain, units or {}, fields)
    raise SchemaError(
        f"fields are a mapping of names to kinds, a dataclass or a numpy dtype, not {fields!r}"
    )


def _kind_and_unit(name: str, given: Any) -> tuple[str, str]:
    unit = ""
    if typing.get_origin(given) is typing.Annotated:
        # Annotated[int, "u64", "requests"]
        plain, *notes = typing.get_args(given)
        texts = [note for note in notes if isinstance(note, str)]
        given = texts[0] if texts else plain
        unit = texts[1] if len(texts) > 1 else ""
    elif isinstance(given, tuple) and len(given) == 2:
        given, unit = given
    if isinstance(given, str):
        # Not numpy's codes: its "i8" has eight bytes, ours has eight bits.
        numpy_of(given)
        return given, unit
    if given in _PLAIN:
        return _PLAIN[given], unit
    try:
        return _kind_of(np.dtype(given)), unit
    except (TypeError, SchemaError):
        raise SchemaError(
            f"field `{name}` cannot be declared by {given!r}; use `u64`, (`u64`, `unit`), int, "
            "float or a numpy type"
        ) from None


def _kind_of(dtype: np.dtype) -> str:
    if dtype.kind == "b":
        return "u8"
    if dtype.kind == "S" and dtype.itemsize > 0:
        return f"text[{dtype.itemsize}]"
    if dtype not in _KINDS:
        raise SchemaError(f"there is no kind for numpy's {dtype!r}")
    return _KINDS[dtype]


def _lay_out(
    plain: Mapping[str, tuple[str, str]], units: Mapping[str, str], record: Optional[type]
) -> Declaration:
    """Places the fields by falling alignment: then no padding is needed, whatever their order."""

    def alignment(name: str) -> int:
        dtype = numpy_of(plain[name][0])
        return 1 if dtype.kind == "S" else dtype.itemsize

    offsets, size = {}, 0
    for name in sorted(plain, key=alignment, reverse=True):
        offsets[name] = size
        size += numpy_of(plain[name][0]).itemsize
    _check_units(units, plain)
    return Declaration(
        tuple(
            Field(name, kind, offsets[name], units.get(name, unit))
            for name, (kind, unit) in plain.items()
        ),
        size,
        record,
    )


def _from_numpy(dtype: np.dtype, units: Mapping[str, str]) -> Declaration:
    if dtype.names is None or dtype.fields is None:
        raise SchemaError(f"{dtype!r} has no named fields; use a structured dtype")
    fields = []
    for name in dtype.names:
        part, offset = dtype.fields[name][:2]
        try:
            fields.append(Field(name, _kind_of(part), int(offset), units.get(name, "")))
        except SchemaError as error:
            raise SchemaError(f"field `{name}`: {error}") from None
    _check_units(units, dtype.names)
    return Declaration(tuple(fields), dtype.itemsize, None)


def _check_units(units: Mapping[str, str], names: Any) -> None:
    for name in units:
        if name not in names:
            raise SchemaError(f"there is a unit for `{name}`, but no such field")
