# SPDX-License-Identifier: MIT OR Apache-2.0
"""The plug-in for pytest, as its users' tests meet it."""

import textwrap

import pytest
from support import run_source

pytest_plugins = ["pytester"]

WRITES = """
    import overhear

    with overhear.Sensor("count", {"n": "u64"}) as count:
        for n in range(100):
            count.write(n)
"""

CONSTRAINTS = """
[[constraint]]
name = "few"
of = "user:count"
field = "n"
max = {most}
"""


@pytest.fixture
def pytests(pytester, program, monkeypatch):
    """Runs a test file beside constraints and a program that counts to 99."""
    monkeypatch.setenv("OVERHEAR_PROGRAM", str(program))
    pytester.path.joinpath("counts.py").write_text(textwrap.dedent(WRITES))

    def run(most, body):
        pytester.path.joinpath("overhear.toml").write_text(CONSTRAINTS.format(most=most))
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


def test_violated_fails_with_the_first_offence(pytests):
    result = pytests(90, "overhear_held(COUNTS, options=KERNEL)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["few: violated: 91 is more than 90, at *count #91)"])


def test_inconclusive_fails_unless_it_is_allowed(pytests):
    silent = 'overhear_held([sys.executable, "-c", ""], options=KERNEL{})'
    result = pytests(99, silent.format(""))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["few: inconclusive: user:count was not heard"])
    pytests(99, silent.format(", allow_inconclusive=True")).assert_outcomes(passed=1)


def test_programs_that_fail_and_constraints_that_are_wrong_fail(pytests):
    result = pytests(99, 'overhear_held([sys.executable, "-c", "raise SystemExit(7)"], options=KERNEL)')
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["the program ended with {'code': 7}"])
    result = pytests(99, 'overhear_held(COUNTS, config="nowhere.toml")')
    result.stdout.fnmatch_lines(["there are no constraints: nowhere.toml is no file"])
    pytests('"much"', "overhear_held(COUNTS)").assert_outcomes(failed=1)


def test_recordings_are_judged_as_well(pytests, program, tmp_path):
    _, out = run_source(program, tmp_path, WRITES)
    pytests(99, f"overhear_held({str(out)!r})").assert_outcomes(passed=1)
    result = pytests(90, f"overhear_held({str(out)!r})")
    result.stdout.fnmatch_lines(["few: violated: 91 is more than 90*"])
