"""The slow way to write a chunk once: whatever has happened to it so far, the server says what is left to do.

    → WATCH head marks (claims)   HMGET head …   HLEN marks    and what has changed is read
      which rows has another attempt written, which an earlier run, which this attempt itself?
    → MULTI   XADD … of the others   HSET marks …   EXEC
    ← nil: somebody was faster, once more

The outcome of an EXEC that nobody heard of is in the marks of this attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from spark_streams.errors import ServerUnreachableError
from spark_streams.sink.chunks import Chunk
from spark_streams.sink.fingerprint import Hashes, Mask, Multiset
from spark_streams.sink.ledger import Command, expiry, pack_mark
from spark_streams.sink.ledger_view import LedgerView, LedgerViews
from spark_streams.sink.limits import Limits
from spark_streams.sink.pace import Pace
from spark_streams.sink.rows import error_of_row, first_refused, id_refused
from spark_streams.sink.trim import Trimmer
from spark_streams.wire.connection import Reply, ReplyError, pack
from spark_streams.wire.multi_exec import Outcome, framed
from spark_streams.wire.replies import errors_among, parse_replies
from spark_streams.wire.session import Session
from spark_streams.wire.xinfo import read_stream_state

_NOTHING: Hashes = np.empty(0, np.uint64)
T = TypeVar("T")


@dataclass
class Write:
    """A chunk on its way. mark: the name of its marks; views: of its segments' streams."""

    chunk: Chunk
    mark: bytes
    views: Sequence[LedgerView]
    commands: int = 0  # between MULTI and EXEC

    @property
    def stream(self) -> bytes:
        """One of its streams: all are on one server."""
        return self.views[0].stream

    def shares_a_stream_with(self, other: Write) -> bool:
        """Whether there are rows for the same stream in both."""
        return not {view.stream for view in self.views}.isdisjoint(view.stream for view in other.views)

    def expected(self) -> bytes:
        """The answers to its questions while nothing has changed."""
        return b"+OK\r\n" + b"".join([view.expected() for view in self.views])


@dataclass(frozen=True)
class _Left:
    """What is left to do for the rows of a chunk. wanted: those that nobody of this run has written; claimed: those
    among them that an earlier run has written; met: per stream the fingerprints of rows that other attempts have."""

    wanted: Mask
    claimed: Mask
    met: Sequence[tuple[LedgerView, Hashes]]


def parts_of(chunk: Chunk, views: Sequence[LedgerView]) -> Iterator[tuple[LedgerView, int, int, Hashes]]:
    """(view, start, stop, fingerprints) of each segment."""
    assert chunk.hashes is not None
    for view, (_, start, stop) in zip(views, chunk.segments(), strict=True):
        yield view, start, stop, chunk.hashes[start:stop]


