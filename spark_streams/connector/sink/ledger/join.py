"""How a task joins the ledgers of streams that it writes to for the first time (the three steps of ledger.py).

    → WATCH heads   HMGET head …   HMGET record closed stream …       the batches that are open and done
    → HSET record stream … = this batch   HGET record closed          is the batch closed meanwhile?
    → MULTI   HSET head batch runs …   EXEC                           nil: a head was changed; try again
    → SMEMBERS parts   GET carried   HGETALL marks …                  rows that are written already

A task omits steps that it does not need. If another task has entered the run in the head, it takes only the first and
the last step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from spark_streams.connector.keys import CLOSED
from spark_streams.connector.sink.encode.fingerprint import Multiset
from spark_streams.connector.sink.ledger import refusals
from spark_streams.connector.sink.ledger.ledger import (
    HEAD_FIELDS,
    Command,
    MarkKey,
    Role,
    expiry,
    number_in,
    read_mark,
    rows_in,
)
from spark_streams.connector.sink.ledger.ledger_view import LedgerView, LedgerViews
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.multi_exec import transact


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
            view.done = role is Role.DONE
        own_number = b"%d" % self._batch.number
        unnamed = [
            view.stream for view, batch in zip(fresh, named, strict=True) if not view.done and batch != own_number
        ]
        if unnamed and not self._name(unnamed, closed):
            return False
        entering = [view for view, role in zip(fresh, roles, strict=True) if role in (Role.OPEN, Role.TAKE_OVER)]
        return not entering or self._enter_heads(entering)

    def _read_heads(self, fresh: Sequence[LedgerView]) -> tuple[bytes | None, list[bytes | None]]:
        """WATCH and read the heads. Return from the record the batch that is closed, and for each of these streams the
        last batch that wrote to it."""
        _, _, *heads, record = self._server.execute_all([
            ("UNWATCH",),
            ("WATCH", *[view.keys.head for view in fresh]),
            *[("HMGET", view.keys.head, *HEAD_FIELDS) for view in fresh],
            ("HMGET", self._batch.record, CLOSED, *[view.stream for view in fresh]),
        ])  # fmt: skip
        for view, reply in zip(fresh, heads, strict=True):
            view.learn_head(reply)
        return record[0], record[1:]

    def _enter_heads(self, entering: Sequence[LedgerView]) -> bool:
        """Write this run into the heads. Return False if a head was changed since it was read."""
        results = transact(self._server, [
            *[command for view in entering for command in view.head.entered(view.keys)],
            *[("HMGET", view.keys.head, *HEAD_FIELDS) for view in entering],
        ])  # fmt: skip
        if results is None:
            return False
        for view, reply in zip(entering, results[-len(entering) :], strict=True):
            view.learn_head(reply)
        return True

    def _role(self, view: LedgerView, closed: bytes | None, named: bytes | None) -> Role:
        """Return what the task is to do with this stream. closed, named: from the record. Raises LedgerError."""
        batch = self._batch
        if batch.expires and closed is None:
            raise refusals.job_is_over(batch, view.shown)
        if closed is not None and number_in(closed) >= batch.number:
            if number_in(closed) > batch.number:
                raise refusals.set_back(batch, view.shown, number_in(closed))
            return Role.DONE
        role = view.head.role_of(batch, view.shown)
        if role is Role.OPEN:
            self._require_nothing_lost(view, closed, named)
        return role

    def _name(self, streams: Sequence[bytes], closed: bytes | None) -> bool:
        """Write these streams into the record. Return whether still the same batch is closed."""
        record = self._batch.record
        words = [word for stream in streams for word in (stream, self._batch.number)]
        closed_now = self._server.execute_all(
            [("HSET", record, *words), *expiry(self._batch, record), ("HGET", record, CLOSED)]
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
            rows = rows_in(self._server.execute_all(head.counts(view.keys, map(MarkKey.read, parts))))
            refusals.give_up(batch, view.shown, earlier, rows, view.keys.head)
        elif (
            (head.batch is not None or self._views.in_cluster)
            and named is not None
            and closed is not None
            and head.lacks(number_in(named), number_in(closed))
        ):
            raise refusals.lost_done(batch, view.shown, number_in(named), head.last_done, view.keys.head)

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
            parts = [MarkKey.read(name) for name in names]
            stale = [part for part in parts if part.batch < self._batch.number]
            view.carried = self._drop_stale(view, stale) if stale else carried or b""
            own_part = view.marks[len(view.keys.head) + 1 :].decode()
            if not marks and any(part.name == own_part for part in parts):
                raise refusals.missing_marks(self._batch, view.shown, own_part)
            view.learn_marks(marks)
            self._read_earlier(view, parts)

    def _drop_stale(self, view: LedgerView, stale: Sequence[MarkKey]) -> bytes:
        """Drop the marks of an earlier batch that was not finished. If this batch is a piece of it, carry the rows of
        these marks. Return what is carried then."""
        keys = [view.keys.named(part.name) for part in stale]
        with_marks = [part for part in stale if part.has_marks]
        removal: list[Command] = [("UNLINK", *keys), ("SREM", view.keys.parts, *[part.name for part in stale])]
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
                    [read_mark(mark)[0].astype("<u8").tobytes() for of_part in marks for mark in of_part]
                )
            carry: list[Command] = [("SET", view.keys.carried, carried)] if carried else []
            if transact(self._server, [*carry, *removal]) is not None:
                return bytes(carried)

    def _read_earlier(self, view: LedgerView, parts: Sequence[MarkKey]) -> None:
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
                written, _ = read_mark(mark)
                view.unclaimed.add(written)
                listed[part.run] += len(written)
        for run, count in zip(runs, replies[len(earlier) :], strict=True):
            if number_in(count or b"0") > listed[run]:  # `parts` was deleted, and does not list all marks
                raise refusals.missing_marks(batch, view.shown, f"{batch.number}:{run}")
        view.recovers = bool(view.carried or earlier)
        if view.recovers:
            view.read_claims(self._server)
