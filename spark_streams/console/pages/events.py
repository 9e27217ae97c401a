"""Tells browsers of new snapshots."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from spark_streams.console.access import Session
from spark_streams.console.site import Site


async def events(site: Site, request: Request) -> Response:
    """Return a stream of events, until the browser goes or its session ends."""
    return StreamingResponse(_events(site, request.scope["session"]), media_type="text/event-stream")


async def _events(site: Site, session: Session) -> AsyncIterator[str]:
    """Yield an event for each snapshot, and a comment if there is none for some time."""
    seen = None
    async for number in site.live.numbers():
        if not site.signer.is_open(session):
            return
        yield ": no news\n\n" if number == seen else f"event: snapshot\ndata: {number}\n\n"
        seen = number
