"""One group of a stream: its position, consumers, pending entries, queries, and forms for changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from spark_streams.base.ids import StreamId
from spark_streams.connector.admin.groups import GroupSnapshot, fetch_group
from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.operations.console.pages.pending import PendingEntry, fetch_pending
from spark_streams.operations.console.pages.streams import shards_of
from spark_streams.operations.console.request.parameters import Parameters
from spark_streams.operations.console.site import Site, key_of
from spark_streams.operations.monitor.rates import UNKNOWN

_PENDING = 20  # entries on the page


@dataclass(frozen=True)
class QueryOfGroup:
    """A query that has committed entries of the group. holder: the process that runs it, None if none does."""

    stream: str
    query: str
    up_to: str
    holder: str | None


@dataclass(frozen=True)
class _GroupRead:
    """What the page of a group reads from the server: a snapshot of each shard, and the first pending entries."""

    snapshots: Sequence[GroupSnapshot]
    pending: Sequence[PendingEntry]

    @property
    def is_full(self) -> bool:
        return len(self.pending) >= _PENDING

    @property
    def queries(self) -> list[QueryOfGroup]:
        return _queries(self.snapshots)


async def group(site: Site, request: Request) -> Response:
    """Return the page of one group."""
    parameters = Parameters.of_query(request)
    stream, name, begin = parameters.get("stream"), parameters.get("group"), parameters.get("after", "-")
    if not all(isinstance(key_of(word), str) for word in (stream, name)):
        raise UnsupportedError("the console shows a group only if its name and its stream's are UTF-8; use redis-cli")

    view = await site.view()

    def read(server: Server) -> _GroupRead:
        names = shards_of(server, stream, view)
        snapshots = [fetch_group(server, shard, name) for shard in names if isinstance(shard, str)]
        pending = fetch_pending(server, names, [name], _PENDING, begin)
        return _GroupRead(snapshots, sorted(pending, key=lambda entry: StreamId.parse(entry.id))[:_PENDING])

    details = None if site.is_live(request) else await site.read(read)
    key = stream, name
    lag = next((group for group in view.survey.groups if (group.stream, group.group) == key), None)
    began, ended = view.history.period if view.survey.at_ms else (0, 0)
    return await site.page(
        request,
        "group.html",
        title=f"Group {name} of {stream}",
        stream=stream,
        group=name,
        details=details,
        lag=lag,
        held=view.held.get(key),
        margin=view.margins.get(key),
        rates=view.history.rates.get(key, UNKNOWN),
        charts=view.history.charts([key]) if ended > began else [],
        began=began,
        ended=ended,
    )


def _queries(snapshots: Sequence[GroupSnapshot]) -> list[QueryOfGroup]:
    return [
        QueryOfGroup(
            snapshot.stream,
            query,
            str(snapshot.marks[query].id) if query in snapshot.marks else "",
            snapshot.holders.get(query),
        )
        for snapshot in snapshots
        for query in sorted({*snapshot.marks, *snapshot.holders})
    ]
