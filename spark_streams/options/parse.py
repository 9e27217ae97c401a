"""The options of one reader or writer, checked against their table (`table`).

Names are matched without regard to case, as Spark does. Unknown options are errors: a misspelt option that is silently
ignored loses data.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from spark_streams.errors import InvalidOptionError, OptionError, UnknownOptionError
from spark_streams.options.checks import check_together
from spark_streams.options.table import ACCESS, BATCH_SOURCE, IDENTITY, REQUIRED, SOURCE, Option
from spark_streams.wire import allowed, server_url
from spark_streams.wire.address import DEFAULT_URL_VARIABLE, Address, default_identity, default_url
from spark_streams.wire.identity import Identity
from spark_streams.wire.patience import Patience

# What Spark itself puts among the options of a reader or a writer.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})


class Options:
    """The checked options of one reader or writer; read as attributes-by-name: `options["chunkSize"]`. given: the
    names of those that the user typed."""

    def __init__(self, values: Mapping[str, Any], given: Iterable[str] = ()) -> None:
        self._values = dict(values)
        self._given = frozenset(given)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def is_given(self, *names: str) -> bool:
        """Whether the user typed one of these options, be it with its default value."""
        return not self._given.isdisjoint(names)

    @property
    def address(self) -> Address:
        """The server."""
        address: Address = self._values["url"]
        return address

    def but(self, **values: Any) -> Options:
        """The same, with other values for these."""
        return Options({**self._values, **values}, self._given)

    def with_patience(self, patience: Patience) -> Options:
        """The same, with another patience with the server."""
        return self.but(url=replace(self.address, patience=patience))


def parse_options(given: Mapping[str, str], table: Iterable[Option], side: str) -> Options:
    """Check what a user typed against a table. side: `source` or `sink`, for messages.

    Raises UnknownOptionError, InvalidOptionError, NotAllowedError.
    """
    known = {option.name.lower(): option for option in table}
    typed = {name.lower() for name in given}
    values: dict[str, Any] = {}
    for name, typed_text in given.items():
        if name.lower() in SPARKS_OWN:
            continue
        option = known.get(name.lower())
        if option is None:
            raise _no_such_option(name, known, table, side)
        try:
            values[option.name] = option.parse(typed_text)
        except ValueError as error:
            raise InvalidOptionError(f"{side} option {option.name}={typed_text[:200]!r} {error}") from None
    for option in known.values():
        if option.name not in values:
            if option.default is REQUIRED:
                raise InvalidOptionError(f"{side} option {option.name} is missing: {option.doc}")
            values[option.name] = option.default() if callable(option.default) else option.default
    chosen = [option.name for option in known.values() if option.name.lower() in typed]
    check_together(chosen, values)
    values["url"] = _accessed(values)
    if "replytimeout" in typed and server_url.has_parameter(values["url"].url, "socket_timeout"):
        raise InvalidOptionError("option replyTimeout and the url's socket_timeout are the same: give one of them")
    return Options(values, chosen)


def server_of(given: Mapping[str, str], side: str) -> Address:
    """The server that options of ACCESS say. Raises as above."""
    return parse_options(given, ACCESS, side).address


def _accessed(values: Mapping[str, Any]) -> Address:
    """The server with who connects and how patiently: as is given, else for the url of the environment as that says.
    The one place where an address or an identity is made from options. Raises InvalidOptionError, NotAllowedError."""
    address: Address = values["url"]
    identity = Identity(*(values[name] or "" for name in IDENTITY))
    allowed.check_identity(identity)
    # The server and the login of the environment are its operator's, as the lists of what is allowed are.
    if address.url != os.environ.get(DEFAULT_URL_VARIABLE):
        allowed.check_server(address)
    if identity == Identity() and address.url == default_url():
        identity = default_identity()
    if identity != Identity():
        address = address.with_identity(identity)
    return replace(address, patience=replace(address.patience, reply=values["replyTimeout"] / 1000))


def _no_such_option(name: str, known: Mapping[str, Option], table: Iterable[Option], side: str) -> OptionError:
    for other, where in ((SOURCE, "spark.readStream"), (BATCH_SOURCE, "spark.read")):
        if table in (SOURCE, BATCH_SOURCE) and any(option.name.lower() == name.lower() for option in other):
            instead = "spark.read" if where == "spark.readStream" else "spark.readStream"
            return InvalidOptionError(f"source option {name!r} is one of {where}, not of {instead}: drop it")
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {known[near[0]].name!r}? " if near else ""
    names = ", ".join(option.name for option in known.values())
    return UnknownOptionError(f"the rstream {side} has no option {name!r}; {hint}it knows {names}")
