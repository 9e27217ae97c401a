"""Keeping streams short: once per chunk, by length, id, age or memory; and only what everybody has acknowledged.

    trim=maxlen      XTRIM MAXLEN, what is beyond `maxlen` entries
    trim=minid       XTRIM MINID, what is below `minId`, or older than `retention` (by the server's clock)
    retentionBytes   XTRIM MAXLEN, what is beyond so many bytes (entry_sizes.py), beside any of the others
    trim=acked       the same thresholds, but only entries that every group has been given and has acknowledged; without
                     a threshold all of those. A stream without groups is left alone: nobody has acknowledged anything.
    streamTtl        PEXPIRE with each chunk: a stream that gets no chunk for so long is gone as a whole

Servers since Redis 8.2 can be told so (XTRIM … ACKED): they let go what is acknowledged even behind an entry that is
still pending. Any other gets MINID with the lowest id that some group still needs (retention/readers.py).

A query of ours may have what is acknowledged still before it: with at-most-once it is acknowledged before it is read.
It says so beside the stream, `rstream:committed:…`, and so holds back what
its batches have not committed; no server knows of that, so there it is MINID on every one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.model.ids import MAX_ID, StreamId
from spark_streams.options.sink_options import SinkOptions
from spark_streams.retention.readers import Readers, Standing
from spark_streams.sink.encode.chunks import Chunk
from spark_streams.sink.trim.entry_sizes import EntrySizes
from spark_streams.wire.connection.connection import ReplyError, pack
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.replies import milliseconds
from spark_streams.wire.replies.reply_errors import is_syntax_error
from spark_streams.wire.session import Session


@dataclass(frozen=True)
class Kept:
    """What stays in a stream, as the options say. retention: milliseconds; max_bytes: of memory; None: not given."""

    maxlen: int | None = None
    min_id: str | None = None
    retention: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True)
class Trimming:
    """What the options ask for. strategy: maxlen, minid, acked or None; limit: LIMIT, only with `~`."""

    strategy: str | None
    kept: Kept
    approximate: bool
    limit: int | None = None

    @classmethod
    def of(cls, options: SinkOptions) -> Trimming:
        """From the options of a sink."""
        strategy = options.trim
        if strategy is None and options.maxlen is not None:
            strategy = "maxlen"
        if strategy is None and (options.min_id or options.retention) is not None:
            strategy = "minid"
        kept = Kept(options.maxlen, options.min_id, options.retention, options.retention_bytes)
        return cls(strategy, kept, options.approximate, options.trim_limit)

    def commands(self, stream: bytes, now: int, most: int | None) -> list[bytes]:
        """The packed XTRIMs that go along with a chunk. now: Unix ms of the server; most: entries that make up
        max_bytes, None: not known."""
        if self.strategy == "acked":
            return []
        return [pack(*self.words(stream, *threshold)) for threshold in self.thresholds(now, most)]

    def thresholds(self, now: int, most: int | None = None) -> list[tuple[str, str]]:
        """(MAXLEN or MINID, its value) at this moment, each of which holds; now, most: as above."""
        found = []
        lengths = [one for one in (self.kept.maxlen, most) if one is not None]
        if lengths:
            found.append(("MAXLEN", str(min(lengths))))
        if self.kept.min_id is not None:
            found.append(("MINID", self.kept.min_id))
        if self.kept.retention is not None:
            found.append(("MINID", f"{max(now - self.kept.retention, 0)}-0"))
        return found

    def words(self, stream: bytes, kind: str, threshold: str, limit: int | None = None) -> list[str | bytes]:
        """The XTRIM as words. limit: no more than so many entries, where whole nodes are trimmed."""
        words: list[str | bytes] = ["XTRIM", stream, kind, "~" if self.approximate else "=", threshold]
        limit = self.limit if limit is None else limit if self.limit is None else min(limit, self.limit)
        return [*words, "LIMIT", str(limit)] if limit is not None and self.approximate else words


class Trimmer:
    """Trims the streams of one task. The server's clock is asked once, then ours is followed."""

    def __init__(self, session: Session, options: SinkOptions) -> None:
        self._session = session
        self._trimming = Trimming.of(options)
        self._ttl = options.stream_ttl  # milliseconds
        # A connection of its own: the task's may have replies on their way. There are chunks, so the address is right.
        self._trim_session = Session(session.address, is_known=True)
        self._acked: AckedTrimmer | None = None
        self._sizes = None if options.retention_bytes is None else EntrySizes(options.retention_bytes)
        self._ahead: int | None = None  # the server's clock minus our monotonic one, milliseconds

    def commands(self, chunk: Chunk) -> list[bytes]:
        """The XTRIMs, and PEXPIREs, that go along with a chunk, packed."""
        now = self._now()  # here, for `after` too: nothing is under way yet when it is asked for the first time
        streams = chunk.stream_names
        trims = [trim for stream in streams for trim in self._trimming.commands(stream, now, self._most(stream))]
        ends = [] if self._ttl is None else [pack("PEXPIRE", stream, self._ttl) for stream in streams]
        return [*trims, *ends]

    def words(self, stream: str | bytes) -> tuple[str | bytes, ...]:
        """What goes along with a chunk, for the message when it is refused."""
        return ("XTRIM" if self._trimming.thresholds(0, 1 if self._sizes else None) else "PEXPIRE", stream)

    def after(self, chunk: Chunk) -> None:
        """What is trimmed when a chunk has been answered: trim=acked, and where it is known only now how large entries
        are."""
        due = [] if self._sizes is None else self._sizes.written(chunk)
        acked = self._trimming.strategy == "acked"
        if due or acked:
            now = self._now()
            self._trim_session.run(lambda server: self._trim(server, due, chunk.stream_names if acked else [], now))

    def _trim(self, server: Server, due: Sequence[bytes], acked: Sequence[bytes], now: int) -> None:
        if due and self._sizes is not None:
            self._sizes.ask(server, due)
            commands = [
                self._trimming.words(stream, *threshold)
                for stream in ([] if acked else due)
                for threshold in self._trimming.thresholds(now, self._most(stream))
            ]
            server.execute_all(commands)
        if acked:
            most = {stream: self._most(stream) for stream in acked}
            self._acked_on(server).trim(acked, now, most)

    def _most(self, stream: bytes) -> int | None:
        return None if self._sizes is None else self._sizes.most(stream)

    def close(self) -> None:
        """Close the connection that trim=acked uses."""
        self._trim_session.close()

    def _acked_on(self, server: Server) -> AckedTrimmer:
        """Another connection may lead to another server: what is known of the last one does not count."""
        if self._acked is None or self._acked.server is not server:
            self._acked = AckedTrimmer(server, self._trimming)
        return self._acked

    def _now(self) -> int:
        if self._trimming.kept.retention is None:
            return 0
        if self._ahead is None:
            self._ahead = self._session.run(clock) - _milliseconds_here()
        return _milliseconds_here() + self._ahead


