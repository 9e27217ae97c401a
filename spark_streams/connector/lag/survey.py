"""Lag, pending entries and consumers of every group at one moment. No command here changes a stream or a group.

A survey takes a few round trips, independent of the number of streams: the streams and their groups; each group's first
undelivered entry, its oldest pending entry and its consumers; the consumers' oldest pending entries. Only if the server
does not know a lag, or knows one that is impossible, the undelivered entries themselves are counted, up to a limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId, age_ms
from spark_streams.base.printable import name_text
from spark_streams.base.units import counted as number_of
from spark_streams.connector.deadletter.envelope import names_origin
from spark_streams.connector.errors import NotPermittedError, RStreamError, WrongKeyTypeError
from spark_streams.connector.wire import xinfo
from spark_streams.connector.wire.connection import Argument, Reply, ReplyError, Server
from spark_streams.connector.wire.replies import is_no_group, is_no_such_key, milliseconds

ACTIVE_MS = 24 * 3_600_000  # a group without a read for longer may be abandoned
COUNTED = 10_000  # maximum of a lag that is counted entry by entry
_COUNTED_TOGETHER = 200_000
_PAGE = 1_000  # entries of a group per round trip
_PAGE_BYTES = 16 << 20
Refused = Callable[[RStreamError], None]  # receives an error, and the caller continues without what was refused


@dataclass(frozen=True)
class ConsumerLag:
    consumer: str
    pending: int
    idle_ms: int  # since its last request
    oldest_idle_ms: int | None = None  # since its oldest pending entry was delivered; None: it has none


@dataclass(frozen=True)
class GroupLag:
    stream: str
    group: str
    lag: int  # undelivered entries
    at_least: bool  # the lag was counted up to a limit, there are more
    # Age of the oldest entry that is not acknowledged, pending or undelivered; 0: none; None: the IDs are not times.
    lag_ms: int | None
    pending: int  # entries delivered and not acknowledged
    oldest_idle_ms: int | None  # how long the oldest of them has been pending; None: none
    last_delivered: str
    delivered: int | None  # entries ever delivered; None: the server does not know, or its count gives another lag
    consumers: tuple[ConsumerLag, ...] = ()
    released: int = 0  # pending entries that a consumer released (XNACK) and no consumer has taken
    oldest_pending: str | None = None  # ID of the lowest pending entry; None: there is none
    trimmed: int | None = 0  # entries that have left the stream undelivered, by the server's counts; None: not known
    or_deleted: bool = False  # some of them may have been deleted (XDEL)

    @property
    def is_active(self) -> bool:
        """Whether a consumer sent a request in the last day. Tables show other groups last."""
        return any(consumer.idle_ms < ACTIVE_MS for consumer in self.consumers)


@dataclass(frozen=True)
class StreamSummary:
    stream: str
    length: int  # number of entries
    added: int | None  # entries ever added; None before Redis 7
    last: str  # last generated ID
    first: str = ""  # ID of the oldest entry; empty: there is none
    has_dead_letters: bool = False  # the first or the last entry is a dead letter
    end_bytes: int = 0  # size of these two entries, which XINFO STREAM returns
    entry_bytes: int = 0  # of the larger one of them
    idempotent: xinfo.IdempotentAdds | None = None  # adds with XADD IDMP; None if there were none


@dataclass(frozen=True)
class Survey:
    at_ms: int  # milliseconds since the epoch by the server's clock, or by this machine's if TIME is refused
    streams: tuple[StreamSummary, ...]
    groups: tuple[GroupLag, ...]
    left_out: int = 0  # groups beyond the maximum


@dataclass
class _Draft:
    """A group during the survey."""

    key: str | bytes
    name: bytes
    stream: StreamSummary
    info: xinfo.GroupInfo
    first: StreamId  # of the stream
    top: StreamId
    trimmed: tuple[int | None, bool]
    ahead: StreamId | None = None  # the first undelivered entry
    entry_bytes: int = 0
    oldest: Sequence[Reply] | None = None  # pending: id, consumer, idle, deliveries
    consumers: tuple[ConsumerLag, ...] = ()
    names: tuple[bytes, ...] = ()  # of the consumers
    released: int = 0
    reached: bytes | None = None  # ID at which counting continues
    counted: int = 0
    more: bool = False
    is_left_out: bool = False  # it is missing since the first round trip, or was passed to `refused`


def survey(
    server: Server,
    streams: Sequence[str | bytes],
    counted: int | None = None,
    page: int = _PAGE,
    refused: Refused | None = None,
    max_groups: int | None = None,
) -> Survey:
    """Return the state of these streams; missing streams are left out.

    counted: maximum of a lag that is counted entry by entry; page: entries of a group per round trip for that; refused:
    receives an error if the user lacks a right or a key is not a stream, and the survey continues without it. If
    refused is None, such an error is raised, except for TIME. max_groups: the others are only counted. Raises
    WrongKeyTypeError, ServerError.
    """
    commands = [("XINFO", subcommand, stream) for stream in streams for subcommand in ("STREAM", "GROUPS")]
    clock, *replies = server.pipeline([("TIME",), *commands])
    # This machine's clock if the user may not read the server's.
    at_ms = time.time_ns() // 1_000_000 if isinstance(clock, ReplyError) else milliseconds(clock)
    if refused is not None and isinstance(clock, ReplyError):
        refused(server.error_of(clock, ("TIME",)))
    stream_states: list[StreamSummary] = []
    drafts: list[_Draft] = []
    for number, key in enumerate(streams):
        description, groups = replies[2 * number], replies[2 * number + 1]
        of_stream = zip(commands[2 * number : 2 * number + 2], (description, groups), strict=True)
        if any(_is_left_out(server, *asked, refused) for asked in of_stream):
            continue
        state = xinfo.stream_in(description)
        stream, first, top = _stream_summary(key, state, description)
        stream_states.append(stream)
        drafts += [
            _Draft(key, group.name, stream, group, first, top, _trimmed(state, first, group))
            for group in xinfo.groups_in(groups)
        ]
    left_out = 0 if max_groups is None else max(0, len(drafts) - max_groups)
    drafts = drafts[: len(drafts) - left_out]
    _fetch_group_details(server, drafts, refused)
    _fetch_oldest_of_consumers(server, drafts, refused)
    unknown = [draft for draft in drafts if _server_lag(draft) is None]
    share = max(page, min(COUNTED, _COUNTED_TOGETHER // max(1, len(unknown))))
    _count(server, unknown, share if counted is None else counted, page, refused)
    groups = tuple(_group_lag(draft, at_ms) for draft in drafts if not draft.is_left_out)
    return Survey(at_ms, tuple(stream_states), groups, left_out)


def _is_left_out(server: Server, command: Sequence[Argument], reply: Reply, refused: Refused | None) -> bool:
    """Whether the reply is an error: the stream or the group is missing, or the error is passed to `refused`. Raises it
    if there is no `refused`, or if it concerns more than one stream."""
    if isinstance(reply, ReplyError) and not (is_no_such_key(reply) or is_no_group(reply)):
        error = server.error_of(reply, command)
        if refused is None or not isinstance(error, NotPermittedError | WrongKeyTypeError):
            raise error
        refused(error)
    return isinstance(reply, ReplyError)


def _stream_summary(
    key: str | bytes, state: xinfo.StreamState, reply: Reply
) -> tuple[StreamSummary, StreamId, StreamId]:
    """Return the stream, and the IDs of its first and its last entry."""
    ends = xinfo.ends_in(reply)
    state_without_ends = StreamSummary(
        name_text(key), state.length, state.added, str(state.last), idempotent=xinfo.idempotent_adds_in(reply)
    )
    if ends is None:
        return state_without_ends, MIN_ID, MIN_ID
    end_pairs = (ends.first[1], ends.last[1])
    sizes = [sum(map(len, fields)) for fields in end_pairs]
    state_with_ends = replace(
        state_without_ends,
        first=str(ends.first[0]),
        has_dead_letters=any(map(names_origin, end_pairs)),
        end_bytes=sum(sizes),
        entry_bytes=max(sizes),
    )
    return state_with_ends, ends.first[0], ends.last[0]


def _fetch_group_details(server: Server, drafts: Sequence[_Draft], refused: Refused | None) -> None:
    """Fetch each group's first undelivered entry, its oldest pending entry, its consumers and their pending counts."""
    commands: list[Sequence[Argument]] = []
    for draft in drafts:
        commands += [
            ("XRANGE", draft.key, _above(draft.info.last_delivered), "+", "COUNT", 1),
            ("XPENDING", draft.key, draft.name, "-", "+", 1),
            ("XINFO", "CONSUMERS", draft.key, draft.name),
            ("XPENDING", draft.key, draft.name),
        ]
    replies = server.pipeline(commands)
    for number, draft in enumerate(drafts):
        ahead, oldest, consumers, summary = of_group = replies[4 * number : 4 * number + 4]
        for command, reply in zip(commands[4 * number : 4 * number + 4], of_group, strict=True):
            draft.is_left_out |= _is_left_out(server, command, reply, refused)
        if draft.is_left_out:
            continue
        if ahead:
            draft.ahead = StreamId.parse(ahead[0][0])
            draft.entry_bytes = sum(len(part) + 16 for part in ahead[0][1] or ())
        draft.oldest = oldest[0] if oldest else None
        draft.released = xinfo.released_in(summary)
        consumer_infos = xinfo.consumers_in(consumers)
        draft.names = tuple(consumer.name for consumer in consumer_infos)
        draft.consumers = tuple(_consumer(consumer, draft.oldest) for consumer in consumer_infos)


