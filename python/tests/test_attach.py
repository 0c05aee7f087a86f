# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attaching to a running directory: here the one that `overhear run` brings."""

import subprocess
import sys
import textwrap

import overhear
import pytest

#: What the programs below share: they attach to their own sensors.
HEAD = """
    import os, signal, threading
    import numpy as np
    import overhear

    def take(attachment, elements):
        batches = []
        while sum(batch.elements for batch in batches) < elements:
            batch = attachment.read(5)
            assert batch is not None
            batches.append(batch)
        return batches
"""


def good(run, source):
    report, out = run(HEAD + source)
    assert report["exit"] == {"code": 0}
    return report, out


def test_elements_are_read_while_the_program_runs(run):
    report, _ = good(
        run,
        """
    queue = overhear.Sensor("queue", {"depth": ("u64", "requests")})
    queue.write(7)
    with overhear.attach("queue") as attachment, overhear.attach("*", from_buffer=True) as all:
        late = overhear.Sensor("queue", {"depth": ("u64", "requests")}, instance="late")
        other = overhear.Sensor("other", {"x": "f64"})
        for number in range(1000):
            queue.write(number)
        late.write_many(np.arange(5000))
        other.write(0.5)
        received = take(attachment, 6000)
        depths = np.concatenate([batch["queue"]["depth"] for batch in received if len(batch)])
        assert sorted(depths) == sorted([*range(1000), *range(5000)])
        assert {stream.instance for stream in attachment.streams} == {"", "late"}
        times = [int(t) for batch in received for t in batch["queue"]["time_ns"]]
        assert times == sorted(times)
        whole = take(all, 6002)
        assert (whole[0]["queue"]["sequence"][0], whole[0]["queue"]["depth"][0]) == (0, 7)
        assert (attachment.elements, attachment.missed, all.missed) == (6000, 0, 0)
        assert attachment.complaints == []

        nothing = attachment.read(0.02)
        assert (nothing.elements, nothing.missed) == (0, 0)
        assert nothing.advanced_to_ns > times[-1]
        queue.write(8)
    # Elements that were read before the close are still there; then comes the end.
    rest = list(attachment)
    assert [depth for batch in rest for depth in batch["queue"]["depth"].tolist()] == [8]
    assert attachment.read() is None
        """,
    )
    assert sum(sensor["elements"] for sensor in report["sensors"]) == 6003


def test_slow_reader_counts_missed_elements(run):
    report, _ = good(
        run,
        """
    fast = overhear.Sensor("fast", {"x": "u64"})
    attachment = overhear.attach("fast")
    # More than the capacity of Python's queue and the ring together.
    for turn in range(30):
        fast.write_many(np.arange(50_000))
    attachment.close()
    batches = list(attachment)
    elements = sum(batch.elements for batch in batches)
    missed = sum(batch.missed for batch in batches)
    assert (elements, missed) == (attachment.elements, attachment.missed)
    assert elements + missed == 1_500_000 and missed > 0, (elements, missed)
    for batch in batches:
        assert (batch["fast"]["x"] == batch["fast"]["sequence"] % 50_000).all()
        """,
    )


def test_interrupt_ends_the_wait(run):
    good(
        run,
        """
    attachment = overhear.attach("nothing")
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        for batch in attachment:
            pass
        raise SystemExit(1)
    except KeyboardInterrupt:
        pass
        """,
    )


def test_sensors_are_listed(run):
    good(
        run,
        """
    queue = overhear.Sensor("queue", {"depth": ("u64", "requests")}, instance="a")
    queue.write(1)
    other = overhear.Sensor("other", {})
    (record,) = overhear.sensors("queue#a")
    assert record.stream.sensor == "queue" and record.stream.units["depth"] == "requests"
    assert (record.written, record.state, record.is_enabled) == (1, "live", True)
    assert record.stream.pid == os.getpid() and record.uid == os.getuid()
    assert {record.stream.sensor for record in overhear.sensors()} == {"queue", "other"}
    other.unregister()
    assert "live" not in {record.state for record in overhear.sensors("other")}
        """,
    )


def test_sensors_are_switched_off_and_on(run):
    report, out = good(
        run,
        """
    queue = overhear.Sensor("queue", {"x": "u64"})
    other = overhear.Sensor("other", {"x": "u64"})
    assert queue.is_enabled
    queue.write(1)
    assert overhear.set_enabled("queue", False) == 1
    assert not queue.is_enabled and other.is_enabled
    queue.write(2)
    assert queue.write_many([3, 4]) == 2 and queue.written == 1
    other.write(5)
    assert [record.is_enabled for record in overhear.sensors("queue")] == [False]
    assert overhear.set_enabled("*", True) == 1
    queue.write(6)
        """,
    )
    whole = overhear.read(out)
    assert (whole["queue"]["x"].tolist(), whole["other"]["x"].tolist()) == ([1, 6], [5])
    assert whole.missed == 0


