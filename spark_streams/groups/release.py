"""Releasing pending entries of a consumer (XNACK, Redis 8.8), a page a transaction."""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.errors import StreamStateError, UnsupportedError
from spark_streams.groups.group_snapshot import Standing, queries_among
from spark_streams.groups.guard import change
from spark_streams.groups.pending_selection import Choice, pages
from spark_streams.wire.connection.connection import Argument, ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.reply_errors import is_unknown_command


@dataclass
class Released:
    """What was, or would be, released on one stream. mode: what becomes of an entry's deliveries: `fail`, they stay,
    `silent`, one less, `fatal`, nobody is to read the entry again."""

    stream: str
    group: str
    consumer: str
    mode: str
    entries: int = 0


def release(server: Server, standing: Standing, choice: Choice, mode: str, act: bool) -> Released:
    """Release entries, or, unless `act`, say how many would be. choice: of one consumer. Raises GroupInUseError,
    StreamStateError, UnsupportedError, ServerError: what was done before stays done."""
    found = _begin(server, standing, choice, mode)
    head: tuple[Argument, ...] = ("XNACK", standing.stream, standing.group, mode.upper(), "IDS")
    for page in pages(server, standing, choice):
        count = len(page.ids)
        if act:
            commands = [(*head, count, *page.ids)]
            [count] = change(server, standing.stream, standing.group, queries_among(choice.consumers), commands)
        found.entries += count
    return found


def _begin(server: Server, standing: Standing, choice: Choice, mode: str) -> Released:
    [consumer] = choice.consumers
    if not standing.of([consumer]):
        raise StreamStateError(
            f"group {standing.group!r} of stream {standing.stream!r} has no consumer {consumer!r}; rstream pending "
            f"{standing.stream} lists them"
        )
    # No entry has this id, so this changes nothing.
    asked = ("XNACK", standing.stream, standing.group, mode.upper(), "IDS", 1, "0-0")
    [reply] = server.pipeline([asked])
    if is_unknown_command(reply):
        raise UnsupportedError(
            f"the server at {server.address} cannot release entries: it has no XNACK, which came with Redis 8.8. Hand "
            "the entries to a consumer of the group: rstream groups claim "
            f"{standing.stream} --group {standing.group} --from {consumer} --to CONSUMER"
        )
    if isinstance(reply, ReplyError):
        raise server.error_of(reply, asked[:3])
    return Released(standing.stream, standing.group, consumer, mode)
