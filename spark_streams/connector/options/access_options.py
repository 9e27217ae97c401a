"""Options of every connection: the server, the login and the time limit. Also parses a user's options into values.

Names are case-insensitive, as in Spark. Unknown options are errors, because ignoring a misspelled option may lose data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from spark_streams.connector.errors import InvalidOptionError, OptionError, UnknownOptionError
from spark_streams.connector.options.checks import check_together
from spark_streams.connector.options.migration import hint_of_other_connector
from spark_streams.connector.options.names import linked, named, near, warn_if_deprecated
from spark_streams.connector.options.option import REQUIRED, Option, documented
from spark_streams.connector.options.table import ACCESS, BATCH_SOURCE, SOURCE
from spark_streams.connector.wire.address import server_url
from spark_streams.connector.wire.address.address import (
    DEFAULT_URL_VARIABLE,
    Address,
    Patience,
    check_identity,
    check_server,
    default_identity,
    default_url,
)
from spark_streams.connector.wire.address.identity import Identity

# Options that Spark itself, or a platform's engine, adds to those of a reader or a writer: Databricks' engine adds some
# to a reader with a schema, and with a connection of Unity Catalog.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "isuserspecifiedschema"})
_ENGINES_OWN = "databricks."


def is_sparks_own(name: str) -> bool:
    """Whether Spark or a platform's engine has set this option. Users' options are never so."""
    return name.lower() in _SPARKS_OWN or name.lower().startswith(_ENGINES_OWN)


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """Checked options: a field for each option of TABLE.

    SIDE: their name in messages; explicit: names (as in TABLE) of the options that the user has set, also if to the
    default value.
    """

    TABLE: ClassVar[tuple[Option, ...]] = ACCESS
    SIDE: ClassVar[str] = "server"

    explicit: frozenset[str]
    url: Address
    username: str | None = field(repr=False)
    password: str | None = field(repr=False)
    password_file: str | None
    credential_provider: str | None
    reply_timeout: int  # milliseconds

    @classmethod
    def parse(cls, options: Mapping[str, str], side: str | None = None) -> Self:
        """Parse a user's options. side: in place of SIDE.

        Raises UnknownOptionError, InvalidOptionError, NotAllowedError.
        """
        with linked(cls.TABLE):
            typed, values = _read(options, cls.TABLE, side or cls.SIDE)
            check_together(typed, values)
            fields: dict[str, Any] = {option.field: values[option.name] for option in cls.TABLE}
            checked = cls(explicit=typed, **fields).checked()
            return replace(checked, url=_accessed(checked))

    def checked(self) -> Self:
        """Return these options after checks between them. Raises InvalidOptionError."""
        return self

    @property
    def address(self) -> Address:
        """Address of the server."""
        return self.url

    def with_patience(self, patience: Patience) -> Self:
        """Return these options with other time limits for the server."""
        return replace(self, url=replace(self.url, patience=patience))


def server_of(options: Mapping[str, str], side: str) -> Address:
    """Return the server that options of ACCESS name. side: for messages. Raises the errors of `AccessOptions.parse`."""
    return AccessOptions.parse(options, side).url


def _read(options: Mapping[str, str], table: tuple[Option, ...], side: str) -> tuple[frozenset[str], dict[str, object]]:
    """Return the names that the user has set, and the value of each option of the table by name."""
    typed: dict[str, object] = {}
    written: dict[str, str] = {}  # by the option's name
    for name, text in options.items():
        if is_sparks_own(name):
            continue
        options_of_name = named(name, table)
        if not options_of_name:
            raise _no_such_option(name, table, side)
        [option] = options_of_name
        if option.name in written:
            raise InvalidOptionError(
                f"{side} options {written[option.name]!r} and {name!r} are names of the same option: set only "
                f"{option.name!r}"
            )
        written[option.name] = name
        warn_if_deprecated(name, option, side)
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
    """Return the server's address with login and time limits.

    They come from the options. For the url of the environment, the login's default comes from the environment, too.
    Only this function makes an address or an identity from options. Raises InvalidOptionError, NotAllowedError.
    """
    address = options.url
    identity = Identity(
        options.username or "", options.password or "", options.password_file or "", options.credential_provider or ""
    )
    check_identity(identity)
    # The operator of the driver sets the server and the login in the environment, as the allow-lists.
    if address.url != os.environ.get(DEFAULT_URL_VARIABLE):
        check_server(address)
    if identity == Identity() and address.url == default_url():
        identity = default_identity()
    if identity != Identity():
        address = address.with_identity(identity)
    if "replyTimeout" in options.explicit and server_url.has_parameter(address.url, "socket_timeout"):
        raise InvalidOptionError(
            "option replyTimeout and the url's socket_timeout set the same time: remove one of them"
        )
    return replace(address, patience=replace(address.patience, reply=options.reply_timeout / 1000))


def _no_such_option(name: str, table: tuple[Option, ...], side: str) -> OptionError:
    for other_table, reader in ((SOURCE, "spark.readStream"), (BATCH_SOURCE, "spark.read")):
        if table in (SOURCE, BATCH_SOURCE) and named(name, other_table):
            this_reader = "spark.read" if reader == "spark.readStream" else "spark.readStream"
            return InvalidOptionError(f"source option {name!r} belongs to {reader}, not to {this_reader}: remove it")
    if hint := hint_of_other_connector(name):
        return UnknownOptionError(f"the rstream {side} has no option {name!r}; {hint}")
    if table is SOURCE and name.lower() == "delivery":
        return UnknownOptionError(
            "the rstream source has no option 'delivery', which is one of the sink. The source acknowledges entries "
            "after their batch is committed, so each is read at least once; an exactly-once sink writes each row once"
        )
    other_name = near(name, table)
    hint = f"did you mean {other_name!r}? " if other_name else ""
    names = ", ".join(option.name for option in documented(table))
    return UnknownOptionError(f"the rstream {side} has no option {name!r}; {hint}valid options: {names}")
