"""Views of the ledger: what one task knows of it, by stream. Pure, except for methods that take a server.

A task has a view of each stream that it writes to. It opens the view when it has its first row for the stream
(join.py). Each transaction then checks that head and marks have not changed since the view was read.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_streams.connector.sink.encode.chunks import Chunk
from spark_streams.connector.sink.encode.fingerprint import Hashes, Multiset
from spark_streams.connector.sink.ledger import refusals
from spark_streams.connector.sink.ledger.batch import Batch
from spark_streams.connector.sink.ledger.ledger import HEAD_FIELDS, Command, Keys, LedgerHead, Role, read_mark
from spark_streams.connector.wire.connection.server import Server

_PROLONG = 3600.0  # seconds; a job's keys live 168 times as long (JOB_SECONDS)


@dataclass
class LedgerView:
    """One stream's ledger, as a task knows it. marks: key of this partition's marks; attempt: prefix of the names of
    this attempt's marks. A method that takes a server may be run again after a lost connection."""

    stream: bytes
    keys: Keys
    marks: bytes
    attempt: bytes
    head: LedgerHead = field(default_factory=LedgerHead, init=False)
    head_reply: Sequence[bytes | None] = field(default=(), init=False)  # the head, as the server's answer to HMGET
    done: bool = field(default=False, init=False)  # the batch is complete: nothing is written
    known_marks: set[bytes] = field(default_factory=set, init=False)  # names of the marks that this task has read
    own_marks: set[bytes] = field(default_factory=set, init=False)  # of these, the marks that this attempt has written
    # Marks of this attempt that were read from the server because the reply to their EXEC was lost.
    recovered: dict[bytes, Hashes] = field(default_factory=dict, init=False)
    # Rows that other attempts of this partition have written, and this task has not received yet.
    unmatched: Multiset = field(default_factory=Multiset, init=False)
    # Rows that earlier runs have written, and no task has claimed yet.
    unclaimed: Multiset = field(default_factory=Multiset, init=False)
    carried: bytes = field(default=b"", init=False)  # fingerprints: written for this batch by an earlier piece of it
    recovers: bool = field(default=False, init=False)  # this run goes on after one that was killed
    claims_read: int = field(default=0, init=False)  # bytes
    rows: int = field(default=0, init=False)  # received for the stream, whichever attempt wrote them
    total: int = field(default=0, init=False)  # the sum of their fingerprints, mod 2^64
    opened: bool = field(default=False, init=False)
    prolonged: float = field(default_factory=time.monotonic, init=False)  # when the expiry was renewed

    @property
    def shown(self) -> str:
        """The stream's name in messages."""
        return self.stream.decode("utf-8", "replace")

    @property
    def is_untouched(self) -> bool:
        """Whether no other attempt or run has written rows: the task writes all of its rows without comparing."""
        return not self.done and not self.unclaimed.size and not self.unmatched.size

    def prolong(self) -> list[bytes]:
        """Return the keys whose expiry is to be renewed: head and parts, once an hour. Not with each chunk, because
        other tasks WATCH the head."""
        now = time.monotonic()
        if now - self.prolonged < _PROLONG:
            return []
        self.prolonged = now
        return [self.keys.head, self.keys.parts]

    def expected(self) -> bytes:
        """Return the replies to HMGET and HLEN of `checks` if the ledger has not changed."""
        lines = [b"$-1\r\n" if text is None else b"$%d\r\n%b\r\n" % (len(text), text) for text in self.head_reply]
        return b"*%d\r\n%b:%d\r\n" % (len(lines), b"".join(lines), len(self.known_marks))

    def checks(self) -> tuple[list[bytes], list[Command]]:
        """Return (keys to WATCH, commands that read the ledger). HLEN is enough for the marks: marks are only added. A
        task corrects a mark only if the server refused its rows, and then fails."""
        watched = [self.keys.head, self.marks, *([self.keys.part("claims")] if self.unclaimed.size else [])]
        return watched, [("HMGET", self.keys.head, *HEAD_FIELDS), ("HLEN", self.marks)]

    def learn_head(self, reply: Sequence[bytes | None]) -> None:
        """Take the head from the reply to HMGET."""
        self.head, self.head_reply = LedgerHead.read(reply), reply

    def count(self, hashes: Hashes) -> None:
        """Count received rows."""
        self.rows += len(hashes)
        with np.errstate(over="ignore"):
            self.total = (self.total + int(hashes.sum(dtype=np.uint64))) % 2**64

    def read_claims(self, server: Server) -> None:
        """Read the rows that this run has claimed since the last read: no other task may claim them."""
        claims = server.execute("GETRANGE", self.keys.part("claims"), self.claims_read, -1)
        self.unclaimed.remove(np.frombuffer(claims, "<u8").astype(np.uint64))
        self.claims_read += len(claims)

    def learn_marks(self, flat: Sequence[bytes]) -> None:
        """Take the new marks of this partition from the reply to HGETALL: those of other attempts, and own marks whose
        EXEC reply was lost."""
        for name, mark in zip(flat[0::2], flat[1::2], strict=True):
            if name in self.known_marks:
                continue
            self.known_marks.add(name)
            hashes = np.concatenate(read_mark(mark))
            if name.startswith(self.attempt):
                self.own_marks.add(name)
                self.recovered[name] = hashes
            else:
                self.unmatched.add(hashes)

    def add_own_mark(self, name: bytes, claims: Hashes) -> None:
        """Add a mark that this attempt has written. claims: the rows of earlier runs that it claims."""
        self.known_marks.add(name)
        self.own_marks.add(name)
        if len(claims):
            self.unclaimed.remove(claims)
            self.claims_read += 8 * len(claims)  # the key was WATCHed, so there are no other claims in between

    def mark_executed(self, name: bytes, hashes: Hashes) -> None:
        """Record that the chunk of this mark is executed. hashes: its rows that other attempts have written."""
        self.unmatched.remove(hashes)
        self.recovered.pop(name, None)

    def refresh(self, server: Server, head: Sequence[bytes | None], length: int) -> None:
        """Update the view with the replies to its checks. Raises LedgerError if the run must not go on, ServerError."""
        if head != self.head_reply:
            role = LedgerHead.read(head).role_of(self.keys.batch, self.shown)
            if role not in (Role.JOIN, Role.DONE):
                raise refusals.changed_meanwhile(self.keys.batch, self.shown)
            self.learn_head(head)
            self.done = role is Role.DONE
        if length != len(self.known_marks):
            self.learn_marks(server.execute("HGETALL", self.marks))
        if self.recovers:
            self.read_claims(server)


