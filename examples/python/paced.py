#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""A producer that keeps to its declared rate: it could be faster, but waits until its stream allows
the next element. A monitor that reserved time for this rate misses nothing.

    overhear run -- python3 examples/python/paced.py
"""

import sys

import overhear

# One element each millisecond in the long run; up to 10 ms of them at once, but never two closer
# than 100 us.
RATE = overhear.Rate(period_ns=1_000_000, distance_ns=100_000, jitter_ns=10_000_000)


def main() -> None:
    fields = {"number": "u64", "volts": ("f64", "V")}
    with overhear.Sensor("level", fields, rate=RATE) as sensor:
        if not sensor.is_connected:
            print(f"not connected: {sensor.not_connected_reason}", file=sys.stderr)
        for number in range(200):
            sensor.pace()
            sensor.write(number, number % 50 / 10)


if __name__ == "__main__":
    main()
