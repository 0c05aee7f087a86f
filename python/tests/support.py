# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs under `overhear run`."""

import json
import pathlib
import subprocess
import sys
import textwrap

#: Counts to 99.
COUNTER = """
    import overhear

    with overhear.Sensor("count", {"n": "u64"}) as count:
        for n in range(100):
            count.write(n)
"""

#: A constraint on these numbers.
FEW = """
[[constraint]]
name = "few"
of = "user:count"
field = "n"
max = {most}
"""

#: Writes 300,000 elements into a ring that is sized for one per second, and lets its reader catch up twice.
LAPS = """
    import time

    import numpy as np
    import overhear

    rate = overhear.Rate(10**9, 10**9)
    sensor = overhear.Sensor("fast", np.dtype([("x", "u8")]), rate=rate)
    for turn in range(3):
        sensor.write_many(np.arange(100_000))
        time.sleep(0.3)
"""


def run_source(program: pathlib.Path, folder: pathlib.Path, source: str):
    """Runs Python source under `overhear run`; gives the JSON report and the trace's folder."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(source))
    return run_script(program, folder, script)


def run_script(program: pathlib.Path, folder: pathlib.Path, script: pathlib.Path):
    """The same with a script that exists."""
    out = folder / "out"
    command = [program, "run", "--kernel", "off", "--json", "--out", out, "--"]
    done = subprocess.run(
        [*command, sys.executable, script], capture_output=True, text=True, check=False
    )
    # 3: it succeeded, and elements were missed.
    assert done.returncode in (0, 3), done.stderr
    # The output of the script itself comes before the report.
    return json.loads(done.stdout[done.stdout.index("{") :]), out
