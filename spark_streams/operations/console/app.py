"""The web application: its routes, and the answers to errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
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
from spark_streams.operations.console.access import RequestGuard
from spark_streams.operations.console.routes import routes
from spark_streams.operations.console.site import Site

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
        is_missing = error.status_code in (404, 405)
        named = StreamStateError("the console has no such page") if is_missing else UnsupportedError(error.detail)
        return await site.page(request, "error.html", error.status_code, title="This did not work", error=named)

    pages = Starlette(
        routes=routes(site), exception_handlers={RStreamError: error_page, HTTPException: refused}, lifespan=lifespan
    )
    pages.router.redirect_slashes = False  # the address would be made of the header Host
    # Around Starlette, so that its own answer to an unexpected error has the headers, too.
    return RequestGuard(pages, site.access, hosts)
