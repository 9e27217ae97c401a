"""Pending entries of a group: which are chosen, and their plans: acknowledge, claim, release."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.admin.groups import (
    GroupSnapshot,
    Mark,
    fetch_mark,
    ids_between,
    queries_among,
    set_mark,
)
from spark_streams.connector.errors import StreamStateError, UnsupportedError
from spark_streams.connector.operator_commands import claim_command, command_on
from spark_streams.connector.wire.connection import Argument, Reply, Server
from spark_streams.connector.wire.replies import is_unknown_command, pairs
from spark_streams.connector.wire.xinfo import RELEASED_IDLE, SHOWN, group_named
from spark_streams.operations.groups.change_plan import UNBOUNDED, Only, Plan, Transaction, UpToLast, made

READ_WITHOUT_TRACE = (  # why the group of a query without a pending list is kept
    "a query with noAck has committed to it, and such a query leaves no other trace. If it is not used, delete it: "
    "rstream groups delete"
)
_LISTED = 10_000  # entries of a pending list in one reply
_PAGE = 1_000  # entries that one transaction changes, some milliseconds of the server's time
_SETTLED = 100  # milliseconds since the delivery


@dataclass(frozen=True)
class Choice:
    """Conditions that an entry must fulfil."""

    consumers: tuple[str, ...] = ()  # its consumer; empty: any, also released entries
    idle: int | None = None  # milliseconds pending, not known for released entries
    first: StreamId = MIN_ID
    last: StreamId = MAX_ID
    ids: tuple[StreamId, ...] = ()  # only these
    limit: int | None = None  # entries of all streams, the oldest of each consumer first
    released: bool = False  # only released entries

    def may_touch_released(self, snapshot: GroupSnapshot) -> bool:
        """Whether the choice includes released entries, and the group may have some."""
        is_any_consumer = not self.consumers and self.idle is None
        return (self.released or is_any_consumer) and snapshot.released

    def without_taken(self, count: int) -> Choice:
        """Return the choice after this many entries have been taken."""
        return self if self.limit is None else replace(self, limit=self.limit - count)

    def up_to(self, last: StreamId) -> Choice:
        """Return the choice without entries above this one."""
        return replace(self, last=min(self.last, last))

    def within(self, only: Only, snapshot: GroupSnapshot) -> Choice:
        """Return the choice without entries of the group that its dry run has not shown."""
        last = only.id(snapshot.stream, snapshot.group)
        return self if last is None else self.up_to(last)


@dataclass(frozen=True)
class Page:
    """Pending entries of one consumer (its name in bytes; None: released entries), in order."""

    consumer: bytes | None
    ids: list[bytes]
    idle: int  # milliseconds for which each of them has been idle at least

    def later(self, last: str) -> str:
        """Return the later of an ID and the page's last one. last: empty for none."""
        return str(max(StreamId.parse(self.ids[-1]), StreamId.parse(last or "0-0")))

    @property
    def owner(self) -> str:
        """The consumer's name as text."""
        return SHOWN if self.consumer is None else self.consumer.decode("utf-8", "surrogateescape")


def pages(server: Server, snapshot: GroupSnapshot, choice: Choice, size: int = _PAGE) -> Iterator[Page]:
    """Yield the chosen entries. Each page is read when it is needed, so entries that the caller has changed are not
    yielded again. Raises ServerReplyError and its subclasses (IDLE needs Redis 6.2)."""
    remaining = choice.limit
    holders = [] if choice.released else snapshot.consumers_named(choice.consumers or None)
    names: list[bytes | None] = [consumer.name for consumer in holders if consumer.pending or choice.ids]
    names += [None] if choice.may_touch_released(snapshot) else []
    for name in names:
        find = _pages_of_ids if choice.ids else _pages_of_range
        for rows in find(server, _xpending(snapshot, choice, name), [] if name is None else [name], choice, size):
            taken = rows if remaining is None else rows[:remaining]
            remaining = None if remaining is None else remaining - len(taken)
            if taken:
                yield Page(name, [entry[0] for entry in taken], min(entry[2] for entry in taken))
            if remaining == 0:
                return


