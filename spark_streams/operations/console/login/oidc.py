"""Log in by OpenID Connect. Authlib has the protocol: discovery, state, nonce, PKCE, and the check of the ID token.

    issuer = "https://login.example.org/realms/ops"      client_id = "rstream"      client_secret = "…"
    claim = "groups"                                      view = ["staff"]           write = ["operators"]

The file is TOML, and only its owner can read it. The redirect URI of the console is its address with /oidc.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import time
import tomllib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from authlib.common.errors import AuthlibBaseError
from authlib.integrations.starlette_client import OAuth
from httpx2 import HTTPError, InvalidURL
from joserfc.errors import JoseError
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from spark_streams.base.printable import printable
from spark_streams.base.untyped import Json
from spark_streams.connector.errors import ConfigError, NotPermittedError, ServerReplyError
from spark_streams.operations.console.access import COOKIE, is_loopback
from spark_streams.operations.console.bounds import USER_CHARACTERS
from spark_streams.operations.console.login.users import require_private

PATH = "/oidc"  # of the redirect URI
_SECONDS = 600  # that a login at the provider may take
_TIMEOUT = 10.0  # seconds for a request to the provider
_LONGEST_PAUSE = 60.0  # seconds until a provider that is away is asked again; the pauses double up to it
_SUBJECT = 255  # characters of `sub`, as OpenID Connect says
# What the provider, or whoever stands in its place, can make fail.
_FAILURES = (AuthlibBaseError, HTTPError, InvalidURL, JoseError, ValueError, KeyError, TypeError, RuntimeError)
_NO_BRACKETS = str.maketrans("", "", "()")
_Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Provider:
    """The file. view, write: values of the claim of the ID token that give the role; scope: what is asked for."""

    issuer: str
    client_id: str
    claim: str
    view: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    client_secret: str | None = field(default=None, repr=False)
    scope: str = "openid profile"

    @classmethod
    def read(cls, path: str) -> Provider:
        """Read the file. Raises ConfigError, also if other users of the machine can read it."""
        try:
            with open(path, "rb") as file:
                require_private(os.fstat(file.fileno()), path)
                values = tomllib.load(file)
            lists = [tuple(values.pop(name, ())) for name in ("view", "write")]
            provider = cls(**values, view=lists[0], write=lists[1])
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"the OIDC provider cannot be read from {path}: {error}; correct the file") from error
        texts = (*values.values(), *lists[0], *lists[1])
        if not all(isinstance(text, str) and text for text in texts) or not (provider.view or provider.write):
            raise ConfigError(f"{path}: each value is a text, view and write are lists of texts; set one of the lists")
        url = urlsplit(provider.issuer)
        if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.hostname or "")):
            raise ConfigError(f"{path}: issuer {provider.issuer!r} is not an https URL; set the provider's address")
        return provider

    def role(self, claims: Json) -> str | None:
        """Return the role that the claims give: `write`, `view`, or None."""
        found = claims.get(self.claim)
        values = found if isinstance(found, list) else [found]
        names = {value for value in values if isinstance(value, str)}
        return "write" if names & {*self.write} else "view" if names & {*self.view} else None


class _WithState(Response):
    """The answer of a handler whose request has a session for Authlib: a signed cookie, for the login only."""

    def __init__(self, handler: _Handler, key: str, cookie: str, is_https: bool) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await (await handler(Request(scope, receive)))(scope, receive, send)

        # Lax: the browser comes back from another site.
        self._app = SessionMiddleware(app, key, cookie, _SECONDS, PATH, "lax", is_https)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope}, receive, send)  # scope["session"] stays the console's own


class Oidc:
    """Logins at a provider."""

    def __init__(self, provider: Provider, is_https: bool) -> None:
        self.provider, self._is_https, self._key = provider, is_https, secrets.token_urlsafe(32)
        self._asking = asyncio.Lock()
        self._pause, self._asked_again = 0.0, 0.0  # seconds; a monotonic clock
        self._client: Any = OAuth().register(
            "provider",
            client_id=provider.client_id,
            client_secret=provider.client_secret,
            server_metadata_url=provider.issuer.rstrip("/") + "/.well-known/openid-configuration",
            client_kwargs={"scope": provider.scope, "code_challenge_method": "S256", "timeout": _TIMEOUT}
            | ({} if provider.client_secret else {"token_endpoint_auth_method": "none"}),
        )

    @property
    def host(self) -> str:
        """Name of the provider for the page Log in."""
        return urlsplit(self.provider.issuer).netloc

    @property
    def away(self) -> float:
        """Seconds until the provider is asked again, 0 if it was not away."""
        return max(0.0, self._asked_again - time.monotonic())

    def with_state(self, handler: _Handler, port: int) -> Response:
        """Return the answer of a handler that calls `redirect` or `identify` with its request."""
        return _WithState(handler, self._key, f"{COOKIE}_oidc_{port}", self._is_https)

    async def redirect(self, request: Request) -> Response:
        """Send the browser to the provider. Raises ServerReplyError, at once while the provider is away."""
        async with self._asking:  # one browser at a time: the others learn from its answer
            await self._discover()
        scheme = "https" if self._is_https else "http"  # the guard has checked the host
        try:
            answer: Response = await self._client.authorize_redirect(
                request, f"{scheme}://{request.headers['host']}{PATH}"
            )
        except _FAILURES as error:
            raise self._failed(error) from error
        return answer

    async def _discover(self) -> None:
        """Ask the provider for its addresses, unless they are known. Raises ServerReplyError."""
        if self.away:
            raise ServerReplyError(f"{self.host} does not answer. Log in again in {math.ceil(self.away)} s")
        try:
            issuer = (await self._client.load_server_metadata())["issuer"]
        except _FAILURES as error:
            self._pause = min(2 * self._pause or 1.0, _LONGEST_PAUSE)
            self._asked_again = time.monotonic() + self._pause
            raise self._failed(error) from error
        self._pause = 0.0
        if issuer != self.provider.issuer:
            raise ServerReplyError(
                f"the provider names itself {printable(str(issuer))[:300]!r}, but the file of --oidc has issuer "
                f"{self.provider.issuer!r}: a slash counts. Its operator corrects the file and starts the console again"
            )

    async def identify(self, request: Request) -> tuple[str, str]:
        """Return (user, role) of a browser that comes from the provider. Raises ServerReplyError, NotPermittedError."""
        provider = self.provider
        expected = {"iss": provider.issuer, "aud": provider.client_id}
        options = {name: {"essential": True, "value": value} for name, value in expected.items()}
        try:
            token = await self._client.authorize_access_token(request, claims_options=options)
            claims = token["userinfo"]
            user = _name(claims, provider.issuer)
            role = provider.role(claims)
        except _FAILURES as error:
            raise self._failed(error) from error
        if role is None:
            raise NotPermittedError(
                f"{user} is logged in at {self.host}, but has none of the {provider.claim} that may use this console; "
                "ask its operator for the role view or write"
            )
        return user, role

    def _failed(self, error: Exception) -> ServerReplyError:
        reason = printable(f"{type(error).__name__}: {error}")[:300]
        return ServerReplyError(f"the login by {self.host} failed ({reason}); log in again, or ask its operator")


def _name(claims: Json, issuer: str) -> str:
    """Return the name of a user for pages and the audit log. `sub` and the issuer name one person for ever; the
    preferred name is one that people read, and may belong to somebody else later. Raises ValueError."""
    subject = claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= _SUBJECT:
        raise ValueError(f"the claim sub is no text of 1 to {_SUBJECT} characters")
    preferred = str(claims.get("preferred_username") or subject)[:USER_CHARACTERS]
    # Without its brackets, nobody's preferred name looks like the subject of another user.
    return printable(f"oidc:{preferred.translate(_NO_BRACKETS)} (sub {subject} at {issuer})")
