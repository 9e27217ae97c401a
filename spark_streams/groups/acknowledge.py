"""Acknowledging pending entries in their consumers' stead (XACK), a page a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_streams.groups.choice import Choice, pages
from spark_streams.groups.guard import change, require_free
from spark_streams.groups.standing import Standing, queries_among
from spark_streams.wire.connection import Argument
from spark_streams.wire.server import Server


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


def plan_acknowledge(server: Server, standing: Standing, choice: Choice) -> Acknowledged:
    """What would be acknowledged."""
    found = Acknowledged(standing.stream, standing.group)
    for page in pages(server, standing, choice):
        found.add(page.owner, len(page.ids))
    return found


def acknowledge(server: Server, standing: Standing, choice: Choice, even_active: bool) -> Acknowledged:
    """Acknowledge them; what that was. Raises GroupInUseError, ServerError: what was done before stays done."""
    found = Acknowledged(standing.stream, standing.group)
    require_free(standing, consumers_of(standing, choice), even_active)
    for page in pages(server, standing, choice):
        commands: list[Sequence[Argument]] = [("XACK", standing.stream, standing.group, *page.ids)]
        queries = standing.queries if page.consumer is None else queries_among([page.owner])
        replies = change(server, standing.stream, standing.group, queries, commands)
        found.add(page.owner, replies[0])
    return found
