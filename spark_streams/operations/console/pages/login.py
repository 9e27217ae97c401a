"""Log in and out."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spark_streams.connector.errors import RStreamError
from spark_streams.operations.console.bounds import LOGIN_BYTES
from spark_streams.operations.console.request.guard import cookie_header, port_of
from spark_streams.operations.console.request.parameters import Parameters
from spark_streams.operations.console.site import Site

if TYPE_CHECKING:
    from spark_streams.operations.console.login.oidc import Oidc


USER = "oidc:"  # begins the name of a user of the OIDC provider: no user with a password has a colon


async def show(site: Site, request: Request) -> Response:
    """Show the form."""
    return await _form(site, request, 200)


async def login(site: Site, request: Request) -> Response:
    """Check a name and password. After some wrong ones the next is refused at once."""
    parameters = await Parameters.of_form(request, LOGIN_BYTES)
    name, password, address = parameters.get("name"), parameters.get("password"), request.scope["address"]
    wait = site.attempts.begin(name, address)
    if wait is not None:
        return await _too_many(site, request, wait)
    is_right = False
    try:
        is_right = await asyncio.get_running_loop().run_in_executor(site.passwords, site.users.accepts, name, password)
    finally:
        site.attempts.end(name, address, is_right)
    if not is_right:
        site.audit.access("login failed", name, address)
        return await _form(site, request, 403, "The name or the password is wrong.")
    site.audit.access("login", name, address)
    role = "view" if name in site.users.viewers else "write"
    return _with_cookie(site, request, RedirectResponse("/", 303), name, role)


async def at_provider(site: Site, request: Request) -> Response:
    """Send the browser to the OIDC provider."""
    oidc = _oidc(site)

    async def redirect(with_state: Request) -> Response:
        try:
            return await oidc.redirect(with_state)
        except RStreamError as error:
            response = await _form(site, request, 502, error.message)
            response.headers["retry-after"] = str(max(1, math.ceil(oidc.away)))
            return response

    return oidc.with_state(redirect, port_of(request.scope))


async def from_provider(site: Site, request: Request) -> Response:
    """Log in a browser that comes from the OIDC provider."""
    oidc, address = _oidc(site), request.scope["address"]

    async def log_in(with_state: Request) -> Response:
        wait = site.attempts.begin(USER, address)
        if wait is not None:
            return await _too_many(site, request, wait)
        is_right = False
        try:
            user, role = await oidc.identify(with_state)
            is_right = True
        except RStreamError as error:
            site.audit.access("login failed", USER, address, reason=error.message)
            return await _form(site, request, 403, error.message)
        finally:
            site.attempts.end(USER, address, is_right)
        site.audit.access("login", user, address, role=role)
        # A redirect from another site brings no cookie that is SameSite=Strict, so this page loads the next one.
        response = await _form(site, request, 200, user=user, role=role)
        response.headers["refresh"] = "0; url=/"
        return _with_cookie(site, request, response, user, role)

    return oidc.with_state(log_in, port_of(request.scope))


def _oidc(site: Site) -> Oidc:
    if site.oidc is None:
        raise HTTPException(404)
    return site.oidc


def _with_cookie(site: Site, request: Request, response: Response, user: str, role: str) -> Response:
    """Return the response, which begins the user's session."""
    cookie = cookie_header(request.scope, site.signer.new_cookie(user, role), site.is_https)
    response.headers.append("set-cookie", cookie)
    return response


async def _too_many(site: Site, request: Request, wait: float) -> Response:
    """wait: seconds until the next attempt is not refused."""
    response = await _form(site, request, 429, "Too many attempts to log in. Try again in a minute.")
    response.headers["retry-after"] = str(math.ceil(wait))
    return response


async def logout(site: Site, request: Request) -> Response:
    """End the session: its cookie is worth nothing afterwards."""
    session = request.scope["session"]
    site.signer.end(session)
    site.audit.access("logout", session.user, request.scope["address"])
    response = RedirectResponse("/login", 303)
    response.headers.append("set-cookie", cookie_header(request.scope, "", site.is_https, 0))
    return response


async def _form(
    site: Site, request: Request, status: int, problem: str = "", user: str = "", role: str = ""
) -> Response:
    """Return the page Log in. user, role: who has just logged in."""
    title = "Logged in" if user else "Log in"
    return await site.page(request, "login.html", status, title=title, problem=problem, user=user, role=role)