def _xpending(snapshot: GroupSnapshot, choice: Choice, name: bytes | None) -> list[Argument]:
    """Return the beginning of XPENDING, with the idle time that entries must have."""
    idle = RELEASED_IDLE if name is None else choice.idle
    head: list[Argument] = ["XPENDING", snapshot.stream, snapshot.group]
    return head if idle is None else [*head, "IDLE", idle]


def _pages_of_range(
    server: Server, head: Sequence[Argument], consumer: Sequence[bytes], choice: Choice, size: int
) -> Iterator[Sequence[Reply]]:
    start = choice.first
    while start <= choice.last:
        reply = _settled(server, [(*head, bytes(start), bytes(choice.last), size, *consumer)])
        if not reply:
            return
        yield reply
        last = StreamId.parse(reply[-1][0])
        if len(reply) < size or last == MAX_ID:
            return
        start = last.next()


def _pages_of_ids(
    server: Server, head: Sequence[Argument], consumer: Sequence[bytes], choice: Choice, size: int
) -> Iterator[Sequence[Reply]]:
    ids = sorted({entry_id for entry_id in choice.ids if choice.first <= entry_id <= choice.last})
    for start in range(0, len(ids), size):
        commands = [(*head, bytes(entry_id), bytes(entry_id), 1, *consumer) for entry_id in ids[start : start + size]]
        yield _settled(server, commands)


def _settled(server: Server, commands: Sequence[Sequence[Argument]]) -> Sequence[Reply]:
    """Return the entries that XPENDING lists. Those that were delivered just now are listed again: if the idle time is
    as short as the time until the change, it does not show whether another consumer claims one meanwhile."""
    rows = [entry for reply in server.execute_all(commands) for entry in reply]
    least = min((entry[2] for entry in rows), default=_SETTLED)
    if least >= _SETTLED:
        return rows
    time.sleep((_SETTLED - least) / 1000)
    return [entry for reply in server.execute_all(commands) for entry in reply]


def pending_ids(server: Server, stream: str, group: str | bytes, after: StreamId, last: StreamId) -> Iterator[bytes]:
    """Yield the IDs that are pending for any consumer with after < ID ≤ last."""
    while after < last:
        page = server.execute("XPENDING", stream, group, bytes(after.next()), bytes(last), _LISTED)
        yield from (entry[0] for entry in page)
        if len(page) < _LISTED:
            return
        after = StreamId.parse(page[-1][0])


def require_consumer(snapshot: GroupSnapshot, consumer: str) -> None:
    """Raise StreamStateError if the group has no such consumer."""
    if not snapshot.consumers_named([consumer]):
        raise StreamStateError(
            f"group {snapshot.group!r} of stream {snapshot.stream!r} has no consumer {consumer!r}. To list its "
            f"consumers: {command_on(snapshot.stream, 'pending')}"
        )


class StillHeld(NamedTuple):
    """Entries of a page that its consumer holds."""

    ids: Sequence[bytes]
    removed: int = 0  # how many others have left the pending list by this look
    give_back: Sequence[Sequence[Argument]] = ()  # the command that releases again what was nobody's


def still_held(server: Server, snapshot: GroupSnapshot, page: Page) -> Plan[StillHeld]:
    """Return the entries of a page that its consumer still holds; in a dry run all of them.

    A running query may have claimed some since they were listed, and XACK and XNACK take an entry from whoever holds
    it. Who claims an entry begins its idle time anew, so XCLAIM for its own consumer passes over those entries. It
    begins the time of the others anew: nobody claims them before they are changed. Nobody can claim an entry that is
    not in the stream: Redis 7 and later only remove it from the pending list. What was released since has been idle for
    ever, and XCLAIM takes it: it is released again, with its count.
    """
    if page.consumer is None or (yield made) is None:  # of nobody: no query of the group may be running (Transaction)
        return StillHeld(page.ids)
    deleted = {*_deleted(server, snapshot, page.ids)}
    there = [entry for entry in page.ids if entry not in deleted]
    name: tuple[Argument, ...] = (snapshot.stream, snapshot.group)
    head: tuple[Argument, ...] = ("XCLAIM", *name, page.consumer, max(page.idle, 1))
    groups = ("XINFO", "GROUPS", snapshot.stream)
    commands = [groups, _mine(snapshot, page), (*head, *there, "JUSTID"), groups] if there else []
    replies = yield Transaction(snapshot.stream, snapshot.group, queries_among([page.owner]), commands)
    if not there:
        return StillHeld([*deleted])
    before, after = (group_named(snapshot.group, reply) for reply in replies[::3])
    released = _not_in(replies[1], replies[2])
    return StillHeld(
        [*deleted, *(entry for entry in replies[2] if entry not in released)],
        before.pending - after.pending if before and after else 0,
        [_let_go(snapshot, released)] if released else [],
    )


