# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sensors: how they are declared, what they accept, and what they refuse."""

import dataclasses
import os
import sys
import threading
import time
from typing import Annotated

import numpy as np
import overhear
import pytest


@dataclasses.dataclass
class Depth:
    priority: Annotated[int, "u8"]
    requests: Annotated[int, "u32", "requests"]
    load: float


def kinds(sensor):
    return {name: sensor.dtype[name].str for name in sensor.dtype.names}


def test_mappings_dataclasses_and_numpy_types_declare_fields():
    mapping = overhear.Sensor("a", {"flag": bool, "n": np.uint16, "x": ("f32", "m"), "t": "text[5]"})
    assert kinds(mapping) == {"flag": "|u1", "n": "<u2", "x": "<f4", "t": "|S5"}
    # Laid out by falling alignment, so there is no padding.
    assert mapping.dtype.itemsize == 1 + 2 + 4 + 5
    record = overhear.Sensor("b", Depth)
    assert kinds(record) == {"priority": "|u1", "requests": "<u4", "load": "<f8"}
    record.write(Depth(1, 2, 3.5))
    array = overhear.Sensor("c", np.dtype([("x", "i8"), ("y", "u4")]), units={"x": "ns"})
    assert array.dtype == np.dtype([("x", "i8"), ("y", "u4")])
    nothing = overhear.Sensor("tick", {})
    nothing.write()
    assert nothing.written == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (np.dtype([("a", "u1"), ("b", "u8")]), "not aligned"),
        (np.dtype([("a", "u1"), ("b", "u8")], align=True), "belong to no field"),
        (np.dtype("u8"), "no named fields"),
        (np.dtype([("a", ">u8")]), "no kind"),
        (np.dtype([("a", "u8", 3)]), "no kind"),
        ({"a": "u128"}, "no kind `u128`"),
        ({"a": "text[0]"}, "no kind"),
        ({"a b": "u8"}, "not a valid name"),
        ({"a": complex}, "cannot be declared"),
        ({"a": ("u8", "x" * 33)}, "unit"),
        ({"a": "text[5000]"}, "more than 4088"),
        (3, "mapping"),
    ],
)
def test_invalid_payload_is_refused_with_a_message(fields, message):
    with pytest.raises(overhear.SchemaError, match=message):
        overhear.Sensor("a", fields)


def test_unit_without_field_and_impossible_rate_are_refused():
    with pytest.raises(overhear.SchemaError, match="no such field"):
        overhear.Sensor("a", {"x": "u8"}, units={"y": "ns"})
    with pytest.raises(ValueError, match="exceeds the period"):
        overhear.Sensor("a", {"x": "u8"}, rate=overhear.Rate(10, 20))


def test_values_are_given_by_name_by_place_or_both():
    sensor = overhear.Sensor("a", {"x": "u8", "y": "f64", "t": "text[4]"})
    sensor.write(1, 2.5, "ä")
    sensor.write(t=b"abcd", y=1, x=True)
    sensor.write(np.uint8(3), t="", y=np.float32(1))
    assert sensor.written == 3


@pytest.mark.parametrize(
    ("values", "fields", "error", "message"),
    [
        ((), {"x": -1, "y": 0, "t": ""}, OverflowError, "field `x` is u8 and cannot hold -1"),
        ((256, 0, ""), {}, OverflowError, "cannot hold 256"),
        ((0.5, 0, ""), {}, TypeError, "field `x` is u8 and cannot hold 0.5"),
        ((0, "1", ""), {}, TypeError, "field `y` is f64"),
        ((0, 0, "äää"), {}, ValueError, r"field `t` is text\[4\]"),
        ((0, 0, "a\0b"), {}, ValueError, "field `t`"),
        ((0, 0, 7), {}, TypeError, "field `t`"),
        ((0, 0), {}, TypeError, "field `t` is missing"),
        ((), {"x": 0, "y": 0, "z": 0}, TypeError, "no field `z`"),
        ((0, 0, "", 0), {}, TypeError, "has 3 fields"),
        ((0, 0, ""), {"t": ""}, TypeError, "has 3 fields"),
    ],
)
def test_values_out_of_range_are_refused_without_a_write(values, fields, error, message):
    sensor = overhear.Sensor("a", {"x": "u8", "y": "f64", "t": "text[4]"})
    with pytest.raises(error, match=message):
        sensor.write(*values, **fields)
    assert sensor.written == 0


def test_value_that_writes_to_its_sensor_is_harmless():
    class Nested:
        def __index__(self):
            sensor.write(7)
            return 8

    sensor = overhear.Sensor("a", {"x": "u8"})
    sensor.write(Nested())
    assert sensor.written == 2

    class Broken:
        def __index__(self):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        sensor.write(Broken())


