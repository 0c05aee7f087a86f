# SPDX-License-Identifier: MIT OR Apache-2.0
"""Gaps as arrays."""

from __future__ import annotations

import numpy as np

from ._core import CAUSES

_NUMBERS = ("stream", "first", "missed", "from_ns", "to_ns")
_ROW = np.dtype([(name, "u8") for name in (*_NUMBERS, "cause")])
_CAUSES = np.array([*CAUSES, "unknown"], "U12")

#: A gap: its stream, which elements are missing, between which times, and why.
GAP = np.dtype([*((name, "u8") for name in _NUMBERS), ("cause", "U12")])
#: Words that the core writes of a gap.
GAP_WORDS = len(_NUMBERS) + 1


def gap_columns(words: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of `GAP` from what the core writes, with the causes by name."""
    rows = np.ascontiguousarray(words).reshape(-1).view(_ROW)
    columns = {name: rows[name] for name in _NUMBERS}
    columns["cause"] = _CAUSES[np.minimum(rows["cause"], len(CAUSES))]
    return columns
