"""Exactly once: each chunk is one transaction with its mark in the ledger (ledger.py).

    → WATCH head marks   HMGET head …   HLEN marks   ECHO      is everything as this task knows it?
    → MULTI   XADD …   XTRIM   HSET marks …                    sent while the server carries out the chunk before
    ← the ids of the chunk before, or nil where head or marks have changed since its WATCH
    ← the answers to the first line
    → EXEC   ECHO                                              carried out while the next chunk is made

That is the fast way, for rows that are simply to be written. Whatever does not go that way (marks of a twin, rows that
an earlier run has written, explicit ids, an error, a lost connection) is resolved, slowly and one chunk at a time
(resolving.py).

A task that finds marks of its own partition when it begins is a retry. It writes nothing until it has met all rows that
are marked: what it cannot write yet is held, beyond 64 MB in a file. Should it end without having met them, its
rows are not those of the attempt before, and it has written nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum

import numpy as np

from spark_streams.errors import ServerError, ServerUnreachableError
from spark_streams.sink import refusals
from spark_streams.sink.chunks import Chunk
from spark_streams.sink.covering import Covering
from spark_streams.sink.fingerprint import Hashes, Multiset
from spark_streams.sink.ledger_view import LedgerView, LedgerViews, checked
from spark_streams.sink.limits import Limits
from spark_streams.sink.opening import open_views
from spark_streams.sink.pace import Pace
from spark_streams.sink.resolving import Resolver, Write, parts_of
from spark_streams.sink.rows import with_known_tops
from spark_streams.sink.spill_queue import SpillQueue
from spark_streams.sink.trim import Trimmer
from spark_streams.wire.connection import ReplyError, pack
from spark_streams.wire.pipe import Pipe
from spark_streams.wire.session import Session

_QUEUED = b"+QUEUED\r\n"


class _Heard(Enum):
    """What became of a chunk whose EXEC was sent, and of the one that was sent behind it."""

    AS_EXPECTED = "written, and the following one is queued"
    WRITTEN = "written, and nothing is queued"
    UNKNOWN = "not known to be written, and nothing is queued"


class LedgerSender:
    """Sends chunks over a session, each at most once, whoever else sends the same."""

    def __init__(
        self,
        session: Session,
        trimmer: Trimmer,
        views: LedgerViews,
        limits: Limits,
        pace: Pace,
        replicas: int | None = None,
    ) -> None:
        """replicas: as Covering's."""
        self._session = session
        self._trimmer = trimmer
        self._views = views
        self._limits = limits
        self._pace = pace
        self._resolver = Resolver(session, trimmer, views, limits, pace, self._look)
        self._covering = Covering(session, views, self._resolver, replicas)
        self._executing: dict[Pipe, Write] = {}  # EXEC is sent; one for each server
        self._numbered = 0

    def run(self, chunks: Iterable[Chunk]) -> int:
        """Send all that is not written yet; how many rows there were.

        Raises LedgerError where what is written already cannot be proved to be these rows, or is lost, the named error
        of a row that the server refuses, ReplicationError.
        """
        rows = 0
        with SpillQueue() as held:
            for chunk in self._limits.fitting(chunks):
                rows += len(chunk)
                self._open(chunk)
                self._write_or_hold(chunk, held)
            self._flush()
            self._require_all_met()
            self._write_all(held.release())
            self._flush()
            self._require_all_met()
            self._covering.cover(at_the_end=True)
        return rows

    def _write_or_hold(self, chunk: Chunk, held: SpillQueue) -> None:
        """A retry holds its rows until it has met all that the attempts before it have written."""
        if not held and not self._is_retry(chunk):
            self._write(chunk)
            return
        left = self._without_known(chunk)
        if self._unmet():
            held.add(left)
            return
        self._write_all(held.release())
        self._write(left)

    def _look(self) -> None:
        self._covering.look()

    # -- before writing -----------------------------------------------------------------------------------------

    def _open(self, chunk: Chunk) -> None:
        """Come into the ledgers of the chunk's streams, and count its rows."""
        views = self._views.of(chunk.stream_names())
        if not all(view.opened for view in views):
            self._flush()
            self._resolver.asking(lambda: open_views(self._views, views, self._resolver.ask))
            self._covering.begin()
            for view in views:
                if view.kind not in (b"none", b"stream"):
                    raise self._session.get().not_a_stream(view.stream, "XADD")
        for view, _, _, hashes in self._parts(chunk):
            view.count(hashes)

    def _is_retry(self, chunk: Chunk) -> bool:
        return any(len(view.others) for view in self._views.of(chunk.stream_names()))

    def _unmet(self) -> int:
        return sum(len(view.others) for view in self._views.all() if not view.done)

    def _without_known(self, chunk: Chunk) -> Chunk:
        """Without the rows that other attempts have written; they count as met."""
        wanted = np.ones(len(chunk), np.bool_)
        for view, start, stop, hashes in self._parts(chunk):
            known = view.others.matching(hashes)
            view.others.remove(hashes[known])
            wanted[start:stop] = ~known
        return chunk.where(wanted)

    def _require_all_met(self) -> None:
        for view in self._views.all():
            unmet = 0 if view.done else len(view.others)
            if not unmet:
                continue
            if not self._is_lossy():
                raise refusals.other_attempt(self._views.batch, view.shown, self._views.partition, unmet)
            view.others = Multiset()

    def _is_lossy(self) -> bool:
        """Whether the source says that it has fewer entries than an earlier attempt had."""
        batch = self._views.batch
        [told] = self._resolver.asking(lambda: checked(self._resolver.ask([batch.asks_kind])))
        return batch.kind(told).lossy

    def _parts(self, chunk: Chunk) -> Iterator[tuple[LedgerView, int, int, Hashes]]:
        return parts_of(chunk, self._views.of(chunk.stream_names()))

    # -- writing ------------------------------------------------------------------------------------------------

    def _write_all(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            self._write(chunk)

    def _write(self, chunk: Chunk) -> None:
        for piece in with_known_tops(chunk):
            self._write_piece(piece)

    def _write_piece(self, chunk: Chunk) -> None:
        """Write a chunk the fast way or the slow one. When this returns it is written, or its EXEC is sent."""
        views = self._views.of(chunk.stream_names())
        if all(view.done for view in views):
            return
        if self._covering.is_due:
            self._flush()
            self._covering.cover()
        if not self._executing:
            self._covering.look()
        self._numbered += 1
        write = Write(chunk, f"{self._views.attempt}.{self._numbered}".encode(), views)
        self._covering.add(write)
        if chunk.ids is not None or not all(view.is_untouched for view in views):
            self._flush()
            self._resolver.resolve(write)
        else:
            self._pace.wait(len(chunk))
            self._finish(self._send(write))

    def _flush(self) -> None:
        """Hear of the chunks whose EXEC is sent."""
        left: list[Write] = []
        while self._executing:
            pipe, write = self._executing.popitem()
            try:
                if self._hear(pipe, write, is_followed=False) is _Heard.UNKNOWN:
                    left.append(write)
            except ServerUnreachableError as error:
                left += [write, *self._given_up(error)]
        for write in left:
            self._resolver.resolve(write)

    def _finish(self, left: list[Write]) -> None:
        """Resolve these: nothing else is under way then."""
        if left:
            self._flush()
            for write in left:
                self._resolver.resolve(write)

    # -- the fast way -------------------------------------------------------------------------------------------

    def _send(self, write: Write) -> list[Write]:
        """Send a chunk behind the one that its server carries out, and EXEC it when that one is written. What is to be
        resolved: both, where anything is not as expected."""
        try:
            pipe = self._session.pipe_of(write.stream)
            if self._has_moved(write, pipe):
                self._flush()  # its rows stay in their order
                pipe = self._session.pipe_of(write.stream)
            pipe.send(*self._request(pipe, write))
        except ServerError as error:
            return [*self._given_up(error), write]
        before = self._executing.pop(pipe, None)
        behind = [] if before is None else [before]
        try:
            heard = _Heard.AS_EXPECTED if before is None else self._hear(pipe, before, is_followed=True)
            if heard is not _Heard.UNKNOWN:
                behind = []
            if heard is not _Heard.AS_EXPECTED:
                return [*behind, write]
            if pipe.take() != write.expected():
                self._discard(pipe)
                return [write]
            pipe.send(pack("EXEC"), pipe.mark)
        except ServerUnreachableError as error:
            return [*behind, write, *self._given_up(error)]
        self._executing[pipe] = write
        return []

    def _has_moved(self, write: Write, pipe: Pipe) -> bool:
        """Whether rows of the same stream are being carried out elsewhere: its slot is on its way."""
        return any(
            other is not pipe and before.shares_a_stream_with(write) for other, before in self._executing.items()
        )

    def _hear(self, pipe: Pipe, write: Write, is_followed: bool) -> _Heard:
        """What EXEC has come to. is_followed: another chunk is sent behind it. Raises ServerUnreachableError: then
        nobody knows whether it is written, and nothing is queued."""
        replies = pipe.take()
        if _went_well(write, replies):
            self._resolver.written(write, None)
            return _Heard.AS_EXPECTED
        if is_followed:
            pipe.take()  # the answers to its questions
            self._discard(pipe)
        # Nothing is under way any more: rows that were refused can be taken back from the mark.
        try:
            carried_out = self._resolver.is_carried_out(write, write.chunk, None, replies)
        except ReplyError:  # the server has given the transaction up
            carried_out = False
        return _Heard.WRITTEN if carried_out else _Heard.UNKNOWN

    def _given_up(self, error: ServerError) -> list[Write]:
        """All connections are made anew: of what was carried out on any nobody knows whether it is written."""
        self._session.again(error)
        dropped = list(self._executing.values())
        self._executing.clear()
        return dropped

    def _discard(self, pipe: Pipe) -> None:
        """Drop what is queued behind MULTI, and its replies."""
        pipe.send(pack("DISCARD"), pipe.mark)
        pipe.take()

    def _request(self, pipe: Pipe, write: Write) -> list[bytes | memoryview]:
        """The first two lines of the drawing above."""
        watched = [key for view in write.views for key in view.watched()]
        questions = [pack(*question) for view in write.views for question in view.questions()]
        first = b"".join([pack("WATCH", *watched), *questions, pipe.mark, pack("MULTI")])
        chunk = write.chunk
        trims = self._trimmer.commands(chunk)
        marks = [pack(*command) for command in self._resolver.marks(write, None)]
        write.commands = len(chunk) + len(trims) + len(marks)
        return [first, chunk.requests.slice(0, len(chunk)), b"".join([*trims, *marks])]


def _went_well(write: Write, replies: bytes) -> bool:
    """Whether all commands were queued, and EXEC has carried them out without an error."""
    head = len(b"+OK\r\n") + len(_QUEUED) * write.commands
    return replies.startswith(b"*%d\r\n" % write.commands, head) and replies.find(b"\n-", head) < 0
