"""Reserving a batch: the group delivers entries to our consumer, and no entry comes to the driver (FACTS R1–R4).

A step is three commands: XREADGROUP with its reply suppressed, then XINFO GROUPS and XINFO CONSUMERS, which say where
the group stands now and how many entries are ours. Steps of all streams travel in one round trip; the ids where steps
end are the only thing the driver keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_streams.ids import StreamId
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.group.count_entries import count_between
from spark_streams.source.group.group_state import GroupState, Reserved, read_group_state, require_alone
from spark_streams.source.membership import Membership
from spark_streams.wire.connection import Connection, pack

STEP = 10_000  # entries a step at the most
_ROUND = 10_000  # entries of all streams in a round trip; the server answers nobody else meanwhile (FACTS R15)
_SKIP = pack("CLIENT", "REPLY", "SKIP")


@dataclass(frozen=True)
class Wanted:
    """most: how many entries of a stream to reserve; until: stop once the group has come to this id."""

    most: int
    until: StreamId


def reserve(
    server: Connection,
    member: Membership,
    wanted: Mapping[str, Wanted],
    states: Mapping[str, GroupState],
    step: int = STEP,
    no_ack: bool = False,
) -> Reserved:
    """Have up to the wanted entries delivered to our consumer.

    states: the group of each wanted stream, read just before. no_ack: without a pending list; then the group must be
    ours alone. Raises GroupMissingError, GroupSharedError, DataLossError, ServerError.
    """
    now = dict(states)  # where the run that follows begins
    reached = {stream: states[stream] for stream in wanted}
    left = {stream: want.most for stream, want in wanted.items()}
    runs: dict[str, list[EntryRange]] = {stream: [] for stream in wanted}
    while left:
        steps = _round(left, step)
        server.require_silence()
        server.send(b"".join([_step(member, stream, count, no_ack) for stream, count in steps]))
        replies = server.replies(2 * len(steps))
        finished = set()
        for at, (stream, _) in enumerate(steps):
            after = read_group_state(server, member, stream, replies[2 * at], replies[2 * at + 1])
            if no_ack:
                require_alone(member, stream, after)
            run = _unlisted_run(server, stream, now[stream], after) if no_ack else _run(stream, now[stream], after)
            reached[stream] = after
            left[stream] -= run.count
            if run.count:
                now[stream] = after
                runs[stream].append(run)
            # Without a count the step may have delivered as much as others claimed from us meanwhile. The next run
            # begins before it then, or, where there is none, it is found pending above the batch.
            if run.count == 0 or left[stream] <= 0 or after.last_delivered >= wanted[stream].until:
                finished.add(stream)
        for stream in [s for s in finished if not runs[s] and reached[s].last_delivered < wanted[s].until]:
            run, reached[stream] = _ask_aloud(server, member, stream, now[stream], no_ack)
            if run.count:
                runs[stream].append(run)
        for stream in finished:
            del left[stream]
    return Reserved([run for stream in runs for run in runs[stream]], reached)


def _round(left: Mapping[str, int], step: int) -> list[tuple[str, int]]:
    """The steps of one round trip, stream by stream: as many as fit, and one at least."""
    steps: list[tuple[str, int]] = []
    room = _ROUND
    for stream, entries in left.items():
        for done in range(0, min(entries, room), step):
            count = min(entries - done, step)
            steps.append((stream, count))
            room -= count
    return steps


def _ask(member: Membership, stream: str, count: int, no_ack: bool) -> list[str | int]:
    words: list[str | int] = ["XREADGROUP", "GROUP", member.group, member.consumer, "COUNT", count]
    return [*words, *(["NOACK"] if no_ack else []), "STREAMS", stream, ">"]


def _step(member: Membership, stream: str, count: int, no_ack: bool) -> bytes:
    return b"".join(
        [
            _SKIP,
            pack(*_ask(member, stream, count, no_ack)),
            pack("XINFO", "GROUPS", stream),
            pack("XINFO", "CONSUMERS", stream, member.group),
        ]
    )


def _ask_aloud(
    server: Connection, member: Membership, stream: str, before: GroupState, no_ack: bool
) -> tuple[EntryRange, GroupState]:
    """Nothing was delivered although there is more: read one entry with its reply, so that an error is heard.

    Raises ServerReplyError and kin. No entry and no error: what is left of the stream was deleted, or others read it.
    """
    server.execute(*_ask(member, stream, 1, no_ack))
    groups, consumers = server.pipeline([("XINFO", "GROUPS", stream), ("XINFO", "CONSUMERS", stream, member.group)])
    after = read_group_state(server, member, stream, groups, consumers)
    return (_unlisted_run(server, stream, before, after) if no_ack else _run(stream, before, after)), after


def _run(stream: str, before: GroupState, after: GroupState) -> EntryRange:
    """What one step delivered to us. The range is owned when the group as a whole delivered no more than that."""
    count = max(0, after.ours - before.ours)
    owned = (
        before.entries_read is not None
        and after.entries_read is not None
        and after.entries_read - before.entries_read == count
    )
    return EntryRange(stream, before.last_delivered, after.last_delivered, count, owned)


def _unlisted_run(server: Connection, stream: str, before: GroupState, after: GroupState) -> EntryRange:
    """What one step with NOACK delivered: all of it is ours. Where the server does not count it (an entry ahead of the
    group was deleted), what it left in the stream is counted."""
    count = 0
    if after.last_delivered > before.last_delivered:
        if before.entries_read is None or after.entries_read is None:
            count = count_between(server, stream, before.last_delivered, after.last_delivered)
        else:
            count = after.entries_read - before.entries_read
    return EntryRange(stream, before.last_delivered, after.last_delivered, count, owned=True)
