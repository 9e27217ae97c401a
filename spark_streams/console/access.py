"""Who may use the console: hosts, users, session cookies, and tokens of planned changes. Pure.

A cookie and a token are signed with a key of this process: a restart of the console ends all sessions.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from spark_streams.errors import ConfigError
from spark_streams.model.numbers import parse_number

COOKIE = "rstream_console"
SESSION_SECONDS = 12 * 3600
PLAN_SECONDS = 600  # for which a planned change may be made
LOCAL = "local"  # the user of a console without passwords
_SEPARATOR = "|"


@dataclass(frozen=True)
class Session:
    """A browser's session. user: its name; id: random."""

    user: str
    id: str


@dataclass(frozen=True)
class Users:
    """Users and their passwords. Without users, everybody who reaches the console may use it."""

    passwords: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, lines: Iterable[str], path: str) -> Users:
        """Parse lines of the form NAME:PASSWORD; a line that begins with # is a comment. Raises ConfigError."""
        passwords = []
        for number, line in enumerate(lines, start=1):
            text = line.rstrip("\r\n")
            if not text.strip() or text.startswith("#"):
                continue
            name, colon, password = text.partition(":")
            if not (name and colon and password):
                raise ConfigError(f"{path}: line {number} is not of the form NAME:PASSWORD")
            if not name.isprintable() or _SEPARATOR in name:
                raise ConfigError(f"{path}: line {number}: the name must be printable, without {_SEPARATOR}")
            passwords.append((name, password))
        if not passwords:
            raise ConfigError(f"{path} has no user; write a line NAME:PASSWORD")
        return cls(tuple(passwords))

    def __bool__(self) -> bool:
        return bool(self.passwords)

    def accepts(self, name: str, password: str) -> bool:
        """Whether a user has this name and password. The time does not depend on where texts differ."""
        accepted = False
        for known_name, known_password in self.passwords:
            same_name = _same(known_name, name)
            accepted |= _same(known_password, password) and same_name
        return accepted


def _same(first: str, second: str) -> bool:
    return hmac.compare_digest(first.encode("utf-8", "replace"), second.encode("utf-8", "replace"))


class Signer:
    """Signs cookies and tokens. now: seconds since the epoch."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._key = secrets.token_bytes(32)
        self._now = now

    def _signature(self, *parts: str) -> str:
        return hmac.new(self._key, json.dumps(parts).encode(), hashlib.sha256).hexdigest()

    def new_cookie(self, user: str) -> str:
        """Return the value of a new session's cookie."""
        session, expires = secrets.token_urlsafe(16), str(round(self._now()) + SESSION_SECONDS)
        return _SEPARATOR.join((user, session, expires, self._signature("session", user, session, expires)))

    def session(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie; None if there is no valid cookie."""
        parts = (cookie or "").split(_SEPARATOR)
        if len(parts) != 4:
            return None
        user, session, expires, signature = parts
        is_valid = _same(signature, self._signature("session", user, session, expires))
        return Session(user, session) if is_valid and self._is_in_time(expires) else None

    def plan_token(self, session: Session, arguments: Sequence[str]) -> str:
        """Return the token with which this session may run this command, in the next ten minutes."""
        expires = str(round(self._now()) + PLAN_SECONDS)
        return f"{expires}{_SEPARATOR}{self._signature('plan', session.id, expires, *arguments)}"

    def is_planned(self, token: str, session: Session, arguments: Sequence[str]) -> bool:
        """Whether the session has seen the dry run of this command in the last ten minutes."""
        expires, _, signature = token.partition(_SEPARATOR)
        is_valid = _same(signature, self._signature("plan", session.id, expires, *arguments))
        return is_valid and self._is_in_time(expires)

    def _is_in_time(self, expires: str) -> bool:
        return (parse_number(expires) or 0) >= self._now()


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach a server that listens at this address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_of(header: str) -> str:
    """Return the host of a `Host` header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()
