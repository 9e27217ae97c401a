"""Release pending entries of a consumer (XNACK, Redis 8.8), one page per transaction."""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.connector.admin.groups import GroupSnapshot, change, queries_among
from spark_streams.connector.errors import StreamStateError, UnsupportedError
from spark_streams.connector.wire.connection.connection import Argument
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import is_unknown_command
from spark_streams.operations.groups.pending_selection import Choice, pages


@dataclass
class Released:
    """Entries that were, or would be, released on one stream. mode: the entry's delivery count: `fail` keeps it,
    `silent` subtracts one, `fatal` marks the entry as not to be read again; last: the last one."""

    stream: str
    group: str
    consumer: str
    mode: str
    entries: int = 0
    last: str = ""


def release(server: Server, snapshot: GroupSnapshot, choice: Choice, mode: str, act: bool) -> Released:
    """Release entries; unless `act`, only count them. choice: of one consumer. Raises GroupInUseError,
    StreamStateError, UnsupportedError, ServerError: pages before the error stay released."""
    released = _plan(server, snapshot, choice, mode)
    head: tuple[Argument, ...] = ("XNACK", snapshot.stream, snapshot.group, mode.upper(), "IDS")
    for page in pages(server, snapshot, choice):
        count = len(page.ids)
        if act:
            commands = [(*head, count, *page.ids)]
            [count] = change(server, snapshot.stream, snapshot.group, queries_among(choice.consumers), commands)
        released.entries += count
        released.last = page.later(released.last)
    return released


def _plan(server: Server, snapshot: GroupSnapshot, choice: Choice, mode: str) -> Released:
    [consumer] = choice.consumers
    if not snapshot.consumers_named([consumer]):
        raise StreamStateError(
            f"group {snapshot.group!r} of stream {snapshot.stream!r} has no consumer {consumer!r}. To list its "
            f"consumers: rstream pending {snapshot.stream}"
        )
    # No entry has this ID, so this changes nothing.
    probe = ("XNACK", snapshot.stream, snapshot.group, mode.upper(), "IDS", 1, "0-0")
    [reply] = server.execute_all([probe], is_unknown_command)
    if is_unknown_command(reply):
        raise UnsupportedError(
            f"the server at {server.address} cannot release entries: it has no XNACK, which came with Redis 8.8. Hand "
            "the entries to a consumer of the group: rstream groups claim "
            f"{snapshot.stream} --group {snapshot.group} --from {consumer} --to CONSUMER"
        )
    return Released(snapshot.stream, snapshot.group, consumer, mode)
