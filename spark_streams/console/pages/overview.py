"""The overview: tiles, throughput, groups with their lag, dead letters by reason."""

from __future__ import annotations

import glob
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from spark_streams.console.live import View
from spark_streams.console.report.builders import group_row
from spark_streams.console.report.html import tiles
from spark_streams.console.report.report import DeadLetterRow, Report
from spark_streams.console.request.parameters import Parameters
from spark_streams.console.site import Pages, Site, link
from spark_streams.monitor.lag_survey import GroupLag
from spark_streams.monitor.rates import UNKNOWN

_CHARTED = 6  # groups whose lag is drawn


def by_urgency(groups: Sequence[GroupLag]) -> list[GroupLag]:
    """Return active groups first, the one that is most behind at the top."""
    return sorted(
        groups,
        key=lambda group: (not group.is_active, -(group.lag_ms or 0), -group.lag, group.stream, group.group),
    )


async def overview(site: Site, request: Request) -> Response:
    """Return the page."""
    parameters = Parameters.of_query(request)
    view = await site.live.view()
    survey = view.survey
    find = parameters.get("find")
    groups = by_urgency([g for g in survey.groups if find in g.stream or find in g.group])
    pages, shown = Pages.select(groups, parameters.get("page"))
    rows = [(group, view.history.rates.get((group.stream, group.group), UNKNOWN)) for group in shown]
    report = _report(view)
    began, ended = view.history.period if survey.at_ms else (0, 0)
    charts = [
        *view.history.throughput(),
        *view.history.charts([(group.stream, group.group) for group in by_urgency(survey.groups)[:_CHARTED]]),
    ]
    return await site.page(
        request,
        "overview.html",
        title=f"Streams at {site.address}",
        tiles=list(tiles(report)),
        charts=charts if ended > began else [],
        began=began,
        ended=ended,
        rows=rows,
        pages=pages,
        find=find,
        report=report,
        letters_page=lambda row: link("/dead/stream", name=row.stream, reason=glob.escape(row.reason)),
    )


def _report(view: View) -> Report:
    return Report(
        "",
        view.survey.at_ms,
        view.survey.at_ms,
        (),
        tuple(group_row(group) for group in view.survey.groups),
        len(view.survey.streams),
        tuple(
            sorted(
                (DeadLetterRow(reason.stream, "", reason.reason, "", reason.count) for reason in view.reasons),
                key=lambda row: -row.count,
            )
        ),
    )
