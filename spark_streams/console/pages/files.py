"""The styles, the script and the icon of the pages."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from spark_streams.console.report.rendering import PACKAGE
from spark_streams.console.site import Site

_FILES = {
    "style.css": (PACKAGE, "templates/style.css", "text/css"),
    "console.css": ("spark_streams.console", "static/console.css", "text/css"),
    "console.js": ("spark_streams.console", "static/console.js", "text/javascript"),
    "icon.svg": ("spark_streams.console", "static/icon.svg", "image/svg+xml"),
}


async def static(_: Site, request: Request) -> Response:
    """Return a file."""
    name = request.path_params["name"]
    if name not in _FILES:
        return PlainTextResponse("The console has no such file.\n", 404)
    package, path, media_type = _FILES[name]
    return Response(_content(package, path), media_type=media_type)


@lru_cache
def _content(package: str, path: str) -> bytes:
    return resources.files(package).joinpath(path).read_bytes()
