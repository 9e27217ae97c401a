"""Pending entries of groups: delivered and not acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.base.printable import name_text
from spark_streams.connector.admin.groups import FATAL
from spark_streams.connector.wire.connection.connection import ReplyError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import is_no_group, is_no_such_key
from spark_streams.operations.console.bounds import NAME_BYTES


@dataclass(frozen=True)
class PendingEntry:
    """consumer: None if a consumer released the entry (XNACK); idle_ms: since its delivery; deliveries: how often it
    was delivered, None: it was released as fatal."""

    group: str
    id: str
    consumer: str | None
    idle_ms: int | None
    deliveries: int | None


def fetch_pending(
    server: Server, streams: Sequence[str | bytes], groups: Sequence[str], limit: int, begin: str = "-"
) -> list[PendingEntry]:
    """Return the oldest pending entries of each group, `limit` of each stream. begin: the first ID. Raises
    NotPermittedError, ServerError."""
    commands = [("XPENDING", stream, group, begin, "+", limit) for stream in streams for group in groups]
    pending: list[PendingEntry] = []
    for command, reply in zip(commands, server.pipeline(commands), strict=True):
        if is_no_group(reply) or is_no_such_key(reply):
            continue  # deleted since
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, command)
        for entry, consumer, idle, deliveries in reply:
            is_released = idle < 0
            pending.append(
                PendingEntry(
                    command[2],
                    name_text(entry),
                    None if is_released else name_text(consumer)[:NAME_BYTES],
                    None if is_released else idle,
                    None if deliveries == FATAL else deliveries,
                )
            )
    return sorted(pending, key=lambda entry: (-(entry.idle_ms or 0), entry.id))
