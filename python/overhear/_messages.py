# SPDX-License-Identifier: MIT OR Apache-2.0
"""Output of variable size: messages, split over elements of one sensor and rejoined by the reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Union

import numpy as np

from . import _core
from ._batch import Batch
from ._stream import Stream

#: The fields of a part before its piece of the message.
_LEAD = [("message", "u64", 0), ("part", "u32", 8), ("bytes", "u32", 12)]


class MessageSensor(_core.MessageSensor):
    """Writes messages of any length: each is split over several elements.

    `Messages` puts them together again. A message of which an element was missed is lost as a whole,
    and counted. So is one with more parts than the sensor has slots: set a capacity that holds
    several of the longest. The notes of `Sensor` about directories, threads and forks hold here, too.

    :param id: its name in the directory.
    :param type: the type id: what the messages contain.
    :param instance: which one of several sensors with the same id this is.
    :param part_bytes: bytes of a message in each element, 1 to 4072.
    :param capacity: the least number of parts that the stream shall hold.
    :raises SensorError: if a part cannot have so many bytes, or the type id is no name.
    """

    #: What it measures.
    id: str

    def __new__(
        cls,
        id: str,
        *,
        type: str = "message",
        instance: str = "",
        part_bytes: int = 232,
        capacity: int = 0,
    ) -> MessageSensor:
        self = super().__new__(cls, id, type, instance, part_bytes, capacity)
        self.id = id
        return self

    def write(self, message: Union[str, bytes, bytearray, memoryview]) -> None:
        """Writes a message; text as UTF-8.

        :raises ValueError: if it has 4 GiB or more.
        :raises SensorError: after unregister().
        """
        self.write_bytes(message.encode() if isinstance(message, str) else bytes(message))

    def __enter__(self) -> MessageSensor:
        return self

    def __exit__(self, *_: object) -> None:
        self.unregister()

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "not connected"
        return f"<overhear.MessageSensor `{self.id}`: {state}, {self.written} parts written>"


class Message(NamedTuple):
    """A whole message."""

    #: The stream of its parts.
    stream: Stream
    #: Its number in the stream.
    number: int
    #: When its last part was committed.
    time_ns: int
    bytes: bytes

    @property
    def text(self) -> str:
        """As UTF-8; what is not is replaced."""
        return self.bytes.decode("utf-8", "replace")


class Messages:
    """Puts messages together from batch after batch::

        messages = overhear.Messages()
        for batch in overhear.replay("DIR"):
            for message in messages.rejoin(batch):
                print(message.time_ns, message.text)
        messages.end()
        print(messages.lost)

    :param from_start: whether the batches begin with the streams: what is missing before the first part
        is lost then. An attachment that joins a running program begins later.
    """

    def __init__(self, *, from_start: bool = True) -> None:
        self._from_start = from_start
        self._streams: dict[Stream, _core.Rejoiner] = {}

    def rejoin(self, batch: Batch) -> Iterator[Message]:
        """The messages that the batch completes, in the order of their last parts. Streams whose
        elements are not parts of messages are passed over."""
        found = []
        for stream, array in batch.arrays.items():
            rejoiner = self._rejoiner(stream)
            if rejoiner is not None:
                times = array["time_ns"]
                for row, number, whole in rejoiner.rows(array.view(np.uint8)):
                    found.append(Message(stream, number, int(times[row]), whole))
        found.sort(key=lambda message: (message.time_ns, message.stream.id, message.number))
        return iter(found)

    def end(self) -> None:
        """Nothing more comes: messages that are not whole are lost."""
        for rejoiner in self._streams.values():
            rejoiner.end()

    @property
    def lost(self) -> int:
        """How many messages were lost; exact for honest writers."""
        return sum(rejoiner.counts()[0] for rejoiner in self._streams.values())

    @property
    def rejected_corrupt(self) -> int:
        """Parts that no honest writer has written."""
        return sum(rejoiner.counts()[1] for rejoiner in self._streams.values())

    def _rejoiner(self, stream: Stream) -> Union[_core.Rejoiner, None]:
        if stream not in self._streams:
            lead = [(field.name, field.kind, field.offset) for field in stream.fields]
            is_part = lead[:3] == _LEAD and [name for name, _, _ in lead[3:]] == ["data"]
            if not is_part or not lead[3][1].startswith("text["):
                return None
            size = stream.fields[3].dtype.itemsize
            self._streams[stream] = _core.Rejoiner(size, self._from_start)
        return self._streams[stream]
