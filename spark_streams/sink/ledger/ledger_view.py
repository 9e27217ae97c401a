"""What one task knows of the ledger, stream by stream. Pure, but for methods that are given a server.

A task has a view of each stream that it writes to. It opens one when it has its first row for the stream (opening.py);
from then on each transaction checks that head and marks are still as the view has them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_streams.sink.encode.chunks import Chunk
from spark_streams.sink.encode.fingerprint import Hashes, Multiset
from spark_streams.sink.ledger import refusals
from spark_streams.sink.ledger.batch import Batch
from spark_streams.sink.ledger.ledger import HEAD_FIELDS, Command, Head, Keys, Role, read_mark
from spark_streams.wire.connection.server import Server

_PROLONG = 3600.0  # seconds; what a job leaves on the server lives 168 times as long (JOB_SECONDS)


@dataclass
class LedgerView:
    """One stream's part in the ledger, as a task knows it. marks: the key of this partition's marks; attempt: what the
    names of its own marks begin with. A method that is given a server may be run again after a lost connection."""

    stream: bytes
    keys: Keys
    marks: bytes
    attempt: bytes
    head: Head = field(default_factory=Head, init=False)
    answered: Sequence[bytes | None] = field(default=(), init=False)  # the head, as the server's answer to HMGET
    done: bool = field(default=False, init=False)  # the batch is complete: nothing is written
    seen: set[bytes] = field(default_factory=set, init=False)  # names of the marks that this task knows
    mine: set[bytes] = field(default_factory=set, init=False)  # those of them that this attempt has written
    # Marks of this attempt that were read from the server because the reply to their EXEC was lost.
    recovered: dict[bytes, Hashes] = field(default_factory=dict, init=False)
    # Rows that other attempts of this partition have written, and this task has not received yet.
    others: Multiset = field(default_factory=Multiset, init=False)
    # Rows that earlier runs have written, and no task has claimed yet.
    earlier: Multiset = field(default_factory=Multiset, init=False)
    carried: bytes = field(default=b"", init=False)  # fingerprints: written for this batch by an earlier piece of it
    recovers: bool = field(default=False, init=False)  # this run goes on after one that was killed
    claims_read: int = field(default=0, init=False)  # bytes
    rows: int = field(default=0, init=False)  # received for the stream, whoever wrote them
    total: int = field(default=0, init=False)  # the sum of their fingerprints, mod 2^64
    opened: bool = field(default=False, init=False)
    prolonged: float = field(default_factory=time.monotonic, init=False)  # when the expiry was renewed

    @property
    def shown(self) -> str:
        """The stream's name in messages."""
        return self.stream.decode("utf-8", "replace")

    @property
    def is_untouched(self) -> bool:
        """Whether nobody else has written rows here: all of this task's are simply to be written."""
        return not self.done and not self.earlier.size and not self.others.size

    @property
    def is_plain(self) -> bool:
        """Whether nobody but this attempt has written rows of its partition."""
        return not self.recovers and len(self.seen) == len(self.mine)

    def prolong(self) -> list[bytes]:
        """Once an hour, the keys of head and parts: their expiry is to be renewed. Not with each chunk, because other
        tasks WATCH the head."""
        now = time.monotonic()
        if now - self.prolonged < _PROLONG:
            return []
        self.prolonged = now
        return [self.keys.head, self.keys.parts]

    def expected(self) -> bytes:
        """The replies to HMGET and HLEN of `checks` if the ledger has not changed."""
        lines = [b"$-1\r\n" if text is None else b"$%d\r\n%b\r\n" % (len(text), text) for text in self.answered]
        return b"*%d\r\n%b:%d\r\n" % (len(lines), b"".join(lines), len(self.seen))

    def checks(self) -> tuple[list[bytes], list[Command]]:
        """(keys to WATCH, commands that read the ledger). HLEN is enough for the marks: marks are only added, and one
        is corrected only if its rows were refused, by a task that then fails."""
        watched = [self.keys.head, self.marks, *([self.keys.part("claims")] if self.earlier.size else [])]
        return watched, [("HMGET", self.keys.head, *HEAD_FIELDS), ("HLEN", self.marks)]

    def learn_head(self, reply: Sequence[bytes | None]) -> None:
        """The head, from the server's answer to HMGET."""
        self.head, self.answered = Head.read(reply), reply

    def count(self, hashes: Hashes) -> None:
        """Rows were received."""
        self.rows += len(hashes)
        with np.errstate(over="ignore"):
            self.total = (self.total + int(hashes.sum(dtype=np.uint64))) % 2**64

    def read_claims(self, server: Server) -> None:
        """Read what this run has claimed since the last read: no other task may claim it."""
        claims = server.execute("GETRANGE", self.keys.part("claims"), self.claims_read, -1)
        self.earlier.remove(np.frombuffer(claims, "<u8").astype(np.uint64))
        self.claims_read += len(claims)

    def met_marks(self, flat: Sequence[bytes]) -> None:
        """Learn the marks of this partition that were not known, from HGETALL's reply: those of other attempts, and our
        own whose EXEC reply was lost."""
        for name, mark in zip(flat[0::2], flat[1::2], strict=True):
            if name in self.seen:
                continue
            self.seen.add(name)
            hashes = np.concatenate(read_mark(mark))
            if name.startswith(self.attempt):
                self.mine.add(name)
                self.recovered[name] = hashes
            else:
                self.others.add(hashes)

    def made(self, name: bytes, claims: Hashes) -> None:
        """This attempt has written a mark. claims: the rows of earlier runs that it claims."""
        self.seen.add(name)
        self.mine.add(name)
        if len(claims):
            self.earlier.remove(claims)
            self.claims_read += 8 * len(claims)  # the key was WATCHed, so no other claims are between

    def met(self, name: bytes, hashes: Hashes) -> None:
        """The chunk of this mark is executed. hashes: its rows that other attempts have written."""
        self.others.remove(hashes)
        self.recovered.pop(name, None)

    def look_again(self, server: Server, head: Sequence[bytes | None], length: int) -> None:
        """Bring the view up to date with the answers to its checks. Raises LedgerError if the run must not go on,
        ServerError."""
        if head != self.answered:
            role = Head.read(head).role_of(self.keys.batch, self.shown)
            if role not in (Role.JOIN, Role.DONE):
                raise refusals.changed_meanwhile(self.keys.batch, self.shown)
            self.learn_head(head)
            self.done = role is Role.DONE
        if length != len(self.seen):
            self.met_marks(server.execute("HGETALL", self.marks))
        if self.recovers:
            self.read_claims(server)

    def begin_afresh(self) -> None:
        """Forget what was read: the server may be another one. The rows that were received stay counted."""
        self.seen, self.mine, self.recovered, self.others, self.earlier = set(), set(), {}, Multiset(), Multiset()
        self.opened = self.done = False


