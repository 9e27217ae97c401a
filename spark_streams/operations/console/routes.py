"""The routes of the console. Each is registered with what it needs, and none is open by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from spark_streams.operations.console.pages import (
    changes,
    dead_letters,
    doctor,
    events,
    export,
    files,
    groups,
    login,
    overview,
    queries,
    streams,
    where,
)
from spark_streams.operations.console.site import Site

Page = Callable[[Site, Request], Awaitable[Response]]


class Needs(Enum):
    """What a request needs to reach a page."""

    SESSION = 1
    NOTHING = 2


class Entry(NamedTuple):
    """A page: its path, its handler, its method, and what it needs."""

    path: str
    page: Page
    method: str = "GET"
    needs: Needs = Needs.SESSION


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
    Entry("/import", changes.import_file, "POST"),
    Entry("/changes", changes.changes),
    Entry("/changes", changes.make, "POST"),
    Entry("/changes/{number}", changes.change),
    Entry("/events", events.events),
    Entry("/logout", login.logout, "POST"),
    Entry("/login", login.show, needs=Needs.NOTHING),
    Entry("/login", login.login, "POST", Needs.NOTHING),
    Entry("/oidc/login", login.at_provider, needs=Needs.NOTHING),
    Entry("/oidc", login.from_provider, needs=Needs.NOTHING),
    Entry("/static/{name}", files.static, needs=Needs.NOTHING),
)


def routes(site: Site) -> list[Route]:
    """Return the routes of Starlette."""
    return [Route(entry.path, _endpoint(site, entry), methods=[entry.method]) for entry in ENTRIES]


def _endpoint(site: Site, entry: Entry) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        if entry.needs is not Needs.NOTHING and request.scope["session"] is None:
            return log_in_first(request)
        return await entry.page(site, request)

    return endpoint


def log_in_first(request: Request) -> Response:
    """Return the answer to a request without a session: a browser that opens a page goes to the page Log in."""
    if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("/login", 303)
    return PlainTextResponse("Log in first.\n", 401)
