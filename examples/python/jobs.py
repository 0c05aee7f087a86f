#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""The cost of jobs: the CPU time and the page faults of each frame that is decoded.

    overhear run -- python3 examples/python/jobs.py
"""

import sys

import overhear

FRAMES = 100
FRAME_BYTES = 256 * 1024


def decode(number: int) -> bytearray:
    pixels = bytearray(FRAME_BYTES)
    for at in range(0, FRAME_BYTES, 64):
        pixels[at] = (number + at) % 256
    return pixels


def main() -> None:
    # `overhear doctor --counters` lists the counters of a machine.
    with overhear.Sampler("frame", ["task-clock", "page-faults"]) as sampler:
        if sampler.not_connected_reason:
            print(f"not connected: {sampler.not_connected_reason}", file=sys.stderr)
        for number in range(FRAMES):
            with sampler.job():
                decode(number)


if __name__ == "__main__":
    main()
