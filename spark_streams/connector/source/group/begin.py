"""What a run does before its first trigger: it checks the server, finds its streams, holds the lease on them, and
creates its group where it is missing. A run that knows the server no longer (a connection broke) opens again.

The server must have what makes every loss noticeable:

- Counts. Since Redis 7.0, and in every Valkey, a stream has the number of entries ever added, and a group the number it
  has read. By these the query notices entries trimmed unread, a stream created again, and a server in an older state.
- No eviction of any key. A query notices dropped streams, groups and pending lists at its next trigger, but not dropped
  notes (mode DEADLETTER, source.task.notes), nor streams in which entries wait for a retry (group.retries).

If a group is missing, and its stream …       it begins
is read without a checkpoint                  where `initialOffset` has said. The server keeps the position: the next
                                              call, and a run after a kill, say the same
was added to option `streams` since           at startingOffsets
matches the pattern since                     at its first entry
is named by the checkpoint                    where the comparison decides (group.compare)

A query with a checkpoint is asked where it would begin, too (facts.md, S2). So `first` saves positions, and creates no
group.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.base.ids import MIN_ID, InvalidStreamId, StreamId
from spark_streams.connector.errors import StreamMissingError, StreamStateError, UnsupportedError
from spark_streams.connector.keys import key_beside, key_of_query, returned_stream
from spark_streams.connector.operator_commands import seek_command
from spark_streams.connector.options.parsers import PerStream
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.commit_mark import Mark
from spark_streams.connector.source.counting import count_read
from spark_streams.connector.source.group import snapshot
from spark_streams.connector.source.group.recovery import Start
from spark_streams.connector.source.group.streams import ExpectedStreams, StreamSet
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.wire.connect import drops_any_key, evicting_policy
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.replies import (
    is_forbidden,
    is_key_required,
    is_no_group,
    is_no_such_key,
    is_out_of_memory,
    is_syntax_error,
    is_wrong_number_of_arguments,
)
from spark_streams.connector.wire.xinfo import StreamState, stream_states

_log = logging.getLogger("spark_streams.source")


# The key does not exist, so nothing is set. A server without these arguments refuses the syntax first (R43).
_PROBE = ("XSETID", "rstream:none", "0-0", "ENTRIESADDED", "0", "MAXDELETEDID", "0-0")


def require_entry_counts(server: Server) -> None:
    """Raise UnsupportedError if the server does not have these counts, or ServerError. It is believed to have them if
    the user may not ask (+xsetid), or if its memory is full: reading goes on, and makes room."""
    lacks_counts = (is_wrong_number_of_arguments, is_syntax_error)
    [reply] = server.execute_all([_PROBE], is_no_such_key, is_forbidden, is_out_of_memory, *lacks_counts)
    if any(is_lack(reply) for is_lack in lacks_counts):
        raise UnsupportedError(
            f"cannot read a stream from the server at {server.address}: Redis before 7.0 has no entries-added and "
            "entries-read, so lost entries could not be noticed. Use Redis 7.0 or later, or Valkey"
        )


def require_no_eviction(server: Server, options: SourceOptions) -> None:
    """Raise UnsupportedError if the server's maxmemory-policy, which the user may read, endangers this query."""
    policy = evicting_policy(server)
    if not drops_any_key(policy):
        return
    danger = f"the server at {server.address} drops any key when its memory is full (maxmemory-policy {policy})"
    if options.mode == "DEADLETTER":
        raise UnsupportedError(
            f"{danger}, also the notes on entries that are to become dead letters. Set the policy to noeviction (or "
            "volatile-lru), or choose another mode"
        )
    if options.retry_delay:
        raise UnsupportedError(
            f"{danger}, also entries that wait for a retry. Set the policy to noeviction (or volatile-lru), or read "
            "without retryDelay"
        )
    _log.warning("%s, also streams and groups. Set the policy to noeviction (or volatile-lru)", danger)


FIRST = PerStream("0", {})  # before a stream's first entry


