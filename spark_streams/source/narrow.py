"""Narrowing a batch that kills its query, until the entry that does it is alone, and dead.

Spark replays a batch that failed with the same offsets, for ever. So the driver counts, on the server, how many runs
of the query have planned a batch and not got it committed. Where that is too many (`maxDeliveries`), the replay keeps
only the batch's first piece, a sixteenth of it; the other entries are moved (XCLAIM) to consumers of their own,
`<consumer>~held~<first id>`, which are the query's next batches, one after the other in the stream's order. A piece
that kills the query is cut into sixteen in turn; an entry that does so alone becomes a dead letter. Everything else
flows, and a batch of a million entries is searched in five or six restarts beyond the first ones.

What was moved is pending all the time, under a name that tells whose it is: a crash in the midst of it loses nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from spark_streams.ids import MAX_ID, StreamId
from spark_streams.source.claim import send_claim
from spark_streams.source.group import GroupState, Membership
from spark_streams.source.losses import Losses
from spark_streams.source.offsets import Claimed, Offset
from spark_streams.source.overdue import Overdue
from spark_streams.source.pending import PendingRange, pending_runs
from spark_streams.source.plan import Run, per_stream
from spark_streams.source.replay import claimed_ranges
from spark_streams.wire.connection import Connection
from spark_streams.wire.slots import key_beside, narrowed_key

_log = logging.getLogger("spark_streams.source")

MARK = "~held~"
PIECES = 16
_PAGE = 10_000  # entries that are moved with one command
_ALONE = 2  # runs that an entry alone may kill: the first could have died of something else
_TOLD_SECONDS = 7 * 86_400


@dataclass(frozen=True)
class Attempts:
    """What the server remembers of the batch that is being tried: its token, how many runs have planned it as it is
    now, the last one's name, whether the batch has been narrowed."""

    token: str = ""
    runs: int = 0
    run: str = ""
    narrowed: bool = False


@dataclass(frozen=True)
class Failure:
    """What killed the query last, where somebody could tell: the error's class and message."""

    error: str = ""
    message: str = ""


def is_held(claimed: Mapping[str, Sequence[Claimed]]) -> bool:
    """Whether a batch is such a piece."""
    return any(MARK in one.consumer for some in claimed.values() for one in some)


def next_piece(member: Membership, states: Mapping[str, GroupState], begin: Offset) -> dict[str, list[Claimed]]:
    """The piece that is the next batch, if there is one. begin: its own piece is being settled."""
    found = []
    for stream, state in states.items():
        logged = {one.consumer for one in begin.claimed.get(stream, ())}
        for other in state.others:
            if other.name.startswith(member.consumer + MARK) and other.pending and other.name not in logged:
                found.append((other.name, stream, other.pending))
    if not found:
        return {}
    name, stream, pending = min(found)
    return {stream: [Claimed(name, pending)]}


