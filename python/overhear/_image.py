# SPDX-License-Identifier: MIT OR Apache-2.0
"""The memory of a stream, from a file or a core dump."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from . import _core
from ._fields import Declarable, declare
from ._stream import row_dtype

_CLOCKS = {"monotonic": 1, "x86_tsc": 2, "arm_cntvct": 3}


class Image(NamedTuple):
    """What a stream's memory holds."""

    #: The readable elements: ``sequence``, ``stamp_ticks`` and the fields.
    elements: np.ndarray
    #: How many older ones were overwritten.
    missed: int


def read_image(
    image: bytes, fields: Declarable, *, capacity: int, clock: str = "monotonic", stream: int
) -> Image:
    """Reads the memory of a simple stream (docs/abi/stream-layout.md) that was saved as bytes.

    Geometry is the caller's, because the memory's header could have been overwritten: it is
    compared, not believed. Stamps stay ticks of the clock, ``monotonic``, ``x86_tsc`` or
    ``arm_cntvct``: the segments that convert them are not part of the stream.

    :raises TraceError: if the memory is too small or its header contradicts.
    """
    declaration = declare(fields)
    if clock not in _CLOCKS:
        raise _core.TraceError(f"there is no clock `{clock}`; use {', '.join(_CLOCKS)}")
    words, missed = _core.read_image(image, declaration.size, capacity, _CLOCKS[clock], stream)
    columns = {field.name: field.name for field in declaration.fields}
    return Image(words.view(row_dtype(declaration.fields, columns, "stamp_ticks")), missed)
