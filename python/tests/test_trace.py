# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a Python program writes under `overhear run` comes back, exactly, as arrays."""

import shutil

import numpy as np
import overhear
import pytest
from support import LAPS, run_source

#: Two sensors, interleaved; one has every kind of field, and two names that rows have themselves.
WRITES = """
    import numpy as np
    import overhear

    FIELDS = {
        "a": ("u64", "ns"), "b": "i64", "c": ("f64", "m/s"), "d": "u32", "e": "i32", "f": "f32",
        "g": "u16", "h": "i16", "sequence": "u8", "time_ns": "i8", "name": "text[6]",
    }
    kinds = overhear.Sensor("kinds", FIELDS, instance="one", rate=overhear.Rate(2000, 1000, 500))
    count = overhear.Sensor("count", {"n": ("u64", "turns")})
    assert kinds.is_connected and kinds.not_connected_reason is None
    for n in range(1000):
        count.write(n)
        kinds.write(2**64 - 1 - n, -n, n / 3, n, -n, n / 2, n, -n, n % 256, n % 100, f"ä{n}")
    count.write_many(np.arange(1000, 3000))
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, program):
    return run_source(program, tmp_path_factory.mktemp("recorded"), WRITES)


def expected():
    n = np.arange(1000)
    return {
        "a": np.uint64(2**64 - 1) - n.astype("u8"),
        "b": -n,
        "c": n / 3,
        "d": n,
        "e": -n,
        "f": (n / 2).astype("f4"),
        "g": n,
        "h": -n,
        "sequence_": n % 256,
        "time_ns_": n % 100,
        "name": np.char.encode([f"ä{number}" for number in range(1000)], "utf-8"),
    }


def test_counts_are_exact(recorded):
    report, out = recorded
    assert report["complete"]
    counts = {sensor["id"]: (sensor["elements"], sensor["missed"]) for sensor in report["sensors"]}
    assert counts == {"kinds": (1000, 0), "count": (3000, 0)}
    trace = overhear.replay(out)
    assert (trace.elements, trace.missed, trace.damage, trace.is_whole) == (4000, 0, [], True)


def test_arrays_equal_what_was_written(recorded):
    _, out = recorded
    whole = overhear.read(out)
    kinds = whole["kinds"]
    for column, values in expected().items():
        assert (kinds[column] == values).all(), column
    assert (kinds["sequence"] == np.arange(1000)).all()
    assert (np.diff(kinds["time_ns"].astype("i8")) >= 0).all()
    assert (whole["count"]["n"] == np.arange(3000)).all()
    assert (whole.elements, whole.missed, whole.gaps.size) == (4000, 0, 0)
    first, last = overhear.replay(out).times_ns
    assert first == min(array["time_ns"][0] for array in whole.arrays.values())
    assert whole.advanced_to_ns >= last


def test_streams_say_who_writes(recorded):
    _, out = recorded
    kinds, count = overhear.replay(out).streams
    assert (kinds.sensor, kinds.instance, kinds.type, kinds.origin) == ("kinds", "one", "kinds", "program")
    assert kinds.rate == overhear.Rate(2000, 1000, 500) and count.rate is None
    assert kinds.pid == count.pid and kinds.comm.startswith("python") and kinds.cpu is None
    assert kinds.units["a"] == "ns" and kinds.units["time_ns"] == "ns" and count.units["n"] == "turns"
    assert kinds.columns["time_ns"] == "time_ns_" and kinds.columns["a"] == "a"
    assert kinds.label in repr(kinds)


@pytest.mark.parametrize("size", [1, 7, 1000, 4000, 10**9])
def test_batches_of_any_size_give_the_same(recorded, size):
    _, out = recorded
    batches = list(overhear.replay(out, batch=size))
    assert all(batch.elements <= size for batch in batches)
    whole = overhear.read(out)
    for sensor in ("kinds", "count"):
        together = np.concatenate([batch[sensor] for batch in batches])
        assert (together == whole[sensor]).all()
    advances = [b.advanced_to_ns for b in batches if b.advanced_to_ns is not None]
    assert advances == sorted(advances) and advances[-1] == whole.advanced_to_ns
    # The guarantee of an advance: no later batch has older elements.
    promised = 0
    for batch in batches:
        assert all(int(array["time_ns"][0]) >= promised for array in batch.arrays.values())
        promised = max(promised, batch.advanced_to_ns or 0)


def test_items_come_in_total_order(recorded):
    _, out = recorded
    elements = [item for item in overhear.read(out) if isinstance(item, overhear.Element)]
    keys = [(element.time_ns, element.stream.id, element.sequence) for element in elements]
    assert keys == sorted(keys) and len(keys) == 4000
    kinds = [element for element in elements if element.stream.sensor == "kinds"]
    assert kinds[3]["name"] == "ä3" and kinds[3].values["b"] == -3 and kinds[3]["time_ns"] == 3
    assert kinds[3].sequence == 3 and isinstance(kinds[3]["c"], float)


def test_absent_column_or_trace_is_named(recorded, tmp_path):
    _, out = recorded
    batch = next(overhear.replay(out, batch=1))
    with pytest.raises(KeyError, match="there are count, kinds"):
        batch["nothing"]
    assert sum(batch[sensor].size for sensor in ("kinds", "count")) == 1
    with pytest.raises(overhear.TraceError, match=str(tmp_path)):
        overhear.replay(tmp_path)
    with pytest.raises(ValueError, match="at least one"):
        overhear.replay(out, batch=0)


def test_damage_is_told(recorded, tmp_path):
    _, out = recorded
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    stream = max((copy / "trace").glob("stream-*"), key=lambda file: file.stat().st_size)
    data = stream.read_bytes()
    stream.write_bytes(data[: len(data) - 9])
    trace = overhear.replay(copy)
    assert sum(batch.elements for batch in trace) < 4000
    # The torn tail, and the packet that is missing because of it.
    torn, missing = trace.damage
    assert "torn" in torn and "1000 elements are missed" in missing
    with pytest.raises(overhear.TraceError, match="torn"):
        overhear.read(copy)


def test_every_cause_of_a_gap_has_a_name():
    assert {"overwritten", "late", "nested", "full", "corrupt"} <= set(overhear.CAUSES)
    # As many letters as the column of the gaps holds.
    assert max(map(len, overhear.CAUSES)) <= 12


def test_missed_elements_are_counted(run):
    report, out = run(LAPS)
    (fast,) = report["sensors"]
    whole = overhear.read(out)
    assert fast["elements"] + fast["missed"] == 300_000
    assert (whole.elements, whole.missed) == (fast["elements"], fast["missed"])
    assert whole.missed > 0 and set(whole.gaps["cause"]) == {"overwritten"}
    # Positions and gaps cover the stream without holes: each gap is at a jump of the sequence.
    array = whole["fast"]
    assert (array["x"] == array["sequence"] % 100_000).all()
    covered = np.concatenate([array["sequence"], whole.gaps["first"]])
    lengths = np.concatenate([np.ones(array.size, "u8"), whole.gaps["missed"]])
    order = np.argsort(covered)
    ends = np.cumsum(lengths[order])
    assert (covered[order][1:] == ends[:-1]).all() and ends[-1] == 300_000
    items = list(whole)
    gaps = [item for item in items if isinstance(item, overhear.Gap)]
    assert sum(gap.missed for gap in gaps) == whole.missed
    assert isinstance(items[-1], overhear.Advance)
    position = 0
    for item in items[:-1]:
        assert (item.first if isinstance(item, overhear.Gap) else item.sequence) == position
        position += item.missed if isinstance(item, overhear.Gap) else 1
