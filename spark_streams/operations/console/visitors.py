"""Who sends a request, whether the request is let in, and tokens of planned changes.

    GET /open?token=…             the link that the console prints at its start; it works once, and sets a cookie
    Cookie: rstream_console_PORT  the browser that opened the link: the user `local`, who may make changes
    X-Forwarded-User: ann         --behind-proxy X-Forwarded-User: each request has the name that the proxy wrote
    neither                       without a proxy: the request only reads; behind a proxy: it is refused

The keys are those of this process: a restart of the console ends its cookie and its tokens.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spark_streams.base.numbers import parse_number
from spark_streams.operations.console.incoming import HEAD_BYTES, USER_CHARACTERS

COOKIE = "rstream_console"  # before the port: a host has one set of cookies for all its ports
COOKIE_SECONDS = 30 * 24 * 3600
PLAN_SECONDS = 600  # for which a planned change may be made
LOCAL = "local"  # the user of the browser that opened the link
_SEPARATOR = "|"
_HOST = re.compile(r"(?:([A-Za-z0-9._-]+)|\[([0-9A-Fa-f:.]+)\])(?::[0-9]{1,5})?")
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


@dataclass(frozen=True)
class Visitor:
    """Who sends a request. user: as the audit log names it; why_not: why it makes no changes, empty if it may."""

    user: str
    why_not: str = ""

    @property
    def can_write(self) -> bool:
        """Whether the visitor may make changes."""
        return not self.why_not


@dataclass(frozen=True)
class TrustedProxy:
    """The headers in which a proxy names its users. Nobody else reaches the console."""

    user_header: str
    group_header: str = ""  # the user's groups, separated by commas
    write_group: str = ""  # the group that makes changes; empty: all users do

    def visitor(self, request: Request) -> Visitor | Response:
        """Return the user that the proxy names, or the refusal of a request without one name."""
        user = self._value(request, self.user_header)
        if not isinstance(user, str):
            return user
        if not 0 < len(user) <= USER_CHARACTERS or not user.isprintable() or "," in user:
            return PlainTextResponse(
                f"The proxy names no user: {self.user_header} has 1 to {USER_CHARACTERS} printable characters and no "
                "comma. Let the proxy set it.\n",
                401,
            )
        groups = self._value(request, self.group_header) if self.write_group else ""
        if not isinstance(groups, str):
            return groups
        is_writer = not self.write_group or self.write_group in map(str.strip, groups.split(","))
        return Visitor(user, "" if is_writer else f"{user} is not in the group {self.write_group}, which makes changes")

    @staticmethod
    def _value(request: Request, header: str) -> str | Response:
        """Return the value, empty if the request lacks the header. A header that a client has sent beside the proxy's
        own is refused: nobody knows which one counts."""
        wanted = header.lower().encode()
        values = [value.decode("utf-8", "replace") for name, value in request.headers.raw if name == wanted]
        if len(values) > 1:
            return PlainTextResponse(f"The request has {header} more than once. Let the proxy remove others.\n", 400)
        return values[0].strip() if values else ""


def _same(first: str, second: str) -> bool:
    return hmac.compare_digest(first.encode("utf-8", "replace"), second.encode("utf-8", "replace"))


class ConsoleKeys:
    """The one-time link, the cookie that it sets, and tokens of planned changes. now: seconds since the epoch."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._key = secrets.token_bytes(32)
        self._now = now
        self.link: str | None = secrets.token_urlsafe(32)  # None: it was opened
        self.cookie = secrets.token_urlsafe(32)
        self._used: dict[str, int] = {}  # signatures of tokens that have made their change, until they expire

    def use_link(self, token: str) -> bool:
        """Return whether this is the token of the link, which nobody has opened before."""
        is_right = self.link is not None and _same(token, self.link)
        if is_right:
            self.link = None
        return is_right

    def _signature(self, *parts: str) -> str:
        return hmac.new(self._key, json.dumps(parts).encode(), hashlib.sha256).hexdigest()

    def plan_token(self, user: str, arguments: Sequence[str]) -> str:
        """Return the token with which this user may run this command once, in the next ten minutes."""
        expires = str(round(self._now()) + PLAN_SECONDS)
        number = f"{expires}.{secrets.token_urlsafe(8)}"  # each dry run has a token of its own
        return f"{number}{_SEPARATOR}{self._signature(user, number, *arguments)}"

    def use_plan(self, token: str, user: str, arguments: Sequence[str]) -> bool:
        """Use the token of a command. Return whether the user has seen the dry run of this command in the last ten
        minutes, and has not made the change since."""
        number, _, token_signature = token.partition(_SEPARATOR)
        signature = self._signature(user, number, *arguments)
        expires, now = parse_number(number.partition(".")[0]) or 0, self._now()
        if not _same(token_signature, signature) or expires < now or signature in self._used:
            return False
        self._used = {used: until for used, until in self._used.items() if until >= now} | {signature: expires}
        return True


@dataclass(frozen=True)
class Access:
    """Who may read, and who may make changes. is_writable: `--write`."""

    is_writable: bool = False
    proxy: TrustedProxy | None = None
    keys: ConsoleKeys = field(default_factory=ConsoleKeys)

    def visitor(self, request: Request) -> Visitor | Response:
        """Return who sends the request, or its refusal."""
        if self.proxy is not None:
            visitor = self.proxy.visitor(request)
        elif _same(request.cookies.get(cookie_name(request.scope), ""), self.keys.cookie):
            visitor = Visitor(LOCAL)
        else:
            visitor = Visitor(
                "", "this browser has not opened the link that the console printed at its start, so it only reads"
            )
        if isinstance(visitor, Visitor) and not self.is_writable:
            return Visitor(visitor.user, "this console is read-only; start it with --write to make changes")
        return visitor


class RequestGuard:
    """Middleware: lets a request in by its size, its host and the site that sends it, and finds its visitor. Adds the
    headers that every answer has. hosts: names by which browsers may call the console (a page of another name could be
    another site's that resolves to this machine)."""

    def __init__(self, app: ASGIApp, access: Access, hosts: Collection[str]) -> None:
        self._app, self._access = app, access
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"the console serves no {scope['type']}")
        request = Request(scope, receive)
        answer = self._refusal(request) or self._access.visitor(request)
        if isinstance(answer, Visitor):
            scope["visitor"] = answer

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await (answer if isinstance(answer, Response) else self._app)(scope, receive, send_guarded)

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


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach a server that listens at this address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_of(header: str) -> str:
    """Return the name in a `Host` header, which is `name` or `name:digits`; empty for any other text."""
    match = _HOST.fullmatch(header)
    return "" if match is None else (match[1] or match[2]).lower()


def cookie_name(scope: Scope) -> str:
    """Return the name of the cookie of the console at this port; 0: at a unix socket."""
    _, port = scope.get("server") or ("", None)
    return f"{COOKIE}_{port or 0}"


def cookie_header(scope: Scope, value: str) -> str:
    """Return the header that sets the cookie of the browser that opened the link."""
    return f"{cookie_name(scope)}={value}; Path=/; Max-Age={COOKIE_SECONDS}; HttpOnly; SameSite=Strict"


def is_own_site(site: str | None, mode: str | None, target: str | None, method: str) -> bool:
    """Whether the console's own page, a person, or a program that is no browser has sent the request; or another site
    sends the person here. site, mode, target: Sec-Fetch-Site, Sec-Fetch-Mode and Sec-Fetch-Dest, None if missing."""
    if site in (None, "same-origin", "none"):
        return True
    return method == "GET" and mode == "navigate" and target in (None, "document")


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
