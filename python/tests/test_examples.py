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
EXAMPLES = sorted((ROOT / "examples/python").glob("*.py"))
#: Elements of each sensor, by the name of the example; the same in every language.
COUNTS = {
    "hello_sensor": {"turn": 1000},
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_heard_completely(program, tmp_path, example):
    report, out = run_script(program, tmp_path, example)
    assert report["exit"] == {"code": 0} and report["complete"]
    counts = {}
    for sensor in report["sensors"]:
        counts[sensor["id"]] = counts.get(sensor["id"], 0) + sensor["elements"]
    assert counts == COUNTS[example.stem]
    assert overhear.read(out).elements == sum(counts.values())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_unheard(example):
    done = subprocess.run(
        [sys.executable, example],
        env={**os.environ, "OVERHEAR_DIRECTORY": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "not heard: no directory listens" in done.stderr


def blocks(document: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.M | re.S)


@pytest.mark.parametrize("document", ["README.md", "docs/python.md"])
def test_code_in_documents_runs(program, tmp_path, monkeypatch, document):
    found = blocks(document)
    assert found
    ran = 0
    for number, block in enumerate(found):
        code = compile(block, f"{document}, block {number}", "exec")
        if "overhear.attach" in block:
            # It would wait for programs that are not there.
            continue
        if '"DIR"' in block:
            folder = tmp_path / str(number)
            folder.mkdir()
            sensor = next(other for other in found if "Sensor(" in other)
            _, out = run_source(program, folder, sensor)
            out.rename(folder / "DIR")
            monkeypatch.chdir(folder)
        exec(code, {"__name__": "example"})
        ran += 1
    assert ran
