"""Looks at streams, to find out where to cut them (split_points): a few round trips for all streams together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.model.ids import StreamId
from spark_streams.source.batch.split_points import Look, first_places, further_places
from spark_streams.source.entry_range import EntryRange
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server

_ROUNDS = 6  # of looks, where entries come in bursts; one, where they do not
_LOOKS = 4_096  # in a round, shared between the streams
_STREAM_LOOKS = (4, 256)  # in a round at one stream, at least and at most
_LOOK_BYTES = 16 << 20  # that the looks of one round may bring, if they are more than one at each stream
_MOST_IDS = 32  # of a look
_LEAST_ENTRIES = 4  # that a look brings: two ids, the last one of a millisecond, and the one below


@dataclass(frozen=True)
class Aim:
    """What the looks are for. entries: of a part of the span; most: how many the span may have; entry_bytes: about how
    large one is; ids: how many a look asks for at most."""

    span: EntryRange
    entries: int
    most: int
    entry_bytes: int
    ids: int = _MOST_IDS


def may_be_large(span: EntryRange, most: int, entries: int) -> bool:
    """Whether it may be worth cutting. A part of a stream may hold more than an even spread says, up to all of it."""
    return not span.ids and 2 * most > 3 * entries and span.after.next() < span.last


def look_around(server: Server, aims: Sequence[Aim], rounds: int = _ROUNDS) -> list[list[Look]]:
    """The looks at each span, until no stretch between them is too large. Raises ServerError and kin."""
    looks: list[list[Look]] = [[] for _ in aims]
    share = max(_STREAM_LOOKS[0], min(_STREAM_LOOKS[1], _LOOKS // max(1, len(aims))))
    affordable = [_LOOK_BYTES // (_LEAST_ENTRIES * len(aims) * max(1, aim.entry_bytes)) for aim in aims]
    places = [
        first_places(aim.span, aim.entries, min(share, max(1, most)))
        for aim, most in zip(aims, affordable, strict=True)
    ]
    for _ in range(rounds):
        if not any(places):
            break
        _look(server, aims, places, looks)
        places = [
            further_places(aim.span, known, aim.entries, aim.most, min(share, most))
            for aim, known, most in zip(aims, looks, affordable, strict=True)
        ]
    return looks


def _look(
    server: Server, aims: Sequence[Aim], places: Sequence[Sequence[StreamId]], looks: Sequence[list[Look]]
) -> None:
    """Look at these places, in one round trip.

    XREVRANGE walks the whole stream if nothing in it is as low as where it begins (docs/internals/facts.md, R130), so
    it is not asked what lies below the first place of a span."""
    wanted = [(number, at) for number, ats in enumerate(places) for at in ats]
    budget = _LOOK_BYTES // max(1, len(wanted))
    counts = [max(2, min(aim.ids, budget // max(1, aim.entry_bytes))) for aim in aims]
    commands: list[tuple[str | bytes | int, ...]] = []
    for number, at in wanted:
        span = aims[number].span
        commands.append(("XRANGE", span.stream, bytes(at), bytes(span.last), "COUNT", counts[number]))
        commands.append(("XREVRANGE", span.stream, at.ms, at.ms, "COUNT", 1))
        if at > span.after.next():
            commands.append(("XREVRANGE", span.stream, b"(" + bytes(at), bytes(span.after.next()), "COUNT", 1))
    found: list[tuple[StreamId, ...]] = []
    for command, reply in zip(commands, server.each(commands), strict=True):
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, command)
        found.append(tuple(StreamId.parse(entry[0]) for entry in reply))
    replies = iter(found)
    for number, at in wanted:
        ids, deepest = next(replies), next(replies)
        below = next(replies) if at > aims[number].span.after.next() else ()
        end = len(ids) < counts[number]
        looks[number].append(Look(at, ids, end, deepest[0].seq if deepest else 0, below[0] if below else None))
