"""The styles, the script and the icon of the pages."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from spark_streams.operations.console.site import Site

_TYPES = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}


async def static(_: Site, request: Request) -> Response:
    """Return a file."""
    name = request.path_params["name"]
    if name not in _TYPES:
        return PlainTextResponse("The console has no such file.\n", 404)
    return Response(_content(name), media_type=_TYPES[name])


@lru_cache
def _content(name: str) -> bytes:
    return resources.files("spark_streams.operations.console").joinpath("static", name).read_bytes()
