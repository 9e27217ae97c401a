"""How every group of every stream stands at one moment. It only looks: no command here changes a stream or a group.

Whatever the number of streams, it is a handful of round trips: the streams and their groups; each group's first entry
that it has not been given, its oldest pending one and its consumers; the consumers' oldest pending entries; and, only
where the server cannot count a lag, the entries themselves, up to a limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_streams.deadletter.envelope import names_origin
from spark_streams.errors import NotPermittedError, RStreamError, WrongKeyTypeError
from spark_streams.model.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.monitor.groups import shown
from spark_streams.wire.connection.connection import Argument, Reply, ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.released import released_in
from spark_streams.wire.replies.replies import milliseconds
from spark_streams.wire.replies.reply_errors import is_no_such_key, is_not_permitted
from spark_streams.wire.replies.xinfo import ConsumerInfo, GroupInfo, consumers_in, ends_in, groups_in, stream_in

ACTIVE_MS = 24 * 3_600_000  # a group that nobody has read from for longer may be abandoned
COUNTED = 10_000  # entries at most that a group's lag is counted by hand
_COUNTED_TOGETHER = 200_000
_PAGE = 1_000  # entries of a group in a round trip
_PAGE_BYTES = 16 << 20
_COMMANDS = 4_000  # in one round trip
_FIRST_TIME = 1_000_000_000_000  # ms (September 2001): ids below are numbers of somebody's own, not times


@dataclass(frozen=True)
class ConsumerStanding:
    """A consumer of a group. idle_ms: since it last asked the server for anything; oldest_idle_ms: since its oldest
    pending entry was given to it, None where it has none."""

    consumer: str
    pending: int
    idle_ms: int
    oldest_idle_ms: int | None = None


@dataclass(frozen=True)
class GroupStanding:
    """One group of one stream.

    lag: entries of the stream that the group has yet to be given; at_least: there are more, they were counted up to a
    limit; lag_ms: the age of the oldest entry that the group has not acknowledged, be it pending or not yet given (0:
    none; None: the ids are no times); pending: given and not acknowledged; oldest_idle_ms: how long the longest
    waiting of these has been pending (None: none); delivered: entries ever given, None where the server cannot tell;
    released: of the pending ones those that a consumer released (XNACK) and nobody has taken.
    """

    stream: str
    group: str
    lag: int
    at_least: bool
    lag_ms: int | None
    pending: int
    oldest_idle_ms: int | None
    last_delivered: str
    delivered: int | None
    consumers: tuple[ConsumerStanding, ...] = ()
    released: int = 0

    @property
    def is_active(self) -> bool:
        """Whether a consumer has asked the server for anything within a day. Pages show other groups last."""
        return any(one.idle_ms < ACTIVE_MS for one in self.consumers)


@dataclass(frozen=True)
class StreamStanding:
    """One stream. length: entries it holds; added: entries ever added, None before Redis 7; last: the newest id ever;
    first: of the oldest entry, empty where there is none; has_dead_letters: the first or the last entry is one;
    end_bytes: of these two, which a look brings along."""

    stream: str
    length: int
    added: int | None
    last: str
    first: str = ""
    has_dead_letters: bool = False
    end_bytes: int = 0


@dataclass(frozen=True)
class Survey:
    """All of it at `at_ms`, milliseconds since the epoch by the server's clock, or this machine's where TIME is
    refused."""

    at_ms: int
    streams: tuple[StreamStanding, ...]
    groups: tuple[GroupStanding, ...]


@dataclass
class _Draft:
    """A group while it is being looked at."""

    key: str | bytes
    name: bytes
    stream: StreamStanding
    info: GroupInfo
    first: StreamId  # of the stream
    ahead: StreamId | None = None  # the first entry that the group has not been given
    entry_bytes: int = 0
    oldest: Sequence[Reply] | None = None  # pending: id, consumer, idle, deliveries
    consumers: tuple[ConsumerStanding, ...] = ()
    names: tuple[bytes, ...] = ()  # of the consumers
    released: int = 0
    reached: bytes | None = None  # counting goes on here
    counted: int = 0
    more: bool = False
    gone: bool = False


def survey(
    server: Server,
    streams: Sequence[str | bytes],
    counted: int | None = None,
    page: int = _PAGE,
    refused: Callable[[RStreamError], None] | None = None,
) -> Survey:
    """Look at these streams; those that do not exist are left out. counted: up to where a lag is counted by hand; page:
    entries of a group that one round trip brings for that; refused: is told what the user may not ask, and which keys
    are no streams, and goes on without them. Without it such an error is raised, but for TIME.

    Raises WrongKeyTypeError, ServerError.
    """
    clock, *replies = ask(server, [("TIME",), *[("XINFO", w, s) for s in streams for w in ("STREAM", "GROUPS")]])
    # This machine's clock where the user may not ask for the server's.
    at_ms = time.time_ns() // 1_000_000 if isinstance(clock, ReplyError) else milliseconds(clock)
    if refused is not None and isinstance(clock, ReplyError):
        refused(server.error_of(clock, ("TIME",)))
    standings: list[StreamStanding] = []
    drafts: list[_Draft] = []
    for number, key in enumerate(streams):
        described, groups = replies[2 * number], replies[2 * number + 1]
        if is_no_such_key(described) or is_no_such_key(groups):
            continue
        if _is_refused(server, key, {"STREAM": described, "GROUPS": groups}, refused):
            continue
        stream, first = _stream(key, described)
        standings.append(stream)
        drafts += [_Draft(key, group.name, stream, group, first) for group in groups_in(groups)]
    _look(server, drafts, refused)
    _look_at_consumers(server, drafts)
    unknown = [draft for draft in drafts if _server_lag(draft) is None]
    share = max(page, min(COUNTED, _COUNTED_TOGETHER // max(1, len(unknown))))
    _count(server, unknown, share if counted is None else counted, page)
    return Survey(at_ms, tuple(standings), tuple(_standing(draft, at_ms) for draft in drafts if not draft.gone))


def ask(server: Server, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
    """All replies in order, a few thousand commands in a round trip; error replies are values."""
    replies: list[Reply] = []
    for start in range(0, len(commands), _COMMANDS):
        replies += server.pipeline(commands[start : start + _COMMANDS])
    return replies


def age_ms(entry: StreamId, at_ms: int) -> int | None:
    """How old an entry is by its id; None where the id is no time."""
    return None if entry.ms < _FIRST_TIME else max(0, at_ms - entry.ms)


def _is_refused(
    server: Server, key: str | bytes, replies: Mapping[str, Reply], refused: Callable[[RStreamError], None] | None
) -> bool:
    """Whether one of these is an error, which is told. replies: by the subcommand of XINFO."""
    for what, reply in replies.items():
        if isinstance(reply, ReplyError):
            _tell(server.error_of(reply, ("XINFO", what, key)), refused)
            return True
    return False


def _tell(error: RStreamError, refused: Callable[[RStreamError], None] | None) -> None:
    """Raises it where nobody is told, or where it is none that other streams do without."""
    if refused is None or not isinstance(error, NotPermittedError | WrongKeyTypeError):
        raise error
    refused(error)


def _stream(key: str | bytes, reply: Reply) -> tuple[StreamStanding, StreamId]:
    """The stream, and its first entry's id."""
    state, ends = stream_in(reply), ends_in(reply)
    plain = StreamStanding(shown(key), state.length, state.added, str(state.last))
    if ends is None:
        return plain, MIN_ID
    both = (ends.first[1], ends.last[1])
    has_dead_letters, end_bytes = any(map(names_origin, both)), sum(len(word) for one in both for word in one)
    told = replace(plain, first=str(ends.first[0]), has_dead_letters=has_dead_letters, end_bytes=end_bytes)
    return told, ends.first[0]


