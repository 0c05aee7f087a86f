# SPDX-License-Identifier: MIT OR Apache-2.0
"""The verbs of the command line in Python: the same results, as objects."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import textwrap
import threading

import numpy as np
import overhear
import pytest
from support import COUNTER, FEW

OTHER = """
[[constraint]]
name = "other"
of = "user:nothing"
field = "n"
max = 1
"""

PLAN = """
[monitor]
latency = "50ms"

[[sensor]]
id = "queue"
period = "1ms"
distance = "{distance}"
jitter = "5ms"

[[update]]
name = "histogram"
wcet = "2us"
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A recording of a program with a sensor, its report, and the constraints that it was judged by."""
    folder = tmp_path_factory.mktemp("recorded")
    script, config = folder / "program.py", folder / "overhear.toml"
    script.write_text(textwrap.dedent(COUNTER))
    config.write_text(FEW.format(most=90) + OTHER)
    out = folder / "out"
    report = overhear.run([sys.executable, script], out=out, check=config)
    return report, out, config


@pytest.fixture
def printed(program):
    """The document that the command line prints."""

    def run(*words):
        done = subprocess.run([program, *words, "--json"], capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    return run


def objects(value, data):
    """Compares an object with data, member by member."""
    if isinstance(data, dict):
        assert isinstance(value, overhear.Record)
        for name in data:
            objects(value[name], data[name])
            objects(getattr(value, name), data[name])
    elif isinstance(data, list):
        assert len(value) == len(data)
        for item, other in zip(value, data):
            objects(item, other)
    else:
        assert value == data and type(value) is type(data)


def test_report_equals_the_command_lines(recorded, printed):
    report, out, _ = recorded
    document = printed("report", out)
    assert overhear.report(out).to_dict() == document
    objects(overhear.report(out), document)
    # The report of the run itself is that of its recording.
    assert report == overhear.report(out)
    assert (report.exit.code, report.outcome, report.complete) == (0, "violated", True)
    assert report.sensors[0].elements == 100 and (out / "report.html").is_file()


def test_check_equals_the_command_lines(recorded, printed, tmp_path):
    report, out, config = recorded
    verdicts = overhear.check(out, config, junit=tmp_path / "junit.xml")
    assert verdicts.to_dict() == printed("check", out, "--config", config)
    assert report.check.verdict == verdicts.verdict == "violated"
    few, other = verdicts.constraints
    assert (few.offences, few.first.elements[0].sequence, other.verdict) == (9, 91, "inconclusive")
    assert 'failures="1"' in (tmp_path / "junit.xml").read_text()


def test_check_of_a_command_gives_the_report_of_its_run(recorded, tmp_path):
    _, out, config = recorded
    report = overhear.check([sys.executable, out.parent / "program.py"], config)
    assert isinstance(report, overhear.Report)
    assert [it.verdict for it in report.check.constraints] == ["violated", "inconclusive"]


def test_metrics_equal_the_command_lines(recorded, printed):
    _, out, _ = recorded
    assert overhear.metrics(out).to_dict() == printed("metrics", out)
    found = overhear.metrics(out, ["run_delay", "system_call"], measurements=True)
    words = ["--metric", "run_delay", "--metric", "system_call", "--measurements"]
    assert found.to_dict() == printed("metrics", out, *words)
    delay, calls = found.metrics
    assert calls.absent_events and calls.completed == 0
    measured = overhear.measure(out, overhear.system_metric("run_delay"))[0]
    assert len(delay.measurements) == len(measured)
    for column in ("task", "length_ns", "begin_ns", "end_ns"):
        assert (delay.measurements[column] == measured.array[column]).all()
    assert delay.tasks["count"].sum() == len(measured)
    if overhear.report(out).sources[0].active != "none":
        assert len(measured) > 0


def test_metrics_take_names_one_by_one_and_refuse_two_compensations(recorded):
    _, out, _ = recorded
    assert overhear.metrics(out, "run_delay") == overhear.metrics(out, ["run_delay"])
    with pytest.raises(ValueError, match="element_cost_ns"):
        overhear.metrics(out, compensate=True, element_cost_ns=5)
    with pytest.raises(overhear.SessionError, match="calibration"):
        overhear.metrics(out, element_cost_ns="calibrated")


@pytest.mark.parametrize(("distance", "accepted"), [("50us", True), ("100ns", False)])
def test_admit_equals_the_command_lines(printed, tmp_path, distance, accepted):
    config = tmp_path / "overhear.toml"
    config.write_text(PLAN.format(distance=distance))
    if not accepted:
        config.write_text(config.read_text().replace('"2us"', '"900ms"'))
    report = overhear.admit(config)
    assert report.to_dict() == printed("admit", "--config", config)
    assert report.accepted is accepted and bool(report.reason) is not accepted
    assert (report.latency_ns is None) is not accepted
    assert report.sensors["period_ns"].tolist() == [1_000_000]


def test_fit_equals_the_command_lines(recorded, printed):
    _, out, _ = recorded
    fit = overhear.fit_rate(out, "count")
    assert fit.to_dict() == printed("fit-rate", out, "count")
    assert fit.elements == 100 and fit.front["jitter_ns"].dtype == np.dtype("u8")
    mean = fit.mean_gap_ns
    assert overhear.fit_rate(out, "count", period_ns=mean // 2).period_ns == mean // 2


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda _: overhear.run(["./nosuch"]), "not_found", "no such program"),
        (lambda folder: overhear.run([folder]), "not_runnable", "is a directory"),
        (lambda _: overhear.run([]), "usage", "no program"),
        (lambda _: overhear.run(["true"], check="nosuch.toml"), "usage", "nosuch.toml"),
        (lambda folder: overhear.run(["true"], junit=folder / "x"), "usage", "constraints"),
        (lambda folder: overhear.report(folder), "usage", "trace"),
        (lambda folder: overhear.check(folder), "usage", "overhear.toml"),
        (lambda folder: overhear.metrics(folder, ["nosuch"]), "usage", "nosuch"),
        (lambda folder: overhear.fit_rate(folder, "count"), "usage", "trace"),
        (lambda _: overhear.admit("nosuch.toml"), "usage", "nosuch.toml"),
    ],
)
def test_errors_have_a_kind_and_the_message(tmp_path, call, kind, message):
    with pytest.raises(overhear.SessionError, match=message) as raised:
        call(tmp_path)
    assert raised.value.kind == kind and isinstance(raised.value, overhear.OverhearError)


def test_arguments_of_another_kind_are_refused():
    with pytest.raises(TypeError, match="a list"):
        overhear.run("true")
    with pytest.raises(ValueError, match="not \"never\""):
        overhear.run(["true"], until="never")
    with pytest.raises(ValueError, match="nosuch"):
        overhear.run(["true"], kernel_sensors=["nosuch"])
    with pytest.raises(ValueError, match="config"):
        overhear.run(["true"], measure_wcet=True)


def test_files_whose_plugins_may_not_run_are_refused(tmp_path):
    config = tmp_path / "overhear.toml"
    config.write_text(PLAN.format(distance="50us") + 'plugin = "nosuch.so"\n')
    with pytest.raises(overhear.SessionError, match="histogram"):
        overhear.admit(config, execute=False)


def test_budget_accounts_for_every_write(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import time, overhear
            with overhear.Sensor("counts", {"n": "u64"}) as counts:
                n = 0
                while time.process_time() < 1:
                    for _ in range(1000):
                        counts.write(n)
                        n += 1
            """
        )
    )
    for budget in (0.5, None):
        report = overhear.run([sys.executable, script], kernel="off", budget=budget)
        if budget is None:
            assert report.budget is None
            continue
        assert report.budget.target == pytest.approx(0.005)
        (counts,) = report.budget.sensors
        assert counts.name.endswith("/counts")
        lost = sum(loss.missed for loss in report.losses if loss.cause == "budget")
        assert counts.skipped == lost > 0
        assert counts.written > 0
    with pytest.raises(ValueError, match="an overhead of -1 % is not possible"):
        overhear.run([sys.executable, script], budget=-1)


