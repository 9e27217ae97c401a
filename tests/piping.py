"""A producer, a query's reader and an exactly-once sink, all without Spark, that go on through whatever happens."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import redis

from spark_streams.connector.wire.session import Session
from tests.connector.sink.writing import batch_of, close, frame, options, write
from tools.driving import ALL, pending_count, reader, rows
from tools.machine_time import machine_seconds
from tools.once import once
from tools.servers.server import Server


class Piping:
    """Entries n = 0, 1, … go into stream s; batches of them are read, and written to stream out.

    An error of any of the three is raised by `end`: nothing is started again.
    """

    def __init__(
        self, server: Server, direct: Callable[[], AbstractContextManager[redis.Redis]], **access: str
    ) -> None:
        """direct: a plain client, with which nothing can go wrong; access: options beside the url."""
        self._server = server
        self._direct = direct
        self._access = access
        self._ended = threading.Event()
        self._told: list[BaseException] = []
        self._produced = threading.Event()
        self.written = 0
        self.longest = 0.0  # seconds that a batch took
        self._reader = reader(server, **access)
        self._at = self._reader.initialOffset()
        self._threads = [threading.Thread(target=self._guarded, args=(run,)) for run in (self._produce, self._query)]
        for thread in self._threads:
            thread.start()

    def at_least(self, more: int, within: float = 60.0) -> None:
        """Wait until so many more rows are written."""
        wanted, deadline = self.written + more, machine_seconds() + within
        while self.written < wanted:
            assert not self._told, self._told
            assert machine_seconds() < deadline, f"{self.written} rows are written, and not {wanted}"
            time.sleep(0.01)

    def end(self) -> None:
        """Stop producing, read all that there is, and end. Raises what went wrong on the way."""
        self._ended.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive()
        if self._told:
            raise self._told[0]

    def nothing_is_lost_or_doubled(self) -> None:
        """What is in the one stream is in the other, once, and nothing is pending."""
        with self._direct() as client:
            there = [fields["n"] for _, fields in client.xrange("s")]
            judgement = once(there, [fields["n"] for _, fields in client.xrange("out")])
            assert pending_count(client) == 0
        assert there
        assert not judgement, judgement

    def _guarded(self, run: Any) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self._told.append(error)
            self._ended.set()

    def _produce(self) -> None:
        n = 0
        known = Session(options(self._server.url, **self._access).address, "producing", is_known=True)
        with known as session, contextlib.ExitStack() as last:
            last.callback(self._produced.set)
            while not self._ended.is_set():
                session.run(lambda server, n=n: server.execute_all([("XADD", "s", "*", "n", n + i) for i in range(10)]))
                n += 10
                time.sleep(0.005)

    def _query(self) -> None:
        checked = options(self._server.url, **self._access)
        number = 0
        while True:
            last = self._produced.is_set()
            begun = time.monotonic()
            end = self._reader.latestOffset(self._at, ALL)
            if end != self._at:
                found = [row["n"] for row in rows(self._reader, self._at, end)]
                batch = batch_of(number)
                close(checked, batch, write([frame(found)], checked, batch))
                self._reader.commit(end)
                self._at, number, self.written = end, number + 1, self.written + len(found)
            elif last:
                return
            self.longest = max(self.longest, time.monotonic() - begun)
            time.sleep(0.02)
