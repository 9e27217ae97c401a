"""The routes of the console. Each is registered with what it needs, and none is reached without a visitor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spark_streams.connector.errors import NotPermittedError
from spark_streams.operations.console.access import Visitor
from spark_streams.operations.console.pages import (
    changes,
    dead_letters,
    doctor,
    events,
    export,
    files,
    groups,
    opening,
    overview,
    queries,
    streams,
    where,
)
from spark_streams.operations.console.site import Site

Page = Callable[[Site, Request], Awaitable[Response]]


class Needs(Enum):
    """What a visitor needs to reach a page."""

    READ = 1
    CHANGE = 2


class Entry(NamedTuple):
    """A page: its path, its handler, its method, and what it needs."""

    path: str
    page: Page
    method: str = "GET"
    needs: Needs = Needs.READ


ENTRIES = (
    Entry("/", overview.overview),
    Entry("/streams", streams.streams),
    Entry("/stream", streams.stream),
    Entry("/entry", streams.entry),
    Entry("/add", streams.add),
    Entry("/export", export.export),
    Entry("/group", groups.group),
    Entry("/dead", dead_letters.dead_letter_streams),
    Entry("/dead/stream", dead_letters.dead_letters),
    Entry("/dead/letter", dead_letters.dead_letter),
    Entry("/where", where.where),
    Entry("/queries", queries.queries),
    Entry("/doctor", doctor.doctor),
    Entry("/plan", changes.plan, "POST"),
    Entry("/changes", changes.changes),
    Entry("/changes", changes.make, "POST", Needs.CHANGE),
    Entry("/changes/{number}", changes.change),
    Entry("/events", events.events),
    Entry("/open", opening.open_link),
    Entry("/static/{name}", files.static),
)


def routes(site: Site) -> list[Route]:
    """Return the routes of Starlette."""
    return [Route(entry.path, _endpoint(site, entry), methods=[entry.method]) for entry in ENTRIES]


def _endpoint(site: Site, entry: Entry) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        visitor: Visitor = request.scope["visitor"]
        if entry.needs is Needs.CHANGE and not visitor.can_write:
            raise NotPermittedError(visitor.why_not)
        return await entry.page(site, request)

    return endpoint