@dataclass(frozen=True)
class Share:
    """One stream's rows in a chunk. places: which rows these are; hashes: their fingerprints."""

    view: LedgerView
    places: slice
    hashes: Hashes


class LedgerViews:
    """All views of one task."""

    def __init__(self, batch: Batch, partition: int, attempt: str, apart: bool = False) -> None:
        """apart: the record may stand on another server than a stream, which may have lost its head alone."""
        self.batch = batch
        self.apart = apart
        self.partition = partition
        self.attempt = attempt.encode() + b"."
        self._views: dict[bytes, LedgerView] = {}

    def all(self) -> list[LedgerView]:
        """Every view of this task."""
        return list(self._views.values())

    def of(self, streams: Iterable[bytes]) -> list[LedgerView]:
        """The views of these streams, opened or not."""
        found = []
        for stream in streams:
            if stream not in self._views:
                keys = Keys.of(stream, self.batch)
                self._views[stream] = LedgerView(stream, keys, keys.part(self.partition), self.attempt)
            found.append(self._views[stream])
        return found

    def shares(self, chunk: Chunk) -> list[Share]:
        """The chunk's rows by their streams."""
        assert chunk.hashes is not None
        return [
            Share(view, slice(start, stop), chunk.hashes[start:stop])
            for view, (_, start, stop) in zip(self.of(chunk.stream_names), chunk.segments, strict=True)
        ]