def _consumer(info: xinfo.ConsumerInfo, oldest: Sequence[Reply] | None) -> ConsumerLag:
    is_own = oldest is not None and oldest[1] == info.name and oldest[2] >= 0  # a released entry has the idle time -1
    oldest_idle_ms = oldest[2] if oldest is not None and is_own else None
    return ConsumerLag(name_text(info.name), info.pending, info.idle, oldest_idle_ms)


def _fetch_oldest_of_consumers(server: Server, drafts: Sequence[_Draft], refused: Refused | None) -> None:
    """Fetch the idle time of each consumer's oldest pending entry, unless it is the group's oldest."""
    incomplete = [
        (draft, place)
        for draft in drafts
        for place, consumer in enumerate(draft.consumers)
        if consumer.pending and consumer.oldest_idle_ms is None
    ]
    commands = [("XPENDING", draft.key, draft.name, "-", "+", 1, draft.names[place]) for draft, place in incomplete]
    for (draft, place), command, reply in zip(incomplete, commands, server.pipeline(commands), strict=True):
        if _is_left_out(server, command, reply, refused):
            draft.is_left_out = True
        elif reply:
            consumer_lag = replace(draft.consumers[place], oldest_idle_ms=reply[0][2])
            draft.consumers = (*draft.consumers[:place], consumer_lag, *draft.consumers[place + 1 :])