class Narrowing:
    """One query's attempts at a batch. run: the name of this run; most: runs that a whole batch may kill, None: any
    number; bury: what to do with the entry; losses: told of entries that are gone before they can be moved; gone:
    streams of the batch whose group has vanished, and with it what was pending."""

    def __init__(
        self,
        server: Connection,
        member: Membership,
        run: str,
        most: int | None,
        bury: Callable[[Overdue], None],
        losses: Losses,
        gone: Sequence[str] = (),
    ) -> None:
        self._server = server
        self._member = member
        self._run = run
        self._most = most
        self._bury = bury
        self._losses = losses
        self._gone = gone

    def attempt(self, begin: Offset, end: Offset) -> bool:
        """Count this run's attempt at a batch, and cut it where too many have died of it; whether it is cut by now,
        by this run or an earlier one.

        To be called again where it has raised. Raises GroupMissingError, ServerError.
        """
        before = self._known(end)
        if before.run == self._run:  # the connection broke in the midst of it
            before = replace(before, runs=before.runs - 1)
        if self._most is None:
            return before.narrowed
        ranges = ranges_of(begin, end.without(self._gone)) if before.runs else []
        ours = pending_runs(self._server, self._member, ranges, _PAGE)
        self._remember(end, replace(before, runs=before.runs + 1, run=self._run))
        if not before.runs:
            return before.narrowed
        count = sum(run.count for run in ours)
        if before.runs < self._allowed(before, end, count, self._most) or not count:
            return before.narrowed
        if count == 1:
            self._give_up(end, ours[0])
        else:
            _log.warning("a batch of %d entries has killed its query %d times and is cut", count, before.runs)
            self._cut(ranges, end, ours)
        return True

    @staticmethod
    def _allowed(before: Attempts, end: Offset, count: int, most: int) -> int:
        """How many runs a batch of `count` entries may kill; most: if it is whole."""
        if before.narrowed or is_held(end.claimed):
            return _ALONE if count == 1 else 1
        return most

    def _cut(self, ranges: Sequence[PendingRange], end: Offset, ours: Sequence[Run]) -> None:
        """Leave the batch its first piece, and move the rest of `ours`, its entries, to consumers of their own."""
        self._remember(end, Attempts(end.token, 1, self._run, narrowed=True))
        size = -(-sum(run.count for run in ours) // PIECES)
        kept = False
        pieces: list[PendingRange] = []
        for one in ranges:
            after = one.after
            if not kept:
                first = pending_runs(self._server, self._member, [replace(one, most=size)], size)
                kept = bool(first)
                after = first[-1].last if first else after
            pieces += self._move(replace(one, after=after), size)
        # XCLAIM drops what is no longer in the stream.
        gone = per_stream(ours)
        gone.subtract(per_stream(pending_runs(self._server, self._member, [*ranges, *pieces], _PAGE)))
        for stream, count in gone.items():
            self._losses.add(stream, max(0, count), "trimmed or deleted before their batch was cut")

    def _give_up(self, end: Offset, run: Run) -> None:
        """The entry that kills the query, found."""
        consumer, entry = run.consumer or self._member.consumer, bytes(run.last)
        question = ("XPENDING", run.stream, self._member.group, entry, entry, 1, consumer)
        deliveries = [int(one[3]) for one in self._server.execute(*question)]
        if not deliveries:
            return  # somebody else has acknowledged it, or claimed it
        failure = self._failure(end)
        message = failure.message or "the query ended each time that it read this entry"
        _log.warning("stream %r: entry %s kills the query and is given up: %s", run.stream, run.last, message)
        self._bury(Overdue(run.stream, consumer, [run.last], deliveries, "query", "poison", failure.error, message))

    def _move(self, rest: PendingRange, size: int) -> list[PendingRange]:
        """Move these entries to consumers, `size` to each; what these hold."""
        pieces: list[PendingRange] = []
        name, room, after = "", 0, rest.after
        while True:
            most = min(_PAGE, room or size)
            page = pending_runs(
                self._server, self._member, [replace(rest, after=after, most=most)], most, keep_ids=True
            )
            for run in page:
                if not room:
                    first = StreamId.parse(run.ids.split(b"\r\n", 2)[1])
                    name, room = f"{self._member.consumer}{MARK}{first.ms:020d}-{first.seq:020d}", size
                    pieces.append(PendingRange(run.stream, MAX_ID, consumer=name))
                send_claim(self._server, self._member, run.stream, name, 0, run.count, run.ids)
                room = max(0, room - run.count)
                after = run.last
            if not page:
                return pieces

    def _failure(self, end: Offset) -> Failure:
        """What somebody noted about the query's end."""
        text = self._server.execute("GET", failure_key(_first(end), self._member.group, self._member.consumer))
        return Failure(**json.loads(text)) if text is not None else Failure()

    def _known(self, end: Offset) -> Attempts:
        """What is known of this batch."""
        text = self._server.execute("GET", self._key(end))
        known = Attempts(**json.loads(text)) if text is not None else Attempts()
        return known if known.token == end.token else Attempts(end.token)

    def _key(self, end: Offset) -> bytes:
        return key_beside(_first(end), "attempts", self._member.group, self._member.consumer)

    def _remember(self, end: Offset, attempts: Attempts) -> None:
        self._server.execute("SET", self._key(end), json.dumps(asdict(attempts)))


def ranges_of(begin: Offset, end: Offset) -> list[PendingRange]:
    """Where a batch's entries are pending, in order."""
    ours = [
        PendingRange(stream, end[stream], begin[stream] if held.after is None else held.after)
        for stream, held in sorted(end.shares.items())
    ]
    return [*ours, *claimed_ranges(end.claimed)]


def tell_the_sink(server: Connection, query: str, batch: str) -> None:
    """A task of a piece says so before its first row: what an earlier run wrote of the other pieces is theirs."""
    if query:
        server.execute("SET", narrowed_key(query), batch, "EX", _TOLD_SECONDS)


def failure_key(stream: str, group: str, consumer: str) -> bytes:
    """Where the reason of a query's end is noted."""
    return key_beside(stream, "failure", group, consumer)


def _first(offset: Offset) -> str:
    """The stream that keys about the whole query stand beside."""
    return min(offset.positions or offset.streams)


def note_failure(server: Connection, offset: Offset, failure: Failure) -> None:
    """Note why a query ended, for the letter of the entry that killed it. offset: any of the query's offsets."""
    if offset.streams:
        key = failure_key(_first(offset), offset.group, offset.consumer)
        server.execute("SET", key, json.dumps({"error": failure.error, "message": failure.message[:2000]}))
