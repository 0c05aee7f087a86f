# SPDX-License-Identifier: MIT OR Apache-2.0
"""Metrics by name, by text and between two events; and their measurements as arrays."""

import json
import os
import time

import numpy as np
import overhear
import pytest
from support import LAPS

WRITES = """
    import overhear

    with overhear.Sensor("phase", {"number": "u32"}) as phase:
        for request in range(50):
            phase.write(1)
            phase.write(2)
"""

REQUEST = """
    metric request "From its first to its second phase"
    event begins = user:phase [number == 1]
    event ends   = user:phase [number == 2]
    state idle  out
    state first begin
    state works in
    state done  end
    idle  -> first: begins, i
    first -> works: lambda
    works -> done:  ends, i
    done  -> idle:  lambda
"""


def test_measurements_are_those_of_the_elements(run):
    report, out = run(WRITES)
    metric = overhear.Metric(REQUEST)
    assert (metric.name, metric.description) == ("request", "From its first to its second phase")
    assert overhear.events_required_by(metric) == {"user:phase"}
    assert "digraph request" in metric.to_graphviz() and str(metric).startswith("metric request")
    [result] = overhear.measure(out, metric)
    times = overhear.read(out)["phase"]["time_ns"]
    assert len(result) == 50 and result.is_complete and result.unfinished == 0
    assert (result.array["begin_ns"] == times[0::2]).all()
    assert (result.array["end_ns"] == times[1::2]).all()
    assert (result.array["length_ns"] == times[1::2] - times[0::2]).all()
    assert set(result.array["task"]) == {report["sensors"][0]["pid"]}
    # The kernel may have had other work in between.
    assert (result.array["own_events"] <= result.array["intermediate_events"]).all()
    assert not result.array["missed"].any()
    assert not result.array["has_key"].any()
    assert result.gaps.size == 0


def test_gaps_that_fell_into_measurements_are_named(run):
    for _ in range(5):
        _, out = run(LAPS)
        if overhear.read(out).gaps.size > 1:
            break
    else:
        # Then the reader of the ring got no CPU before the ring was lapped for the last time.
        assert os.getloadavg()[0] > os.cpu_count()
        pytest.skip("machine lateness: nothing was read before the ring was lapped, five times")
    # From each element to the next one: any loss after the first one falls into a measurement.
    text = REQUEST.replace("user:phase [number == 1]", "user:fast").replace("ends, i", "begins, i")
    text = text.replace("done  -> idle:", "done  -> first:")
    lines = [line for line in text.splitlines() if "event ends" not in line]
    [result] = overhear.measure(out, overhear.Metric("\n".join(lines)))
    gaps = overhear.read(out).gaps
    assert result.missed == gaps["missed"].sum() > 0
    assert result.gaps.size and set(result.gaps["cause"]) == {"overwritten"}
    # Each gap is in the recording, and inside its measurement; their sum is the missed number of
    # the measurement.
    assert set(result.gaps["first"]) <= set(gaps["first"])
    hit = result.array[result.gaps["measurement"]]
    assert (result.gaps["from_ns"] < hit["end_ns"]).all() and (hit["begin_ns"] < result.gaps["to_ns"]).all()
    missed = np.zeros(len(result), "u8")
    np.add.at(missed, result.gaps["measurement"], result.gaps["missed"])
    assert (missed == result.array["missed"]).all()


def test_metrics_of_one_name_have_results_of_their_own(run):
    _, out = run(WRITES)
    back = REQUEST.replace("number == 1", "number == 3").replace("number == 2", "number == 1")
    first, second = overhear.Metric(REQUEST), overhear.Metric(back.replace("number == 3", "number == 2"))
    assert first.name == second.name
    forth, back = overhear.measure(out, first, second)
    times = overhear.read(out)["phase"]["time_ns"]
    assert (forth.array["begin_ns"] == times[0::2]).all()
    assert (back.array["begin_ns"] == times[1:-1:2]).all()


def test_measurements_without_a_kind_say_so(run):
    _, out = run(WRITES)
    text = REQUEST.replace("state idle  out", "by begins.number\n    state idle  out")
    # The other metric is grouped by an event that never comes.
    kinds = text.replace("number == 1", "number != 2").replace("begins.number", "none.number")
    kinds = kinds.replace("event ends", "event none = user:phase [number == 3]\n    event ends")
    [named], [unnamed] = (overhear.measure(out, overhear.Metric(one)) for one in (text, kinds))
    assert named.array["has_key"].all() and (named.array["key"] == 1).all()
    assert len(unnamed) == 50 and not unnamed.array["has_key"].any()


