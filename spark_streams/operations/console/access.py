"""Who may use the console: hosts, session cookies, and tokens of planned changes. Pure.

A cookie and a token are signed with a key of this process: a restart of the console ends all sessions. Starlette's
SessionMiddleware is not used here: the browser holds all of its session, so that no logout ends a copied cookie, and
the cookie's name cannot have the port. A login by OIDC uses it for ten minutes (login/oidc.py).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from spark_streams.base.numbers import parse_number

COOKIE = "rstream_console"  # before the port: a host has one set of cookies for all its ports
SESSION_SECONDS = 12 * 3600
PLAN_SECONDS = 600  # for which a planned change may be made
LOCAL = "local"  # the user of a console without passwords
_SEPARATOR = "|"
_HOST = re.compile(r"(?:([A-Za-z0-9._-]+)|\[([0-9A-Fa-f:.]+)\])(?::[0-9]{1,5})?")


@dataclass(frozen=True)
class Session:
    """A browser's session. user: its name; id: random; expires: seconds since the epoch; can_write: its role."""

    user: str
    id: str
    expires: int = 0
    can_write: bool = True


def _same(first: str, second: str) -> bool:
    return hmac.compare_digest(first.encode("utf-8", "replace"), second.encode("utf-8", "replace"))


class Signer:
    """Signs cookies and tokens. now: seconds since the epoch."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._key = secrets.token_bytes(32)
        self._now = now
        self._ended: dict[str, int] = {}  # sessions of users who have logged out, until their cookies expire
        self._used: dict[str, int] = {}  # signatures of tokens that have made their change, until they expire

    def _signature(self, *parts: str) -> str:
        return hmac.new(self._key, json.dumps(parts).encode(), hashlib.sha256).hexdigest()

    def new_cookie(self, user: str, role: str = "write") -> str:
        """Return the value of a new session's cookie. role: view or write."""
        session, expires = secrets.token_urlsafe(16), str(round(self._now()) + SESSION_SECONDS)
        words = quote(user, safe=""), session, expires, role  # a cookie is ASCII, without ;
        return _SEPARATOR.join((*words, self._signature("session", *words)))

    def session(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie; None if there is no valid cookie."""
        parts = (cookie or "").split(_SEPARATOR)
        if len(parts) != 5:
            return None
        user, number, expires, role, signature = parts
        is_valid = _same(signature, self._signature("session", user, number, expires, role))
        if not is_valid:
            return None
        session = Session(unquote(user), number, int(expires), role == "write")
        return session if self.is_open(session) else None

    def end(self, session: Session) -> None:
        """Let the cookie of this session be worth nothing from now on."""
        now = self._now()
        self._ended = {id: expires for id, expires in self._ended.items() if expires >= now}
        self._ended[session.id] = session.expires

    def is_open(self, session: Session) -> bool:
        """Whether the session has neither expired nor ended."""
        return session.expires >= self._now() and session.id not in self._ended

    def plan_token(self, session: Session, arguments: Sequence[str]) -> str:
        """Return the token with which this session may run this command once, in the next ten minutes."""
        expires = str(round(self._now()) + PLAN_SECONDS)
        number = f"{expires}.{secrets.token_urlsafe(8)}"  # each dry run has a token of its own
        return f"{number}{_SEPARATOR}{self._signature('plan', session.id, number, *arguments)}"

    def use_plan(self, token: str, session: Session, arguments: Sequence[str]) -> bool:
        """Use the token of a command. Return whether the session has seen the dry run of this command in the last ten
        minutes, and has not made the change since."""
        number, _, token_signature = token.partition(_SEPARATOR)
        signature = self._signature("plan", session.id, number, *arguments)
        expires, now = parse_number(number.partition(".")[0]) or 0, self._now()
        if not _same(token_signature, signature) or expires < now or signature in self._used:
            return False
        self._used = {used: until for used, until in self._used.items() if until >= now} | {signature: expires}
        return True


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


def cookie_name(port: int) -> str:
    """Return the name of the cookie of the console at this port."""
    return f"{COOKIE}_{port}"


def is_own_site(site: str | None, mode: str | None, target: str | None, method: str) -> bool:
    """Whether the console's own page, a person, or a program that is no browser has sent the request; or another site
    sends the person here. site, mode, target: Sec-Fetch-Site, Sec-Fetch-Mode and Sec-Fetch-Dest, None if missing."""
    if site in (None, "same-origin", "none"):
        return True
    return method == "GET" and mode == "navigate" and target in (None, "document")
