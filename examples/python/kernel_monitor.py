#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Observes what the kernel does with a program and all that it creates, and prints for each thread how often it
gave up its CPU, how often it lost it, and how long it ran.

    python3 examples/python/kernel_monitor.py [PROGRAM ARGS...]

It needs CAP_BPF and CAP_PERFMON; without them it records less, by perf records.
"""

import os
import subprocess
import sys

import numpy as np
import overhear

PREV_TRACKED, VOLUNTARY = 2, 8
#: The value of an unknown run time.
UNKNOWN = np.uint32(2**32 - 1)


def main() -> None:
    command = sys.argv[1:] or ["sh", "-c", "for i in 1 2 3 4 5; do sleep 0.01; done"]
    with overhear.KernelMonitor(buffer_bytes=8 << 20) as monitor:
        print(f"{monitor.message}; {monitor.granted_bytes} bytes were granted", file=sys.stderr)
        # The program begins when it is tracked: it waits for a line.
        held = ["sh", "-c", 'read go; exec "$@"', "sh", *command]
        with subprocess.Popen(held, stdin=subprocess.PIPE) as program:
            monitor.process_monitor(program.pid)
            monitor.resume()
            program.communicate(os.linesep.encode())
        monitor.finish()
        batch = monitor.read()
    switches = batch["sched_switch"]
    switches = switches[switches["flags"] & PREV_TRACKED != 0]
    for thread in np.unique(switches["prev_tid"]):
        mine = switches[switches["prev_tid"] == thread]
        voluntary = int((mine["flags"] & VOLUNTARY != 0).sum())
        ran = mine["prev_run_ns"][mine["prev_run_ns"] != UNKNOWN].sum(dtype="u8")
        print(f"{thread}: gave up {voluntary}, lost {mine.size - voluntary}, ran {ran / 1e6:.1f} ms")
    print(f"{batch.missed} elements were missed")


if __name__ == "__main__":
    main()
