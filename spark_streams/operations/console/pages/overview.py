"""The overview: tiles, throughput, groups with their lag, dead letters by reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from spark_streams.base.units import count, counted, duration
from spark_streams.connector.lag.survey import GroupLag
from spark_streams.operations.console.live import View
from spark_streams.operations.console.request.parameters import Parameters
from spark_streams.operations.console.site import Pages, Site
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
        groups,
        key=lambda group: (not group.is_active, -(group.lag_ms or 0), -group.lag, group.stream, group.group),
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
