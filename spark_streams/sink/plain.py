"""At least once: plain pipelined XADDs, two chunks under way, replies checked in bulk.

While the server works on one chunk the next is encoded and sent. What it refuses for a passing reason (wire.retry) is
sent again by itself, after all that was under way; what was under way when a connection broke is sent again whole,
because nobody knows how much of it arrived. Both may change the order of entries, the second may double some.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from spark_streams.errors import RStreamError, ServerUnreachableError
from spark_streams.sink.chunks import Chunk
from spark_streams.sink.rows import error_of_row, errors_among
from spark_streams.sink.trim import Trimmer
from spark_streams.wire.connection import ReplyError
from spark_streams.wire.link import Link
from spark_streams.wire.replies import first_error
from spark_streams.wire.retry import passes, wants_new_connection

_UNDER_WAY = 2


@dataclass(frozen=True)
class _Sent:
    chunk: Chunk
    trims: list[bytes]


class PlainSender:
    """Sends chunks over a link. Raises the named error of the row that the server refuses for good."""

    def __init__(self, link: Link, trimmer: Trimmer) -> None:
        self._link = link
        self._trimmer = trimmer
        self._under_way: deque[_Sent] = deque()
        self._refused: list[_Sent] = []
        self._why = ""  # the last reason for that

    def run(self, chunks: Iterable[Chunk]) -> int:
        """Send all; how many rows."""
        rows = 0
        for chunk in chunks:
            rows += len(chunk)
            self._send(_Sent(chunk, self._trimmer.commands([stream for stream, _, _ in chunk.segments()])))
            while len(self._under_way) >= _UNDER_WAY:
                self._settle()
            if self._refused:
                self._send_refused()
        self._send_refused()
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
        if first_error(memoryview(replies)) is None:
            self._link.backoff.succeeded()
            self._trimmer.after([stream for stream, _, _ in one.chunk.segments()])
            return
        again = np.zeros(len(one.chunk), np.bool_)
        trims: list[bytes] = []
        for at, text in errors_among(replies):
            is_row = at < len(one.chunk)
            if not passes(text):
                server = self._link.server
                if is_row:
                    raise error_of_row(server, one.chunk, at, text)
                raise server.error_of(ReplyError(text), ("XTRIM", one.chunk.streams[0]))
            if is_row:
                again[at] = True
            trims = one.trims
            self._why = text
        self._refused.append(_Sent(one.chunk.where(again), trims))

    def _send_refused(self) -> None:
        """Settle all that is under way, then send what was refused, until nothing is."""
        while self._under_way:
            self._settle()
        while self._refused:
            if wants_new_connection(self._why):
                self._link.close()
            self._link.wait(self._why)
            refused, self._refused = self._refused, []
            for one in refused:
                self._send(one)
                while self._under_way:
                    self._settle()
