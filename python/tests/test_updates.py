# SPDX-License-Identifier: MIT OR Apache-2.0
"""Updates in Python: over a recording, and over a program while it runs."""

import overhear
import pytest

WRITES = """
    import overhear

    queue = overhear.Sensor("queue", {"depth": "u64"})
    other = overhear.Sensor("other", {"x": "u64"})
    for number in range(100):
        queue.write(number)
        other.write(number)
"""


class Heard(overhear.Analysis):
    def __init__(self, sensor):
        self.sensor = sensor
        self.opened, self.items, self.advanced_ns = [], [], 0

    def wants(self, stream):
        return stream.sensor == self.sensor

    def open(self, stream):
        self.opened.append(stream.sensor)

    def element(self, element):
        self.items.append((element.stream.sensor, element.sequence, element.time_ns))

    def gap(self, gap):
        self.items.append(gap)

    def advance(self, time_ns):
        assert time_ns >= self.advanced_ns
        self.advanced_ns = time_ns


class All(Heard):
    def wants(self, stream):
        return overhear.Analysis.wants(self, stream)


def test_each_update_gets_its_subscription_in_the_order_of_time(run):
    _, out = run(WRITES)
    queue, other, everything = Heard("queue"), Heard("other"), All("")
    # Small batches: the order holds across them.
    overhear.evaluate(overhear.replay(out, batch=7), queue, other, everything)
    assert [sequence for _, sequence, _ in queue.items] == list(range(100))
    assert (queue.opened, other.opened) == (["queue"], ["other"])
    assert sorted(everything.items) == sorted(queue.items + other.items)
    times = [time_ns for _, _, time_ns in everything.items]
    assert times == sorted(times)
    assert queue.advanced_ns >= times[-1]


def test_exception_is_passed_on(run):
    _, out = run(WRITES)

    class Failing(overhear.Analysis):
        def element(self, element):
            raise RuntimeError("the first is too much")

    with pytest.raises(RuntimeError, match="too much"):
        overhear.evaluate(overhear.replay(out), Failing())


def test_update_evaluates_a_running_program_and_ends_it(run):
    report, _ = run(
        """
    import overhear

    class Sum(overhear.Analysis):
        def __init__(self, attachment):
            self.attachment, self.sum, self.elements = attachment, 0, 0

        def element(self, element):
            self.sum += element["depth"]
            self.count(1)

        def gap(self, gap):
            self.count(gap.missed)

        def count(self, elements):
            self.elements += elements
            if self.elements >= 100:
                self.attachment.close()

    queue = overhear.Sensor("queue", {"depth": "u64"})
    with overhear.attach("queue") as attachment:
        for number in range(100):
            queue.write(number)
        update = Sum(attachment)
        overhear.evaluate(attachment, update)
        assert (update.elements, update.sum) == (100, 4950)
"""
    )
    assert report["exit"] == {"code": 0}
