"""What waits for another try, and comes back in time: one query's retry streams.

Beside each stream there may be, of its group,

    rstream:retry:{orders}:billing:1     entries that have failed once, :2 twice …    a stream each; ids are server time
    rstream:returned:{orders}:billing    those whose time has come                    read like any other stream

An entry that fails is written to the first kind and acknowledged in one transaction (deadletter.write.post). The first
trigger of a query of the group at which it is due moves it to the second, also in one transaction
(deadletter.retry.return_entries). From there on it is like any entry: reserved, pending, acknowledged when its batch is
committed; then it is removed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spark_streams.deadletter.retry.return_entries import return_due_entries
from spark_streams.model.ids import U64_MAX, StreamId
from spark_streams.model.keys import delays_key, retry_stream, returned_stream
from spark_streams.options.source_options import SourceOptions
from spark_streams.options.values import MOST_DELAYS
from spark_streams.source.limits import Limits
from spark_streams.source.offset import Offset
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.replies import milliseconds
from spark_streams.wire.replies.reply_errors import is_busy_group, is_key_required, is_wrong_type

_ALL = range(1, MOST_DELAYS + 1)
_log = logging.getLogger("spark_streams.source")


@dataclass
class _Waiting:
    """One retry stream. exists: it was met on the server; length: entries; first: the first one's id, None where it is
    not known; due: when that comes back, by the server's clock."""

    name: str
    delay: int
    exists: bool = False
    length: int = 0
    first: StreamId | None = None

    @property
    def due(self) -> int | None:
        return None if self.first is None or not self.length else self.first.ms + self.delay


