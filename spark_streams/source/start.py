"""How a query begins: which streams it reads, its group on each of them, and where it stands without a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_streams.ids import StreamId
from spark_streams.option_values import Positions
from spark_streams.source.counting import count_read
from spark_streams.source.group import Membership, look, missing, stream_states
from spark_streams.wire.connection import Connection, ReplyError
from spark_streams.wire.replies import pairs
from spark_streams.wire.slots import key_beside

FIRST = Positions("0", {})  # before a stream's first entry
_SCAN_COUNT = 10_000  # keys a round trip


@dataclass(frozen=True)
class Start:
    """Where a group is made, or set to. read: how many entries the stream has had up to there, None: not known."""

    at: StreamId
    read: int | None = None

    def words(self) -> tuple[str, ...]:
        """The option of XGROUP CREATE and SETID that tells the group."""
        return () if self.read is None else ("ENTRIESREAD", str(self.read))


@dataclass(frozen=True)
class Pins:
    """Keys that keep first positions. kind: `start` of a query without a pending list; `first` of the streams that a
    pattern matched when the query began."""

    kind: str
    member: Membership

    def of(self, stream: str) -> bytes:
        """One stream's key."""
        return key_beside(stream, self.kind, self.member.group, self.member.consumer)


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
    """Make sure that these streams have the group; a stream that does not exist is made. Raises WrongKeyTypeError."""
    without = streams_without_group(server, member, streams)
    create_groups_at(server, member, resolve(server, without, starting))


def resolve(server: Connection, streams: Sequence[str], starting: Positions) -> dict[str, Start]:
    """Where a new group of these streams starts; `latest` is the newest entry of this moment. Raises
    WrongKeyTypeError."""
    starts = {}
    for stream, head in stream_states(server, streams).items():
        position = starting.of(stream)
        at = head.last if position == "$" else StreamId.parse(position)
        # Nobody knows how many will be added before the stream comes to where it is to be read from.
        starts[stream] = Start(at, None if at > head.last else count_read(server, stream, head, at))
    return starts


def streams_without_group(server: Connection, member: Membership, streams: Sequence[str]) -> list[str]:
    """Those of the streams that do not have the group, or do not exist. Raises WrongKeyTypeError."""
    found = server.pipeline([("XINFO", "GROUPS", stream) for stream in streams])
    without = []
    for stream, reply in zip(streams, found, strict=True):
        if isinstance(reply, ReplyError) and "no such key" not in str(reply):
            raise server.error_of(reply, ("XINFO", "GROUPS", stream))
        groups = [] if isinstance(reply, ReplyError) else [pairs(group)[b"name"] for group in reply]
        if member.group.encode() not in groups:
            without.append(stream)
    return without


def is_in_some_group(server: Connection, member: Membership, streams: Sequence[str]) -> bool:
    """Whether our consumer is known to the group of one of these streams, which have it."""
    replies = server.pipeline([("XINFO", "CONSUMERS", stream, member.group) for stream in streams])
    known = [reply for reply in replies if not isinstance(reply, ReplyError)]  # a group that vanished meanwhile
    return any(pairs(one)[b"name"] == member.consumer.encode() for reply in known for one in reply)


def create_groups_at(
    server: Connection, member: Membership, starts: Mapping[str, Start], make_streams: bool = True
) -> list[str]:
    """Make groups where there are none: an id pins the start on the server (S2), and the group is told how many
    entries lie below it, so that it counts from there. The streams that have the group now: without make_streams one
    may have vanished."""
    commands = [
        (
            *("XGROUP", "CREATE", stream, member.group, str(start.at)),
            *(["MKSTREAM"] if make_streams else []),
            *start.words(),
        )
        for stream, start in starts.items()
    ]
    have = []
    for command, reply in zip(commands, server.pipeline(commands), strict=True):
        if isinstance(reply, ReplyError) and "requires the key to exist" in str(reply):
            continue
        if isinstance(reply, ReplyError) and not str(reply).startswith("BUSYGROUP"):
            raise server.error_of(reply, command)
        have.append(command[2])
    return have


def create_consumers(server: Connection, member: Membership, streams: Sequence[str]) -> None:
    """Enter our consumer in the groups of these streams. A group that does not know it was made anew since."""
    commands = [("XGROUP", "CREATECONSUMER", stream, member.group, member.consumer) for stream in streams]
    _require_streams(server, member, commands)


def set_groups_to(server: Connection, member: Membership, starts: Mapping[str, Start]) -> None:
    """XGROUP SETID on each of these streams."""
    commands = [
        ("XGROUP", "SETID", stream, member.group, str(start.at), *start.words()) for stream, start in starts.items()
    ]
    _require_streams(server, member, commands)


def _require_streams(server: Connection, member: Membership, commands: Sequence[tuple[str, ...]]) -> None:
    """Send them. Raises DataLossError where a stream has vanished meanwhile, and the named error of any other."""
    for command, reply in zip(commands, server.pipeline(commands), strict=True):
        if isinstance(reply, ReplyError) and "requires the key to exist" in str(reply):
            raise missing(server, member, command[2], stream_too=True)
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, command)


def first_positions(server: Connection, member: Membership, late: Mapping[str, Start]) -> dict[str, StreamId]:
    """Where a query without a checkpoint begins: just below our oldest pending entry, else at the group's position.
    late: streams whose group is to be made."""
    streams = [stream for stream in member.streams if stream not in late]
    heads, states = look(server, member, streams)
    commands = [("XPENDING", stream, member.group, "-", "+", 1, member.consumer) for stream in streams]
    positions = {stream: start.at for stream, start in late.items()}
    for command, reply in zip(commands, server.pipeline(commands), strict=True):
        stream = command[1]
        state = states[stream]
        if state is None:
            raise missing(server, member, stream, not heads[stream].exists)
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, command)
        oldest = StreamId.parse(reply[0][0]).previous() if reply else state.last_delivered
        positions[stream] = min(oldest, state.last_delivered)
    return positions


def pin(server: Connection, keys: Pins, positions: Mapping[str, StreamId]) -> dict[str, StreamId]:
    """Keep first positions on the server until a checkpoint has them; the positions that were kept first."""
    server.execute_all([("SET", keys.of(stream), str(at), "NX") for stream, at in positions.items()])
    return pinned(server, keys, list(positions))


def pinned(server: Connection, keys: Pins, streams: Sequence[str]) -> dict[str, StreamId]:
    """The first positions that are kept on the server, of those streams that have one."""
    replies = server.execute_all([("GET", keys.of(stream)) for stream in streams])
    return {stream: StreamId.parse(reply) for stream, reply in zip(streams, replies, strict=True) if reply is not None}


def unpin(server: Connection, keys: Pins, streams: Sequence[str]) -> None:
    """The checkpoint has a position: first ones are of no more use."""
    server.execute_all([("DEL", keys.of(stream)) for stream in streams])