@dataclass(frozen=True)
class StreamRows:
    """One stream's rows in a chunk. places: slice of the chunk's rows; hashes: their fingerprints."""

    view: LedgerView
    places: slice
    hashes: Hashes


class LedgerViews:
    """All views of one task."""

    def __init__(self, batch: Batch, partition: int, attempt: str, in_cluster: bool = False) -> None:
        """in_cluster: the record may be on another node than a stream, so the server may have lost only the head."""
        self.batch = batch
        self.in_cluster = in_cluster
        self.partition = partition
        self.attempt = attempt.encode() + b"."
        self._views: dict[bytes, LedgerView] = {}

    def all(self) -> list[LedgerView]:
        """Every view of this task."""
        return list(self._views.values())

    def views_of(self, streams: Iterable[bytes]) -> list[LedgerView]:
        """Return the views of these streams, opened or not."""
        views = []
        for stream in streams:
            if stream not in self._views:
                keys = Keys.for_stream(stream, self.batch)
                self._views[stream] = LedgerView(stream, keys, keys.part(self.partition), self.attempt)
            views.append(self._views[stream])
        return views

    def shares(self, chunk: Chunk) -> list[StreamRows]:
        """Return the chunk's rows by their streams."""
        assert chunk.hashes is not None
        return [
            StreamRows(view, slice(start, stop), chunk.hashes[start:stop])
            for view, (_, start, stop) in zip(self.views_of(chunk.stream_names), chunk.segments, strict=True)
        ]
