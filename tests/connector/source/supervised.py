"""A query that dies, of its entries or of something else, and is started again, as Spark and a supervisor do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadLimit
from tools.driving import ALL, read, reader
from tools.servers.server import Server

LETTERS = {"maxDeliveries": "2", "deadLetterStream": "dead"}


class DiedError(Exception):
    """A run is over."""


def never() -> bool:
    return False


class Supervised:
    """poison: the values of n that kill a run that reads them; away: whether something that the run needs is away now,
    asked once a batch; limit: entries a batch.

    log is the offset log, committed how many offsets of it are in the commit log; rows: column n of what was committed,
    in order; starts: of the query; busy: batches with entries that were committed.
    """

    def __init__(self, server: Server, poison: set[int], limit: ReadLimit = ALL, **options: str) -> None:
        self.server, self.poison, self.limit = server, poison, limit
        self.options = {**LETTERS, **options}
        self.away: Callable[[], bool] = never
        self.needs_entries = False  # what may be away is of no concern for a batch without entries
        self.log: list[dict[str, Any]] = []
        self.committed = 0
        self.rows: list[int] = []
        self.starts = 0
        self.busy = 0
        self.died_of: set[int] = set()  # column n of the batch that died last
        self.is_running = False
        self.lost = 0  # entries, as the progress says

    def run(self, most: int = 60) -> None:
        """Start it until there is nothing more to read."""
        for _ in range(most):
            if self.start():
                return
        raise AssertionError(f"it did not end in {most} starts")

    def start(self) -> bool:
        """Start it once; whether it came to the end of what there is."""
        self.starts += 1
        one = reader(self.server, **self.options)
        try:
            self._run(one)
        except DiedError:
            return False
        finally:
            self.is_running = False
            lost: Any = one.reportLatestOffset().get("lost", {})
            self.lost += sum(lost.values())
        return True

    def _run(self, one: StreamReader) -> None:
        first = one.initialOffset()
        if not self.log:
            self.log, self.committed = [first], 1
        self.is_running = True
        if len(self.log) > self.committed:
            self._batch(one)
        while (end := one.latestOffset(self.log[-1], self.limit)) != self.log[-1]:
            self.log.append(end)
            self._batch(one)

    def _batch(self, one: StreamReader) -> None:
        start, end = self.log[-2:]
        for _ in range(2):  # two actions on one batch
            found = read(one, start, end)
        self.died_of = set(found)
        if (found or not self.needs_entries) and self.away():
            raise DiedError
        if self.poison & set(found):
            raise DiedError
        self.died_of = set()
        self.rows += found
        self.busy += bool(found)
        self.committed = len(self.log)


def dead_letters(client: redis.Redis) -> list[int]:
    """Column n of the dead letters, in order."""
    return [int(fields["n"]) for _, fields in client.xrange("dead")]


def consumers(client: redis.Redis, stream: str = "s") -> dict[str, int]:
    """What is pending for whom."""
    return {one["name"]: one["pending"] for one in client.xinfo_consumers(stream, "g")}
