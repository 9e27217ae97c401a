"""At least once: plain pipelined XADDs, two chunks under way, replies checked in bulk.

While the server works on one chunk the next is encoded and sent. What it refuses for a passing reason (wire.retry) is
sent again by itself, after all that was under way; what was under way when a connection broke is sent again whole,
because nobody knows how much of it arrived. Both may change the order of entries, the second may double some.

A row with an id of its own that is refused because the stream has come further is looked for there: a batch that is
replayed finds what it has written before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from spark_streams.errors import RStreamError, ServerUnreachableError
from spark_streams.sink.chunks import Chunk
from spark_streams.sink.limits import Limits
from spark_streams.sink.replicas import WINDOW, wait_for_replicas
from spark_streams.sink.rows import error_of_row, first_unwritten, id_refused, refuses_own_id
from spark_streams.sink.trim import Trimmer
from spark_streams.wire.connection import ReplyError
from spark_streams.wire.link import Link
from spark_streams.wire.pipe import Pipe
from spark_streams.wire.replies import errors_among, may_hold_errors, parse_replies
from spark_streams.wire.retry import is_transient, wants_new_connection

_UNDER_WAY = 2


@dataclass
class _Sent:
    chunk: Chunk
    trims: list[bytes]
    on: Pipe | None = None  # where the server answered for it


class PlainSender:
    """Sends chunks over a link. Raises the named error of the row that the server refuses for good."""

    def __init__(self, link: Link, trimmer: Trimmer, limits: Limits, replicas: int | None = None) -> None:
        """replicas: how many must have what is written, None: nobody waits for them."""
        self._link = link
        self._trimmer = trimmer
        self._limits = limits
        self._under_way: deque[_Sent] = deque()
        self._refused: list[_Sent] = []
        self._replicas = replicas
        self._unacknowledged: list[_Sent] = []  # written since the last WAIT; only where there is one
        self._why: ReplyError | None = None  # the last reason for that
        self._doubtful: list[Chunk] = []  # rows with ids that are not above the top: written before, or in error

    def run(self, chunks: Iterable[Chunk]) -> int:
        """Send all; how many rows."""
        rows = 0
        for chunk in self._limits.fitting(chunks):
            rows += len(chunk)
            self._send(_Sent(chunk, self._trimmer.commands([stream for stream, _, _ in chunk.segments()])))
            while len(self._under_way) >= _UNDER_WAY:
                self._settle()
            if self._refused or self._doubtful:
                self._send_refused()
            if len(self._unacknowledged) >= WINDOW:
                self._cover()
        self._cover()
        return rows

    def _send(self, one: _Sent) -> None:
        self._under_way.append(one)
        try:
            self._put(one)
        except ServerUnreachableError as error:
            self._send_all_again(error)

    def _put(self, one: _Sent) -> None:
        pipe = self._link.pipe
        pipe.send(one.chunk.requests.slice(0, len(one.chunk)), b"".join([*one.trims, pipe.mark]))

    def _send_all_again(self, error: RStreamError) -> None:
        while True:
            for one in self._under_way:
                self._limits.lost(one.chunk)
            self._link.again(error)
            try:
                for one in self._under_way:
                    self._put(one)
            except ServerUnreachableError as another:
                error = another
            else:
                return

    def _settle(self) -> None:
        """Take the replies of the oldest chunk."""
        while True:
            try:
                replies = self._link.pipe.take()
                break
            except ServerUnreachableError as error:
                self._send_all_again(error)
        one = self._under_way.popleft()
        if not may_hold_errors(replies):
            self._written(one)
            self._link.backoff.succeeded()
            self._trimmer.after([stream for stream, _, _ in one.chunk.segments()])
            return
        again = np.zeros(len(one.chunk), np.bool_)
        doubtful = np.zeros(len(one.chunk), np.bool_)
        trims: list[bytes] = []
        for at, refusal in errors_among(parse_replies(replies)):
            is_row = at < len(one.chunk)
            if is_row and refuses_own_id(one.chunk, at, refusal):
                doubtful[at] = True
                continue
            if not is_transient(refusal):
                server = self._link.server
                if is_row:
                    raise error_of_row(server, one.chunk, at, refusal)
                raise server.error_of(refusal, ("XTRIM", one.chunk.streams[0]))
            if is_row:
                again[at] = True
            trims = one.trims
            self._why = refusal
        if again.any() or trims:
            self._refused.append(_Sent(one.chunk.where(again), trims))
        if doubtful.any():
            self._doubtful.append(one.chunk.where(doubtful))
        self._written(_Sent(one.chunk.where(~(again | doubtful)), []))

    def _send_refused(self) -> None:
        """Settle all that is under way, then send what was refused, until nothing is. Raises the error of a row that is
        refused for its id and is not in its stream."""
        while self._under_way:
            self._settle()
        while self._refused:
            assert self._why is not None
            if wants_new_connection(self._why):
                self._link.close()
            self._link.wait(str(self._why))
            refused, self._refused = self._refused, []
            for one in refused:
                self._send(one)
                while self._under_way:
                    self._settle()

        while self._doubtful:
            try:
                at = first_unwritten(self._link.server, self._doubtful[0])
            except RStreamError as error:
                self._link.again(error)
                continue
            if at is not None:
                raise id_refused(self._link.server, self._doubtful[0], at)
            self._doubtful.pop(0)

    # -- replicas -----------------------------------------------------------------------------------------------

    def _written(self, one: _Sent) -> None:
        if self._replicas is not None and len(one.chunk):
            one.on = self._link.pipe
            self._unacknowledged.append(one)

    def _cover(self) -> None:
        """Settle all that is under way; where replicas are waited for, until they have it. What was written on another
        connection is written again: nobody knows whether the server that answers now has it."""
        while True:
            self._send_refused()
            if self._replicas is None or not self._unacknowledged:
                return
            try:
                pipe = self._link.pipe
                stale = [one for one in self._unacknowledged if one.on is not pipe]
                if not stale:
                    wait_for_replicas(pipe.server, self._replicas)
                    self._unacknowledged = []
                    return
            except RStreamError as error:
                self._link.again(error)
                continue
            self._unacknowledged = [one for one in self._unacknowledged if one.on is pipe]
            for one in stale:
                self._send(one)
                while len(self._under_way) >= _UNDER_WAY:
                    self._settle()