def test_many_elements_as_array_plain_array_or_columns():
    pair = overhear.Sensor("pair", {"x": "u8", "y": "f64"})
    assert pair.write_many(np.zeros(5, pair.dtype)) == 5
    assert pair.write_many(np.zeros((2, 3), [("y", "f4"), ("x", "i8")])[:, ::2]) == 4
    assert pair.write_many(x=np.arange(256), y=np.arange(256)) == 256
    assert pair.write_many(x=1, y=2.0) == 1
    assert pair.write_many(np.zeros(0, pair.dtype)) == 0
    assert pair.written == 266
    one = overhear.Sensor("one", {"x": "i32"})
    assert one.write_many(range(1000)) == 1000
    text = overhear.Sensor("text", {"t": "text[4]"})
    assert text.write_many(np.array(["a", "äb"])) == 2


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"x": [256], "y": [0]}, OverflowError, "cannot hold 256 to 256"),
        ({"x": [-1], "y": [0]}, OverflowError, "cannot hold -1"),
        ({"x": [0.5], "y": [0]}, TypeError, "field `x` is an integer"),
        ({"x": [0], "y": ["a"]}, TypeError, "field `y` is a number"),
        ({"x": [0, 1], "y": [0]}, ValueError, "differ in length"),
        ({"x": [0]}, TypeError, "has the fields x, y"),
        ({"x": [0], "y": [0], "z": [0]}, TypeError, "has the fields x, y"),
    ],
)
def test_many_elements_that_do_not_fit_are_refused_as_a_whole(columns, error, message):
    sensor = overhear.Sensor("a", {"x": "u8", "y": "f64"})
    with pytest.raises(error, match=message):
        sensor.write_many(**columns)
    with pytest.raises(TypeError, match="structured array"):
        sensor.write_many(np.arange(3))
    with pytest.raises(ValueError, match="more than 4 bytes"):
        overhear.Sensor("t", {"t": "text[4]"}).write_many(np.array(["abcde"]))
    with pytest.raises(ValueError, match="zero byte"):
        overhear.Sensor("t", {"t": "text[4]"}).write_many(np.array(["a", "a\0b"]))
    assert sensor.written == 0


def test_unconnected_sensor_has_a_reason():
    sensor = overhear.Sensor("a", {"x": "u8"})
    assert not sensor.is_connected
    assert "no directory listens" in sensor.not_connected_reason
    assert "not connected" in repr(sensor)


def test_after_with_it_is_unregistered():
    with overhear.Sensor("a", {"x": "u8"}) as sensor:
        sensor.write(1)
    sensor.unregister()
    assert not sensor.is_connected and "unregistered" in sensor.not_connected_reason
    for write in (lambda: sensor.write(1), lambda: sensor.write_many([1])):
        with pytest.raises(overhear.SensorError, match="sensor `a` was unregistered"):
            write()


def test_threads_take_turns_and_lose_nothing():
    sensor = overhear.Sensor("a", {"x": "u64"})
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def work():
        for number in range(2000):
            sensor.write(number)
        sensor.write_many(np.arange(50_000))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)
    assert sensor.written == 4 * 52_000


def test_thread_without_a_lane_is_refused():
    sensor = overhear.Sensor("a", {"x": "u64"}, lanes=1)
    sensor.write(1)
    refused = []

    def work():
        try:
            sensor.write(2)
        except overhear.SensorError as error:
            refused.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(refused) == 1 and "lane" in refused[0] and "`a`" in refused[0]
    assert sensor.written == 1
    with pytest.raises(overhear.SensorError, match="no rate"):
        sensor.pace()


def test_threads_share_the_stream_of_a_concurrent_sensor():
    sensor = overhear.Sensor("a", {"x": "u64"}, writers=2)

    def work():
        for number in range(100):
            sensor.write(number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sensor.written == 400
    with pytest.raises(overhear.SensorError, match="no rate"):
        sensor.pace()
    with pytest.raises(ValueError, match="not both"):
        overhear.Sensor("a", {"x": "u64"}, lanes=2, writers=2)


def test_threads_keep_the_rate_of_what_they_share():
    rate = overhear.Rate(period_ns=2_000_000, distance_ns=2_000_000)
    queue = overhear.Sensor("a", {"x": "u64"}, writers=2, rate=rate)
    lanes = overhear.Sensor("b", {"x": "u64"}, lanes=2, rate=rate)

    def work(sensor):
        for number in range(5):
            sensor.pace()
            sensor.write(number)

    for sensor, least_ns in ((queue, 9 * 2_000_000), (lanes, 4 * 2_000_000)):
        begin = time.monotonic_ns()
        threads = [threading.Thread(target=work, args=(sensor,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic_ns() - begin >= least_ns
        assert sensor.written == 10


def test_sensors_that_are_disabled_do_nothing(monkeypatch):
    monkeypatch.setenv("OVERHEAR_DISABLE", "1")
    monkeypatch.setenv("OVERHEAR_DIRECTORY", "/nonexistent/directory.sock")
    for kind in ({}, {"lanes": 2}, {"writers": 2}):
        sensor = overhear.Sensor("a", {"x": "u64"}, **kind)
        # Not even its values are evaluated.
        sensor.write("no number")
        sensor.write(nonsense=True)
        sensor.write_many([1, 2, 3])
        sensor.pace()
        assert sensor.written == 0 and not sensor.is_connected and not sensor.is_enabled
        assert not sensor.register_again()
        assert "OVERHEAR_DISABLE" in sensor.not_connected_reason
        sensor.unregister()
        with pytest.raises(overhear.SensorError, match="unregistered"):
            sensor.write(1)
    with overhear.MessageSensor("log") as log:
        log.write("nobody reads this")
        assert log.written == 0 and not log.is_connected and not log.is_enabled
        assert not log.register_again()
        assert "OVERHEAR_DISABLE" in log.not_connected_reason
    monkeypatch.setenv("OVERHEAR_DISABLE", "0")
    enabled = overhear.Sensor("a", {"x": "u64"})
    enabled.write(1)
    assert enabled.written == 1


def test_forked_child_has_a_reason():
    sensor = overhear.Sensor("a", {"x": "u64"})
    sensor.write(1)
    child = os.fork()
    if child == 0:
        try:
            sensor.write(2)
            good = not sensor.is_connected and "forked" in (sensor.not_connected_reason or "")
        finally:
            os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sensor.written == 1
