"""Views of the ledger: what one task knows of it, by stream; and how a task joins the ledger of a stream.

A task has a view of each stream that it writes to. It opens the view when it has its first row for the stream (the
three steps of ledger.py):

    → WATCH heads   HMGET head …   HMGET record closed stream …       the batches that are open and done
    → HSET record stream … = this batch   HGET record closed          is the batch closed meanwhile?
    → MULTI   HSET head batch runs …   EXEC                           nil: a head was changed; try again
    → SMEMBERS parts   GET carried   HGETALL marks …                  rows that are written already

A task omits steps that it does not need. If another task has entered the run in the head, it takes only the first and
the last step. Each later transaction checks that head and marks have not changed since the view was read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_streams.connector.keys import CLOSED
from spark_streams.connector.sink import ledger, refusals
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.chunks import Chunk
from spark_streams.connector.sink.fingerprint import Hashes, Multiset
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.replies import transact

_PROLONG = 3600.0  # seconds; a job's keys live 168 times as long (JOB_SECONDS)


@dataclass
class LedgerView:
    """One stream's ledger, as a task knows it.

    A method that takes a server may be run again after a lost connection.
    """

    stream: bytes
    keys: ledger.Keys
    marks: bytes  # key of this partition's marks
    attempt: bytes  # prefix of the names of this attempt's marks
    head: ledger.LedgerHead = field(default_factory=ledger.LedgerHead, init=False)
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
    opened: bool = field(default=False, init=False)  # this run is entered in the head, and what is written was read
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

    def checks(self) -> tuple[list[bytes], list[ledger.Command]]:
        """Return (keys to WATCH, commands that read the ledger). HLEN is enough for the marks: marks are only added. A
        task corrects a mark only if the server refused its rows, and then fails."""
        watched = [self.keys.head, self.marks, *([self.keys.part("claims")] if self.unclaimed.size else [])]
        return watched, [("HMGET", self.keys.head, *ledger.HEAD_FIELDS), ("HLEN", self.marks)]

    def learn_head(self, reply: Sequence[bytes | None]) -> None:
        """Take the head from the reply to HMGET."""
        self.head, self.head_reply = ledger.LedgerHead.read(reply), reply

    def count(self, hashes: Hashes) -> None:
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
            hashes = np.concatenate(ledger.read_mark(mark))
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
            role = ledger.LedgerHead.read(head).role_of(self.keys.batch, self.shown)
            if role not in (ledger.Role.JOIN, ledger.Role.DONE):
                raise refusals.changed_meanwhile(self.keys.batch, self.shown)
            self.learn_head(head)
            self.done = role is ledger.Role.DONE
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
        return list(self._views.values())

    def views_of(self, streams: Iterable[bytes]) -> list[LedgerView]:
        """Return the views of these streams, opened or not."""
        views = []
        for stream in streams:
            if stream not in self._views:
                keys = ledger.Keys.for_stream(stream, self.batch)
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


def open_views(server: Server, views: LedgerViews, requested: Sequence[LedgerView]) -> None:
    """Enter this run in the heads of streams that it has not written to yet, and read the rows that are written.

    May be run again after a lost connection. Raises LedgerError if the task must not write, ServerError.
    """
    fresh = [view for view in requested if not view.opened]
    if fresh:
        join = LedgerJoin(server, views)
        while not join.enter(fresh):
            pass
        join.read([view for view in fresh if not view.done])
        for view in fresh:
            view.opened = True


class LedgerJoin:
    def __init__(self, server: Server, views: LedgerViews) -> None:
        self._server = server
        self._views = views
        self._batch = views.batch

    # -- entering -----------------------------------------------------------------------------------------------

    def enter(self, fresh: Sequence[LedgerView]) -> bool:
        """Try once. Return False if the ledger has changed meanwhile. Raises LedgerError, ServerError."""
        closed, named = self._read_heads(fresh)
        roles = [self._role(view, closed, batch) for view, batch in zip(fresh, named, strict=True)]
        for view, role in zip(fresh, roles, strict=True):
            view.done = role is ledger.Role.DONE
        own_number = b"%d" % self._batch.number
        unnamed = [
            view.stream for view, batch in zip(fresh, named, strict=True) if not view.done and batch != own_number
        ]
        if unnamed and not self._name(unnamed, closed):
            return False
        entering = [
            view for view, role in zip(fresh, roles, strict=True) if role in (ledger.Role.OPEN, ledger.Role.TAKE_OVER)
        ]
        return not entering or self._enter_heads(entering)

    def _read_heads(self, fresh: Sequence[LedgerView]) -> tuple[bytes | None, list[bytes | None]]:
        """WATCH and read the heads. Return from the record the batch that is closed, and for each of these streams the
        last batch that wrote to it."""
        _, _, *heads, record = self._server.execute_all([
            ("UNWATCH",),
            ("WATCH", *[view.keys.head for view in fresh]),
            *[("HMGET", view.keys.head, *ledger.HEAD_FIELDS) for view in fresh],
            ("HMGET", self._batch.record, CLOSED, *[view.stream for view in fresh]),
        ])  # fmt: skip
        for view, reply in zip(fresh, heads, strict=True):
            view.learn_head(reply)
        return record[0], record[1:]

    def _enter_heads(self, entering: Sequence[LedgerView]) -> bool:
        """Write this run into the heads. Return False if a head was changed since it was read."""
        results = transact(self._server, [
            *[command for view in entering for command in view.head.entered(view.keys)],
            *[("HMGET", view.keys.head, *ledger.HEAD_FIELDS) for view in entering],
        ])  # fmt: skip
        if results is None:
            return False
        for view, reply in zip(entering, results[-len(entering) :], strict=True):
            view.learn_head(reply)
        return True

    def _role(self, view: LedgerView, closed: bytes | None, named: bytes | None) -> ledger.Role:
        """Return what the task is to do with this stream. closed, named: from the record. Raises LedgerError."""
        batch = self._batch
        if batch.expires and closed is None:
            raise refusals.job_is_over(batch, view.shown)
        if closed is not None and ledger.number_in(closed) >= batch.number:
            if ledger.number_in(closed) > batch.number:
                raise refusals.set_back(batch, view.shown, ledger.number_in(closed))
            return ledger.Role.DONE
        role = view.head.role_of(batch, view.shown)
        if role is ledger.Role.OPEN:
            self._require_nothing_lost(view, closed, named)
        return role

    def _name(self, streams: Sequence[bytes], closed: bytes | None) -> bool:
        """Write these streams into the record. Return whether still the same batch is closed."""
        record = self._batch.record
        words = [word for stream in streams for word in (stream, self._batch.number)]
        closed_now = self._server.execute_all(
            [("HSET", record, *words), *ledger.expiry(self._batch, record), ("HGET", record, CLOSED)]
        )[-1]
        if self._batch.expires and closed_now is None:
            self._server.execute_all([("UNLINK", record)])  # the job is over: no other client would remove the key
        return bool(closed_now == closed)

    def _require_nothing_lost(self, view: LedgerView, closed: bytes | None, named: bytes | None) -> None:
        """Require that the batch before this one is done, as in Spark: otherwise the server has lost data. Raises
        LedgerError."""
        batch, head = self._batch, view.head
        if closed is None and head.batch is None and head.done is None and batch.follows_another:
            raise refusals.no_record(batch)
        if (earlier := head.open_before(batch.number)) is not None:
            kind_reply, parts = self._server.execute_all([batch.kind_command, ("SMEMBERS", view.keys.parts)])
            if batch.read_kind(kind_reply).narrowed:
                return  # a piece of that batch
            rows = ledger.rows_in(self._server.execute_all(head.counts(view.keys, map(ledger.MarkKey.read, parts))))
            refusals.give_up(batch, view.shown, earlier, rows, view.keys.head)
        elif (
            (head.batch is not None or self._views.in_cluster)
            and named is not None
            and closed is not None
            and head.lacks(ledger.number_in(named), ledger.number_in(closed))
        ):
            raise refusals.lost_done(batch, view.shown, ledger.number_in(named), head.last_done, view.keys.head)

    # -- what is written ----------------------------------------------------------------------------------------

    def read(self, views: Sequence[LedgerView]) -> None:
        """Read marks, claims and carried rows. Earlier runs and batches cannot add to them any more."""
        replies = self._server.execute_all([
            ("UNWATCH",),
            *[command for view in views for command in (
                ("SMEMBERS", view.keys.parts), ("GET", view.keys.carried), ("HGETALL", view.marks),
                ("TYPE", view.stream),
            )],
        ])[1:]  # fmt: skip
        for view, names, carried, marks, kind in zip(views, *[replies[nth::4] for nth in range(4)], strict=True):
            if kind not in (b"none", b"stream"):
                raise self._server.not_a_stream(view.stream, "XADD")
            parts = [ledger.MarkKey.read(name) for name in names]
            stale = [part for part in parts if part.batch < self._batch.number]
            view.carried = self._drop_stale(view, stale) if stale else carried or b""
            own_part = view.marks[len(view.keys.head) + 1 :].decode()
            if not marks and any(part.name == own_part for part in parts):
                raise refusals.missing_marks(self._batch, view.shown, own_part)
            view.learn_marks(marks)
            self._read_earlier(view, parts)

    def _drop_stale(self, view: LedgerView, stale: Sequence[ledger.MarkKey]) -> bytes:
        """Drop the marks of an earlier batch that was not finished. If this batch is a piece of it, carry the rows of
        these marks. Return what is carried then."""
        keys = [view.keys.named(part.name) for part in stale]
        with_marks = [part for part in stale if part.has_marks]
        removal: list[ledger.Command] = [("UNLINK", *keys), ("SREM", view.keys.parts, *[part.name for part in stale])]
        while True:
            kind_reply, _, carried, names, *marks = self._server.execute_all([
                self._batch.kind_command,
                ("WATCH", view.keys.carried),
                ("GET", view.keys.carried),
                ("SMEMBERS", view.keys.parts),
                *[("HVALS", view.keys.named(part.name)) for part in with_marks],
            ])  # fmt: skip
            carried = carried or b""
            if stale[0].name.encode() not in names:  # another task was faster
                self._server.execute("UNWATCH")
                return bytes(carried)
            if self._batch.read_kind(kind_reply).narrowed:
                missing = next((part for part, of_part in zip(with_marks, marks, strict=True) if not of_part), None)
                if missing is not None:
                    raise refusals.missing_marks(self._batch, view.shown, missing.name)
                carried += b"".join(
                    [ledger.read_mark(mark)[0].astype("<u8").tobytes() for of_part in marks for mark in of_part]
                )
            carry: list[ledger.Command] = [("SET", view.keys.carried, carried)] if carried else []
            if transact(self._server, [*carry, *removal]) is not None:
                return bytes(carried)

    def _read_earlier(self, view: LedgerView, parts: Sequence[ledger.MarkKey]) -> None:
        """Read the rows that other runs of this batch have written, or earlier pieces of it."""
        batch = self._batch
        view.unclaimed, view.claims_read = Multiset(), 0
        view.unclaimed.add(np.frombuffer(view.carried, "<u8").astype(np.uint64))
        earlier = [part for part in parts if part.batch == batch.number and part.run != batch.run and part.has_marks]
        runs = [run for run in view.head.runs if run != batch.run]
        replies = self._server.execute_all([
            *[("HVALS", view.keys.named(part.name)) for part in earlier],
            *[("GET", view.keys.part("written", run)) for run in runs],  # after the marks: it may only decrease
        ])  # fmt: skip
        listed = Counter[str]()
        for part, marks in zip(earlier, replies, strict=False):
            if not marks:
                raise refusals.missing_marks(batch, view.shown, part.name)
            for mark in marks:
                written, _ = ledger.read_mark(mark)
                view.unclaimed.add(written)
                listed[part.run] += len(written)
        for run, count in zip(runs, replies[len(earlier) :], strict=True):
            if ledger.number_in(count or b"0") > listed[run]:  # `parts` was deleted, and does not list all marks
                raise refusals.missing_marks(batch, view.shown, f"{batch.number}:{run}")
        view.recovers = bool(view.carried or earlier)
        if view.recovers:
            view.read_claims(self._server)
