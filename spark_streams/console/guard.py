"""Lets a request in: the host that it names, its origin, its session. Adds the headers that every answer has."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spark_streams.console.access import COOKIE, LOCAL, SESSION_SECONDS, Session, Signer, Users, host_of

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
_OPEN = ("/login", "/static/")  # paths for which no login is required


class Guard:
    """Middleware. hosts: names by which browsers may call the console (a page of another name could be another site's
    that resolves to this machine)."""

    def __init__(self, app: ASGIApp, signer: Signer, users: Users, hosts: Collection[str], is_tls: bool) -> None:
        self._app, self._signer, self._users = app, signer, users
        self._hosts, self._is_tls = frozenset(host.lower() for host in hosts), is_tls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        session = self._signer.session(request.cookies.get(COOKIE))
        cookie = None
        if session is None and not self._users:
            cookie = self._signer.new_cookie(LOCAL)
            session = self._signer.session(cookie)
        scope["session"] = session

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if cookie is not None:
                    headers.append("set-cookie", cookie_header(cookie, self._is_tls))
            await send(message)

        answer = self._refusal(request, session)
        await (answer or self._app)(scope, receive, send_guarded)

    def _refusal(self, request: Request, session: Session | None) -> Response | None:
        """Return the answer to a request that is not let in; None if it is."""
        if host_of(request.headers.get("host", "")) not in self._hosts:
            return PlainTextResponse(
                "The console does not answer to this host name. Start it with --allowed-host NAME.\n", 421
            )
        if request.method not in ("GET", "HEAD") and not _is_same_origin(request):
            return PlainTextResponse("The request comes from another site.\n", 403)
        if session is None and not request.url.path.startswith(_OPEN):
            if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
                return RedirectResponse("/login", 303)
            return PlainTextResponse("Log in first.\n", 401)
        return None


def _is_same_origin(request: Request) -> bool:
    """Whether a form of the console's own pages has sent the request. Browsers send `Origin` with every POST."""
    origin = request.headers.get("origin")
    if origin is None:
        return request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
    return urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()


def cookie_header(value: str, is_tls: bool, max_age: int = SESSION_SECONDS) -> str:
    """Return the header that sets the session's cookie."""
    secure = "; Secure" if is_tls else ""
    return f"{COOKIE}={value}; Path=/; Max-Age={max_age}; HttpOnly; SameSite=Strict{secure}"
