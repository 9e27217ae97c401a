"""Login for URLs without one: a user with a password, a password file, or a function that returns credentials.

The file is read and the provider is called for each connection, so that renewed credentials are used. Long-lived
connections also check for renewed credentials and log in again (`Connection.renew_login`).
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass, field
from typing import Protocol

from spark_streams.base.given_text import first_line
from spark_streams.connector.errors import InvalidOptionError, LoginError, ServerUnreachableError

Credentials = tuple[str, ...]  # (password) or (user, password), as redis-py's CredentialProvider returns them


@dataclass(frozen=True)
class Identity:
    """One of password, password_file and provider (`module:function`) is set; a provider returns the user, too. Only
    the file's path and the function's name are ever shown.
    """

    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    password_file: str = ""
    provider: str = ""

    def __str__(self) -> str:
        """Return the origin of the login, for messages."""
        if self.provider:
            return f"of credentialProvider {self.provider}"
        return f"in passwordFile {self.password_file}" if self.password_file else "of options username and password"

    @property
    def changes(self) -> bool:
        """Whether the credentials may change."""
        return bool(self.provider or self.password_file)

    def credentials(self) -> Credentials:
        """Return the current credentials.

        Raises LoginError if the file cannot be read or is empty, InvalidOptionError if the function does not exist,
        ServerUnreachableError if the provider fails, which may be temporary.
        """
        if self.provider:
            return _of_provider(self.provider)
        password = password_in(self.password_file) if self.password_file else self.password
        return (self.username, password) if self.username else (password,)


def password_in(file: str) -> str:
    """Return the first line of a password file. Raises LoginError."""
    try:
        password = first_line(file).decode()
    except (OSError, ValueError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", error)
        raise LoginError(f"password file {file} cannot be read: {reason}; every machine with a task needs it") from None
    if not password:
        raise LoginError(f"password file {file} is empty: its first line is the password")
    return password


def _of_provider(name: str) -> Credentials:
    provider = _provider(name)
    try:
        credentials = tuple(provider.get_credentials())
    except Exception as error:  # noqa: BLE001 - any error: a token service may be unreachable
        reason = f"{type(error).__name__}: {error}"
        raise ServerUnreachableError(f"credentialProvider {name} returned no credentials: {reason}") from None
    if len(credentials) not in (1, 2) or not all(isinstance(part, str) and part for part in credentials):
        raise InvalidOptionError(
            f"credentialProvider {name}: get_credentials() must return (user, password) or (password,), as texts"
        )
    return credentials


class _Provider(Protocol):
    """The same as redis.CredentialProvider."""

    def get_credentials(self) -> Credentials: ...


@functools.cache
def _provider(name: str) -> _Provider:
    """Return the function's provider, created once per process: it may cache and renew a token.

    Raises InvalidOptionError.
    """
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