def _look(server: Server, drafts: Sequence[_Draft], refused: Callable[[RStreamError], None] | None) -> None:
    """Each group's first entry to come, its oldest pending one, its consumers, and how much each of these holds."""
    commands: list[Sequence[Argument]] = []
    for draft in drafts:
        commands += [
            ("XRANGE", draft.key, _above(draft.info.last_delivered), "+", "COUNT", 1),
            ("XPENDING", draft.key, draft.name, "-", "+", 1),
            ("XINFO", "CONSUMERS", draft.key, draft.name),
            ("XPENDING", draft.key, draft.name),
        ]
    replies = ask(server, commands)
    for number, draft in enumerate(drafts):
        ahead, oldest, consumers, summary = of_group = replies[4 * number : 4 * number + 4]
        for command, reply in zip(commands[4 * number :], of_group, strict=False):
            if is_not_permitted(reply):
                _tell(server.error_of(reply, command), refused)
        if any(isinstance(reply, ReplyError) for reply in of_group):
            draft.gone = True  # destroyed since the first look
            continue
        if ahead:
            draft.ahead = StreamId.parse(ahead[0][0])
            draft.entry_bytes = sum(len(part) + 16 for part in ahead[0][1] or ())
        draft.oldest = oldest[0] if oldest else None
        draft.released = released_in(summary)
        told = consumers_in(consumers)
        draft.names = tuple(consumer.name for consumer in told)
        draft.consumers = tuple(_consumer(consumer, draft.oldest) for consumer in told)


