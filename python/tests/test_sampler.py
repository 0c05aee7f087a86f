# SPDX-License-Identifier: MIT OR Apache-2.0
"""Samplers: what is taken, what is refused, and what arrives."""

import os
import threading

import overhear
import pytest
from support import run_source

COUNTERS = ["task-clock", "minor-faults"]


@pytest.fixture
def sampler():
    try:
        with overhear.Sampler("test", COUNTERS) as sampler:
            yield sampler
    except overhear.SensorError as reason:
        if "not permitted" not in str(reason):
            raise
        pytest.skip(str(reason))


def test_samples_are_counted(sampler):
    assert sampler.sample() and sampler.written == 1
    with sampler.job() as job:
        assert job is sampler and sampler.sample()
    assert (sampler.written, sampler.failed, sampler.missing) == (3, 0, [])
    assert "3 taken" in repr(sampler)
    with pytest.raises(ZeroDivisionError):
        with sampler.job():
            1 / 0
    assert sampler.written == 4
    overhear.job_end()


def test_period_leaves_samples_out(sampler):
    hourly = overhear.Sampler("hourly", COUNTERS, every_ns=3600 * 10**9)
    assert [hourly.sample(), hourly.sample(), hourly.end_job()] == [True, False, True]


def test_other_threads_are_refused(sampler):
    refused = []

    def other():
        with pytest.raises(overhear.SensorError, match="belongs to another thread"):
            sampler.sample()
        refused.append(True)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert refused and sampler.written == 0


def test_unregistered_sampler_refuses(sampler):
    sampler.unregister()
    sampler.unregister()
    with pytest.raises(overhear.SensorError, match="was unregistered"):
        sampler.sample()
    assert "unregistered" in sampler.not_connected_reason


def test_mistakes_are_explained(sampler):
    with pytest.raises(overhear.SensorError, match="similar names: cycles"):
        overhear.Sampler("x", ["cycels"])
    with pytest.raises(overhear.SensorError, match="1 to 32"):
        overhear.Sampler("x", [])
    with pytest.raises(ValueError, match="sampler `x`"):
        overhear.Sampler("x", COUNTERS, rate=overhear.Rate(1, 2))
    partial = overhear.Sampler("x", ["rffffffffffffffff", "task-clock"], skip_missing=True)
    assert len(partial.missing) == 1 and partial.sample()


def test_disabled_sampler_takes_nothing(monkeypatch):
    monkeypatch.setenv("OVERHEAR_DISABLE", "1")
    with overhear.Sampler("disabled", COUNTERS) as sampler, sampler.job():
        assert not sampler.sample()
        assert "OVERHEAR_DISABLE" in sampler.not_connected_reason


def test_jobs_are_recorded(sampler, program, tmp_path):
    source = """
        import mmap
        import overhear

        with overhear.Sampler("pages", ["minor-faults", "task-clock"]) as sampler:
            for job in range(10):
                # Fresh pages of 4 KiB each: job * 8 of them are touched.
                memory = mmap.mmap(-1, 4096 * 128)
                memory.madvise(mmap.MADV_NOHUGEPAGE)
                with sampler.job():
                    for page in range(8 * job):
                        memory[4096 * page] = 1
                memory.close()
    """
    report, out = run_source(program, tmp_path, source)
    assert report["complete"]
    samples = overhear.read(out)["pages"]
    assert samples.size == 10
    assert (samples["minor_faults"] >= [8 * job for job in range(10)]).all()
    # What the interpreter itself faults in is much less than the pages.
    assert samples["minor_faults"].sum() < 2 * 8 * 45
    assert len(set(samples["tid"])) == len(set(samples["pid"])) == 1
    assert samples["pid"][0] != os.getpid()
    assert (samples["duration"] > 0).all() and set(samples["point"]) == {8}
