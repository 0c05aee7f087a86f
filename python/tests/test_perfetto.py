# SPDX-License-Identifier: MIT OR Apache-2.0
"""`overhear export --to perfetto`, read by Perfetto's own message definitions."""

import collections
import json
import os
import subprocess
import sys

import pytest

perfetto_trace = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="the package perfetto is missing"
)
from google.protobuf import unknown_fields  # noqa: E402

#: Threads that sleep and wake each other, and a sensor with a number and a text.
WRITES = """
import threading, time
import overhear

sensor = overhear.Sensor("load", {"torque": ("f64", "Nm"), "name": "text[8]"})
turn = [threading.Semaphore(1), threading.Semaphore(0)]

def play(me):
    for n in range(200):
        turn[me].acquire()
        if me == 0:
            sensor.write(n / 4, f"n{n}")
        turn[1 - me].release()

players = [threading.Thread(target=play, args=(me,)) for me in (0, 1)]
for player in players:
    player.start()
for player in players:
    player.join()
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory, program):
    folder = tmp_path_factory.mktemp("perfetto")
    script, out, file = folder / "program.py", folder / "out", folder / "trace.pb"
    script.write_text(WRITES)
    command = [program, "run", "--quiet", "--out", out, "--", sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    export = [program, "export", out, "--to", "perfetto", "-o", file]
    done = subprocess.run(export, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    report = subprocess.run([program, "report", out, "--json"], capture_output=True, check=False)
    trace = perfetto_trace.Trace()
    trace.ParseFromString(file.read_bytes())
    return json.loads(report.stdout), trace


def test_perfetto_knows_every_field(exported):
    _, trace = exported

    def known(message):
        assert len(unknown_fields.UnknownFieldSet(message)) == 0, message
        for field, value in message.ListFields():
            if field.message_type:
                for each in value if field.is_repeated else [value]:
                    known(each)

    known(trace)


def test_switches_are_those_of_the_report(exported):
    report, trace = exported
    kernel = next(source for source in report["sources"] if source["name"] == "kernel")
    if kernel["active"] != "bpf":
        pytest.skip(kernel["message"])
    left, running = collections.Counter(), collections.Counter()
    for packet in trace.packet:
        cpu = packet.ftrace_events.cpu
        for event in packet.ftrace_events.event:
            if event.HasField("sched_switch"):
                switch = event.sched_switch
                # The leaving thread is the one that entered: Perfetto draws nothing else.
                assert running[cpu] == switch.prev_pid
                running[cpu] = switch.next_pid
                left[switch.prev_pid] += 1
    if not report["complete"]:
        assert os.getloadavg()[0] > os.cpu_count(), report["losses"]
        pytest.skip("machine lateness: elements were missed, so switches of the report may be, too")
    # Libraries may have threads of their own.
    assert len(report["threads"]) >= 3
    for thread in report["threads"]:
        switches = thread["switches_voluntary"] + thread["switches_involuntary"]
        assert left[thread["tid"]] == switches, thread


def test_elements_have_arguments_and_counters(exported):
    report, trace = exported
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet}
    torque, names = [], []
    for packet in trace.packet:
        event = packet.track_event
        if event.type == event.TYPE_COUNTER:
            track = tracks[event.track_uuid]
            assert (track.name, track.counter.unit_name) == ("load.torque", "Nm")
            value = event.double_counter_value
            torque.append(value)
        elif event.type == event.TYPE_INSTANT and event.name == "load":
            arguments = {argument.name: argument for argument in event.debug_annotations}
            names.append(arguments["name"].string_value)
    (sensor,) = report["sensors"]
    assert sensor["elements"] == 200 and sensor["missed"] == 0
    assert torque == [n / 4 for n in range(200)]
    assert names == [f"n{n}" for n in range(200)]


def test_wake_ups_are_flows_between_threads(exported):
    report, trace = exported
    kernel = next(source for source in report["sources"] if source["name"] == "kernel")
    if kernel["active"] != "bpf":
        pytest.skip(kernel["message"])
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet}
    begun, ended = {}, {}
    for packet in trace.packet:
        event = packet.track_event
        thread = tracks[event.track_uuid].thread.tid if event.track_uuid in tracks else 0
        begun.update((flow, thread) for flow in event.flow_ids)
        ended.update((flow, thread) for flow in event.terminating_flow_ids)
    assert ended and set(ended) <= set(begun)
    # The two players wake each other.
    players = {thread["tid"] for thread in report["threads"]}
    pairs = collections.Counter((begun[flow], thread) for flow, thread in ended.items())
    assert any(one in players and other in players and one != other for one, other in pairs)
