#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Begin and end of units of work: an element for each, so that a monitor sees which units are under
way at any moment, and how long each took, without the program remembering anything.

    overhear run -- python3 examples/python/spans.py
"""

import contextlib
import sys

import overhear

UNITS = 500
BEGIN, END = 0, 1

FIELDS = {
    "unit": "u64",  # which unit of work: the same at its begin and its end
    "edge": "u32",  # BEGIN or END
    "amount": ("u32", "steps"),  # how much there is to do
}


@contextlib.contextmanager
def span(sensor: overhear.Sensor, unit: int, amount: int):
    """A unit of work that is under way: its end is written however it is left."""
    sensor.write(unit, BEGIN, amount)
    try:
        yield
    finally:
        sensor.write(unit, END, amount)


def work(amount: int) -> None:
    sum(range(amount))


def main() -> None:
    with overhear.Sensor("work", FIELDS, type="work_edge") as sensor:
        if not sensor.is_connected:
            print(f"not connected: {sensor.not_connected_reason}", file=sys.stderr)
        for unit in range(UNITS):
            amount = 1000 + 10 * unit
            with span(sensor, unit, amount):
                work(amount)


if __name__ == "__main__":
    main()
