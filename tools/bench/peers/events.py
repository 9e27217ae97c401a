"""Numbered events that are added while a client runs, and what has arrived in the stream or topic that it writes."""

from __future__ import annotations

import contextlib
import importlib
import re
import time
from collections.abc import Iterator

from tools.bench.peers.client import LONGEST
from tools.bench.peers.sides import Side
from tools.bench.row import NoFigureError
from tools.bench.servers import producing, request

_EVERY = 0.01  # seconds between two additions


@contextlib.contextmanager
def feeding(side: Side, stream: str, rate: int, numbered: bool = True) -> Iterator[list[int]]:
    """Add events at a rate while the block runs: `t` is the microsecond, `n` counts them if they are numbered. Yield a
    list of one number: how many there are."""
    count = [0]
    if side.on_redis:
        with side.bench.redis.client() as client:

            def add_entries(stamp: int, due: int) -> None:
                numbers = range(count[0], count[0] + due) if numbered else [0]
                page = b"".join(request("XADD", stream, "*", "t", stamp, "n", one) for one in numbers)
                client.send(page if numbered else page * due, due)
                count[0] += due

            with producing(rate, _EVERY, add_entries):
                yield count
        return
    producer = side.bench.producer()

    def add_messages(stamp: int, due: int) -> None:
        numbers = range(count[0], count[0] + due) if numbered else [0] * due
        producer.produce_batch(stream, [{"value": b'{"t":%d,"n":%d}' % (stamp, one)} for one in numbers])
        producer.flush(LONGEST)
        count[0] += due

    with producing(rate, _EVERY, add_messages):
        yield count


class Arrived:
    """What is in a stream, or in a topic with committed transactions only."""

    def __init__(self, side: Side, stream: str) -> None:
        self.numbers: list[int] = []  # of all rows, in the order of their arrival
        self._side, self._stream, self._last = side, stream, b"0"
        if not side.on_redis:
            kafka = importlib.import_module("confluent_kafka")
            settings = {"group.id": f"arrived-{stream}", "isolation.level": "read_committed"}
            self._consumer = kafka.Consumer({"bootstrap.servers": side.bench.kafka.url, **settings})
            self._consumer.assign([kafka.TopicPartition(stream, 0, kafka.OFFSET_BEGINNING)])

    def look(self) -> None:
        """Take what has arrived since the last look."""
        if self._side.on_redis:
            with self._side.bench.redis.client() as client:
                for entry_id, fields in client.call("XRANGE", self._stream, b"(" + self._last, "+", "COUNT", 100_000):
                    self._last = entry_id
                    self.numbers.append(int(fields[fields.index(b"n") + 1]))
        else:
            for message in self._consumer.consume(100_000, 0.02):
                if message.error() is None:
                    self.numbers.append(int(re.findall(rb'"n":"?(\d+)', message.value())[0]))

    def all(self) -> None:
        """Take everything that was sent, when nothing is sent any more."""
        count = -1
        while count != len(self.numbers):
            count = len(self.numbers)
            time.sleep(0.2)
            self.look()

    def wait(self, number: int) -> float:
        """Wait for a row with this number or a later one. Return the moment."""
        deadline, place = time.monotonic() + LONGEST, 0
        while not any(one >= number for one in self.numbers[place:]):
            place = len(self.numbers)
            self.look()
            if time.monotonic() > deadline:
                raise NoFigureError(f"{self._side.name}: event {number} did not arrive, of {len(self.numbers)} rows")
            time.sleep(0.005)
        return time.monotonic()