def _mine(snapshot: GroupSnapshot, page: Page) -> Sequence[Argument]:
    """Return the request for what the consumer of a page holds now, between its first entry and its last one."""
    assert page.consumer is not None
    return ("XPENDING", snapshot.stream, snapshot.group, page.ids[0], page.ids[-1], _LISTED, page.consumer)


def _not_in(listed: Sequence[Reply], claimed: Sequence[bytes]) -> list[bytes]:
    """Return the claimed entries that XPENDING has not listed just before."""
    held = {entry[0] for entry in listed}
    return [entry for entry in claimed if entry not in held]


def _let_go(snapshot: GroupSnapshot, ids: Sequence[bytes]) -> Sequence[Argument]:
    """Return the command that releases entries again that were nobody's, with their count."""
    return ("XNACK", snapshot.stream, snapshot.group, "FAIL", "IDS", len(ids), *ids)


# -- acknowledge -------------------------------------------------------------------------------------------------------


@dataclass
class AcknowledgedEntries(UpToLast):
    """Entries that were, or would be, acknowledged on one stream."""

    stream: str
    group: str
    entries: int = 0
    consumers: dict[str, int] = field(default_factory=dict)  # entries of each
    last: str = ""  # the last entry

    def add(self, consumer: str, entries: int) -> None:
        """Add entries of a consumer."""
        self.entries += entries
        self.consumers[consumer] = self.consumers.get(consumer, 0) + entries


def selected_consumers(snapshot: GroupSnapshot, choice: Choice) -> list[str] | None:
    """Return the consumers that a choice may touch: those that hold entries. None: all, because each may take released
    entries meanwhile."""
    if choice.may_touch_released(snapshot):
        return None
    if choice.released:
        return []
    return [consumer.text for consumer in snapshot.consumers_named(choice.consumers or None) if consumer.pending]


def acknowledge(
    server: Server, snapshot: GroupSnapshot, choice: Choice, only: Only = UNBOUNDED
) -> Plan[AcknowledgedEntries]:
    """Acknowledge entries (XACK), one page per transaction. Raises ServerError."""
    acknowledged = AcknowledgedEntries(snapshot.stream, snapshot.group)
    for page in pages(server, snapshot, choice.within(only, snapshot)):
        queries = snapshot.queries if page.consumer is None else queries_among([page.owner])
        held = yield from still_held(server, snapshot, page)
        acks: list[Sequence[Argument]] = [("XACK", snapshot.stream, snapshot.group, *held.ids)] if held.ids else []
        commands = [*acks, *held.give_back]
        replies = yield Transaction(snapshot.stream, snapshot.group, queries, commands, page.consumer is None)
        entries = len(page.ids) if replies is None else held.removed + sum(replies[: len(acks)])
        acknowledged.add(page.owner, entries)
        acknowledged.last = page.later(acknowledged.last)
    return acknowledged


# -- claim -------------------------------------------------------------------------------------------------------------


_ENDLESS = 1 << 50  # milliseconds


@dataclass
class Claimed(UpToLast):
    """Entries that were, or would be, handed over on one stream."""

    stream: str
    group: str
    source: str
    to: str
    entries: int = 0
    gone: int = 0  # not in the stream any more: Redis 7 and later remove them from the pending list
    above: int = 0  # these stay: they are above the commit mark of the new query
    last: str = ""  # the last entry that is handed over


