"""Lets a request in: its size, the host that it names, the site that sends it. Finds its session, and adds the headers
that every answer has. Each route says itself whether it needs the session: routes.py."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spark_streams.operations.console.access import LOCAL, SESSION_SECONDS, Signer, cookie_name, host_of, is_own_site
from spark_streams.operations.console.bounds import HEAD_BYTES

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


class Guard:
    """Middleware. hosts: names by which browsers may call the console (a page of another name could be another site's
    that resolves to this machine); needs_login: whether there are users; is_https: browsers call it by HTTPS;
    has_proxy: all requests come through one."""

    def __init__(
        self,
        app: ASGIApp,
        signer: Signer,
        needs_login: bool,
        hosts: Collection[str],
        is_https: bool,
        has_proxy: bool = False,
    ) -> None:
        self._app, self._signer, self._needs_login = app, signer, needs_login
        self._hosts, self._is_https, self._has_proxy = frozenset(host.lower() for host in hosts), is_https, has_proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"the console serves no {scope['type']}")
        request = Request(scope, receive)
        refusal = self._refusal(request)
        cookie = None
        if refusal is None:
            cookie = self._find_session(request)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if cookie is not None:
                    headers.append("set-cookie", cookie)
            await send(message)

        await (refusal or self._app)(scope, receive, send_guarded)

    def _find_session(self, request: Request) -> str | None:
        """Put the session into the scope, or None, and the address of the browser. Return the header that sets the
        cookie of a new session: without a login, everybody has one."""
        scope = request.scope
        scope["session"] = self._signer.session(request.cookies.get(cookie_name(port_of(scope))))
        scope["address"] = self._address(request)
        if scope["session"] is not None or self._needs_login:
            return None
        cookie = self._signer.new_cookie(LOCAL)
        scope["session"] = self._signer.session(cookie)
        return cookie_header(scope, cookie, self._is_https)

    def _address(self, request: Request) -> str:
        """Return the address of the browser. The last one in X-Forwarded-For is from our own proxy."""
        forwarded = ",".join(request.headers.getlist("x-forwarded-for")) if self._has_proxy else ""
        return forwarded.rpartition(",")[2].strip() or (request.client.host if request.client else "")

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is not let in; None if it is."""
        scope, headers = request.scope, request.headers
        head = (*scope["headers"], (scope.get("raw_path") or b"", scope["query_string"]))
        if sum(len(name) + len(value) for name, value in head) > HEAD_BYTES:
            return PlainTextResponse(f"The address and headers have more than {HEAD_BYTES:,} bytes.\n", 431)
        if host_of(headers.get("host", "")) not in self._hosts:
            return PlainTextResponse(
                "The console does not answer to this host name. Start it with --allowed-host NAME.\n", 421
            )
        site, mode, target = (headers.get(f"sec-fetch-{part}") for part in ("site", "mode", "dest"))
        if not is_own_site(site, mode, target, request.method) or not _is_own_origin(request):
            return PlainTextResponse("The request comes from another site.\n", 403)
        return None


def _is_own_origin(request: Request) -> bool:
    """Whether the request names no other origin. Browsers send `Origin` with every POST."""
    origins = request.headers.getlist("origin")
    host = request.headers.get("host", "").lower()
    return all(_host_and_port(origin) == host for origin in origins)


def _host_and_port(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def port_of(scope: Scope) -> int:
    """Return the port at which the console listens."""
    server: tuple[str, int] = scope["server"]
    return server[1]


def cookie_header(scope: Scope, value: str, is_https: bool, max_age: int = SESSION_SECONDS) -> str:
    """Return the header that sets the session's cookie."""
    secure = "; Secure" if is_https else ""
    return f"{cookie_name(port_of(scope))}={value}; Path=/; Max-Age={max_age}; HttpOnly; SameSite=Strict{secure}"
