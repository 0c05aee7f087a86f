# SPDX-License-Identifier: MIT OR Apache-2.0
"""A plug-in for pytest: a test fails if a constraint is violated or inconclusive.

The fixture `overhear_held` runs a program, as `overhear.run` does, or takes a recording, judges it by the
``[[constraint]]`` entries of ``overhear.toml``, and fails the test unless all held::

    def test_the_server_answers_in_time(overhear_held):
        report = overhear_held(["./server", "--once"])
        assert report["constraints"][0]["judged"] == 100
"""

import argparse
import os
import pathlib

import pytest

from . import _session
from ._core import OverhearError


def pytest_addoption(parser):
    parser.addini(
        "overhear_config",
        "The file with the constraints that tests are judged by.",
        default="overhear.toml",
    )


@pytest.fixture
def overhear_held(request):
    """Judges a program or a recording; fails the test unless every constraint held.

    Called with a command (a list) it runs it, and the program must end with status 0; called with a path it judges
    that recording. `config` names the file with the constraints (the ini option ``overhear_config`` without it),
    `options` are further ones of `overhear run`, such as ``["--kernel", "off"]``. `allow_inconclusive` lets pass what
    is not violated. Gives the verdicts, as `overhear check --json` prints them.
    """
    configured = request.config.getini("overhear_config")

    def held(what, *, config=None, options=(), allow_inconclusive=False):
        __tracebackhide__ = True
        path = pathlib.Path(config or request.config.rootpath / configured)
        if not path.is_file():
            pytest.fail(f"there are no constraints: {path} is no file", pytrace=False)
        failure = None
        try:
            if isinstance(what, (str, os.PathLike)):
                report = _session.check(what, path).to_dict()
            else:
                report = _run(path, what, options)
        except OverhearError as error:
            failure = str(error)
        # Outside of `except`: the failure is one message, without the traceback of its cause.
        if failure is not None:
            pytest.fail(failure, pytrace=False)
        good = {"held", "inconclusive"} if allow_inconclusive else {"held"}
        if report["verdict"] not in good:
            pytest.fail(_messages(report, good), pytrace=False)
        return report

    return held


def _run(config, command, options):
    __tracebackhide__ = True
    # The program writes to the test's own output, which pytest captures.
    found = _session.run(command, check=config, **_keywords(options)).to_dict()
    if found["exit"] != {"code": 0}:
        pytest.fail(f"the program ended with {found['exit']}", pytrace=False)
    return found["check"]


class _Options(argparse.ArgumentParser):
    """The options of `overhear run` that `overhear.run` has as parameters."""

    def __init__(self):
        super().__init__(prog="options", add_help=False, allow_abbrev=False)
        for name in ("out", "socket", "junit", "config", "calibration"):
            self.add_argument(f"--{name}")
        for name in ("disable-unused", "measure-wcet", "compensate"):
            self.add_argument(f"--{name}", action="store_true")
        self.add_argument("--no-page", action="store_false", dest="page")
        self.add_argument("--no-exec", action="store_false", dest="execute")
        self.add_argument("--until", default="ended")
        self.add_argument("--kernel", choices=("off", "sched"), default="sched")
        self.add_argument("--backend", choices=("auto", "bpf", "perf"), default="auto")
        self.add_argument("--kernel-sensors", action="extend", type=lambda it: it.split(","), default=[])
        several = {"probe": "probes", "metric": "metrics", "update": "updates", "usdt": "usdt"}
        several |= {"tracepoint": "tracepoints", "kprobe": "kprobes", "kretprobe": "kretprobes"}
        for name, parameter in several.items():
            self.add_argument(f"--{name}", action="append", dest=parameter, default=[])

    def error(self, message):
        pytest.fail(f"options of overhear run: {message}", pytrace=False)


def _keywords(options):
    """Options as the parameters of `overhear.run`."""
    __tracebackhide__ = True
    keywords = vars(_Options().parse_args([os.fspath(word) for word in options]))
    if keywords["kernel"] != "off":
        keywords["kernel"] = keywords["backend"]
    del keywords["backend"]
    return keywords


def _messages(report, good):
    lines = []
    for constraint in report["constraints"]:
        if constraint["verdict"] in good:
            continue
        why = [constraint["first"]["message"]] if constraint["first"] else []
        why += constraint["reasons"]
        lines.append(f"{constraint['name']}: {constraint['verdict']}: {'; '.join(why)}")
    return "\n".join(lines)