def claim(server: Server, snapshot: GroupSnapshot, to: str, choice: Choice, only: Only = UNBOUNDED) -> Plan[Claimed]:
    """Hand entries of one consumer, or released ones, to another consumer (XCLAIM … JUSTID), one page per transaction.

    JUSTID delivers no entries, so the server counts no delivery. The idle time of the entries begins again. A query
    reads the entries with its next batch if they are not above its commit mark. Entries above it may belong to a batch
    that runs, and would be acknowledged unread with it: they are not handed over. Raises StreamStateError, ServerError.
    """
    report, below = _claimable(server, snapshot, to, choice.within(only, snapshot))
    for page in pages(server, snapshot, below):
        # Released entries that a consumer has taken meanwhile are not idle for this long.
        # So are entries that another consumer has claimed since they were listed.
        idle = RELEASED_IDLE if page.consumer is None else max(page.idle, 1)
        command: tuple[Argument, ...] = ("XCLAIM", snapshot.stream, snapshot.group, to, idle, *page.ids, "JUSTID")
        queries = [] if page.consumer is None else queries_among([page.owner])
        mine = [] if page.consumer is None else [_mine(snapshot, page)]
        replies = yield Transaction(snapshot.stream, snapshot.group, queries, [*mine, command])
        if replies is None:
            deleted = len(_deleted(server, snapshot, page.ids))
            report.entries += len(page.ids) - deleted
        else:
            claimed = replies[-1]
            deleted = len(_deleted(server, snapshot, sorted({*page.ids} - {*claimed})))
            released = _not_in(replies[0], claimed) if mine else []
            report.entries += len(claimed) - len(released)
            if released:
                yield Transaction(snapshot.stream, snapshot.group, queries, [_let_go(snapshot, released)])
        report.gone += deleted
        report.last = page.later(report.last)
    return report


def claim_again(server: Server, snapshot: GroupSnapshot, query: str, choice: Choice) -> Plan[int]:
    """Make a range of entries that were delivered and are not pending any more pending for a stopped query (XCLAIM …
    FORCE), so that it reads them a second time. Return their number. Raises StreamStateError, ServerError."""
    entries = 0
    # No entry of a consumer is idle for this long: it stays with its consumer. One of nobody (XNACK) is taken.
    head: tuple[Argument, ...] = ("XCLAIM", snapshot.stream, snapshot.group, query, _ENDLESS)
    # Otherwise a query that was killed before it acknowledged its last batch would acknowledge these with it.
    mark = set_mark(snapshot.stream, snapshot.group, query, snapshot.marks[query]._replace(has_replay=True))
    for ids in _replayed_ids(server, snapshot, query, choice):
        commands = [(*head, *ids, "FORCE", "JUSTID"), mark]
        replies = yield Transaction(snapshot.stream, snapshot.group, [query], commands)
        if replies is None:
            asked = [("XPENDING", snapshot.stream, snapshot.group, entry_id, entry_id, 1) for entry_id in ids]
            entries += sum(not reply or not reply[0][1] for reply in server.execute_all(asked))
        else:
            entries += len(replies[0])
    return entries


def _replayed_ids(server: Server, snapshot: GroupSnapshot, query: str, choice: Choice) -> Iterator[list[bytes]]:
    bounds = [choice.last, snapshot.position, _committed_position(server, snapshot, query)]
    last = min(bound for bound in bounds if bound is not None)
    for ids in ids_between(server, snapshot.stream, choice.first, last):
        yield from (ids[start : start + _PAGE] for start in range(0, len(ids), _PAGE))


def _claimable(server: Server, snapshot: GroupSnapshot, to: str, choice: Choice) -> tuple[Claimed, Choice]:
    """Return an empty report, and the choice without entries that the new consumer must not get. Raises
    StreamStateError."""
    source = SHOWN if choice.released else choice.consumers[0]
    if not choice.released:
        require_consumer(snapshot, source)
    report = Claimed(snapshot.stream, snapshot.group, source, to)
    bound = _committed_position(server, snapshot, to)
    if bound is not None and choice.last > bound:
        above = replace(choice, first=max(choice.first, bound.next()), limit=None)
        report.above = sum(len(page.ids) for page in pages(server, snapshot, above))
        choice = choice.up_to(bound)
    return report, choice


