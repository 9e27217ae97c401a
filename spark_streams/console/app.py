"""The web application: its routes, its errors, and the events that tell browsers of new snapshots."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from functools import lru_cache
from importlib import resources

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from spark_streams.console.guard import Guard
from spark_streams.console.pages import changes, dead_letters, doctor, groups, login, overview, queries, streams
from spark_streams.console.site import Site
from spark_streams.errors import NotPermittedError, OptionError, RStreamError, ServerError, StreamStateError
from spark_streams.monitor.report.rendering import PACKAGE

Page = Callable[[Site, Request], Awaitable[Response]]
_PAGES: tuple[tuple[str, Page, tuple[str, ...]], ...] = (
    ("/", overview.overview, ("GET",)),
    ("/streams", streams.streams, ("GET",)),
    ("/stream", streams.stream, ("GET",)),
    ("/entry", streams.entry, ("GET",)),
    ("/group", groups.group, ("GET",)),
    ("/dead", dead_letters.dead_letter_streams, ("GET",)),
    ("/dead/stream", dead_letters.dead_letters, ("GET",)),
    ("/dead/letter", dead_letters.dead_letter, ("GET",)),
    ("/queries", queries.queries, ("GET",)),
    ("/doctor", doctor.doctor, ("GET",)),
    ("/plan", changes.plan, ("POST",)),
    ("/changes", changes.changes, ("GET",)),
    ("/changes", changes.make, ("POST",)),
    ("/changes/{number}", changes.change, ("GET",)),
    ("/login", login.login, ("GET", "POST")),
    ("/logout", login.logout, ("POST",)),
)
_FILES = {
    "style.css": (PACKAGE, "templates/style.css", "text/css"),
    "console.css": ("spark_streams.console", "static/console.css", "text/css"),
    "console.js": ("spark_streams.console", "static/console.js", "text/javascript"),
    "icon.svg": ("spark_streams.console", "static/icon.svg", "image/svg+xml"),
}
# The status of an answer for each kind of error; any other: 400.
_STATUS: tuple[tuple[type[RStreamError], int], ...] = (
    (NotPermittedError, 403),
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

    async def events(request: Request) -> Response:
        return StreamingResponse(_events(site), media_type="text/event-stream")

    async def error_page(request: Request, error: Exception) -> Response:
        assert isinstance(error, RStreamError)
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 400)
        return await site.page(request, "error.html", status, title="This did not work", error=error)

    async def not_found(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        missing = StreamStateError("the console has no such page")
        return await site.page(request, "error.html", status, title="This did not work", error=missing)

    pages = Starlette(
        routes=[
            *[Route(path, _endpoint(site, page), methods=list(methods)) for path, page, methods in _PAGES],
            Route("/events", events),
            Route("/static/{name}", static),
        ],
        exception_handlers={RStreamError: error_page, 404: not_found, 405: not_found},
        lifespan=lifespan,
    )
    # Around Starlette, so that its own answer to an unexpected error has the headers, too.
    return Guard(pages, site.signer, site.users, hosts, site.is_tls)


def _endpoint(site: Site, page: Page) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await page(site, request)

    return endpoint


async def _events(site: Site) -> AsyncIterator[str]:
    """Yield an event for each snapshot, and a comment if there is none for some time, until the browser goes."""
    seen = None
    async for number in site.live.numbers():
        yield ": no news\n\n" if number == seen else f"event: snapshot\ndata: {number}\n\n"
        seen = number


async def static(request: Request) -> Response:
    """Return a style, a script or the icon."""
    name = request.path_params["name"]
    if name not in _FILES:
        return PlainTextResponse("The console has no such file.\n", 404)
    package, path, media_type = _FILES[name]
    return Response(_content(package, path), media_type=media_type)


@lru_cache
def _content(package: str, path: str) -> bytes:
    return resources.files(package).joinpath(path).read_bytes()
