"""At least once: plain pipelined XADDs, two chunks under way, replies checked in bulk.

While the server works on one chunk the next is encoded and sent. What it refuses for a transient reason (wire.retry) is
sent again by itself, after all that was under way; what was under way when a connection broke is sent again whole,
because nobody knows how much of it arrived. Both may change the order of entries, the second may double some.

A row with an id of its own that is refused because the stream has come further is looked for there: a batch that is
replayed finds what it has written before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from spark_streams.errors import RStreamError, ServerError, ServerUnreachableError
from spark_streams.sink.chunks import Chunk
from spark_streams.sink.limits import Limits
from spark_streams.sink.pace import Pace
from spark_streams.sink.replicas import WINDOW, wait_for_replicas
from spark_streams.sink.rows import error_of_row, first_unwritten, id_refused, refuses_own_id
from spark_streams.sink.trim import Trimmer
from spark_streams.wire.connection import ReplyError
from spark_streams.wire.pipe import Pipe
from spark_streams.wire.replies import errors_among, may_hold_errors, parse_replies
from spark_streams.wire.reply_errors import is_id_form_unknown
from spark_streams.wire.retry import is_transient
from spark_streams.wire.server import Server
from spark_streams.wire.session import Session

_UNDER_WAY = 2


@dataclass(eq=False)
class _Sent:
    """A chunk on its way, with the XTRIMs that go along. stream: one of its streams, which are all on one server; via:
    where it was sent; pipe: on which the server has answered for it."""

    chunk: Chunk
    trims: list[bytes]
    stream: bytes
    pipe: Pipe | None = None
    via: Pipe | None = None


class PlainSender:
    """Sends chunks over a session. Raises the named error of the row that the server refuses for good."""

    def __init__(
        self, session: Session, trimmer: Trimmer, limits: Limits, pace: Pace, replicas: int | None = None
    ) -> None:
        """replicas: how many must have what is written, None: nobody waits for them."""
        self._session = session
        self._trimmer = trimmer
        self._limits = limits
        self._pace = pace
        self._under_way: deque[_Sent] = deque()
        self._refused: list[_Sent] = []  # for a transient reason
        self._reason: ReplyError | None = None  # the last one
        self._doubtful: list[Chunk] = []  # rows with ids that are not above the top: written before, or in error
        self._replicas = replicas
        self._unacknowledged: list[_Sent] = []  # written since the last WAIT; only where there is one

    def run(self, chunks: Iterable[Chunk]) -> int:
        """Send all; how many rows."""
        rows = 0
        for chunk in self._limits.fitting(chunks):
            rows += len(chunk)
            names = chunk.stream_names()
            self._pace.wait(len(chunk))
            self._send(_Sent(chunk, self._trimmer.commands(chunk), names[0]))
            self._leave_room()
            if self._refused or self._doubtful:
                self._finish()
            if len(self._unacknowledged) >= WINDOW:
                self._cover()
        self._cover()
        return rows

    # -- sending ------------------------------------------------------------------------------------------------

    def _send(self, sent: _Sent) -> None:
        self._under_way.append(sent)
        try:
            self._put(sent)
        except ServerError as error:
            self._send_all_again(error)

    def _put(self, sent: _Sent) -> None:
        sent.via = pipe = self._session.pipe_of(sent.stream)
        pipe.send(sent.chunk.requests.slice(0, len(sent.chunk)), b"".join([*sent.trims, pipe.mark]))

    def _send_all_again(self, error: RStreamError) -> None:
        """Send what was under way when the connection was lost, on a new one."""
        while True:
            for sent in self._under_way:
                self._limits.lost(sent.chunk)
            self._session.again(error)
            try:
                for sent in self._under_way:
                    self._put(sent)
            except ServerError as another:
                error = another
            else:
                return

    # -- what the server says ------------------------------------------------------------------------------------

    def _leave_room(self) -> None:
        while len(self._under_way) >= _UNDER_WAY:
            self._receive()

    def _receive(self) -> None:
        """Take the replies to the oldest chunk."""
        replies = self._take()
        sent = self._under_way.popleft()
        if may_hold_errors(replies):
            self._sort(sent, errors_among(parse_replies(replies)))
            return
        self._written(sent)
        self._session.backoff.succeeded()
        self._trimmer.after(sent.chunk)

    def _take(self) -> bytes:
        while True:
            try:
                pipe = self._under_way[0].via
                assert pipe is not None
                return pipe.take()
            except ServerUnreachableError as error:
                self._send_all_again(error)

    def _sort(self, sent: _Sent, refusals: Sequence[tuple[int, ReplyError]]) -> None:
        """Some commands were refused: which rows are to be sent again, which may have been written before. Raises the
        named error of one that is refused for good."""
        chunk = sent.chunk
        again = np.zeros(len(chunk), np.bool_)
        doubtful = np.zeros(len(chunk), np.bool_)
        trims: list[bytes] = []
        for place, refusal in refusals:
            is_row = place < len(chunk)
            if is_row and refuses_own_id(chunk, place, refusal) and not is_id_form_unknown(refusal):
                doubtful[place] = True
                continue
            if not is_transient(refusal):
                raise self._error_of(chunk, place, refusal)
            if is_row:
                again[place] = True
            trims = sent.trims
            self._reason = refusal
        if again.any() or trims:
            self._refused.append(_Sent(chunk.where(again), trims, sent.stream))
        if doubtful.any():
            self._doubtful.append(chunk.where(doubtful))
        self._written(_Sent(chunk.where(~(again | doubtful)), [], sent.stream, via=sent.via))

    def _error_of(self, chunk: Chunk, place: int, refusal: ReplyError) -> RStreamError:
        server = self._session.get()
        if place < len(chunk):
            return error_of_row(server, chunk, place, refusal)
        return server.error_of(refusal, self._trimmer.words(chunk.streams[0]))

    def _finish(self) -> None:
        """Take all replies, then send what was refused, until nothing is. Raises the error of a row that is refused for
        its id and is not in its stream."""
        self._receive_all()
        while self._refused:
            assert self._reason is not None
            self._session.again(self._reason)
            refused, self._refused = self._refused, []
            for sent in refused:
                self._send(sent)
                self._receive_all()
        while self._doubtful:
            place = self._session.run(self._first_unwritten)
            if place is not None:
                raise id_refused(self._session.get(), self._doubtful[0], place)
            self._doubtful.pop(0)

    def _receive_all(self) -> None:
        while self._under_way:
            self._receive()

    def _first_unwritten(self, server: Server) -> int | None:
        return first_unwritten(server, self._doubtful[0])

    # -- replicas -----------------------------------------------------------------------------------------------

    def _written(self, sent: _Sent) -> None:
        if self._replicas is not None and len(sent.chunk):
            sent.pipe = sent.via
            self._unacknowledged.append(sent)

    def _cover(self) -> None:
        """Finish all that is under way; where replicas are waited for, until they have it. What was written on another
        connection is written again: nobody knows whether the server that answers now has it."""
        while True:
            self._finish()
            if self._replicas is None or not self._unacknowledged:
                return
            stale = self._session.run_part(self._wait_for_replicas)
            if not stale:
                return
            self._unacknowledged = [sent for sent in self._unacknowledged if sent not in stale]
            for sent in stale:
                self._send(sent)
                self._leave_room()

    def _wait_for_replicas(self, server: Server) -> list[_Sent]:
        """What was written on another connection. Where nothing was, replicas have all of it when this returns."""
        assert self._replicas is not None
        stale = [
            sent for sent in self._unacknowledged if sent.pipe is None or sent.pipe.server is not server.of(sent.stream)
        ]
        if not stale:
            wait_for_replicas(server, self._replicas, [sent.stream for sent in self._unacknowledged])
            self._unacknowledged = []
        return stale
