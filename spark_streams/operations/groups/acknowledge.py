"""Acknowledge pending entries for their consumers (XACK), one page per transaction."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_streams.connector.admin.groups import GroupSnapshot, change, queries_among
from spark_streams.connector.wire.connection.connection import Argument
from spark_streams.connector.wire.connection.server import Server
from spark_streams.operations.groups.pending_selection import Choice, pages


@dataclass
class Acknowledged:
    """Entries that were, or would be, acknowledged on one stream, by consumer. last: the last one."""

    stream: str
    group: str
    entries: int = 0
    consumers: dict[str, int] = field(default_factory=dict)
    last: str = ""

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


def acknowledge(server: Server, snapshot: GroupSnapshot, choice: Choice, act: bool) -> Acknowledged:
    """Acknowledge entries; unless `act`, only report which. Raises GroupInUseError, ServerError: pages before the error
    stay acknowledged."""
    acknowledged = Acknowledged(snapshot.stream, snapshot.group)
    for page in pages(server, snapshot, choice):
        count = len(page.ids)
        if act:
            queries = snapshot.queries if page.consumer is None else queries_among([page.owner])
            command: tuple[Argument, ...] = ("XACK", snapshot.stream, snapshot.group, *page.ids)
            [count] = change(server, snapshot.stream, snapshot.group, queries, [command])
        acknowledged.add(page.owner, count)
        acknowledged.last = page.later(acknowledged.last)
    return acknowledged
