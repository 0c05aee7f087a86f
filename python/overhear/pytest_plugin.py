# SPDX-License-Identifier: MIT OR Apache-2.0
"""A plug-in for pytest: a test fails when a constraint is violated, or when that cannot be said.

The fixture `overhear_held` runs a program under `overhear run`, or takes a recording, judges it by the
``[[constraint]]`` entries of ``overhear.toml``, and fails the test unless all held::

    def test_the_server_answers_in_time(overhear_held):
        report = overhear_held(["./server", "--once"])
        assert report["constraints"][0]["judged"] == 100

The program `overhear` is looked for in the PATH; ``OVERHEAR_PROGRAM`` names another place.
"""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest


def pytest_addoption(parser):
    parser.addini(
        "overhear_config",
        "The file with the constraints that tests are judged by.",
        default="overhear.toml",
    )


@pytest.fixture
def overhear_held(request):
    """Judges a program or a recording; fails the test unless every constraint held.

    Called with a command (a list) it runs it under `overhear run`, and the program must end with
    status 0; called with a path it judges that recording. `config` names the file with the constraints
    (the ini option ``overhear_config`` without it), `options` are further ones of `overhear run`, such
    as ``["--kernel", "off"]``. `allow_inconclusive` lets pass what is not violated. Gives the verdicts, as
    `overhear check --json` prints them.
    """
    configured = request.config.getini("overhear_config")

    def held(what, *, config=None, options=(), allow_inconclusive=False):
        __tracebackhide__ = True
        path = pathlib.Path(config or request.config.rootpath / configured)
        if not path.is_file():
            pytest.fail(f"there are no constraints: {path} is no file", pytrace=False)
        if isinstance(what, (str, os.PathLike)):
            report = _check(path, what)
        else:
            report = _run(path, [os.fspath(word) for word in what], options)
        good = {"held", "inconclusive"} if allow_inconclusive else {"held"}
        if report["verdict"] not in good:
            pytest.fail(_sentences(report, good), pytrace=False)
        return report

    return held


def _program():
    program = os.environ.get("OVERHEAR_PROGRAM") or shutil.which("overhear")
    if program is None:
        pytest.fail(
            "the program overhear is not in the PATH; install it, or name it by OVERHEAR_PROGRAM",
            pytrace=False,
        )
    return program


def _check(config, recording):
    command = [_program(), "check", recording, "--config", config, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 3):
        pytest.fail(done.stderr.strip(), pytrace=False)
    return json.loads(done.stdout)


def _run(config, command, options):
    # The program writes to the test's own output, which pytest captures.
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "report.json")
        overhear = [_program(), "run", "--quiet", f"--json={report}", "--check", config]
        done = subprocess.run([*overhear, *options, "--", *command], check=False)
        try:
            found = json.loads(report.read_text())
        except (OSError, ValueError):
            found = None
    if found is None:
        pytest.fail(f"overhear run ended with status {done.returncode}", pytrace=False)
    if found["exit"] != {"code": 0}:
        pytest.fail(f"the program ended with {found['exit']}", pytrace=False)
    return found["check"]


def _sentences(report, good):
    lines = []
    for constraint in report["constraints"]:
        if constraint["verdict"] in good:
            continue
        why = [constraint["first"]["sentence"]] if constraint["first"] else []
        why += constraint["reasons"]
        lines.append(f"{constraint['name']}: {constraint['verdict']}: {'; '.join(why)}")
    return "\n".join(lines)
