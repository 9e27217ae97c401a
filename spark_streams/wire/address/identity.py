"""Who connects, where the URL does not say: a user with a password, a file that holds it, or a function that is asked.

The file is read, and the function's provider is asked, for each connection, so that what was renewed is taken; and now
and then on connections that live long, which log in again with what is new (`Connection.renew_login`).
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from spark_streams.errors import InvalidOptionError, LoginError, ServerUnreachableError

Credentials = tuple[str, ...]  # (password) or (user, password), as redis-py's CredentialProvider gives them


@dataclass(frozen=True)
class Identity:
    """One of password, password_file and provider (`module:function`) is given; a provider names the user itself. No
    part of it is shown but the file's path and the function's name."""

    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    password_file: str = ""
    provider: str = ""

    def __str__(self) -> str:
        """Where the login comes from, for messages."""
        if self.provider:
            return f"of credentialProvider {self.provider}"
        return f"in passwordFile {self.password_file}" if self.password_file else "of options username and password"

    @property
    def changes(self) -> bool:
        """Whether it may be another one the next time."""
        return bool(self.provider or self.password_file)

    def credentials(self) -> Credentials:
        """What to log in with now. Raises LoginError where the file cannot be read or is empty, InvalidOptionError
        where there is no such function, ServerUnreachableError where the provider fails, which may pass."""
        if self.provider:
            return _of_provider(self.provider)
        password = _first_line(self.password_file) if self.password_file else self.password
        return (self.username, password) if self.username else (password,)


def _first_line(file: str) -> str:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise LoginError(f"passwordFile {file} cannot be read: {why}; every machine with a task needs it") from None
    if not lines or not lines[0]:
        raise LoginError(f"passwordFile {file} is empty: its first line is the password")
    return lines[0]


def _of_provider(name: str) -> Credentials:
    provider = _provider(name)
    try:
        given = tuple(provider.get_credentials())
    except Exception as error:  # noqa: BLE001 - whatever it raises: a token service may be away
        why = f"{type(error).__name__}: {error}"
        raise ServerUnreachableError(f"credentialProvider {name} gave no credentials: {why}") from None
    if len(given) not in (1, 2) or not all(isinstance(one, str) and one for one in given):
        raise InvalidOptionError(
            f"credentialProvider {name}: get_credentials() is to return (user, password), or (password,), all texts"
        )
    return given


class _Provider(Protocol):
    """As redis.CredentialProvider."""

    def get_credentials(self) -> Credentials: ...


@functools.cache
def _provider(name: str) -> _Provider:
    """What the function returns, once a process: a provider may keep its token, and renew it. Raises
    InvalidOptionError."""
    module, _, function = name.partition(":")
    try:
        provider: _Provider = getattr(importlib.import_module(module), function)()
    except Exception as error:  # noqa: BLE001 - it is the user's code
        raise InvalidOptionError(
            f"credentialProvider {name} cannot be used: {type(error).__name__}: {error}; it is module:function, where "
            "the driver and every executor can import it, and returns a redis.CredentialProvider"
        ) from None
    if not callable(getattr(provider, "get_credentials", None)):
        raise InvalidOptionError(
            f"credentialProvider {name} returned a {type(provider).__name__}, which is no redis.CredentialProvider: it "
            "has no get_credentials()"
        )
    return provider