def test_metrics_of_the_system_and_between_two_events(run):
    assert "wakeup_latency" in overhear.system_metrics()
    latency = overhear.system_metric("wakeup_latency")
    assert "kernel:sched_wake" in overhear.events_required_by(latency)
    mine = overhear.new_user_metric("mine", "user:a", "user:b")
    assert {"user:a", "user:b"} < overhear.events_required_by(mine)
    _, out = run(WRITES)
    # The kernel was not recorded: there is no result, and the status shows it.
    found, other = overhear.measure(out, latency, mine)
    assert len(found) == 0 and not found.is_complete
    assert found.absent_events == ["kernel:sched_wake", "kernel:sched_switch"]
    assert "user:a" in other.absent_events


def test_prices_of_the_calibration_are_subtracted(run):
    _, out = run(WRITES)
    text = REQUEST.replace("works -> done", "works -> last").replace(
        "state done ", "state last in\n    state done "
    )
    metric = overhear.Metric(text + "    last -> done: lambda\n")
    documents = out / "trace" / "overhear"
    (documents / "calibration.json").unlink(missing_ok=True)
    with pytest.raises(overhear.TraceError, match="has no calibration"):
        overhear.measure(out, metric, element_cost_ns="calibrated")
    price = {"programs": [{"kind": "simple", "write": {"mean_ns": 7.0}}]}
    (documents / "calibration.json").write_text(json.dumps(price))
    [plain] = overhear.measure(out, metric)
    [less] = overhear.measure(out, metric, element_cost_ns="calibrated")
    # The element that ends a request lies in its last state.
    plain, less = (found.array["length_ns"].astype("i8") for found in (plain, less))
    assert len(less) == 50 and (less == (plain - 7).clip(0)).all()


def test_invalid_metric_is_refused_with_its_position(tmp_path):
    with pytest.raises(ValueError, match="line 2, column 11: expected `kernel:HOOK`"):
        overhear.Metric("metric m\nevent a = usr:a\n")
    with pytest.raises(ValueError, match="there is no system metric `nonsense`"):
        overhear.system_metric("nonsense")
    with pytest.raises(ValueError, match="`a` names no event"):
        overhear.new_user_metric("mine", "a", "user:b")
    with pytest.raises(overhear.TraceError):
        overhear.measure(tmp_path, overhear.system_metric("run_delay"))


def test_live_metrics_equal_recorded_ones(run):
    report, out = run(
        f"""
    import overhear

    phase = overhear.Sensor("phase", {{"number": "u32"}})
    metric = overhear.Metric({REQUEST!r})
    absent = overhear.new_user_metric("absent", "user:absent", "user:absent")
    with overhear.measuring(metric, disable_unused=True) as live:
        assert live.read()[0].array.size == 0
        for request in range(50):
            phase.write(1)
            phase.write(2)
        phase.write(1)
        [found] = live.read(60)
        # On a busy machine elements are missed, and counted.
        assert len(found) == 50 or found.missed
        assert found.is_complete or found.missed
        assert (found.array["length_ns"] == found.array["end_ns"] - found.array["begin_ns"]).all()
        phase.write(2)
        [more] = live.read()
        assert len(more) == 1 or more.missed
    # After the end as well, and each once.
    assert len(live.read()[0]) == 0
    try:
        overhear.measuring(absent)
    except ValueError as error:
        assert "give `processes`" in str(error)
    else:
        raise AssertionError
        """
    )
    assert report["exit"] == {"code": 0}


def test_events_of_the_kernel_are_measured_live():
    latency = overhear.system_metric("time_slice")
    try:
        live = overhear.measuring(latency, processes=[os.getpid()])
    except overhear.KernelError as error:
        pytest.skip(str(error))
    with live:
        slices = 0
        begun = time.monotonic()
        while slices < 20 and time.monotonic() - begun < 60:
            time.sleep(0.001)
            [found] = live.read()
            slices += len(found)
    assert slices >= 20
    with pytest.raises(overhear.AttachError):
        overhear.measuring(overhear.Metric(REQUEST), directory="/nonexistent/socket")
