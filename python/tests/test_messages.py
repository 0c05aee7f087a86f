# SPDX-License-Identifier: MIT OR Apache-2.0
"""Messages of any length come back whole, or are counted."""

import overhear
import pytest

MESSAGES = """
    import overhear

    log = overhear.MessageSensor("log", capacity=4096)
    other = overhear.Sensor("other", {"x": "u8"})
    raw = overhear.MessageSensor("raw", type="blob", part_bytes=7)
    for number in range(100):
        log.write(f"line {number} " + "ä" * number * 10)
        other.write(number)
        raw.write(bytes(range(number)))
"""


@pytest.mark.parametrize("size", [1, 13, 10**6])
def test_messages_are_split_and_rejoined(run, size):
    _, out = run(MESSAGES)
    messages = overhear.Messages()
    found = [m for batch in overhear.replay(out, batch=size) for m in messages.rejoin(batch)]
    messages.end()
    log = [message for message in found if message.stream.sensor == "log"]
    raw = [message for message in found if message.stream.type == "blob"]
    assert [message.text for message in log] == [
        f"line {number} " + "ä" * number * 10 for number in range(100)
    ]
    assert [message.bytes for message in raw] == [bytes(range(number)) for number in range(100)]
    assert [message.number for message in raw] == list(range(100))
    assert (messages.lost, messages.rejected_corrupt, len(found)) == (0, 0, 200)
    times = [message.time_ns for message in log]
    assert times == sorted(times)


def test_messages_with_missed_parts_are_lost_and_counted(run):
    report, out = run(
        """
        import overhear

        log = overhear.MessageSensor("log", part_bytes=8, capacity=2)
        for number in range(20_000):
            log.write(f"{number:040}")
        """
    )
    messages = overhear.Messages()
    found = [m for batch in overhear.replay(out) for m in messages.rejoin(batch)]
    messages.end()
    # If the last message is lost, no later part shows its loss.
    assert 20_000 - 1 <= len(found) + messages.lost <= 20_000
    assert all(int(message.text) == message.number for message in found)


def test_invalid_message_sensor_is_refused():
    with pytest.raises(overhear.SensorError, match="1 to 4072"):
        overhear.MessageSensor("log", part_bytes=0)
    with pytest.raises(overhear.SensorError, match="not a valid name"):
        overhear.MessageSensor("log", type="a b")
    with overhear.MessageSensor("log", part_bytes=10) as sensor:
        sensor.write("x" * 25)
        assert sensor.written == 3 and not sensor.is_connected and sensor.is_enabled
    with pytest.raises(overhear.SensorError, match="unregistered"):
        sensor.write("x")
