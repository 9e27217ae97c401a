"""A producer, a query's reader and an exactly-once sink over twelve streams, all without Spark, that go on through
whatever happens."""

from __future__ import annotations

import contextlib
import operator
import threading
import time
from typing import Any, Protocol

from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.session import Session
from spark_streams.connector.wire.xinfo import stream_states
from spark_streams.operations.verify.history import Added, Outcome, Row
from tests.connector.sink.writing import HASTY, batch_of, close, frame, options, write
from tools.driving import ALL, reader, rows
from tools.history import History, check_history
from tools.machine_time import machine_seconds
from tools.servers.server import Server

STREAMS = [f"s{n}" for n in range(12)]
OUTS = [f"out-{n}" for n in range(12)]


class Reached(Protocol):
    """A cluster, by the login of some user."""

    @property
    def url(self) -> str: ...

    @property
    def server(self) -> Server: ...


class Piping:
    """Entries n = 0, 1, … go into streams s0 … s11 in turn; batches of them are read, and written to streams out-0 …
    out-11 (out_of: which stream goes where).

    An error of any of the three is raised by `end`: nothing is started again.
    """

    def __init__(self, cluster: Reached, on_commit: str = "keep", **sink: str) -> None:
        self._cluster = cluster
        self._removes = on_commit != "keep"
        self._sink = sink
        self._ended = threading.Event()
        self._told: list[BaseException] = []
        self._produced = threading.Event()
        self.written = 0
        self.longest = 0.0  # seconds that a batch took
        self._reader = reader(cluster.server, streams=",".join(STREAMS), onCommit=on_commit)
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

    def nothing_is_lost_or_doubled(self) -> int:
        """What is in the streams that are read is in those that are written, once, and nothing is pending. How many
        entries there are."""
        history = History(acks_seen=False)
        with connect(Address.parse(self._cluster.url)) as server:
            for n, stream in enumerate(STREAMS):
                there = [int(fields[1]) for _, fields in server.execute("XRANGE", stream, "-", "+")]
                rows = [fields for _, fields in server.execute("XRANGE", f"out-{n}", "-", "+")]
                written = [int(dict(zip(row[::2], row[1::2], strict=True))[b"n"]) for row in rows]
                if self._removes:  # as many as there ever were, and none is left
                    assert (len(written), there) == (stream_states(server, [stream])[stream].added, [])
                    there = sorted({*written})
                assert there
                history.added += [Added(stream, (stream, n), Outcome.OK, f"{n}-0") for n in there]
                history.rows += [
                    Row((stream, f"{n}-0"), (stream, n), batch=0, partition=0, attempt=0, position=position)
                    for position, n in enumerate(written)
                ]
                history.pending += [(stream, "?")] * server.execute("XPENDING", stream, "g")[0]
        history.unordered = {row.place for row in history.rows}
        report = check_history(history)
        assert not report, report
        return len(history.rows)

    def _guarded(self, run: Any) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self._told.append(error)
            self._ended.set()

    def _produce(self) -> None:
        n = 0
        known = Session(Address.parse(self._cluster.url), "producing", is_known=True)
        with known as session, contextlib.ExitStack() as last:
            last.callback(self._produced.set)
            while not self._ended.is_set():
                stream = STREAMS[n // 10 % len(STREAMS)]
                commands = [("XADD", stream, "*", "n", n + i) for i in range(10)]
                session.run(operator.methodcaller("execute_all", commands))
                n += 10
                time.sleep(0.002)

    def _query(self) -> None:
        checked = options(self._cluster.url, HASTY, streamColumn="to", **self._sink)
        number = 0
        while True:
            last = self._produced.is_set()
            begun = time.monotonic()
            end = self._reader.latestOffset(self._at, ALL)
            if end != self._at:
                found = rows(self._reader, self._at, end)
                batch = batch_of(number)
                to = [f"out-{row['_stream'][1:]}" for row in found]
                close(checked, batch, write([frame([row["n"] for row in found], to)], checked, batch))
                self._reader.commit(end)
                self._at, number, self.written = end, number + 1, self.written + len(found)
            elif last:
                return
            self.longest = max(self.longest, time.monotonic() - begun)
            time.sleep(0.02)
