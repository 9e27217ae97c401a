"""The overview of all groups, and one group of a stream: position, consumers, pending entries, queries, changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from spark_streams.base.ids import StreamId
from spark_streams.base.units import count, counted, duration
from spark_streams.connector.admin.groups import GroupSnapshot, fetch_group
from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.lag.survey import GroupLag
from spark_streams.connector.wire.connection import Server
from spark_streams.operations.console.incoming import Parameters
from spark_streams.operations.console.live import View
from spark_streams.operations.console.site import Pages, Site, key_of
from spark_streams.operations.console.stream_pages import PendingEntry, fetch_pending, shards_of
from spark_streams.operations.monitor.rates import UNKNOWN

_CHARTED = 6  # groups whose lag is drawn


class Tile(NamedTuple):
    """A number at the top of the page."""

    name: str
    value: str
    alarming: bool = False


def by_urgency(groups: Sequence[GroupLag]) -> list[GroupLag]:
    """Return active groups first, the one that is most behind at the top."""
    return sorted(
        groups, key=lambda group: (not group.is_active, -(group.lag_ms or 0), -group.lag, group.stream, group.group)
    )


async def overview(site: Site, request: Request) -> Response:
    """Return the page."""
    parameters = Parameters.of_query(request)
    view = await site.view()
    survey = view.survey
    find = parameters.get("find")
    groups = by_urgency([g for g in survey.groups if find in g.stream or find in g.group])
    pages, shown = Pages.select(groups, parameters.get("page"))
    rows = [(group, view.history.rates.get((group.stream, group.group), UNKNOWN)) for group in shown]
    began, ended = view.history.period if survey.at_ms else (0, 0)
    charts = [
        *view.history.throughput(),
        *view.history.charts([(group.stream, group.group) for group in by_urgency(survey.groups)[:_CHARTED]]),
    ]
    return await site.page(
        request,
        "overview.html",
        title=f"Streams at {site.address}",
        tiles=list(_tiles(view)),
        charts=charts if ended > began else [],
        began=began,
        ended=ended,
        rows=rows,
        pages=pages,
        find=find,
        dead_letters=sorted(view.reasons, key=lambda reason: -reason.count),
    )


def _tiles(view: View) -> Iterator[Tile]:
    """Yield the numbers at the top of the page."""
    groups, streams = view.survey.groups, len(view.survey.streams)
    behind = [group for group in groups if group.lag or group.pending]
    yield Tile(f"{_noun('group', len(groups))} of {counted(streams, 'stream')}", count(len(groups)))
    yield Tile("entries of lag", count(sum(group.lag for group in groups), any(group.at_least for group in groups)))
    yield Tile("entries pending", count(sum(group.pending for group in groups)))
    if behind:
        slowest = max(behind, key=lambda group: (group.is_active, group.lag_ms or 0, group.lag))
        yield Tile(f"behind: {slowest.group} of {slowest.stream}", duration(slowest.lag_ms))
    letters = sum(reason.count for reason in view.reasons)
    yield Tile(_noun("dead letter", letters), count(letters), letters > 0)


def _noun(singular: str, number: int) -> str:
    return singular if number == 1 else f"{singular}s"


_PENDING = 20  # entries on the page


@dataclass(frozen=True)
class QueryOfGroup:
    """A query that has committed entries of the group."""

    stream: str
    query: str  # its name
    up_to: str  # the ID up to which it has committed, empty if it runs its first batch
    holder: str | None  # the process that runs it, None if none does


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
        return [
            QueryOfGroup(
                one.stream, query, str(one.marks[query].id if query in one.marks else ""), one.holders.get(query)
            )
            for one in self.snapshots
            for query in sorted({*one.marks, *one.holders})
        ]


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

    details = None if site.is_live(request) else await site.read(request, read)
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
