"""Log in and out."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spark_streams.console.guard import cookie_header
from spark_streams.console.site import Parameters, Site

_PAUSE = 1.0  # seconds after a wrong password


async def login(site: Site, request: Request) -> Response:
    """Show the form, or check a name and password."""
    if request.method == "GET":
        return await site.page(request, "login.html", title="Log in", is_wrong=False)
    parameters = await Parameters.of_form(request)
    async with site.login_turn:  # so that passwords cannot be tried many at a time
        name, password = parameters.get("name"), parameters.get("password")
        if not site.users.accepts(name, password):
            await asyncio.sleep(_PAUSE)
            return await site.page(request, "login.html", 403, title="Log in", is_wrong=True)
    response = RedirectResponse("/", 303)
    response.headers.append("set-cookie", cookie_header(site.signer.new_cookie(name), site.is_tls))
    return response


async def logout(site: Site, request: Request) -> Response:
    """End the session in this browser."""
    response = RedirectResponse("/login", 303)
    response.headers.append("set-cookie", cookie_header("", site.is_tls, 0))
    return response