class Resolver:
    """Writes chunks over a session while nothing else is under way on it."""

    def __init__(
        self,
        session: Session,
        trimmer: Trimmer,
        views: LedgerViews,
        limits: Limits,
        pace: Pace,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """look: called before anything is written, also after each new connection."""
        self._look_first = look
        self._session = session
        self._limits = limits
        self._pace = pace
        self._trimmer = trimmer
        self._views = views

    def resolve(self, write: Write) -> None:
        """Write what is not written yet of this chunk, whatever has happened to it so far."""
        while not self.asking(lambda: self._try(write)):
            pass
        self.finished(write)

    def asking(self, attempt: Callable[[], T]) -> T:
        """Repeat something until it succeeds: lost connections and what is transient are waited out. Any other
        ReplyError is raised as the named error that it is."""
        try:
            return self._session.run_part(lambda server: attempt())
        except ReplyError as refusal:
            raise self._session.get().error_of(refusal, ("EXEC", "(the sink's ledger)")) from None

    def ask(self, commands: Sequence[Command]) -> list[Reply]:
        return self._session.get().pipeline(commands)

    def _try(self, write: Write) -> bool:
        """One attempt; whether the chunk is done. Raises a ReplyError or ServerUnreachableError where it may be tried
        again: the mark tells the next attempt what this one has done."""
        self._look_first()
        tops = self._look(write)
        left = self._left_of(write)
        if not left.wanted.any():
            self._session.of(write.stream).execute("UNWATCH")
        elif not self._write(write, left, tops):
            return False
        for view, hashes in left.met:
            view.others.remove(hashes)
        return True

    def _look(self, write: Write) -> dict[bytes, Reply]:
        """WATCH the chunk's ledgers, and bring what is known of them up to date; where its rows have ids, also their
        streams: the XINFO STREAM of each. Raises ReplyError, LedgerError."""
        views = write.views
        explicit = [view.stream for view in views] if write.chunk.ids is not None else []
        watched, *replies = self._session.of(write.stream).pipeline([
            ("WATCH", *[key for view in views for key in view.watched()], *explicit),
            *[question for view in views for question in view.questions()],
            *[("XINFO", "STREAM", stream) for stream in explicit],
        ])  # fmt: skip
        answers = replies[: 2 * len(views)]
        for reply in (watched, *answers):
            if isinstance(reply, ReplyError):
                raise reply
        self._views.look_again(views, answers[0::2], answers[1::2], self.ask)
        return dict(zip(explicit, replies[len(answers) :], strict=True))

    def _left_of(self, write: Write) -> _Left:
        chunk = write.chunk
        wanted = np.zeros(len(chunk), np.bool_)
        claimed = np.zeros(len(chunk), np.bool_)
        met: list[tuple[LedgerView, Hashes]] = []
        for view, start, stop, hashes in parts_of(chunk, write.views):
            own = self._views.own(view, write.mark)
            if own is not None:  # this attempt has written the segment, but for rows that were met already
                met.append((view, hashes[~Multiset.of(own).matching(hashes)]))
                continue
            if view.done:
                continue
            known = view.others.matching(hashes)
            met.append((view, hashes[known]))
            wanted[start:stop] = ~known
            claimed[start + np.flatnonzero(~known)] = view.earlier.matching(hashes[~known])
        return _Left(wanted, claimed, met)

    def _write(self, whole: Write, left: _Left, tops: Mapping[bytes, Reply]) -> bool:
        """MULTI … EXEC of the rows that are left; False where something has changed since WATCH. Raises a ReplyError
        where the server gave it up, ServerUnreachableError, the named error of a row that is refused."""
        rest = whole.chunk.where(left.wanted)
        write = Write(rest, whole.mark, self._views.of(rest.stream_names()))
        claimed = left.claimed[left.wanted]
        fresh = rest.where(~claimed)
        self._check_ids(fresh, tops)
        trims = self._trimmer.commands(fresh)
        marks = self.marks(write, claimed)
        self._pace.wait(len(fresh))
        pipe = self._session.pipe_of(write.stream)
        last = b"".join([*trims, *[pack(*mark) for mark in marks], pack("EXEC"), pipe.mark])
        try:
            pipe.send(pack("MULTI"), fresh.requests.slice(0, len(fresh)), last)
            replies = pipe.take()
        except ServerUnreachableError:
            self._limits.lost(fresh)
            raise
        return self.is_carried_out(write, fresh, claimed, replies)

    def is_carried_out(self, write: Write, fresh: Chunk, claimed: Mask | None, raw: bytes) -> bool:
        """What the replies to MULTI … EXEC say: carried out, or not (nil). fresh: the rows that were sent.

        Raises ReplyError where the server gave it up, the error of the first row that was refused inside it.
        """
        results = Outcome.read(parse_replies(raw)).unless_given_up()
        if results is None:
            return False
        refused = dict(errors_among(results))
        if refused:
            self._take_back(write, fresh, claimed, refused)
        self.written(write, claimed)
        return True

    def _take_back(self, write: Write, fresh: Chunk, claimed: Mask | None, refused: dict[int, ReplyError]) -> None:
        """Rows were refused inside the transaction, which does not undo the mark: mark only what was written. Raises
        the error of the first write."""
        keep = np.ones(len(write.chunk), np.bool_)
        claims = np.zeros(len(write.chunk), np.bool_) if claimed is None else claimed
        keep[np.flatnonzero(~claims)[[place for place in refused if place < len(fresh)]]] = False
        corrections: list[Command] = []
        for view, start, stop, hashes in parts_of(write.chunk, write.views):
            here = slice(start, stop)
            mark = pack_mark(hashes[~claims[here] & keep[here]], hashes[claims[here]])
            corrections.append(("HSET", view.marks, write.mark, mark))
            refused_here = int((~keep[here]).sum())
            corrections.append(("DECRBY", view.keys.part("written"), refused_here))
        self.asking(lambda: self.ask(framed(corrections)))
        place, why = next(iter(refused.items()))
        if place < len(fresh):
            raise error_of_row(self._session.get(), fresh, place, why)
        raise self._session.get().error_of(why, self._trimmer.words(write.views[0].stream))

    def _check_ids(self, fresh: Chunk, tops: Mapping[bytes, Reply]) -> None:
        """Explicit ids must rise above the top of their stream, which is watched. Raises EntryIdError and kin."""
        if fresh.ids is None:
            return
        for stream, start, stop in fresh.segments():
            server = self._session.get()
            top = read_stream_state(server, stream, tops[stream]).last
            place = first_refused(fresh.ids.slice(start, stop - start), top)
            if place is not None:
                raise id_refused(server, fresh, start + place)

    def written(self, write: Write, claimed: Mask | None) -> None:
        """The mark is there, and the rows are."""
        for view, start, stop, hashes in parts_of(write.chunk, write.views):
            self._views.made(view, write.mark, hashes)
            if claimed is not None:
                claims = hashes[claimed[start:stop]]
                view.earlier.remove(claims)
                view.claims_read += 8 * len(claims)  # they were watched: nobody else's are between
        if claimed is None:
            self.finished(write)

    def marks(self, write: Write, claimed: Mask | None) -> list[Command]:
        """The commands that mark the chunk's rows as written, or as claimed."""
        commands: list[Command] = []
        for view, start, stop, hashes in parts_of(write.chunk, write.views):
            claims = hashes[claimed[start:stop]] if claimed is not None else _NOTHING
            written = hashes[~claimed[start:stop]] if claimed is not None else hashes
            commands.append(("HSET", view.marks, write.mark, pack_mark(written, claims)))
            names = [view.marks, view.keys.part("written")]
            commands.append(("INCRBY", names[-1], len(written)))
            if len(claims):
                names.append(view.keys.part("claims"))
                commands.append(("APPEND", names[-1], claims.astype("<u8").tobytes()))
            if not view.marked or len(claims):
                commands.append(("SADD", view.keys.parts, *[name[len(view.keys.head) + 1 :] for name in names]))
                names.append(view.keys.parts)
            commands += expiry(self._views.batch, *names, *view.prolong())
        return commands

    def finished(self, write: Write) -> None:
        self._views.forget(write.mark)
        self._session.backoff.succeeded()
        self._trimmer.after(write.chunk)
