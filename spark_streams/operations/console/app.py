"""The web application: its routes, each with what it needs, and the answers to errors. No page is reached without a
visitor. Beside the pages: the link that the console prints, files of pages, and events that tell of new snapshots.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from spark_streams.connector.errors import (
    NotPermittedError,
    OptionError,
    RStreamError,
    ServerError,
    StreamStateError,
    TakenError,
    UnsupportedError,
)
from spark_streams.operations.console import change_pages, dead_letter_pages, group_pages, query_logs, stream_pages
from spark_streams.operations.console.incoming import BrowserGoneError, Parameters
from spark_streams.operations.console.site import Site
from spark_streams.operations.console.visitors import LOCAL, RequestGuard, Visitor, cookie_header


async def events(site: Site, request: Request) -> Response:
    """Return a stream of events, until the browser goes."""
    if site.open_pages.locked():
        text = "Too many pages are open. Close some of them.\n"
        return PlainTextResponse(text, 429, {"retry-after": "60"})
    return StreamingResponse(_events(site), media_type="text/event-stream")


async def _events(site: Site) -> AsyncIterator[str]:
    """Yield an event for each snapshot, and a comment if there is none for some time."""
    seen = None
    async with site.open_pages:
        async for number in site.live.numbers():
            yield ": no news\n\n" if number == seen else f"event: snapshot\ndata: {number}\n\n"
            seen = number


_TYPES = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}


async def static(_: Site, request: Request) -> Response:
    """Return a file."""
    name = request.path_params.get("name", "icon.svg")  # /favicon.ico: browsers ask for it beside pages of plain text
    if name not in _TYPES:
        return PlainTextResponse("The console has no such file.\n", 404)
    return Response(_content(name), media_type=_TYPES[name])


@lru_cache
def _content(name: str) -> bytes:
    return resources.files("spark_streams.operations.console").joinpath("static", name).read_bytes()


async def open_link(site: Site, request: Request) -> Response:
    """Set the cookie, once. A page of another site may have the link, and the browser's next request brings a cookie
    that is SameSite=Strict only if this answer loads it."""
    keys = site.access.keys
    is_open = request.scope["visitor"].user == LOCAL
    if not is_open and not keys.use_link(Parameters.of_query(request).get("token")):
        raise NotPermittedError(
            "this is not the link that the console printed, or it was opened before; start the console again for a "
            "new one"
        )
    response = PlainTextResponse("This browser may make changes.\n", headers={"refresh": "0; url=/"})
    response.headers.append("set-cookie", cookie_header(request.scope, keys.cookie))
    return response


class PageRoute(NamedTuple):
    """A page."""

    path: str
    page: Callable[[Site, Request], Awaitable[Response]]  # its handler
    method: str = "GET"
    makes_changes: bool = False  # whether a visitor needs the right to make changes


ROUTES = (
    PageRoute("/", group_pages.overview),
    PageRoute("/streams", stream_pages.streams),
    PageRoute("/stream", stream_pages.stream),
    PageRoute("/entry", stream_pages.entry),
    PageRoute("/add", stream_pages.add),
    PageRoute("/export", stream_pages.export),
    PageRoute("/group", group_pages.group),
    PageRoute("/dead", dead_letter_pages.dead_letter_streams),
    PageRoute("/dead/stream", dead_letter_pages.dead_letters),
    PageRoute("/dead/letter", dead_letter_pages.dead_letter),
    PageRoute("/where", dead_letter_pages.where),
    PageRoute("/queries", query_logs.queries),
    PageRoute("/doctor", change_pages.doctor),
    PageRoute("/plan", change_pages.plan, "POST"),
    PageRoute("/changes", change_pages.changes),
    PageRoute("/changes", change_pages.make, "POST", makes_changes=True),
    PageRoute("/changes/{number}", change_pages.change),
    PageRoute("/events", events),
    PageRoute("/open", open_link),
    PageRoute("/static/{name}", static),
    PageRoute("/favicon.ico", static),
)


def _endpoint(site: Site, entry: PageRoute) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        visitor: Visitor = request.scope["visitor"]
        if entry.makes_changes and not visitor.can_write:
            raise NotPermittedError(visitor.why_not)
        return await entry.page(site, request)

    return endpoint


# The status of an answer for each kind of error; any other: 400.
_STATUS: tuple[tuple[type[RStreamError], int], ...] = (
    (NotPermittedError, 403),
    (TakenError, 503),
    (StreamStateError, 404),
    (OptionError, 400),
    (ServerError, 502),
)


def create_app(site: Site, hosts: Collection[str]) -> ASGIApp:
    """Return the application. hosts: names by which browsers may call it."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(site.live.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await site.changes.close()
            site.live.close()

    async def error_page(request: Request, error: Exception) -> Response:
        assert isinstance(error, RStreamError)
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 400)
        return await site.page(request, "error.html", status, title="This did not work", error=error)

    async def refused(request: Request, error: Exception) -> Response:
        """Answer a path that no page has, a method that a page does not have, and a form that is too large."""
        assert isinstance(error, HTTPException)
        if isinstance(error, BrowserGoneError):
            return Response(status_code=error.status_code)
        is_missing = error.status_code in (404, 405)
        named = StreamStateError("the console has no such page") if is_missing else UnsupportedError(error.detail)
        return await site.page(request, "error.html", error.status_code, title="This did not work", error=named)

    routes = [Route(entry.path, _endpoint(site, entry), methods=[entry.method]) for entry in ROUTES]
    handlers = {RStreamError: error_page, HTTPException: refused}
    pages = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    pages.router.redirect_slashes = False  # the address would be made of the header Host
    # Around Starlette, so that its own answer to an unexpected error has the headers, too.
    return RequestGuard(pages, site.access, hosts)