def test_limits_of_a_recording_are_kept_and_counted(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import overhear
            with overhear.Sensor("counts", {"n": "u64", "name": "text[200]"}) as counts:
                for n in range(20_000):
                    counts.write(n, "")
            """
        )
    )
    for limit in ({"max_size": "1MiB"}, {"max_size": 1 << 20}, {"disk_budget": "100KiB/s"}):
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        report = overhear.run([sys.executable, script], kernel="off", out=out, page=False, **limit)
        trace = report.trace
        assert trace.left_out > 0
        assert trace.events + trace.left_out + report.missed_total == 20_000
        recorded = overhear.report(out)
        assert recorded.trace.left_out == trace.left_out
        assert sum(loss.missed for loss in recorded.losses if loss.cause == "disk") == trace.left_out
        if "max_size" in limit:
            assert sum(file.stat().st_size for file in out.rglob("*")) <= 1 << 20
    with pytest.raises(ValueError, match="give at least 1MiB"):
        overhear.run(["true"], out=tmp_path / "none", max_size=1000)
    with pytest.raises(ValueError, match="`fast` is no rate"):
        overhear.run(["true"], out=tmp_path / "none", disk_budget="fast")
    with pytest.raises(ValueError, match="need out"):
        overhear.run(["true"], max_size="2GB")


def test_programs_end_with_their_status_or_by_a_signal_that_python_ignores():
    assert overhear.run(["sh", "-c", "exit 7"], kernel="off").exit.to_dict() == {"code": 7}
    ended = overhear.run(["sh", "-c", "kill -PIPE $$; exit 7"], kernel="off")
    assert ended.exit.to_dict() == {"signal": signal.SIGPIPE}


def test_other_threads_go_on_during_a_run(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # The program ends after a write of a thread of this process.
    writer = threading.Thread(target=lambda: pipe.write_text("go\n"))
    writer.start()
    report = overhear.run(["sh", "-c", 'read word < "$0"; test "$word" = go', pipe], kernel="off")
    writer.join()
    assert report.exit.code == 0


def test_two_runs_in_two_threads():
    reports = {}
    both = threading.Barrier(2)

    def run(status):
        both.wait()
        reports[status] = overhear.run(["sh", "-c", f"exit {status}"], kernel="off")

    threads = [threading.Thread(target=run, args=[status]) for status in (3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {status: report.exit.code for status, report in reports.items()} == {3: 3, 4: 4}


#: Runs a program that waits for ever; reports how that ended, and whether interrupts are Python's again.
INTERRUPTED = """
    import signal
    import sys

    import overhear

    out, pipe, *program = sys.argv[1:]
    before = signal.getsignal(signal.SIGINT)
    try:
        overhear.run([*program, pipe], out=out, page=False, kernel="off")
    except KeyboardInterrupt:
        print("interrupted", signal.getsignal(signal.SIGINT) is before)
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        print("again")
    print(overhear.report(out).exit)
"""


#: Handles interrupts, and ends by SIGTERM alone.
STUBBORN = """
import signal
import sys

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
while True:
    with open(sys.argv[1], "w") as pipe:
        pipe.write("here\\n")
    signal.sigwait([signal.SIGINT])
"""


@pytest.mark.parametrize(
    ("program", "interrupts", "exit"),
    [
        (["sh", "-c", 'echo here > "$0"; exec sleep 1000'], 1, "Exit(signal=2)"),
        # The second interrupt becomes SIGTERM.
        ([sys.executable, "-c", STUBBORN], 2, "Exit(signal=15)"),
    ],
    ids=["first", "second"],
)
def test_interrupt_ends_the_program_and_is_raised_after_it(tmp_path, program, interrupts, exit):
    pipe, out, script = tmp_path / "pipe", tmp_path / "out", tmp_path / "script.py"
    os.mkfifo(pipe)
    script.write_text(textwrap.dedent(INTERRUPTED))
    # A session of its own: no terminal sends the interrupt to the program as well.
    python = subprocess.Popen(
        [sys.executable, script, out, pipe, *program],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for _ in range(interrupts):
            # The program runs, or has received the interrupt before.
            assert pipe.read_text() == "here\n"
            python.send_signal(signal.SIGINT)
        printed, _ = python.communicate(timeout=120)
    finally:
        if python.poll() is None:
            os.killpg(python.pid, signal.SIGKILL)
            python.wait()
    assert printed.splitlines() == ["interrupted True", "again", exit]


#: Runs a program in the foreground of a terminal, and prints when Python handles an interrupt.
TYPED = """
    import signal
    import sys

    import overhear

    def handle(*_):
        print("python", flush=True)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    try:
        overhear.run([sys.executable, *sys.argv[1:]], kernel="off")
    except KeyboardInterrupt:
        print("raised", flush=True)
"""

#: Prints its process id, and how many interrupts it has got, until SIGTERM.
COUNTS = """
import os
import signal

both = [signal.SIGINT, signal.SIGTERM]
signal.pthread_sigmask(signal.SIG_BLOCK, both)
count = 0
print(os.getpid(), flush=True)
while signal.sigwait(both) == signal.SIGINT:
    count += 1
    print(count, flush=True)
print("ended", count, flush=True)
"""


def test_terminal_interrupt_reaches_the_program_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(TYPED))
    keyboard, terminal = os.openpty()
    python = subprocess.Popen(
        [sys.executable, script, "-c", COUNTS],
        stdin=terminal,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    try:
        lines = lambda count: sorted(python.stdout.readline() for _ in range(count))
        [pid] = lines(1)
        os.write(keyboard, b"\x03")
        assert lines(2) == ["1\n", "python\n"]
        # A complete run takes longer than the round in which a session would pass the interrupt on.
        overhear.run(["true"], kernel="off")
        os.kill(int(pid), signal.SIGTERM)
        assert lines(2) == ["ended 1\n", "raised\n"]
        assert python.wait(120) == 0
    finally:
        if python.poll() is None:
            os.killpg(python.pid, signal.SIGKILL)
            python.wait()
        python.stdout.close()
        os.close(keyboard)
        os.close(terminal)


def test_exception_of_a_signal_handler_ends_the_program(tmp_path):
    class Late(Exception):
        pass

    def raise_late(*_):
        raise Late

    before = signal.signal(signal.SIGALRM, raise_late)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def alarm():
        assert pipe.read_text() == "here\n"
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

    thread = threading.Thread(target=alarm)
    thread.start()
    try:
        with pytest.raises(Late):
            command = ["sh", "-c", 'echo here > "$0"; exec sleep 1000', pipe]
            overhear.run(command, kernel="off", out=tmp_path / "out", page=False)
    finally:
        thread.join()
        signal.signal(signal.SIGALRM, before)
    assert overhear.report(tmp_path / "out").exit.signal == signal.SIGTERM


def test_unknown_members_are_kept():
    data = {
        "period_ns": 1,
        "jitter_ns": 2,
        "from_dict": 3,
        "new": {"a b": [1, None], "rows": [{"x": -1, "name": "long"}, {"x": None, "name": ""}]},
    }
    point = overhear._results.FrontPoint.from_dict(data)
    assert point.to_dict() == data and list(point.to_dict()) == list(data)
    assert (point.jitter_ns, point["from_dict"], point.new["a b"]) == (2, 3, [1, None])
    assert point == overhear._results.FrontPoint.from_dict(data) != point.new
    rows = point.new.rows
    assert rows.columns == ("x", "name") and rows["name"].tolist() == ["long", ""]
    assert rows["x"].tolist() == [-1, None] and rows["x"].mask.tolist() == [False, True]
    assert rows[1:] == overhear.Rows([data["new"]["rows"][1]]) and len(rows[1:]) == 1
    with pytest.raises(AttributeError, match="no member 'other'"):
        point.other
    with pytest.raises(KeyError, match="there are x, name"):
        rows["other"]
    with pytest.raises(AttributeError):
        point.jitter_ns = 3


def test_columns_without_values_have_the_declared_type():
    empty = overhear.Rows([], overhear._results.TaskReport)
    kinds = {name: empty[name].dtype.kind for name in ("task", "comm", "key")}
    assert kinds == {"task": "u", "comm": "U", "key": "u"}
    nested = overhear.Rows([{"a": {"b": 1}}])
    with pytest.raises(TypeError, match="row by row"):
        nested["a"]


def test_sampler_of_a_run_is_that_of_the_command_line():
    report = overhear.run(["sleep", "0.05"], kernel="off", sample=["cpu-time", "minor-faults"], every="2ms")
    sampler = next(source for source in report.sources if source.name == "samplers")
    assert list(sampler.sensors) == ["samples"]
    with pytest.raises(ValueError, match="when to sample cpu-time"):
        overhear.run(["true"], sample="cpu-time")
    with pytest.raises(ValueError, match="`lunch` is no point"):
        overhear.run(["true"], sample=["cpu-time"], per="lunch")