class Retries:
    """Those of one query. A query without retryDelay reads on what has come back; what waits stays, and is told."""

    def __init__(self, options: SourceOptions, limits: Limits) -> None:
        self._group = options.group
        self._delays = options.retry_delay or ()
        self._lists = not options.no_ack and options.delivery == "at-least-once"
        self._limits = limits
        self._waiting: dict[str, list[_Waiting]] = {}  # by the stream that they come from
        self._names: dict[str, str] = {}  # by the same: the stream that they come back to
        self._back: set[str] = set()  # of these, those that are there
        self._entered: set[str] = set()  # of these, those that have the group
        self._clock_ahead = 0.0  # seconds that the server's clock is ahead of this process' time.monotonic()

    def forget(self) -> None:
        """Take nothing for known: the server is asked."""
        self._waiting, self._names, self._back, self._entered = {}, {}, set(), set()

    def look(self, server: Server, streams: Iterable[str], begin: Offset | None, most: int | None) -> list[str]:
        """Have what is due come back, about `most` entries of each retry stream (None: any number): the others with the
        next look. The streams to read beside these: what has come back stands there. begin: the checkpoint; what it
        knows of must be there. Raises ServerError and kin."""
        self._meet(server, [stream for stream in dict.fromkeys(streams) if stream not in self._waiting])
        self._ask(server)
        for stream, some in self._waiting.items():
            for one in some:
                if one.length:
                    self._look_at(server, stream, one, most)
        positions = {} if begin is None else begin.positions
        if self._lists:
            self._enter(server, self._back - self._entered - positions.keys())
        return [name for name in self._names.values() if self._lists and (name in self._back or name in positions)]

    def _ask(self, server: Server) -> None:
        """Ask how many entries wait, and what has come back. Retry streams that are not there are one question per
        stream: most queries never have an entry that fails."""
        absent = [
            some for some in ([o for o in all_of_it if not o.exists] for all_of_it in self._waiting.values()) if some
        ]
        known = [one for some in self._waiting.values() for one in some if one.exists]
        back = [name for name in self._names.values() if name not in self._back] if self._delays else []
        replies = server.execute_all([
            *[("EXISTS", *[one.name for one in some]) for some in absent],
            *[("EXISTS", name) for name in back],
            *[("XLEN", one.name) for one in known],
        ])  # fmt: skip
        found = replies[len(absent) : len(absent) + len(back)]
        self._back |= {name for name, there in zip(back, found, strict=True) if there}
        lengths = dict(zip([one.name for one in known], replies[len(absent) + len(back) :], strict=True))
        met = [one for some, there in zip(absent, replies, strict=False) if there for one in some]
        if met:
            questions = [(command, one.name) for one in met for command in ("EXISTS", "XLEN")]
            answers = server.execute_all(questions)
            for one, exists, length in zip(met, answers[0::2], answers[1::2], strict=True):
                one.exists, lengths[one.name] = bool(exists), length
        for some in self._waiting.values():
            for one in some:
                one.length = lengths.get(one.name, 0)

    @property
    def returned(self) -> set[str]:
        """The returned streams that are there and that this query reads, as of the last look."""
        return self._back.copy() if self._lists else set()

    def _enter(self, server: Server, names: Iterable[str]) -> None:
        """Make the group on streams that the checkpoint does not know. A transaction of a query makes both; another
        client may have made the stream alone, or a key of another type, which is passed over. Raises ServerError."""
        commands = [("XGROUP", "CREATE", name, self._group, "0-0", "ENTRIESREAD", "0") for name in sorted(names)]
        for command, reply in zip(commands, server.pipeline(commands), strict=True):
            name = command[2]
            if is_wrong_type(reply) or is_key_required(reply):
                self._back.discard(name)
                if is_wrong_type(reply):
                    _log.warning("key %r at %s holds no stream, and is not read: delete it (DEL)", name, server.address)
            elif isinstance(reply, ReplyError) and not is_busy_group(reply):
                raise server.error_of(reply, command)
            else:
                self._entered.add(name)

    def waiting(self) -> dict[str, dict[str, int | None]]:
        """Per stream, how many entries wait and when the next one is due (milliseconds since the epoch), as of the last
        look; streams with none are left out."""
        told: dict[str, dict[str, int | None]] = {}
        for stream, some in self._waiting.items():
            entries = sum(one.length for one in some)
            if entries and self._delays:
                due = [one.due for one in some if one.due is not None]
                told[stream] = {"entries": entries, "due": min(due, default=None)}
        return told

    def seconds_until_due(self) -> float:
        """How long until the next entry is due, as of the last look; inf if none waits, 0 if that is not known."""
        due = [one.due for waiting in self._waiting.values() for one in waiting if one.length]
        clock = time.monotonic() + self._clock_ahead
        return min((0.0 if one is None else one / 1000 - clock for one in due), default=math.inf)

    def _meet(self, server: Server, new: Sequence[str]) -> None:
        """Streams that are looked at for the first time: what earlier runs have left beside them, with more delays
        than there are now, too."""
        if not new:
            return
        questions: list[tuple[str, ...]] = []
        for stream in new:
            self._names[stream] = returned_stream(stream, self._group)
            questions += [
                ("EXISTS", self._names[stream]),
                ("EXISTS", *[retry_stream(stream, self._group, attempts) for attempts in _ALL]),
            ]
        replies = server.execute_all(questions)
        for stream, back, left in zip(new, replies[0::2], replies[1::2], strict=True):
            if back:
                self._back.add(self._names[stream])
            if not self._delays:
                self._waiting[stream] = []
                if left or (back and not self._lists):
                    self._say_what_stays(server, stream)
                continue
            # All of them: another query of the group may have more delays than this one, now or later.
            self._waiting[stream] = [
                _Waiting(retry_stream(stream, self._group, n), self._delays[min(n, len(self._delays)) - 1])
                for n in _ALL
            ]
        if self._delays:
            told = " ".join(map(str, self._delays))
            server.execute_all([("SET", delays_key(stream, self._group), told) for stream in new])

    def _say_what_stays(self, server: Server, stream: str) -> None:
        """What waits, and, where pending lists are not kept, what has come back: this query reads neither."""
        waiting = [retry_stream(stream, self._group, attempts) for attempts in _ALL]
        names = [*waiting, *([] if self._lists else [self._names[stream]])]
        lengths = dict(zip(names, server.execute_all([("XLEN", name) for name in names]), strict=True))
        if not sum(lengths.values()):
            return
        server.execute("DEL", delays_key(stream, self._group))
        first = next((name for name in waiting if lengths[name]), None)
        _log.warning(
            "stream %r: %d entries wait for another try by group %r, and nothing brings them back without option "
            "retryDelay: set it again%s%s", stream, sum(lengths.values()), self._group,
            "" if self._lists else " (with neither noAck nor delivery=at-most-once)",
            "" if first is None else f", or send them back (rstream dead redrive {first})",
        )  # fmt: skip

    def _look_at(self, server: Server, stream: str, one: _Waiting, most: int | None) -> None:
        """When the first one is due; where that is now, those that are due come back."""
        there = server.connection_for(one.name)
        if one.first is None:
            now, first = there.execute_all([("TIME",), ("XRANGE", one.name, "-", "+", "COUNT", 1)])
            one.first = StreamId.parse(first[0][0]) if first else None
        else:
            [now] = there.execute_all([("TIME",)])
        clock = milliseconds(now)
        self._clock_ahead = clock / 1000 - time.monotonic()
        if most == 0 or one.due is None or clock < one.due:
            return
        back = self._names[stream]
        due = StreamId(clock - one.delay, U64_MAX)
        moved = return_due_entries(server, one.name, back, self._group, due, most, self._limits.dead_letters)
        one.length -= moved
        one.first = None
        if moved:
            self._back.add(back)
