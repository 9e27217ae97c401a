"""What one task knows of the ledger, stream by stream, and what it asks the server to know more. Pure but for asking.

A task has a view of each stream that it writes to. It opens one when it has its first row for the stream (opening.py);
from then on each transaction asks again whether head and marks are still as the view has them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_streams.sink import refusals
from spark_streams.sink.batch import Batch
from spark_streams.sink.fingerprint import Hashes, Multiset
from spark_streams.sink.ledger import HEAD_FIELDS, Command, Head, Keys, Role, read_mark
from spark_streams.wire.connection import Reply, ReplyError

_PROLONG = 3600.0  # seconds; what a job leaves on the server lives 168 times as long (JOB_SECONDS)
# One round trip: commands in, replies out.
Ask = Callable[[Sequence[Command]], list[Reply]]


@dataclass
class LedgerView:
    """One stream's part in the ledger, as a task knows it."""

    stream: bytes
    keys: Keys
    marks: bytes  # the key of this partition's marks
    head: Head = field(default_factory=Head)
    answered: Sequence[bytes | None] = ()  # the same as the server's answer to HMGET
    done: bool = False  # the batch is complete: nothing is written
    seen: set[bytes] = field(default_factory=set)  # marks that are known
    mine: set[bytes] = field(default_factory=set)  # those of them that this attempt has made
    others: Multiset = field(default_factory=Multiset)  # rows written by other attempts of this partition, not yet met
    earlier: Multiset = field(default_factory=Multiset)  # rows written by earlier runs that nobody has claimed yet
    carried: bytes = b""  # fingerprints of rows that an earlier piece of the same batch has written for this one
    recovers: bool = False
    claims_read: int = 0  # bytes
    rows: int = 0  # that this task has had for the stream, whoever wrote them
    total: int = 0  # the sum of their fingerprints, mod 2^64
    marked: bool = False  # this attempt has made a mark
    opened: bool = False
    kind: bytes = b"none"  # what the server says that the stream's key holds
    prolonged: float = field(default_factory=time.monotonic)  # when head and parts were told to live on

    @property
    def shown(self) -> str:
        """The stream's name in messages."""
        return self.stream.decode("utf-8", "replace")

    @property
    def is_untouched(self) -> bool:
        """Whether nobody else has written rows here: all of this task's are simply to be written."""
        return not self.done and not len(self.earlier) and not len(self.others)

    @property
    def is_plain(self) -> bool:
        """Whether nobody but this attempt has written rows of its partition."""
        return not self.recovers and len(self.seen) == len(self.mine)

    def prolong(self) -> list[bytes]:
        """Once an hour, head and parts, which are to be told that the job goes on: other tasks WATCH the head, and with
        each chunk it would stop theirs."""
        now = time.monotonic()
        if now - self.prolonged < _PROLONG:
            return []
        self.prolonged = now
        return [self.keys.head, self.keys.parts]

    def watched(self) -> list[bytes]:
        """The keys whose change must stop a transaction."""
        return [self.keys.head, self.marks, *([self.keys.part("claims")] if len(self.earlier) else [])]

    def expected(self) -> bytes:
        """The replies to HMGET and HLEN of `questions` while nothing has changed."""
        lines = [b"$-1\r\n" if text is None else b"$%d\r\n%b\r\n" % (len(text), text) for text in self.answered]
        return b"*%d\r\n%b:%d\r\n" % (len(lines), b"".join(lines), len(self.seen))

    def questions(self) -> list[Command]:
        """HMGET of the head, HLEN of the marks."""
        return [("HMGET", self.keys.head, *HEAD_FIELDS), ("HLEN", self.marks)]

    def learn_head(self, reply: Sequence[bytes | None]) -> None:
        """The head, from the server's answer to HMGET."""
        self.head, self.answered = Head.read(reply), reply

    def count(self, hashes: Hashes) -> None:
        """Rows have come in."""
        self.rows += len(hashes)
        with np.errstate(over="ignore"):
            self.total = (self.total + int(hashes.sum(dtype=np.uint64))) % 2**64