def starting_positions(server: Server, streams: Sequence[str], starting: PerStream[str]) -> dict[str, StreamId]:
    """Return where a new group begins on each of these streams; `latest` is the stream's last entry now."""
    heads = stream_states(server, streams)
    return {stream: _starting_position(starting, stream, head) for stream, head in heads.items()}


def warn_of_entries_before(member: Membership, created: Mapping[str, Start]) -> None:
    """Log how many entries lie before groups that were created at `latest`. Only now: see the head."""
    passed = {stream: start.passed for stream, start in sorted(created.items()) if start.passed}
    if not passed:
        return
    entries, (stream, *others) = sum(passed.values()), passed
    streams = f"stream {stream!r}{_and_more(len(others))}"
    lie, pronoun = ("entry lies before it and is", "it") if entries == 1 else ("entries lie before it and are", "them")
    _log.warning(
        "%s",
        f"group {member.group!r} is new and begins at the end of {streams} (startingOffsets=latest): "
        f"{entries:,} {lie} not read. "
        f"startingOffsets=earliest reads {pronoun}, but applies to new groups only. To read {pronoun} with this group, "
        f"stop the query, set the group ({seek_command(stream, member.group, 'earliest')}), and start it with a new "
        "checkpoint",
    )


def _and_more(streams: int) -> str:
    return f" and {streams:,} more stream{'' if streams == 1 else 's'}" if streams else ""


def starts_at(server: Server, positions: Mapping[str, StreamId], starting: PerStream[str]) -> dict[str, Start]:
    """Return the start of a new group at each of these positions. Raises WrongKeyTypeError."""
    starts: dict[str, Start] = {}
    for stream, head in stream_states(server, list(positions)).items():
        position = positions[stream]
        read = head.added if position > head.last else count_read(server, stream, head, position)
        passed = 0
        if position > MIN_ID and starting.value_for(stream) == "$" and read is not None:
            passed = max(0, (head.length or 0) - ((head.added or 0) - read))
        starts[stream] = Start(position, read, passed)
    return starts


def _starting_position(starting: PerStream[str], stream: str, head: StreamState) -> StreamId:
    value = starting.value_for(stream)
    return head.last if value == "$" else StreamId.parse(value)


def first_positions(
    client: GroupClient, streams: Sequence[str], restarts_at: PerStream[str] | None
) -> dict[str, StreamId]:
    """Return where a query without a checkpoint begins on streams that have the group: at its mark if a run has
    reserved entries above it before Spark logged an offset; else at the group, or where `restarts_at` says."""
    heads, states = snapshot.fetch_state(client, streams)
    groups = snapshot.require_groups(client, heads, states)
    marks = snapshot.fetch_marks(client, streams)
    begun = {stream: mark.id for stream, mark in marks.items() if mark is not None and mark.is_begin}
    commands = [("XPENDING", stream, client.group, f"({begun[stream]}", "+", 1, client.consumer) for stream in begun]
    reserved = {stream for stream, reply in zip(begun, client.server.execute_all(commands), strict=True) if reply}
    positions: dict[str, StreamId] = {}
    for stream, group in groups.items():
        if restarts_at is not None and restarts_at.covers(stream):
            positions[stream] = _starting_position(restarts_at, stream, heads[stream])
        elif stream in reserved:
            positions[stream] = min(begun[stream], group.last_delivered)
        else:
            positions[stream] = group.last_delivered
    return positions


