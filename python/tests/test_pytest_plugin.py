# SPDX-License-Identifier: MIT OR Apache-2.0
"""The plug-in for pytest, as its users' tests meet it."""

import json
import subprocess
import textwrap
import xml.etree.ElementTree

import overhear
import pytest
from support import COUNTER, FEW, run_source

pytest_plugins = ["pytester"]


@pytest.fixture
def pytests(pytester, monkeypatch):
    """Runs a test file beside constraints and a program that counts to 99, without the program `overhear`."""
    monkeypatch.delenv("OVERHEAR_PROGRAM", raising=False)
    pytester.path.joinpath("counts.py").write_text(textwrap.dedent(COUNTER))

    def run(most, body):
        pytester.path.joinpath("overhear.toml").write_text(FEW.format(most=most))
        pytester.makepyfile(
            "import sys\n"
            'KERNEL = ["--kernel", "off"]\n'
            'COUNTS = [sys.executable, "counts.py"]\n'
            f"def test_it(overhear_held):\n    {body}\n"
        )
        return pytester.runpytest_subprocess("-p", "no:cacheprovider")

    return run


def test_held_passes_and_gives_the_verdicts(pytests):
    result = pytests(99, 'assert overhear_held(COUNTS, options=KERNEL)["constraints"][0]["judged"] == 100')
    result.assert_outcomes(passed=1)


def test_absent_program_fails_with_one_message(pytests):
    result = pytests(99, 'overhear_held(["./nosuch"], options=KERNEL)')
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["cannot run ./nosuch: there is no such program*"])
    result.stdout.no_fnmatch_line("*During handling*")


def test_violated_fails_with_the_first_offence(pytests):
    result = pytests(90, "overhear_held(COUNTS, options=KERNEL)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["few: violated: 91 is more than 90, at *count #91)"])


def test_options_are_those_of_overhear_run(pytests, pytester):
    words = ["--out=kept", "--kernel=off", "--no-page", "--metric", "run_delay", "--junit", "junit.xml"]
    pytests(99, f"overhear_held(COUNTS, options={words!r})").assert_outcomes(passed=1)
    report = overhear.report(pytester.path / "kept")
    assert [metric.name for metric in report.metrics.metrics] == ["run_delay"]
    assert not (pytester.path / "kept/report.html").exists()
    assert 'failures="0"' in (pytester.path / "junit.xml").read_text()
    for words, message in [
        (["--backend", "telepathy"], "*invalid choice: 'telepathy'*"),
        (["--view"], "options of overhear run: unrecognized arguments: --view"),
        (["--kernel-sensors", "syscall,nosuch"], "*nosuch*"),
    ]:
        result = pytests(99, f"overhear_held(COUNTS, options={words!r})")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines([message])


def test_inconclusive_fails_unless_it_is_allowed(pytests):
    silent = 'overhear_held([sys.executable, "-c", ""], options=KERNEL{})'
    result = pytests(99, silent.format(""))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["few: inconclusive: no stream of user:count"])
    pytests(99, silent.format(", allow_inconclusive=True")).assert_outcomes(passed=1)


def test_programs_that_fail_and_constraints_that_are_wrong_fail(pytests):
    result = pytests(99, 'overhear_held([sys.executable, "-c", "raise SystemExit(7)"], options=KERNEL)')
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["the program ended with {'code': 7}"])
    result = pytests(99, 'overhear_held(COUNTS, config="nowhere.toml")')
    result.stdout.fnmatch_lines(["there are no constraints: nowhere.toml is no file"])
    pytests('"much"', "overhear_held(COUNTS)").assert_outcomes(failed=1)


def test_recordings_are_judged_as_well(pytests, program, tmp_path):
    _, out = run_source(program, tmp_path, COUNTER)
    pytests(99, f"overhear_held({str(out)!r})").assert_outcomes(passed=1)
    result = pytests(90, f"overhear_held({str(out)!r})")
    result.stdout.fnmatch_lines(["few: violated: 91 is more than 90*"])


def test_junit_of_verdicts_is_valid(program, tmp_path):
    _, out = run_source(program, tmp_path, COUNTER)
    config, junit = tmp_path / "overhear.toml", tmp_path / "junit.xml"
    names = ["few <& \"quoted\"", "all", "silent"]
    bounds = [("count", 90), ("count", 99), ("other", 1)]
    config.write_text(
        "".join(
            FEW.replace('"few"', json.dumps(name)).replace("user:count", f"user:{of}").format(most=most)
            for name, (of, most) in zip(names, bounds)
        )
    )
    check = [program, "check", out, "--config", config, "--junit", junit]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 1
    suites = xml.etree.ElementTree.parse(junit).getroot()
    assert suites.tag == "testsuites"
    [suite] = suites
    counts = {key: int(suite.get(key)) for key in ("tests", "failures", "errors")}
    assert counts == {"tests": 3, "failures": 1, "errors": 1}
    assert [case.get("name") for case in suite.iter("testcase")] == names
    [failure], [error] = suite.iter("failure"), suite.iter("error")
    assert "91 is more than 90" in failure.get("message")
    assert "no stream of user:other" in error.get("message")
