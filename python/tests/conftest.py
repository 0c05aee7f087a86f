# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the tests share: programs under `overhear run`, and where things lie.

`make test` builds the wheel, installs it with numpy and pytest in an environment of its own, and
names the program `overhear` in OVERHEAR_PROGRAM.
"""

import os
import pathlib
import signal

import pytest
from support import run_source

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A shell without job control starts background programs with ignored interrupts, and their children
# inherit that. Tests that send one expect the default.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def program() -> pathlib.Path:
    """The program `overhear`."""
    path = pathlib.Path(os.environ.get("OVERHEAR_PROGRAM", ROOT / "target/debug/overhear"))
    if not path.is_file():
        pytest.skip(f"{path.name} is not built; type `cargo build -p overhear-cli`")
    return path


@pytest.fixture
def run(program, tmp_path):
    """Runs Python source under `overhear run`; gives the JSON report and the trace's folder."""
    return lambda source: run_source(program, tmp_path, source)


@pytest.fixture(autouse=True)
def nobody_listens(monkeypatch):
    """Sensors of the tests themselves stay unheard, whatever runs on this machine."""
    monkeypatch.setenv("OVERHEAR_DIRECTORY", "")
