# SPDX-License-Identifier: MIT OR Apache-2.0
"""The examples, and the code in the documents, do what they say."""

import os
import pathlib
import re
import subprocess
import sys

import overhear
import pytest
from support import run_script, run_source

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: The one that observes instead of being observed.
KERNEL = ROOT / "examples/python/kernel_monitor.py"
#: The one that evaluates a recording (test_samples.py).
ANOMALY = ROOT / "examples/python/anomaly.py"
EXAMPLES = sorted(set((ROOT / "examples/python").glob("*.py")) - {KERNEL, ANOMALY})
#: What is received of each: id, type, elements, declared rate, fields with units, least and largest value
#: (None where no two runs are alike). The same as of the programs of this name in C, C++ and Rust
#: (crates/overhear/tests/examples.rs).
HEARD = {
    "hello_sensor": (
        "turn", "hello_turn", 1000, None,
        [("cpu_ns", "ns", None, None), ("number", "", 0, 999), ("sum", "", 499_500, 1_997_001)],
    ),
    "spans": (
        "work", "work_edge", 1000, None,
        [("unit", "", 0, 499), ("edge", "", 0, 1), ("amount", "steps", 1_000, 5_990)],
    ),
    "threads": (
        "step", "step", 1000, None,
        [
            ("writer_tid", "", None, None), ("writer_flags", "", 0, 0),
            ("worker", "", 0, 3), ("number", "", 0, 249),
        ],
    ),
    "paced": (
        "level", "level", 200, (1_000_000, 100_000, 10_000_000),
        [("number", "", 0, 199), ("volts", "V", 0, 4.9)],
    ),
    "jobs": (
        "frame", "overhear_sample", 100, None,
        [
            ("tid", "", None, None), ("pid", "", None, None), ("point", "", 8, 8),
            ("cpu", "", None, None), ("duration", "ns", None, None),
            ("task_clock", "ns", None, None), ("page_faults", "", None, None),
        ],
    ),
}


def test_every_example_is_known():
    assert sorted(HEARD) == [example.stem for example in EXAMPLES]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_read_completely(program, tmp_path, example):
    report, out = run_script(program, tmp_path, example)
    assert report["exit"] == {"code": 0} and report["complete"]
    (sensor,) = report["sensors"]
    id, type, elements, rate, fields = HEARD[example.stem]
    assert (sensor["id"], sensor["type"], sensor["elements"]) == (id, type, elements)
    if type == "overhear_sample":
        (sampler,) = report["samplers"]
        assert sampler["id"] == id
        assert [task["jobs"]["count"] for task in sampler["tasks"]] == [elements]
    else:
        assert [(field["name"], field["unit"]) for field in sensor["fields"]] == [
            (name, unit) for name, unit, _, _ in fields
        ]
    whole = overhear.read(out)
    assert {stream.rate for stream in whole.streams} == {rate}
    assert {stream.type for stream in whole.streams} == {type}
    array = whole[id]
    assert array.size == elements
    for name, _, least, most in fields:
        if least is not None:
            assert (array[name].min(), array[name].max()) == (least, most), name
    if example.stem == "threads":
        by_writer = {int(tid): array[array["writer_tid"] == tid] for tid in set(array["writer_tid"])}
        assert len(by_writer) == 4
        for mine in by_writer.values():
            assert len(set(mine["worker"])) == 1 and (mine["number"] == range(250)).all()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_without_a_directory(example):
    done = subprocess.run(
        [sys.executable, example],
        env={**os.environ, "OVERHEAR_DIRECTORY": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "not connected: no directory listens" in done.stderr


def test_kernel_monitor_example_records_a_program():
    command = [sys.executable, KERNEL, "sh", "-c", "sleep 0.01; sleep 0.01"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "KernelError: kernel sensors: none" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    *threads, last = done.stdout.splitlines()
    # The shell and its two children each leave a CPU at least once.
    assert len(threads) >= 3 and all(re.match(r"\d+: gave up \d+, lost \d+, ran ", it) for it in threads)
    assert last == "0 elements were missed"


def blocks(document: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.M | re.S)


@pytest.mark.parametrize("document", ["README.md", "docs/python.md", "docs/samplers-in-programs.md"])
def test_code_in_documents_runs(program, tmp_path, monkeypatch, document):
    found = blocks(document)
    assert found
    ran = 0
    for number, block in enumerate(found):
        code = compile(block, f"{document}, block {number}", "exec")
        if "overhear.attach" in block:
            # It would wait for absent programs.
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        if '"DIR"' in block:
            sensor = next(other for other in found if "Sensor(" in other)
            _, out = run_source(program, folder, sensor)
            out.rename(folder / "DIR")
        exec(code, {"__name__": "example"})
        ran += 1
    assert ran
