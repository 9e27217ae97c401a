"""A small OpenID Connect provider: it lets everybody in, with the claims that a test sets, and checks PKCE."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tools.waiting import until

CLIENT, SECRET = "rstream", "s3cret"


@dataclass
class Provider:
    """claims: replace those of the ID token; key: that signs it; asked: parameters of the last login."""

    issuer: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    own_key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "k"}))
    key: RSAKey | None = None
    asked: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def app(self) -> Starlette:
        metadata = Route("/.well-known/openid-configuration", self._metadata)
        token = Route("/token", self._token, methods=["POST"])
        return Starlette(routes=[metadata, token, Route("/authorize", self._authorize), Route("/jwks", self._jwks)])

    async def _metadata(self, _: Request) -> Response:
        paths = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "jwks"}
        return JSONResponse({"issuer": self.issuer} | {name: f"{self.issuer}/{path}" for name, path in paths.items()})

    async def _authorize(self, request: Request) -> Response:
        self.asked = dict(request.query_params)
        back = {"code": "one-time", "state": self.asked["state"]}
        return RedirectResponse(f"{self.asked['redirect_uri']}?{urlencode(back)}", 302)

    async def _jwks(self, _: Request) -> Response:
        return JSONResponse({"keys": [self.own_key.as_dict(private=False)]})

    async def _token(self, request: Request) -> Response:
        self.requests.append("token")
        form = dict(parse_qsl((await request.body()).decode()))
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        login = base64.b64decode(request.headers["authorization"].partition(" ")[2]).decode()
        if challenge != self.asked["code_challenge"] or login != f"{CLIENT}:{SECRET}":
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time())
        claims = {
            "iss": self.issuer, "aud": CLIENT, "sub": "u1", "preferred_username": "ann", "exp": now + 60, "iat": now,
            "nonce": self.asked["nonce"], **self.claims,
        }  # fmt: skip
        token = jwt.encode({"alg": "RS256", "kid": "k"}, claims, self.key or self.own_key)
        return JSONResponse({"access_token": "a", "token_type": "Bearer", "id_token": token})


@contextlib.contextmanager
def running_provider() -> Iterator[Provider]:
    """Run a provider at localhost, which is another site than 127.0.0.1."""
    provider, listener = Provider(), socket.create_server(("127.0.0.1", 0))
    provider.issuer = f"http://localhost:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(provider.app(), log_level="warning", loop="asyncio", ws="none"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        until(lambda: server.started, "the provider does not start", 20)
        yield provider
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