def restart_groups(client: GroupClient, positions: Mapping[str, StreamId]) -> None:
    """Set existing groups to these positions, without pending entries of the query (onNewCheckpoint=restart). A killed
    query does this again. Raises GroupSharedError before any group is changed; DataLossError, ServerError."""
    heads, states = snapshot.fetch_state(client, list(positions))
    existing = {stream: state for stream, state in states.items() if state is not None}
    for stream, state in existing.items():
        if state.others or state.released:
            raise snapshot.shared_at_restart(client.member, stream, state)
    deletions = [("XGROUP", "DELCONSUMER", stream, client.group, client.consumer) for stream in existing]
    for stream, reply in zip(existing, client.server.execute_all(deletions, is_key_required, is_no_group), strict=True):
        if is_key_required(reply) or is_no_group(reply):
            raise snapshot.missing(client, stream, stream_too=is_key_required(reply))
    starts = {
        stream: Start(positions[stream], count_read(client.server, stream, heads[stream], positions[stream]))
        for stream in existing
    }
    changes = {
        stream: snapshot.GroupChange(set_to=start, mark=Mark.at_begin(start.position, start.read), touch=True)
        for stream, start in starts.items()
    }
    snapshot.change_groups(client, changes)


def unused_start(client: GroupClient, positions: Mapping[str, StreamId], starting: PerStream[str]) -> str | None:
    """Return what to log if entries are between the groups (positions) and `starting` (onNewCheckpoint=resume)."""
    covered = [stream for stream in positions if starting.covers(stream)]
    starts = {
        stream: _starting_position(starting, stream, head)
        for stream, head in stream_states(client.server, covered).items()
    }
    between = [
        ("XRANGE", stream, bytes(min(ends).next()), bytes(max(ends)), "COUNT", 1)
        for stream in covered
        if (ends := (positions[stream], starts[stream]))[0] != ends[1]
    ]
    differing = [
        command[1] for command, reply in zip(between, client.server.execute_all(between), strict=True) if reply
    ]
    if not differing:
        return None
    stream, start = differing[0], starts[differing[0]]
    seek_to = "earliest" if start == MIN_ID else "latest" if starting.value_for(stream) == "$" else start
    return (
        f"group {client.group!r} already exists on stream {stream!r}{_and_more(len(differing) - 1)}. The query reads "
        f"what is pending for it, and goes on after entry {positions[stream]}, where the group stands. startingOffsets "
        "is not used: it applies to new groups. To begin elsewhere, and read again what is in between, stop the query, "
        f"set the group ({seek_command(stream, client.group, seek_to)}), and start it with a new "
        "checkpoint; or give the query a group of its own (option group)"
    )


@dataclass(frozen=True)
class InitialPositions:
    """First positions that the server keeps until a checkpoint or a group has them."""

    member: Membership

    def key_of(self, stream: str) -> bytes:
        return key_beside(stream, "first", self.member.group, self.member.consumer)

    def save(self, server: Server, positions: Mapping[str, StreamId]) -> dict[str, StreamId]:
        """Save these positions. Return those that were saved first."""
        server.execute_all(
            [("SET", self.key_of(stream), str(position), "NX") for stream, position in positions.items()]
        )
        # If a key was deleted meanwhile, its position is the one that was to be saved.
        return {**positions, **self.fetch(server, list(positions))}

    def fetch(self, server: Server, streams: Sequence[str]) -> dict[str, StreamId]:
        """Return the positions that the server has, of those streams that have one."""
        replies = server.execute_all([("GET", self.key_of(stream)) for stream in streams])
        return {
            stream: _parse_position(self.key_of(stream), reply)
            for stream, reply in zip(streams, replies, strict=True)
            if reply is not None
        }

    def delete(self, server: Server, streams: Sequence[str]) -> None:
        server.execute_all([("DEL", self.key_of(stream)) for stream in streams])


def _parse_position(key: bytes, text: bytes) -> StreamId:
    try:
        return StreamId.parse(text)
    except InvalidStreamId as error:
        raise StreamStateError(
            f"key {key.decode('utf-8', 'replace')!r} holds no first position ({error}): another client has changed it. "
            "Only the query's user may write keys rstream:… (rstream help access). Restore the key from the "
            "server's backup"
        ) from None


@dataclass(frozen=True)
class Opened:
    """Where a trigger begins. checkpoint: Spark's; start: the same, without streams that the query no longer reads and
    with what the run knows better; streams: that the trigger reads, also new ones."""

    checkpoint: Offset
    start: Offset
    streams: tuple[str, ...]


