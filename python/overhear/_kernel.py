# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kernel monitors: what the kernel does with the threads that a program chooses."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Optional, Union

from . import _core
from ._batch import Batch
from ._stream import Stream


class KernelMonitor:
    """A kernel monitor: it records the kernel's events of chosen threads, in buffers of its own.

    It is created suspended, and tracks nobody. Then threads, processes, cgroups or everything are chosen,
    it is resumed, and read::

        with overhear.KernelMonitor(buffer_bytes=1 << 20) as monitor:
            monitor.process_monitor(pid)
            monitor.resume()
            ...
            batch = monitor.read()
            print(batch["sched_switch"]["prev_tid"], batch.missed)

    It belongs to this process and ends with it, or at the end of ``with``, unless it is given away. After `terminate` every
    call raises `KernelError`. Several may track the same threads.

    :param buffer_bytes: approximate size of all buffers together; by default some MiB per CPU.
    :param sensors: names of `kernel_sensors` to observe besides scheduling, or ``"all"``. One of scheduling among
        them leaves out what is not named: ``["sched_switch"]`` has no wake-ups, and no program for them.
        ``sched_switch`` and ``task_life`` are always observed.
    :param backend: ``bpf`` (needs CAP_BPF and CAP_PERFMON), ``perf`` (own threads and processes, switches and
        life events only), or ``any``, BPF if permitted.
    :param dedicated_programs: loads separate BPF programs, so that the monitor can be given while the
        process has other monitors.
    :raises KernelError: if the kernel does not permit these sensors, or none at all.
    """

    #: Every stream: a sensor on a CPU. Known from the first `read` on.
    streams: list[Stream]

    def __init__(
        self,
        *,
        buffer_bytes: Optional[int] = None,
        sensors: Union[str, Iterable[str]] = (),
        backend: str = "any",
        dedicated_programs: bool = False,
    ) -> None:
        if isinstance(sensors, str):
            sensors = kernel_sensors() if sensors == "all" else [sensors]
        self._begin(_core.KernelMonitor(buffer_bytes, list(sensors), backend, dedicated_programs))

    def _begin(self, monitor: _core.KernelMonitor) -> None:
        self._monitor = monitor
        self._complaints: list[str] = []
        self.streams = []

    @classmethod
    def receive(cls, sock: socket.socket) -> KernelMonitor:
        """Waits for a monitor that is given to the other end of a connected Unix socket, and reads on where its
        giver has ended. It takes no privilege. What it hears is the giver's word.

        :raises KernelError: if the other end closes, or something else comes.
        """
        monitor = cls.__new__(cls)
        monitor._begin(_core.KernelMonitor.receive(sock.fileno()))
        return monitor

    def give(self, sock: socket.socket) -> None:
        """Hands the monitor over to whoever receives it from the other end of a connected Unix socket. From then
        on it is the receiver's alone, and ends with it.

        :raises KernelError: if it shares its programs with other monitors (see ``dedicated_programs``), or hears by perf
            records; it stays then.
        """
        self._monitor.give(sock.fileno())

    @property
    def granted_bytes(self) -> int:
        """Size of all buffers in bytes."""
        return self._monitor.granted_bytes()

    @property
    def backend(self) -> str:
        """Source of kernel events: ``bpf`` or ``perf``."""
        return self._monitor.status()[0]

    @property
    def message(self) -> str:
        """Recorded sensors, and sensors that this kernel lacks."""
        return self._monitor.status()[1]

    def resume(self) -> None:
        """Records from now on."""
        self._monitor.resume()

    def suspend(self) -> None:
        """Records nothing until it is resumed; only begins and ends of tracking are recorded."""
        self._monitor.suspend()

    def read(self) -> Batch:
        """What was recorded since the last call. It takes no system call while no process changes its
        cgroup, and waits for nothing.

        Batches are in total order by themselves; an element may be older than one of the batch before,
        of another CPU. There is no advance.
        """
        return Batch._from_plain(self.streams, self._monitor.read())

    def finish(self) -> None:
        """Stops recording, and waits a little until threads that end have left their CPUs. One more
        `read` gets what is left."""
        self._monitor.finish()

    def terminate(self) -> None:
        """Ends it; what was not read is gone."""
        self._monitor.terminate()

    def thread_monitor(self, thread: int, unique_id: int) -> None:
        """Tracks one thread, but not what it creates. The id comes as ``code`` of its TRACKED element
        (``kind`` 5 of ``task_life``); the caller sees to it that it is unique."""
        self._monitor.thread_monitor(thread, unique_id)

    def thread_unmonitor(self, thread: int) -> None:
        """Tracks a thread no more."""
        self._monitor.thread_unmonitor(thread)

    def process_monitor(self, process: int) -> None:
        """Tracks all threads of a process, and all threads and processes that they create."""
        self._monitor.process_monitor(process)

    def cgroup_monitor(self, path: Union[str, os.PathLike[str]]) -> None:
        """Tracks all threads in a cgroup and below it, as long as they are there."""
        self._monitor.cgroup_monitor(os.fspath(path))

    def all_monitor(self) -> None:
        """Tracks all threads of the machine, or of the PID namespace, and records idle CPUs."""
        self._monitor.all_monitor()

    @property
    def complaints(self) -> list[str]:
        """Messages about what is damaged."""
        self._complaints.extend(self._monitor.take_complaints())
        return list(self._complaints)

    def __enter__(self) -> KernelMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.terminate()
        except _core.KernelError:
            pass  # It is already.


def kernel_sensors() -> dict[str, str]:
    """The kernel sensors, with a phrase about each. A kernel may lack some."""
    return dict(_core.kernel_sensors())
