# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kernel monitors, against what this process does itself."""

import os
import pathlib
import socket
import threading
import time

import numpy as np
import overhear
import pytest

TRACKED, UNTRACKED, FORK, EXIT = 5, 6, 1, 3
PREV_TRACKED = 2


@pytest.fixture
def monitor():
    """One by BPF programs; where they are not permitted the test is skipped."""
    try:
        made = overhear.KernelMonitor(buffer_bytes=1 << 20, backend="bpf")
    except overhear.KernelError as error:
        pytest.skip(str(error))
    with made:
        yield made


class Sleeper:
    """A thread that goes to sleep once for each turn."""

    def __init__(self):
        self.turn, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        self.ready.wait()

    def run(self):
        self.tid = threading.get_native_id()
        self.ready.set()
        while self.turn.acquire():
            self.done.release()

    def switches(self):
        """What the kernel has counted of it, once it sleeps."""
        task = pathlib.Path(f"/proc/self/task/{self.tid}")
        # The kernel shows the system call of sleeping threads only.
        while (task / "syscall").read_text().startswith("running"):
            time.sleep(0.001)
        lines = [line.split() for line in (task / "status").read_text().splitlines()]
        return sum(int(line[1]) for line in lines if "ctxt_switches" in line[0])

    def turns(self, count):
        for _ in range(count):
            self.turn.release()
            self.done.acquire()


def departures(batch, tid):
    """Of tracked threads: an element may name the untracked thread that gives its CPU to one."""
    switches = batch["sched_switch"]
    is_tracked = switches["flags"] & PREV_TRACKED != 0
    return int((is_tracked & (switches["prev_tid"] == tid)).sum())


def test_kernel_monitor_has_the_documented_states(monitor):
    assert monitor.backend == "bpf" and monitor.message.startswith("kernel sensors: BPF")
    assert 0 < monitor.granted_bytes <= 1 << 20
    sleeper, other = Sleeper(), Sleeper()
    monitor.thread_monitor(sleeper.tid, 77)
    sleeper.turns(5)
    # While it is suspended, it has only the element of the tracking.
    batch = monitor.read()
    life = batch["task_life"]
    assert batch.elements == 0 or (life["kind"] == TRACKED).all()

    before = sleeper.switches()
    monitor.resume()
    sleeper.turns(200)
    other.turns(10)
    counted = sleeper.switches() - before
    batch = monitor.read()
    assert (departures(batch, sleeper.tid), departures(batch, other.tid)) == (counted, 0)
    # If the thread is still awake, the round causes no switch.
    assert batch.missed == 0 and counted >= 100
    assert (np.diff(batch["sched_switch"]["time_ns"].astype("i8")) >= 0).all()

    monitor.suspend()
    sleeper.turns(5)
    monitor.thread_unmonitor(sleeper.tid)
    batch = monitor.read()
    assert departures(batch, sleeper.tid) == 0, "it was suspended"
    with pytest.raises(overhear.KernelError, match="does not track"):
        monitor.thread_unmonitor(sleeper.tid)
    monitor.terminate()
    for call in (monitor.resume, monitor.suspend, monitor.read, monitor.terminate):
        with pytest.raises(overhear.KernelError, match="terminated"):
            call()


def test_unique_id_comes_with_the_thread(monitor):
    sleeper = Sleeper()
    monitor.resume()
    monitor.thread_monitor(sleeper.tid, 4711)
    monitor.thread_unmonitor(sleeper.tid)
    life = monitor.read()["task_life"]
    assert life["kind"].tolist() == [TRACKED, UNTRACKED]
    assert life["tid"].tolist() == [sleeper.tid] * 2 and life["code"][0] == 4711