def clock(server: Server) -> int:
    """The server's; of several the one that is behind most, so that no entry goes too early."""
    return min(milliseconds(node.execute("TIME")) for node in server.nodes())


class AckedTrimmer:
    """trim=acked over a connection. It asks the server once whether it knows ACKED."""

    def __init__(self, server: Server, trimming: Trimming) -> None:
        self.server = server
        self._trimming = trimming
        self._readers = Readers()
        self._knows_acked: bool | None = None

    def trim(self, streams: Sequence[bytes], now: int, most: Mapping[bytes, int | None] | None = None) -> int:
        """Trim each; how many entries went. most: as Trimming has it, per stream. Raises ServerReplyError and kin,
        StreamStateError."""
        return sum(
            self._trim(stream, standing, *threshold)
            for stream, standing in self._readers.look(self.server, streams).items()
            if standing.groups
            for threshold in self._thresholds(now, (most or {}).get(stream))
        )

    def _thresholds(self, now: int, most: int | None) -> list[tuple[str, str]]:
        """Without one all goes that everybody has acknowledged; where one is not known yet nothing does."""
        found = self._trimming.thresholds(now, most)
        return found if found or self._trimming.kept.max_bytes is not None else [("MINID", str(MAX_ID))]

    def _trim(self, stream: bytes, standing: Standing, kind: str, threshold: str) -> int:
        if standing.held is None and self._knows_acked is not False:
            # An id goes no further than what every group had been given when they were looked at: a query that holds
            # something back may have begun since.
            bound = str(min(StreamId.parse(threshold), standing.given)) if kind == "MINID" else threshold
            words = [*self._trimming.words(stream, kind, bound), "ACKED"]
            reply = self.server.pipeline([words])[0]
            if self._knows_acked is None:
                self._knows_acked = not is_syntax_error(reply)
            if self._knows_acked:
                if isinstance(reply, ReplyError):
                    raise self.server.error_of(reply, words)
                trimmed: int = reply
                return trimmed
        return self._trim_up_to(stream, standing.needed, kind, threshold)

    def _trim_up_to(self, stream: bytes, needed: StreamId, kind: str, threshold: str) -> int:
        execute = self.server.execute
        if kind == "MINID":
            lower = min(needed, StreamId.parse(threshold))
            return int(execute(*self._trimming.words(stream, "MINID", str(lower))))
        excess = execute("XLEN", stream) - int(threshold)
        if excess <= 0:
            return 0
        if self._trimming.approximate:
            return int(execute(*self._trimming.words(stream, "MINID", str(needed), limit=excess)))
        # Exactly: the id below which just so many entries lie.
        entries = execute("XRANGE", stream, "-", "+", "COUNT", excess)
        last = StreamId.parse(entries[-1][0]) if entries else needed
        return int(execute("XTRIM", stream, "MINID", "=", str(min(needed, last.next()))))


def _milliseconds_here() -> int:
    return time.monotonic_ns() // 1_000_000