class LedgerViews:
    """All views of one task. Every method that asks may be run again after a lost connection."""

    def __init__(self, batch: Batch, partition: int, attempt: str, apart: bool = False) -> None:
        """apart: the record may stand on another server than a stream, which may have lost its head alone."""
        self.batch = batch
        self.apart = apart
        self.partition = partition
        self.attempt = attempt
        self._views: dict[bytes, LedgerView] = {}
        self._own: dict[tuple[bytes, bytes], Hashes] = {}  # stream, name → what marks of this attempt say

    def all(self) -> list[LedgerView]:
        """Every view of this task."""
        return list(self._views.values())

    def of(self, streams: Iterable[bytes]) -> list[LedgerView]:
        """The views of these streams, opened or not."""
        found = []
        for stream in streams:
            if stream not in self._views:
                keys = Keys.of(stream, self.batch)
                self._views[stream] = LedgerView(stream, keys, keys.part(self.partition))
            found.append(self._views[stream])
        return found

    def read_claims(self, view: LedgerView, ask: Ask) -> None:
        """What this run has claimed since the last look: nobody else may claim it."""
        claims = checked(ask([("GETRANGE", view.keys.part("claims"), view.claims_read, -1)]))[0]
        view.earlier.remove(np.frombuffer(claims, "<u8").astype(np.uint64))
        view.claims_read += len(claims)

    def read_marks(self, view: LedgerView, ask: Ask) -> None:
        """Marks of this partition that were not known: rows of other attempts, or our own of unknown outcome."""
        self.met_marks(view, checked(ask([("HGETALL", view.marks)]))[0])

    def met_marks(self, view: LedgerView, flat: Sequence[bytes]) -> None:
        """The same, from HGETALL's reply."""
        own = self.attempt.encode() + b"."
        for name, mark in zip(flat[0::2], flat[1::2], strict=True):
            if name in view.seen:
                continue
            view.seen.add(name)
            if name.startswith(own):
                view.mine.add(name)
                self._own[view.stream, name] = np.concatenate(read_mark(mark))
            else:
                view.others.add(np.concatenate(read_mark(mark)))

    def made(self, view: LedgerView, name: bytes, hashes: Hashes) -> None:
        """A mark of this attempt is known to be there."""
        view.seen.add(name)
        view.mine.add(name)
        view.marked = True
        self._own[view.stream, name] = hashes

    def own(self, view: LedgerView, name: bytes) -> Hashes | None:
        """What this mark of our own says; None where it is not known to be there."""
        return self._own.get((view.stream, name))

    def forget(self, name: bytes) -> None:
        """The chunk of this mark is finished."""
        for view in self._views.values():
            self._own.pop((view.stream, name), None)

    def forget_all(self) -> None:
        """All chunks are finished."""
        self._own.clear()

    def begin_afresh(self, views: Sequence[LedgerView]) -> None:
        """Take nothing of these for known: the server may be another one. The rows that came in stay counted."""
        for view in views:
            view.seen, view.mine, view.others, view.earlier = set(), set(), Multiset(), Multiset()
            view.opened = view.marked = view.done = False

    def look_again(self, views: Sequence[LedgerView], heads: Sequence[Reply], lengths: Sequence[int], ask: Ask) -> None:
        """Bring views up to date with what `questions` gave. Raises LedgerError where the run must not go on."""
        for view, reply, length in zip(views, heads, lengths, strict=True):
            if reply != view.answered:
                self._head_has_changed(view, reply)
            if length != len(view.seen):
                self.read_marks(view, ask)
            if view.recovers:
                self.read_claims(view, ask)

    def _head_has_changed(self, view: LedgerView, reply: Sequence[bytes | None]) -> None:
        role = Head.read(reply).role_of(self.batch, view.shown)
        if role not in (Role.JOIN, Role.DONE):
            raise refusals.changed_meanwhile(self.batch, view.shown)
        view.learn_head(reply)
        view.done = role is Role.DONE


def checked(replies: list[Reply]) -> list[Reply]:
    """The same. Raises the first error among the replies, as a ReplyError."""
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise reply
        if isinstance(reply, list):
            checked(reply)
    return replies