def _committed_position(server: Server, snapshot: GroupSnapshot, consumer: str) -> StreamId | None:
    """Return the last entry that may be handed to a consumer; None if it is not known to be a query. Raises
    StreamStateError if it is a query without a pending list."""
    mark = fetch_mark(server, snapshot.stream, snapshot.group, consumer)
    if mark is None:
        return None
    instead = (
        "Start the query without noAck, repeat this command while it runs, and set noAck again when "
        f"{command_on(snapshot.stream, 'pending', '--group', snapshot.group)} shows nothing"
    )
    require_pending_list(snapshot, consumer, mark, instead)
    return min(mark.id, MAX_ID.previous())


def require_pending_list(snapshot: GroupSnapshot, query: str, mark: Mark, instead: str) -> None:
    """Raise StreamStateError if nothing can be handed to the query, because it reads with noAck. instead: what to
    do."""
    if not mark.has_pending_list:
        raise StreamStateError(
            f"query {query!r} of group {snapshot.group!r} reads stream {snapshot.stream!r} with noAck=true, so it "
            f"cannot read entries that are handed to it. {instead}"
        )


def _deleted(server: Server, snapshot: GroupSnapshot, ids: Sequence[bytes]) -> list[bytes]:
    """Return those of these that are not in the stream any more; none if the server keeps such entries pending."""
    if snapshot.head.added is None or not ids:
        return []
    info = pairs(server.execute("XINFO", "STREAM", snapshot.stream))
    if not info[b"length"]:
        return [*ids]
    # All entries above the last deleted one exist.
    first, last = StreamId.parse(info[b"recorded-first-entry-id"]), StreamId.parse(info[b"max-deleted-entry-id"])
    doubtful = [entry for entry in ids if (at := StreamId.parse(entry)) < first or at <= last]
    found = server.execute_each([("XRANGE", snapshot.stream, entry, entry) for entry in doubtful])
    return [entry for entry, reply in zip(doubtful, found, strict=True) if not reply]


# -- release -----------------------------------------------------------------------------------------------------------


@dataclass
class Released(UpToLast):
    """Entries that were, or would be, released on one stream."""

    stream: str
    group: str
    consumer: str
    mode: str  # of the delivery count: `fail` keeps it, `silent` subtracts one, `fatal`: it is not to be read again
    entries: int = 0
    last: str = ""  # the last entry


def release(
    server: Server, snapshot: GroupSnapshot, choice: Choice, mode: str, only: Only = UNBOUNDED
) -> Plan[Released]:
    """Release entries of one consumer (XNACK, Redis 8.8), one page per transaction. Raises StreamStateError,
    UnsupportedError, ServerError."""
    [consumer] = choice.consumers
    require_consumer(snapshot, consumer)
    _require_xnack(server, snapshot, consumer, mode)
    released = Released(snapshot.stream, snapshot.group, consumer, mode)
    head: tuple[Argument, ...] = ("XNACK", snapshot.stream, snapshot.group, mode.upper(), "IDS")
    for page in pages(server, snapshot, choice.within(only, snapshot)):
        held = yield from still_held(server, snapshot, page)
        own: list[Sequence[Argument]] = [(*head, len(held.ids), *held.ids)] if held.ids else []
        commands = [*own, *held.give_back]
        replies = yield Transaction(snapshot.stream, snapshot.group, queries_among(choice.consumers), commands)
        released.entries += len(page.ids) if replies is None else sum(replies[: len(own)])
        released.last = page.later(released.last)
    return released


def _require_xnack(server: Server, snapshot: GroupSnapshot, consumer: str, mode: str) -> None:
    # No entry has this ID, so this changes nothing.
    probe = ("XNACK", snapshot.stream, snapshot.group, mode.upper(), "IDS", 1, "0-0")
    [reply] = server.execute_all([probe], is_unknown_command)
    if is_unknown_command(reply):
        raise UnsupportedError(
            f"the server at {server.address} cannot release entries: it has no XNACK, which came with Redis 8.8. Hand "
            "the entries to a consumer of the group: "
            f"{claim_command(snapshot.stream, snapshot.group, consumer)}"
        )
