"""The link that the console prints at its start: the browser that opens it may make changes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from spark_streams.connector.errors import NotPermittedError
from spark_streams.operations.console.access import LOCAL, cookie_header
from spark_streams.operations.console.request.parameters import Parameters
from spark_streams.operations.console.site import Site


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