def _consumer(info: ConsumerInfo, oldest: Sequence[Reply] | None) -> ConsumerStanding:
    is_its = oldest is not None and oldest[1] == info.name and oldest[2] >= 0  # a released one has waited for -1
    known = oldest[2] if oldest is not None and is_its else None
    return ConsumerStanding(shown(info.name), info.pending, info.idle, known)


def _look_at_consumers(server: Server, drafts: Sequence[_Draft]) -> None:
    """How long each consumer's oldest pending entry has waited, where the group's oldest is not its own."""
    wanted = [
        (draft, place)
        for draft in drafts
        for place, consumer in enumerate(draft.consumers)
        if consumer.pending and consumer.oldest_idle_ms is None
    ]
    commands = [("XPENDING", draft.key, draft.name, "-", "+", 1, draft.names[place]) for draft, place in wanted]
    for (draft, place), reply in zip(wanted, ask(server, commands), strict=True):
        if isinstance(reply, ReplyError) or not reply:
            continue
        consumer = draft.consumers[place]
        standing = ConsumerStanding(consumer.consumer, consumer.pending, consumer.idle_ms, reply[0][2])
        draft.consumers = (*draft.consumers[:place], standing, *draft.consumers[place + 1 :])


def _above(entry: StreamId) -> bytes:
    """The id after this one, to start a range with: `(id` is not known before Redis 6.2."""
    return b"+" if entry == MAX_ID else bytes(entry.next())


def _server_lag(draft: _Draft) -> int | None:
    """The lag without counting, None where that cannot be.

    Redis counts what was trimmed before it was given, too; nobody will ever be given that.
    """
    if draft.gone or draft.ahead is None:
        return 0
    if draft.info.last_delivered < draft.first:
        return draft.stream.length
    return None if draft.info.lag is None else min(draft.info.lag, draft.stream.length)


def _count(server: Server, drafts: Iterable[_Draft], limit: int, most: int) -> None:
    """Count what these groups have not been given, a page of each in a round trip."""
    rest = list(drafts)
    while rest:
        budget = _PAGE_BYTES // len(rest)
        pages = [min(most, limit - draft.counted, max(1, budget // max(1, draft.entry_bytes))) for draft in rest]
        commands = [
            ("XRANGE", draft.key, draft.reached or _above(draft.info.last_delivered), "+", "COUNT", page)
            for draft, page in zip(rest, pages, strict=True)
        ]
        left = []
        for draft, page, reply in zip(rest, pages, ask(server, commands), strict=True):
            if isinstance(reply, ReplyError):
                draft.gone = True
                continue
            draft.counted += len(reply)
            if len(reply) < page:
                continue
            draft.reached = _above(StreamId.parse(reply[-1][0]))
            draft.more = draft.counted >= limit
            if not draft.more:
                left.append(draft)
        rest = left


def _standing(draft: _Draft, at_ms: int) -> GroupStanding:
    ahead = _server_lag(draft)
    waiting = [] if draft.oldest is None else [StreamId.parse(draft.oldest[0])]
    first = draft.ahead
    if first is not None:
        waiting.append(first)
    return GroupStanding(
        draft.stream.stream,
        shown(draft.name),
        draft.counted if ahead is None else ahead,
        draft.more,
        age_ms(min(waiting), at_ms) if waiting else 0,
        draft.info.pending,
        max((c.oldest_idle_ms for c in draft.consumers if c.oldest_idle_ms is not None), default=None),
        str(draft.info.last_delivered),
        draft.info.entries_read,
        draft.consumers,
        draft.released,
    )
