"""Acknowledging pending entries in their consumers' stead (XACK), a page a transaction."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_streams.groups.group_snapshot import Standing, queries_among
from spark_streams.groups.guard import change
from spark_streams.groups.pending_selection import Choice, pages
from spark_streams.wire.connection.connection import Argument
from spark_streams.wire.connection.server import Server


@dataclass
class Acknowledged:
    """What was, or would be, acknowledged on one stream: by consumer."""

    stream: str
    group: str
    entries: int = 0
    consumers: dict[str, int] = field(default_factory=dict)

    def add(self, consumer: str, entries: int) -> None:
        """So many more of a consumer."""
        self.entries += entries
        self.consumers[consumer] = self.consumers.get(consumer, 0) + entries


def consumers_of(standing: Standing, choice: Choice) -> list[str] | None:
    """The consumers that a choice may touch: those that hold entries. None: any, because each may take released entries
    meanwhile."""
    if choice.may_touch_released(standing):
        return None
    if choice.released:
        return []
    return [one.text for one in standing.of(choice.consumers or None) if one.pending]


def acknowledge(server: Server, standing: Standing, choice: Choice, act: bool) -> Acknowledged:
    """Acknowledge entries, or, unless `act`, say which would be. Raises GroupInUseError, ServerError: what was done
    before stays done."""
    found = Acknowledged(standing.stream, standing.group)
    for page in pages(server, standing, choice):
        count = len(page.ids)
        if act:
            queries = standing.queries if page.consumer is None else queries_among([page.owner])
            command: tuple[Argument, ...] = ("XACK", standing.stream, standing.group, *page.ids)
            [count] = change(server, standing.stream, standing.group, queries, [command])
        found.add(page.owner, count)
    return found
