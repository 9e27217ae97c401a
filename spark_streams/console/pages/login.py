"""Log in and out."""

from __future__ import annotations

import asyncio
import math

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spark_streams.console.bounds import LOGIN_BYTES
from spark_streams.console.request.guard import cookie_header
from spark_streams.console.request.parameters import Parameters
from spark_streams.console.site import Site


async def show(site: Site, request: Request) -> Response:
    """Show the form."""
    return await _form(site, request, 200)


async def login(site: Site, request: Request) -> Response:
    """Check a name and password. After some wrong ones the next is refused at once."""
    parameters = await Parameters.of_form(request, LOGIN_BYTES)
    name, password, address = parameters.get("name"), parameters.get("password"), request.scope["address"]
    wait = site.attempts.begin(name, address)
    if wait is not None:
        response = await _form(site, request, 429, "Too many attempts to log in. Try again in a minute.")
        response.headers["retry-after"] = str(math.ceil(wait))
        return response
    is_right = False
    try:
        is_right = await asyncio.get_running_loop().run_in_executor(site.passwords, site.users.accepts, name, password)
    finally:
        site.attempts.end(name, address, is_right)
    if not is_right:
        site.audit.access("login failed", name, address)
        return await _form(site, request, 403, "The name or the password is wrong.")
    site.audit.access("login", name, address)
    response = RedirectResponse("/", 303)
    response.headers.append("set-cookie", cookie_header(request.scope, site.signer.new_cookie(name), site.is_https))
    return response


async def logout(site: Site, request: Request) -> Response:
    """End the session: its cookie is worth nothing afterwards."""
    session = request.scope["session"]
    site.signer.end(session)
    site.audit.access("logout", session.user, request.scope["address"])
    response = RedirectResponse("/login", 303)
    response.headers.append("set-cookie", cookie_header(request.scope, "", site.is_https, 0))
    return response


async def _form(site: Site, request: Request, status: int, problem: str = "") -> Response:
    return await site.page(request, "login.html", status, title="Log in", problem=problem)