def test_process_is_tracked_with_its_children(monitor):
    begin, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(begin, 1)
        grandchild = os.fork()
        if grandchild == 0:
            os._exit(0)
        os.waitpid(grandchild, 0)
        os._exit(0)
    monitor.process_monitor(child)
    monitor.resume()
    os.write(go, b"x")
    os.waitpid(child, 0)
    monitor.finish()
    life = monitor.read()["task_life"]
    forks = life[life["kind"] == FORK]
    assert forks["parent_tid"].tolist() == [child]
    exits = set(life[life["kind"] == EXIT]["tid"].tolist())
    assert exits == {child, int(forks["tid"][0])}


def test_monitor_is_handed_over_to_another_process():
    try:
        monitor = overhear.KernelMonitor(buffer_bytes=1 << 20, backend="bpf", dedicated_programs=True)
    except overhear.KernelError as error:
        pytest.skip(str(error))
    here, there = socket.socketpair()
    sleeper = Sleeper()
    monitor.thread_monitor(sleeper.tid, 1)
    before = sleeper.switches()
    monitor.resume()
    sleeper.turns(20)
    child = os.fork()
    if child == 0:
        # The descriptors that it inherited by the fork do not matter: it receives.
        received = overhear.KernelMonitor.receive(there)
        there.recv(1)
        batch = received.read()
        there.send(f"{departures(batch, sleeper.tid)} {batch.missed}".encode())
        os._exit(0)
    there.close()
    monitor.give(here)
    with pytest.raises(overhear.KernelError, match="handed over"):
        monitor.read()
    sleeper.turns(20)
    counted = sleeper.switches() - before
    here.send(b"x")
    assert here.recv(99) == f"{counted} 0".encode()
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(overhear.KernelError, match="closed"):
        overhear.KernelMonitor.receive(here)


def test_small_buffers_miss_and_count():
    try:
        monitor = overhear.KernelMonitor(buffer_bytes=1, backend="bpf")
    except overhear.KernelError as error:
        pytest.skip(str(error))
    with monitor:
        sleeper = Sleeper()
        monitor.thread_monitor(sleeper.tid, 1)
        before = sleeper.switches()
        monitor.resume()
        sleeper.turns(500)
        counted = sleeper.switches() - before
        batch = monitor.read()
        of_switches = {stream.id for stream in monitor.streams if stream.sensor == "sched_switch"}
        rows = batch.gaps[np.isin(batch.gaps["stream"], list(of_switches))]
        assert set(rows["cause"]) == {"overwritten"}
        # Arrivals are elements as well.
        assert batch["sched_switch"].size + int(rows["missed"].sum()) >= counted
        assert batch["sched_switch"].size < counted


def test_switches_alone_have_no_wake_ups():
    try:
        made = overhear.KernelMonitor(sensors=["sched_switch"], backend="bpf")
    except overhear.KernelError as error:
        pytest.skip(str(error))
    sleeper = Sleeper()
    with made as monitor:
        assert "without wake-ups" in monitor.message
        monitor.thread_monitor(sleeper.tid, 1)
        before = sleeper.switches()
        monitor.resume()
        sleeper.turns(10)
        counted = sleeper.switches() - before
        batch = monitor.read()
        assert departures(batch, sleeper.tid) == counted
        assert {stream.sensor for stream in monitor.streams} == {"sched_switch", "task_life"}
    assert {"sched_switch", "sched_wake", "task_life"} <= overhear.kernel_sensors().keys()


def test_impossible_request_is_refused_in_one_message():
    with pytest.raises(overhear.KernelError, match="no kernel sensor \"nap\""):
        overhear.KernelMonitor(sensors=["nap"])
    with pytest.raises(overhear.KernelError, match="any, bpf or perf"):
        overhear.KernelMonitor(backend="ear")
    assert "page faults" in overhear.kernel_sensors()["page_fault"]


def test_absent_process_is_refused(monitor):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(overhear.KernelError, match="does not exist"):
        monitor.process_monitor(child)
    with pytest.raises(overhear.KernelError, match="does not exist"):
        monitor.thread_monitor(child, 1)
    with pytest.raises(overhear.KernelError, match="as a cgroup"):
        monitor.cgroup_monitor("/tmp")
