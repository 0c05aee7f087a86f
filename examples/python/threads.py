#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""One sensor, many threads: each writes into a lane of its own, and a monitor sees one sensor.

    overhear run -- python3 examples/python/threads.py

Python's threads take turns, so a sensor without lanes would do as well. With lanes each element names
which thread wrote it.
"""

import sys
import threading

import overhear

THREADS = 4
STEPS = 250


def work(sensor: overhear.Sensor, worker: int) -> None:
    for number in range(STEPS):
        sensor.write(worker, number)


def main() -> None:
    fields = {"worker": "u32", "number": "u32"}
    with overhear.Sensor("step", fields, lanes=THREADS) as sensor:
        if not sensor.is_connected:
            print(f"not connected: {sensor.not_connected_reason}", file=sys.stderr)
        threads = [threading.Thread(target=work, args=(sensor, i)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