class Opening:
    """Opens one run of a query on its streams."""

    def __init__(self, options: SourceOptions, streams: StreamSet) -> None:
        self._options = options
        self._streams = streams
        self._expected = ExpectedStreams(options)
        self._found: Mapping[str, Start] = {}  # starts of missing groups, with the counts of the moment of `find`
        self._met: set[str] = set()  # streams of which onNewCheckpoint was asked, or whose group this run has created
        self._initial = InitialPositions(streams.member)
        self._begun_key = key_of_query("begun", options.group, options.consumer)  # until the query has a checkpoint

    def first(self, client: GroupClient) -> dict[str, StreamId]:
        """Return where the query begins on each stream without a checkpoint. Raises as `find` does."""
        new = self.find(client)
        existing = [stream for stream in self._streams.names if stream not in new]
        return {**new, **first_positions(client, existing, self._options.restarts_at)}

    def find(self, client: GroupClient) -> dict[str, StreamId]:
        """Find the streams, hold the lease on them, and save where missing groups begin without a checkpoint. Return
        these positions. Raises ConsumerTakenError, WrongKeyTypeError, ServerError."""
        positions = self._positions_without_group(client)
        self._found = starts_at(client.server, positions, self._options.starting_offsets)
        return positions

    def _positions_without_group(self, client: GroupClient) -> dict[str, StreamId]:
        streams, starting = self._streams, self._options.starting_offsets
        if not streams.by_pattern:
            streams.hold(client, self._streams.names)
            without = snapshot.streams_without_group(client, self._streams.names)
            self._expected.record_absent(client.server, without)
            return self._initial.save(client.server, starting_positions(client.server, without, starting))
        without = streams.match(client)
        if len(without) < len(self._streams.names) or client.server.execute("EXISTS", self._begun_key):
            return {**dict.fromkeys(without, MIN_ID), **self._initial.fetch(client.server, without)}
        # No stream has the group, so the query begins. From the moment of this SET, streams that appear are read from
        # their first entry, also by the run after a kill. All first positions are saved before it.
        positions = self._initial.save(client.server, starting_positions(client.server, without, starting))
        client.server.execute("SET", self._begun_key, self._options.pattern)
        return positions

    def open(self, client: GroupClient, checkpoint: Offset) -> Offset:
        """Create missing groups: all before the first batch, later those of streams that the checkpoint does not name.
        Return the checkpoint without streams that neither the options nor a group have. Raises as `find` does, and
        StreamMissingError, DataLossError, GroupSharedError."""
        streams = self._streams
        streams.forget_retries()
        if streams.by_pattern:
            self.join(client, checkpoint)
            self._expected.report_unmatched(client.server, streams.named(checkpoint))
        else:
            unnamed = [s for s in self._streams.names if not (checkpoint.token and s in checkpoint.positions)]
            streams.hold(client, self._streams.names)
            self._report_expected(client, unnamed)
            without = snapshot.streams_without_group(client, unnamed)
            if not self._expected.has_recorded:
                self._expected.record_absent(client.server, without)
            self._join(client, checkpoint, without)
            self._initial.delete(client.server, without)  # the groups have the positions now
        if checkpoint.token:
            self._confirm(client, checkpoint)
        return self._without_dropped(client, checkpoint)

    def join(self, client: GroupClient, checkpoint: Offset) -> None:
        """Match the pattern, and join the streams that match it now. Raises as `open` does."""
        self._join(client, checkpoint, self._streams.match(client, checkpoint))

    def _join(self, client: GroupClient, checkpoint: Offset, without: Sequence[str]) -> None:
        """Create the groups of these streams, and meet those of the others."""
        positions = self._new_positions(client, [s for s in without if s not in checkpoint.positions])
        if not checkpoint.token:
            positions |= {s: checkpoint[s] for s in without if s in checkpoint.positions}
        # What is lost since `find` is a loss of the query: the counts of that moment show it.
        found = {s: start for s, start in self._found.items() if positions.get(s) == start.position}
        others = {s: position for s, position in positions.items() if s not in found}
        created = self._create(client, {**found, **starts_at(client.server, others, self._options.starting_offsets)})
        self._found = {}
        if not checkpoint.token:
            self._met |= created
            self._meet_existing(client, checkpoint)

    def _new_positions(self, client: GroupClient, new: Sequence[str]) -> dict[str, StreamId]:
        """Return where the groups begin on streams that came to the query later."""
        if self._streams.by_pattern:
            return dict.fromkeys(new, MIN_ID)
        return self._initial.save(client.server, starting_positions(client.server, new, self._options.starting_offsets))

    def _create(self, client: GroupClient, starts: Mapping[str, Start]) -> set[str]:
        """Create groups, and streams that did not exist when the query started. Return the streams that have the group
        now. A stream of a pattern that has vanished since is no longer read; one of `streams` is a loss."""
        changes = {
            stream: snapshot.GroupChange.at_begin(start, makes_stream=self._expected.was_absent(stream))
            for stream, start in starts.items()
        }
        _, vanished = snapshot.try_to_change(client, changes)
        created = {*starts} - vanished
        if vanished and self._streams.by_pattern:
            self._streams.leave(vanished)
        elif vanished and self._options.fail_on_data_loss:
            raise snapshot.missing(client, min(vanished), stream_too=True)
        elif vanished:
            for stream in sorted(vanished):
                _log.warning("stream %r was deleted after the query started. The query creates it again, empty", stream)
            again = {stream: snapshot.GroupChange.at_begin(starts[stream], makes_stream=True) for stream in vanished}
            snapshot.change_groups(client, again)
            created |= vanished
        warn_of_entries_before(client.member, {stream: starts[stream] for stream in created})
        return created

    def _meet_existing(self, client: GroupClient, first: Offset) -> None:
        """Do as `onNewCheckpoint` says, once for each stream whose group existed. Raises GroupSharedError."""
        options = self._options
        new = [stream for stream in self._streams.named(first) if stream not in self._met]
        if not new or not options.is_start_given:
            return
        later = [stream for stream in new if stream not in first.positions]
        at_first = None if options.restarts_at is None else FIRST
        existing = {
            **{stream: position for stream, position in first.positions.items() if stream in new},
            **(first_positions(client, later, at_first) if later else {}),
        }
        if options.restarts_at is not None:
            covered = {s: position for s, position in existing.items() if options.restarts_at.covers(s)}
            restart_groups(client, covered)
        else:
            # A query that has committed nothing meets the group that it has created itself.
            marks = snapshot.fetch_marks(client, list(existing))
            existing = {
                stream: position
                for stream, position in existing.items()
                if (mark := marks[stream]) is None or not mark.is_begin or mark.id != position
            }
            unused = unused_start(client, existing, options.starting_offsets)
            if unused is not None:
                _log.warning("%s", unused)
        self._met.update(new)

    def _report_expected(self, client: GroupClient, unknown: Sequence[str]) -> None:
        """A missing stream deletes what `find` has saved: the next start begins at startingOffsets."""
        try:
            self._expected.report_silent(client.server, unknown)
        except StreamMissingError:
            self._initial.delete(client.server, unknown)
            raise

    def _without_dropped(self, client: GroupClient, checkpoint: Offset) -> Offset:
        streams = self._streams.named(checkpoint)
        named = {*streams, *(returned_stream(stream, client.group) for stream in streams)}
        _, states = snapshot.fetch_state(client, [stream for stream in checkpoint.streams if stream not in named])
        return checkpoint.without(stream for stream, state in states.items() if state is None)

    def _confirm(self, client: GroupClient, checkpoint: Offset) -> None:
        """Delete the keys that replace a missing checkpoint: first positions, and the key that the query has begun."""
        self._initial.delete(client.server, checkpoint.streams)
        if self._streams.by_pattern:
            client.server.execute("DEL", self._begun_key)
