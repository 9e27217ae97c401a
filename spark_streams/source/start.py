"""How a query begins: which streams it reads, its group on each of them, and where it stands without a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from spark_streams.ids import StreamId
from spark_streams.option_values import Positions
from spark_streams.source.group import Membership, look, missing
from spark_streams.wire.connection import Connection, ReplyError
from spark_streams.wire.replies import pairs
from spark_streams.wire.slots import key_beside

FIRST = "0"  # the position of XGROUP CREATE before a stream's first entry
_SCAN_COUNT = 10_000  # keys a round trip


def matching_streams(server: Connection, pattern: str, but: Iterable[str]) -> list[str]:
    """The streams whose names match a Redis pattern, sorted (SCAN … MATCH … TYPE stream); but: names to leave out.

    A name that is not UTF-8 cannot be an option's value or a column's, and is left out.
    """
    names: set[str] = set()
    cursor = b"0"
    while True:
        cursor, page = server.execute("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT, "TYPE", "stream")
        for name in page:
            try:
                names.add(name.decode())
            except UnicodeDecodeError:
                continue
        if cursor == b"0":
            return sorted(names - set(but))


def create_groups(server: Connection, member: Membership, streams: Sequence[str], starting: Positions) -> None:
    """Make sure that these streams have the group: XGROUP CREATE … MKSTREAM pins the start on the server (S2).

    Where the group exists nothing changes. Raises WrongKeyTypeError.
    """
    _create(server, [("XGROUP", "CREATE", s, member.group, starting.of(s), "MKSTREAM") for s in streams])


def create_groups_of_pattern(
    server: Connection, member: Membership, streams: Sequence[str], starting: Positions
) -> list[str]:
    """The same for the streams that a pattern found; those that have the group now: one may have vanished meanwhile.

    `starting` is for a query that begins: none of them has the group. Where some have it, the others have appeared
    since, and are read from their first entry. All are made in one transaction, so that a crash leaves no mixture.
    """
    found = server.pipeline([("XINFO", "GROUPS", stream) for stream in streams])
    group = member.group.encode()
    have = [s for s, reply in zip(streams, found, strict=True) if any(pairs(g)[b"name"] == group for g in _list(reply))]
    without = [stream for stream in streams if stream not in set(have)]
    if without:
        at = Positions(FIRST, {}) if have else starting
        commands = [("XGROUP", "CREATE", stream, member.group, at.of(stream)) for stream in without]
        have += [command[2] for command in _create(server, commands, transaction=True)]
    return sorted(have)


def create_groups_at(server: Connection, member: Membership, positions: Mapping[str, str]) -> None:
    """Make groups that are gone again, at these positions."""
    _create(server, [("XGROUP", "CREATE", s, member.group, at, "MKSTREAM") for s, at in positions.items()])


def create_consumers(server: Connection, member: Membership, streams: Sequence[str]) -> None:
    """Enter our consumer in the groups of these streams. A group that does not know it was made anew since."""
    server.execute_all([("XGROUP", "CREATECONSUMER", stream, member.group, member.consumer) for stream in streams])


def set_groups_to(server: Connection, member: Membership, positions: Mapping[str, StreamId]) -> None:
    """XGROUP SETID on each of these streams."""
    server.execute_all([("XGROUP", "SETID", stream, member.group, str(at)) for stream, at in positions.items()])


def first_positions(server: Connection, member: Membership) -> dict[str, StreamId]:
    """Where a query without a checkpoint begins: just below our oldest pending entry, else at the group's position."""
    heads, states = look(server, member, member.streams)
    commands = [("XPENDING", stream, member.group, "-", "+", 1, member.consumer) for stream in member.streams]
    positions: dict[str, StreamId] = {}
    for command, reply in zip(commands, server.pipeline(commands), strict=True):
        stream = command[1]
        state = states[stream]
        if state is None:
            raise missing(server, member, stream, not heads[stream].exists)
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, command)
        positions[stream] = StreamId.parse(reply[0][0]).previous() if reply else state.last_delivered
    return positions


def pin(server: Connection, member: Membership, positions: Mapping[str, StreamId]) -> dict[str, StreamId]:
    """Keep first positions on the server until a checkpoint has them; the positions that were kept first."""
    server.execute_all([("SET", _pin_key(stream, member), str(at), "NX") for stream, at in positions.items()])
    return pinned(server, member, list(positions))


def pinned(server: Connection, member: Membership, streams: Sequence[str]) -> dict[str, StreamId]:
    """The first positions that are kept on the server, of those streams that have one."""
    replies = server.execute_all([("GET", _pin_key(stream, member)) for stream in streams])
    return {stream: StreamId.parse(reply) for stream, reply in zip(streams, replies, strict=True) if reply is not None}


def unpin(server: Connection, member: Membership, streams: Sequence[str]) -> None:
    """The checkpoint has a position: first ones are of no more use."""
    if streams:
        server.execute("DEL", *[_pin_key(stream, member) for stream in streams])


def _pin_key(stream: str, member: Membership) -> bytes:
    return key_beside(stream, "start", member.group, member.consumer)


def _create(
    server: Connection, commands: Sequence[tuple[str, ...]], transaction: bool = False
) -> list[tuple[str, ...]]:
    """Those of the commands after which the group is there; without MKSTREAM a stream may be gone."""
    sent = [("MULTI",), *commands, ("EXEC",)] if transaction else commands
    replies = server.pipeline(sent)
    if transaction:
        replies = replies[-1] if isinstance(replies[-1], list) else replies[1:-1]
    made = []
    for command, reply in zip(commands, replies, strict=True):
        if isinstance(reply, ReplyError) and "requires the key to exist" in str(reply):
            continue
        if isinstance(reply, ReplyError) and not str(reply).startswith("BUSYGROUP"):
            raise server.error_of(reply, command)
        made.append(command)
    return made


def _list(reply: object) -> list[list[bytes]]:
    """XINFO GROUPS of a stream that vanished meanwhile is an error: it has no groups."""
    return reply if isinstance(reply, list) else []
