#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""A first sensor: a loop writes the duration of each of its turns and the amount of work.

    overhear run -- python3 examples/python/hello_sensor.py

Without `overhear run` it works the same; then no monitor can read it, and it prints that.
"""

import dataclasses
import sys
import time
from typing import Annotated

import overhear


@dataclasses.dataclass
class Turn:
    """One observation. Kinds and units let every tool print and plot it without this program."""

    cpu_ns: Annotated[int, "u64", "ns"]
    number: Annotated[int, "u32"]
    sum: Annotated[int, "u32"]


def main() -> None:
    # Registering is the slow part, so it comes before the loop.
    with overhear.Sensor("turn", Turn, type="hello_turn") as sensor:
        if not sensor.is_connected:
            print(f"not connected: {sensor.not_connected_reason}", file=sys.stderr)
        for number in range(1000):
            before_ns = time.thread_time_ns()
            total = sum(range(1000 + number))
            cpu_ns = time.thread_time_ns() - before_ns
            sensor.write(cpu_ns, number, total)


if __name__ == "__main__":
    main()
