# SPDX-License-Identifier: MIT OR Apache-2.0
"""Samples: as arrays, in the report, in CSV and for scikit-learn."""

import csv
import pathlib
import re
import subprocess
import sys

import numpy as np
import overhear
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOBS = 600
#: The jobs that were slow: they needed four times the cycles, and missed the cache.
SLOW = {400, *range(500, 505)}

#: A program that writes samples as a sampler does, of one thread.
WRITES = f"""
import os, threading, time
import numpy as np
import overhear

fields = [(name, "u4") for name in ("tid", "pid", "point", "cpu")]
fields += [(name, "u8") for name in ("duration", "cycles", "instructions", "llc_misses")]
sampler = overhear.Sensor("jobs", np.dtype(fields), units={{"duration": "ns"}}, type="overhear_sample", capacity=4096)
for job in range(1, {JOBS} + 1):
    slow = job in {SLOW}
    time.sleep(0.0001)
    sampler.write(
        tid=threading.get_native_id(), pid=os.getpid(), point=8, cpu=0, duration=100_000,
        cycles=(150_000 + job % 11 * 100) * (4 if slow else 1),
        instructions=200_000 + job % 7 * 100,
        llc_misses=(200 + job % 5) * (30 if slow else 1),
    )
"""


@pytest.fixture
def recorded(run):
    report, out = run(WRITES)
    assert report["exit"] == {"code": 0}
    assert report["losses"] == [], report["losses"]
    return report, out


def test_quantities_are_arrays_and_agree_with_the_report(recorded):
    report, out = recorded
    samples = overhear.read(out)["jobs"]
    jobs = samples[samples["point"] == 8]
    assert jobs.size == JOBS
    (sampler,) = report["samplers"]
    (task,) = sampler["tasks"]
    assert task["tid"] == jobs["tid"][0]
    totals = {total["name"]: total["total"] for total in task["totals"]}
    for name in ("cycles", "instructions", "llc_misses"):
        assert totals[name] == int(jobs[name].sum())
    assert task["ipc"] == pytest.approx(jobs["instructions"].sum() / jobs["cycles"].sum())
    values = {one["name"]: one for one in task["jobs"]["values"]}
    for name in ("cycles", "llc_misses"):
        assert values[name]["mean"] == pytest.approx(float(jobs[name].mean()))
        assert (values[name]["min"], values[name]["max"]) == (jobs[name].min(), jobs[name].max())
        exact = float(np.quantile(jobs[name], 0.9, method="inverted_cdf"))
        assert values[name]["p90"] == pytest.approx(exact, rel=0.001)
    found = {job for one in sampler["anomalies"] for job in range(one["job"], one["job"] + one["jobs"])}
    assert found == SLOW


def test_csv_has_a_column_for_each_quantity(recorded, program, tmp_path):
    _, out = recorded
    file = tmp_path / "jobs.csv"
    command = [program, "export", out, "--to", "csv", "--sensor", "jobs", "-o", file]
    subprocess.run(command, check=True)
    with file.open(newline="") as text:
        rows = list(csv.DictReader(text))
    assert len(rows) == JOBS
    samples = overhear.read(out)["jobs"]
    for row, sample in zip(rows, samples):
        assert int(row["cycles"]) == sample["cycles"] and int(row["duration [ns]"]) == 100_000


def test_perfetto_reads_the_counters_of_threads(recorded, program, tmp_path):
    trace_pb2 = pytest.importorskip(
        "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="the package perfetto is missing"
    )
    _, out = recorded
    file = tmp_path / "trace.pb"
    subprocess.run([program, "export", out, "--to", "perfetto", "-o", file], check=True)
    trace = trace_pb2.Trace()
    trace.ParseFromString(file.read_bytes())
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
    named = {track.name: track for track in tracks.values()}
    cycles = named["jobs.cycles"]
    samples = overhear.read(out)["jobs"]
    assert tracks[cycles.parent_uuid].thread.tid == samples["tid"][0]
    assert cycles.counter.unit_name == "/s"
    events = [p for p in trace.packet if p.HasField("track_event")]
    counted = [p.track_event.double_counter_value for p in events if p.track_event.track_uuid == cycles.uuid]
    assert counted == pytest.approx(samples["cycles"] * 1e9 / samples["duration"])
    slices = [p.track_event.type for p in events if p.track_event.track_uuid == named["jobs jobs"].uuid]
    assert len(slices) == 2 * JOBS


def test_forest_finds_the_same_jobs(recorded):
    pytest.importorskip("sklearn", reason="the package scikit-learn is missing")
    _, out = recorded
    command = [sys.executable, ROOT / "examples/python/anomaly.py", out, "jobs"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {int(job) for job in re.findall(r"job (\d+):", text)}
    assert found >= SLOW, text
    # It calls a fixed share of the jobs anomalous.
    assert len(found) <= 0.02 * JOBS + 1
    assert "cycles" in text or "llc_misses" in text
