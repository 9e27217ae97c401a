"""Tells browsers of new snapshots."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from spark_streams.operations.console.site import Site


async def events(site: Site, request: Request) -> Response:
    """Return a stream of events, until the browser goes."""
    if site.open_pages.locked():
        text = "Too many pages are open. Close some of them.\n"
        return PlainTextResponse(text, 429, {"retry-after": "60"})
    await site.open_pages.acquire()
    return _Watched(site.open_pages.release, _events(site), media_type="text/event-stream")


class _Watched(StreamingResponse):
    """end: called when the browser has gone."""

    def __init__(self, end: Callable[[], None], content: AsyncIterator[str], media_type: str) -> None:
        super().__init__(content, media_type=media_type)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


async def _events(site: Site) -> AsyncIterator[str]:
    """Yield an event for each snapshot, and a comment if there is none for some time."""
    seen = None
    async for number in site.live.numbers():
        yield ": no news\n\n" if number == seen else f"event: snapshot\ndata: {number}\n\n"
        seen = number
