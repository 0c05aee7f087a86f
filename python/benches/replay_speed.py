# SPDX-License-Identifier: MIT OR Apache-2.0
"""How fast a trace becomes numpy arrays, compared with the Rust reader on the same trace.

`make bench` runs it with what it has built; the arguments are the programs `overhear` and `replay_count`.

The readers take turns, so that all see the same noise, and the medians are compared.
"""

import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import overhear

ROUNDS = 15
STREAMS = 4
ELEMENTS = 500_000


def produce() -> None:
    """Sensors with 16 bytes of payload, slowly enough that little is missed."""
    fields = {"x": "u64", "y": "f64"}
    sensors = [overhear.Sensor("pair", fields, instance=str(i)) for i in range(STREAMS)]
    x = np.arange(5_000)
    for _ in range(ELEMENTS // x.size):
        for sensor in sensors:
            sensor.write_many(x=x, y=x)
        time.sleep(0.005)


def by_rust(trace: str) -> float:
    command = [sys.argv[2], trace]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    elements, took_ns = done.stdout.split()
    return int(took_ns) / int(elements)


def by_batches(trace: str) -> float:
    begun, elements = time.perf_counter_ns(), 0
    for batch in overhear.replay(trace):
        elements += batch.elements
    return (time.perf_counter_ns() - begun) / elements


def at_once(trace: str) -> float:
    begun = time.perf_counter_ns()
    elements = overhear.read(trace).elements
    return (time.perf_counter_ns() - begun) / elements


def one_by_one(trace: str) -> float:
    begun, elements = time.perf_counter_ns(), 0
    for batch in overhear.replay(trace):
        for item in batch:
            elements += 1
        if elements > 100_000:
            break
    return (time.perf_counter_ns() - begun) / elements


def main() -> None:
    readers = {
        "Rust reader": by_rust,
        "replay(), batches": by_batches,
        "read(), at once": at_once,
        "items one by one": one_by_one,
    }
    took: dict[str, list[float]] = {name: [] for name in readers}
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.argv[1], "run", "--kernel", "off", "--json", "--out", f"{folder}/out"]
        produced = [*run, "--", sys.executable, __file__, "produce"]
        subprocess.run(produced, stdout=subprocess.DEVNULL, check=False)
        whole = overhear.replay(f"{folder}/out")
        print(f"{whole.elements} elements of {len(whole.streams)} streams, {whole.missed} missed")
        for _ in range(ROUNDS):
            for name, reader in readers.items():
                took[name].append(reader(f"{folder}/out"))
    floor = statistics.median(took["Rust reader"])
    for name, figures in took.items():
        median = statistics.median(figures)
        print(f"{name:18} {median:8.1f} ns {1e3 / median:8.2f} million/s  ratio {median / floor:6.2f}")


if __name__ == "__main__":
    produce() if sys.argv[1:] == ["produce"] else main()