def test_forked_child_can_register_again(run):
    report, out = good(
        run,
        """
    sensor = overhear.Sensor("queue", {"x": "u64"})
    sensor.write(1)
    child = os.fork()
    if child == 0:
        received = sensor.is_connected, sensor.register_again(), sensor.is_connected
        sensor.write(2)
        sensor.unregister()
        os._exit(0 if received == (False, True, True) else 1)
    assert os.waitpid(child, 0)[1] == 0
    sensor.write(3)
        """,
    )
    whole = overhear.read(out)
    values = sorted(array["x"].tolist() for array in whole.arrays.values())
    assert values == [[1, 3], [2]]


def test_paced_producer_keeps_its_rate(run):
    report, out = good(
        run,
        """
    rate = overhear.Rate(period_ns=1_000_000, distance_ns=500_000, jitter_ns=1_000_000)
    sensor = overhear.Sensor("paced", {"x": "u64"}, rate=rate)
    waited = 0
    for number in range(50):
        waited += sensor.pace()
        sensor.write(number)
    assert waited > 0
    try:
        overhear.Sensor("free", {}).pace()
        raise SystemExit(1)
    except overhear.SensorError as error:
        assert "declared no rate" in str(error)
        """,
    )
    array = overhear.read(out)["paced"]
    times = array["time_ns"].astype("i8")
    (stream,) = [s for s in overhear.replay(out).streams if s.sensor == "paced"]
    period, distance, jitter = stream.rate
    assert array.size == 50
    for steps in range(1, 50):
        least = max(steps * distance, steps * period - jitter)
        assert (times[steps:] - times[:-steps]).min() >= least


def test_absent_directory_is_named(tmp_path):
    for ask in (overhear.attach, overhear.sensors):
        with pytest.raises(overhear.AttachError, match="no directory listens"):
            ask()
        with pytest.raises(overhear.AttachError, match="nobody.sock"):
            ask(directory=tmp_path / "nobody.sock")
        with pytest.raises(overhear.AttachError, match="pattern"):
            ask("[")
    with pytest.raises(overhear.AttachError, match="no directory listens"):
        overhear.set_enabled("*", False)


#: Attaches to its own sensor with a budget of nothing, and writes until the budget has an effect. The run has a
#: budget, too: without one, its own monitor would need all elements.
LIMITED = HEAD + """
    import time

    sensor = overhear.Sensor("busy", {"n": "u64"})
    with overhear.attach("busy", budget=0) as attachment:
        end = time.monotonic() + 60
        while attachment.budget.sensors[0].skipped == 0 if attachment.budget.sensors else True:
            assert time.monotonic() < end
            for n in range(10_000):
                sensor.write(n)
    budget = attachment.budget
    assert budget.target == 0 and budget.cpu_ns > 0
    (busy,) = budget.sensors
    assert busy.skipped > 0
    causes = {cause for batch in attachment for cause in batch.gaps["cause"].tolist()}
    assert causes == {"budget"}
    # It is on again.
    with overhear.attach("busy") as whole:
        assert whole.budget is None
        sensor.write(1)
        assert take(whole, 1)[0].elements == 1
"""


def test_budget_of_an_attachment(program, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(LIMITED))
    command = [program, "run", "--kernel", "off", "--budget", "1000%", "--", sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    assert "Traceback" not in done.stderr, done.stderr


#: Writes more than waits for Python, and asks for the budget meanwhile.
WAITING = HEAD + """
    import time

    BACKLOG = 1 << 20
    sensor = overhear.Sensor("busy", {"n": "u64"})
    with overhear.attach("busy", budget=1000) as attachment:
        written = 0
        while attachment.elements < BACKLOG:
            written += sensor.write_many(np.arange(10_000))
            time.sleep(0.001)
        seen = []
        asking = threading.Thread(target=lambda: seen.append(attachment.budget), daemon=True)
        asking.start()
        asking.join(60)
        assert seen, "the budget waits for a batch to be read"
        # It is kept meanwhile.
        (before,) = seen
        end = time.monotonic() + 60
        while attachment.budget.cpu_ns == before.cpu_ns:
            assert time.monotonic() < end
        received = take(attachment, BACKLOG)
    received += list(attachment)
    elements = sum(batch.elements for batch in received)
    missed = sum(batch.missed for batch in received)
    assert elements + missed == written, (elements, missed, written)
    (busy,) = attachment.budget.sensors
    assert busy.written + busy.skipped == written
"""


def test_budget_is_kept_while_a_backlog_waits(program, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(WAITING))
    command = [program, "run", "--kernel", "off", "--budget", "1000%", "--", sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    assert "Traceback" not in done.stderr, done.stderr


def test_impossible_budget_is_refused():
    with pytest.raises(overhear.AttachError, match="-1 %"):
        overhear.attach(budget=-1)