def _above(entry: StreamId) -> bytes:
    """Return the next ID, as the start of a range: Redis before 6.2 does not know `(id`."""
    return b"+" if entry == MAX_ID else bytes(entry.next())


def _server_lag(draft: _Draft) -> int | None:
    """Return the lag as the server knows it, None if it must be counted.

    Redis also counts entries that were trimmed before they were delivered. They are subtracted: they are never
    delivered.
    """
    if draft.is_left_out or draft.ahead is None:
        return 0
    # The stream is at least as long as the first undelivered entry, which was read later than the stream.
    return xinfo.lag_of(draft.info, draft.stream.length, draft.first, max(draft.top, draft.ahead))


def _count(server: Server, drafts: Iterable[_Draft], limit: int, page_entries: int, refused: Refused | None) -> None:
    """Count the undelivered entries of these groups, one page of each group per round trip."""
    uncounted = list(drafts)
    while uncounted:
        budget = _PAGE_BYTES // len(uncounted)
        pages = [
            min(page_entries, limit - draft.counted, max(1, budget // max(1, draft.entry_bytes))) for draft in uncounted
        ]
        commands = [
            ("XRANGE", draft.key, draft.reached or _above(draft.info.last_delivered), "+", "COUNT", page)
            for draft, page in zip(uncounted, pages, strict=True)
        ]
        unfinished = []
        replies = server.pipeline(commands)
        for draft, page, command, reply in zip(uncounted, pages, commands, replies, strict=True):
            if _is_left_out(server, command, reply, refused):
                draft.is_left_out = True
                continue
            draft.counted += len(reply)
            if len(reply) < page:
                continue
            draft.reached = _above(StreamId.parse(reply[-1][0]))
            draft.more = draft.counted >= limit
            if not draft.more:
                unfinished.append(draft)
        uncounted = unfinished


def _group_lag(draft: _Draft, at_ms: int) -> GroupLag:
    ahead = _server_lag(draft)
    oldest = None if draft.oldest is None else StreamId.parse(draft.oldest[0])
    waiting = [entry for entry in (oldest, draft.ahead) if entry is not None]
    return GroupLag(
        draft.stream.stream,
        name_text(draft.name),
        draft.counted if ahead is None else ahead,
        draft.more,
        age_ms(min(waiting), at_ms) if waiting else 0,
        draft.info.pending,
        max((c.oldest_idle_ms for c in draft.consumers if c.oldest_idle_ms is not None), default=None),
        str(draft.info.last_delivered),
        draft.info.entries_read if draft.info.lag is None or ahead == draft.info.lag else None,
        draft.consumers,
        draft.released,
        None if oldest is None else str(oldest),
        *draft.trimmed,
    )


# -- entries that have left a stream before a group has read them -----------------------------------------------------


def _trimmed(stream: xinfo.StreamState, first: StreamId, group: xinfo.GroupInfo) -> tuple[int | None, bool]:
    """Return how many there are by the server's counts (None: not known), and whether some may have been deleted.

    Trimming takes the lowest entries: while one at the group's position or below is left, it has taken none unread.
    """
    is_above = (first if stream.length else stream.last) > group.last_delivered
    if not is_above or stream.added == stream.length:
        return 0, False
    if stream.added is None or group.entries_read is None:
        return None, False
    missing = stream.added - group.entries_read - stream.length
    return (missing if missing >= 0 else None), stream.deleted > MIN_ID


def trimmed_line(group: GroupLag | GroupView) -> str:
    """Return what is told of them; empty: there are none."""
    how = "trimmed or deleted" if group.or_deleted else "trimmed"
    if group.trimmed is None:
        return f"whether entries of {group.stream} were trimmed before group {group.group} read them is not known"
    one = group.trimmed == 1
    entries = f"{number_of(group.trimmed, 'entry', 'entries')} of {group.stream} {'was' if one else 'were'} {how}"
    before = f"before group {group.group} read {'it' if one else 'them'}, by the server's counts"
    return f"{entries} {before}" if group.trimmed else ""


# -- streams and their groups in one round trip, their released entries in another, without details --------------------


@dataclass(frozen=True)
class GroupView:
    stream: str
    group: str
    consumers: int
    pending: int
    lag: int | None  # undelivered entries; None: the server does not know
    last_delivered: str
    released: int | None = None  # pending entries that a consumer released (XNACK); None: not counted
    trimmed: int | None = 0  # as in GroupLag
    or_deleted: bool = False  # as in GroupLag


@dataclass(frozen=True)
class StreamView:
    stream: str
    length: int  # number of entries
    added: int | None  # entries ever added; None before Redis 7
    last: str
    groups: tuple[GroupView, ...]
    idempotent: xinfo.IdempotentAdds | None = None  # its adds with XADD IDMP; None if there were none


def view_streams(server: Server, streams: Sequence[str | bytes], count_released: bool = False) -> list[StreamView]:
    """Return those of the streams that exist, in order. Bytes of a name that are not UTF-8 are shown as `\\xff`.
    count_released: also count the released entries of each group, in a second round trip.

    Raises WrongKeyTypeError.
    """
    streams = list(dict.fromkeys(streams))
    commands = [("XINFO", subcommand, stream) for stream in streams for subcommand in ("STREAM", "GROUPS")]
    replies = server.execute_all(commands, is_no_such_key)
    views: list[StreamView] = []
    infos: dict[str | bytes, list[xinfo.GroupInfo]] = {}
    for stream, description, groups in zip(streams, replies[0::2], replies[1::2], strict=True):
        if is_no_such_key(description) or is_no_such_key(groups):
            continue
        state, ends = xinfo.stream_in(description), xinfo.ends_in(description)
        infos[stream] = xinfo.groups_in(groups)
        adds = xinfo.idempotent_adds_in(description)
        of_stream = tuple(_group(stream, info, state, ends) for info in infos[stream])
        views.append(StreamView(name_text(stream), state.length, state.added, str(state.last), of_stream, adds))
    released = _released(server, infos) if count_released else {}
    return [
        replace(view, groups=tuple(replace(group, released=released.get((stream, info.name)))
                                   for group, info in zip(view.groups, infos[stream], strict=True)))
        for view, stream in zip(views, infos, strict=True)
    ]  # fmt: skip


def _released(
    server: Server, infos: Mapping[str | bytes, Sequence[xinfo.GroupInfo]]
) -> dict[tuple[str | bytes, bytes], int]:
    """Return the released entries of each group, without groups whose pending entries the user may not list."""
    groups = [(stream, info) for stream, of_stream in infos.items() for info in of_stream]
    pending = [(stream, info.name) for stream, info in groups if info.pending]
    replies = server.pipeline([("XPENDING", stream, group) for stream, group in pending])
    counts = {(stream, info.name): 0 for stream, info in groups if not info.pending}
    for group, reply in zip(pending, replies, strict=True):
        if not isinstance(reply, ReplyError):
            counts[group] = xinfo.released_in(reply)
    return counts


def _group(
    stream: str | bytes, info: xinfo.GroupInfo, state: xinfo.StreamState, ends: xinfo.StreamEnds | None
) -> GroupView:
    first, top, length = (MIN_ID, MIN_ID, 0) if ends is None else (ends.first[0], ends.last[0], ends.length)
    lag, position = xinfo.lag_of(info, length, first, top), str(info.last_delivered)
    name = name_text(info.name)
    trimmed = _trimmed(state, first, info)
    return GroupView(name_text(stream), name, info.consumers, info.pending, lag, position, None, *trimmed)
