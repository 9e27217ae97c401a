"""Options beside every `url`: the server, who connects, how patiently. And how a user's options become values.

Names are matched without regard to case, as Spark does. Unknown options are errors: a misspelt option that is silently
ignored loses data.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from spark_streams.errors import InvalidOptionError, OptionError, UnknownOptionError
from spark_streams.options.checks import check_together
from spark_streams.options.table import ACCESS, BATCH_SOURCE, REQUIRED, SOURCE, Option
from spark_streams.wire.address import allowed, server_url
from spark_streams.wire.address.address import DEFAULT_URL_VARIABLE, Address, default_identity, default_url
from spark_streams.wire.address.identity import Identity
from spark_streams.wire.address.patience import Patience

# What Spark itself puts among the options of a reader or a writer.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """Checked options: a field for each option of TABLE. SIDE: what messages call them; given: the names, as TABLE has
    them, of those that the user typed, be it with their default values."""

    TABLE: ClassVar[tuple[Option, ...]] = ACCESS
    SIDE: ClassVar[str] = "server"

    given: frozenset[str]
    url: Address
    username: str | None = field(repr=False)
    password: str | None = field(repr=False)
    password_file: str | None
    credential_provider: str | None
    reply_timeout: int  # milliseconds

    @classmethod
    def parse(cls, given: Mapping[str, str], side: str | None = None) -> Self:
        """Check what a user typed. side: in place of SIDE.

        Raises UnknownOptionError, InvalidOptionError, NotAllowedError.
        """
        typed, values = _read(given, cls.TABLE, side or cls.SIDE)
        check_together(typed, values)
        fields: dict[str, Any] = {option.field: values[option.name] for option in cls.TABLE}
        checked = cls(given=typed, **fields).checked()
        return replace(checked, url=_accessed(checked))

    def checked(self) -> Self:
        """The same, with values that depend on each other put together. Raises InvalidOptionError."""
        return self

    @property
    def address(self) -> Address:
        """The server."""
        return self.url

    def with_patience(self, patience: Patience) -> Self:
        """The same, with another patience with the server."""
        return replace(self, url=replace(self.url, patience=patience))


def server_of(given: Mapping[str, str], side: str) -> Address:
    """The server that options of ACCESS say. side: for messages. Raises as `AccessOptions.parse`."""
    return AccessOptions.parse(given, side).url


def _read(given: Mapping[str, str], table: tuple[Option, ...], side: str) -> tuple[frozenset[str], dict[str, object]]:
    """The names that the user typed, and a value for each option of the table, by name."""
    known = {option.name.lower(): option for option in table}
    typed: dict[str, object] = {}
    for name, text in given.items():
        if name.lower() in SPARKS_OWN:
            continue
        option = known.get(name.lower())
        if option is None:
            raise _no_such_option(name, known, table, side)
        try:
            typed[option.name] = option.parse(text)
        except ValueError as error:
            raise InvalidOptionError(f"{side} option {option.name}={text[:200]!r} {error}") from None
    defaults: dict[str, object] = {}
    for option in table:
        if option.name not in typed:
            if option.default is REQUIRED:
                raise InvalidOptionError(f"{side} option {option.name} is missing: {option.doc}")
            defaults[option.name] = option.default() if callable(option.default) else option.default
    return frozenset(typed), {**typed, **defaults}


def _accessed(options: AccessOptions) -> Address:
    """The server with who connects and how patiently: as is given, else for the url of the environment as that says.
    The one place where an address or an identity is made from options. Raises InvalidOptionError, NotAllowedError."""
    address = options.url
    identity = Identity(
        options.username or "", options.password or "", options.password_file or "", options.credential_provider or ""
    )
    allowed.check_identity(identity)
    # The server and the login of the environment are its operator's, as the lists of what is allowed are.
    if address.url != os.environ.get(DEFAULT_URL_VARIABLE):
        allowed.check_server(address)
    if identity == Identity() and address.url == default_url():
        identity = default_identity()
    if identity != Identity():
        address = address.with_identity(identity)
    if "replyTimeout" in options.given and server_url.has_parameter(address.url, "socket_timeout"):
        raise InvalidOptionError("option replyTimeout and the url's socket_timeout are the same: give one of them")
    return replace(address, patience=replace(address.patience, reply=options.reply_timeout / 1000))


def _no_such_option(name: str, known: Mapping[str, Option], table: tuple[Option, ...], side: str) -> OptionError:
    for other, where in ((SOURCE, "spark.readStream"), (BATCH_SOURCE, "spark.read")):
        if table in (SOURCE, BATCH_SOURCE) and any(option.name.lower() == name.lower() for option in other):
            instead = "spark.read" if where == "spark.readStream" else "spark.readStream"
            return InvalidOptionError(f"source option {name!r} is one of {where}, not of {instead}: drop it")
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {known[near[0]].name!r}? " if near else ""
    names = ", ".join(option.name for option in known.values())
    return UnknownOptionError(f"the rstream {side} has no option {name!r}; {hint}it knows {names}")
