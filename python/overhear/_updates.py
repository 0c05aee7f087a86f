# SPDX-License-Identifier: MIT OR Apache-2.0
"""Updates: analyses as classes, over a trace or a running directory."""

from __future__ import annotations

from collections.abc import Iterable

from ._batch import Batch
from ._items import Advance, Element, Gap
from ._stream import Stream


class Analysis:
    """An analysis: derive from it, and override what is needed.

    ::

        class LateElements(overhear.Analysis):
            def __init__(self):
                self.late = 0

            def wants(self, stream):
                return stream.sensor == "request"

            def element(self, element):
                self.late += element["waited_ns"] > 1_000_000

        late = LateElements()
        overhear.evaluate(overhear.replay("DIR"), late)

    What an update is called with is what updates in other languages are called with, in the same order:
    time, stream, sequence. Python is for traces and for best effort: elements of a running program that
    come faster than Python evaluates are missed, and counted.
    """

    def wants(self, stream: Stream) -> bool:
        """Whether it is called for this stream; called once for each. By default for those of programs."""
        return stream.origin == "program"

    def open(self, stream: Stream) -> None:
        """Called for a stream before its first item."""

    def element(self, element: Element) -> None:
        """Evaluates one element."""

    def gap(self, gap: Gap) -> None:
        """Called for missed elements of one stream."""

    def advance(self, time_ns: int) -> None:
        """No older element follows."""


def evaluate(source: Iterable[Batch], *updates: Analysis) -> None:
    """Calls updates with everything that a `Replay` or an `Attachment` yields, in total order, each for
    the streams it wants.

    It returns at the end of the trace, or when the attachment was closed: an update may do that. Time
    advances once per batch. An exception of an update ends the evaluation and is passed on.
    """
    routes: dict[Stream, list[Analysis]] = {}
    for batch in source:
        for item in batch:
            if isinstance(item, Advance):
                for update in updates:
                    update.advance(item.time_ns)
                continue
            route = routes.get(item.stream)
            if route is None:
                route = [update for update in updates if update.wants(item.stream)]
                routes[item.stream] = route
                for update in route:
                    update.open(item.stream)
            for update in route:
                if isinstance(item, Gap):
                    update.gap(item)
                else:
                    update.element(item)
