"""Checks of options; the options of every connection (the server, the login, the time limit) and those of the sink.

Names are case-insensitive, as in Spark. Unknown options are errors, because ignoring a misspelled option may lose data.

Spark creates a data source from the options alone. It does so at `load()` for a DataFrame without a declared schema,
else when the query starts (docs/internals/facts.md, S31). So they are checked once before Spark asks for a reader or a
writer. A table of Spark's catalog is recognized by options (S32).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from spark_streams.base.given_text import without_login
from spark_streams.connector.errors import InvalidOptionError, OptionError, UnknownOptionError, UnsupportedError
from spark_streams.connector.options.option import (
    REQUIRED,
    Option,
    documented,
    hint_of_other_connector,
    linked,
    named,
    near,
    warn_if_deprecated,
)
from spark_streams.connector.options.table import (
    ACCESS,
    BATCH_SOURCE,
    CONTRADICTIONS,
    NEEDS,
    ONE_OF_THESE,
    SINK,
    SOURCE,
)
from spark_streams.connector.shards.names import MAX_NAME, may_be_in_shards
from spark_streams.connector.wire import server_url
from spark_streams.connector.wire.address import (
    DEFAULT_URL_VARIABLE,
    Address,
    Identity,
    check_identity,
    check_server,
    default_identity,
    default_url,
)


def check_together(explicit_options: Collection[str], values: Mapping[str, object]) -> None:
    """Raise InvalidOptionError if options contradict each other, or if an option lacks another one that it needs.

    explicit_options: names of the options that the user has set; values: of every option, by name.
    """
    for group in ONE_OF_THESE:
        conflicting = [name for name in group if name in explicit_options]
        if len(conflicting) > 1:
            raise InvalidOptionError(f"options {' and '.join(conflicting)} contradict each other: give one of them")
    for (name, value), (other_name, forbidden), why in CONTRADICTIONS:
        is_set = name in explicit_options and value in (None, values[name])
        if is_set and other_name in explicit_options and forbidden in (None, values[other_name]):
            raise InvalidOptionError(f"options {name} and {other_name} contradict each other: {why}")
    for name, needed_name, why in NEEDS:
        if name in explicit_options and needed_name in values and needed_name not in explicit_options:
            raise InvalidOptionError(f"option {name} needs option {needed_name}: {why}")
    if "username" in explicit_options and not {"password", "passwordFile"} & set(explicit_options):
        raise InvalidOptionError("option username needs option password or passwordFile: set one of them")


def check_names_of_shards(option: str, streams: Collection[str]) -> None:
    """Raise InvalidOptionError if one of these streams cannot have shards. option: the option that names them."""
    for stream in streams:
        if not may_be_in_shards(stream):
            raise InvalidOptionError(
                f"options shards and {option} contradict each other: {stream[:MAX_NAME]!r} has braces, which would put "
                f"all its shards into one slot of a cluster, or more than {MAX_NAME:,} bytes; use a name without "
                "braces that is not longer"
            )


# Options that Spark itself, or a platform's engine, adds to those of a reader or a writer: Databricks' engine adds some
# to a reader with a schema, and with a connection of Unity Catalog.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "isuserspecifiedschema"})
_ENGINES_OWN = "databricks."


def is_sparks_own(name: str) -> bool:
    """Whether Spark or a platform's engine has set this option. Users' options are never so."""
    return name.lower() in _SPARKS_OWN or name.lower().startswith(_ENGINES_OWN)


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """Checked options: a field for each option of TABLE."""

    TABLE: ClassVar[tuple[Option, ...]] = ACCESS
    SIDE: ClassVar[str] = "server"  # their name in messages

    explicit: frozenset[str]  # names, as in TABLE, of the options that the user has set, also if to the default value
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
        return self.url


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
            raise InvalidOptionError(f"{side} option {option.name}={without_login(text)[:200]!r} {error}") from None
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
    in_url = server_url.parameter(address.url, "socket_timeout")
    if "replyTimeout" in options.explicit and in_url is not None:
        raise InvalidOptionError(
            "option replyTimeout and the url's socket_timeout set the same time: remove one of them"
        )
    reply = float(in_url or options.reply_timeout / 1000)
    return replace(address, patience=replace(address.patience, reply=reply))


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


_SIDES: tuple[tuple[str, tuple[Option, ...]], ...] = (("source", (*SOURCE, *BATCH_SOURCE)), ("sink", SINK))
_TABLES = (
    "Spark keeps the OPTIONS of a table in its catalog from a Python source: CREATE TEMPORARY VIEW v USING rstream "
    "OPTIONS (…) instead, or SELECT … FROM t WITH (url '…', streams '…') and INSERT INTO t WITH (…)"
)


def check_before_use(options: Mapping[str, str]) -> None:
    """Check names and values of options for any reader or writer.

    Raises UnknownOptionError for a name that no reader or writer has, InvalidOptionError for a value that none accepts,
    and UnsupportedError for a catalog table that is being created.
    """
    with linked(option for _, table in _SIDES for option in table):
        for name, text in options.items():
            if is_sparks_own(name):
                continue
            if name == "provider" or name.startswith("option."):
                raise UnsupportedError(f"CREATE TABLE … USING rstream loses its options: {_TABLES}")
            uses = [(option, side) for side, table in _SIDES for option in named(name, table)]
            if not uses:
                raise _no_option_of_any(name)
            refusals = []
            for option, side in uses:
                try:
                    option.parse(text)
                except ValueError as error:
                    refusals.append(f"{side} option {option.name}={without_login(text)[:200]!r} {error}")
            if len(refusals) == len(uses):
                raise InvalidOptionError(refusals[0])


def require_options(options: Mapping[str, str], required: str) -> None:
    """Raise InvalidOptionError if no option is set, as for a table of Spark's catalog.

    required: the instruction of the message, which names the options to set.
    """
    if not any(not is_sparks_own(name) for name in options):
        raise InvalidOptionError(f"no option is set: {required}. For a table of Spark's catalog: {_TABLES}")


def _no_option_of_any(name: str) -> UnknownOptionError:
    if name.lower() in ("path", "paths"):
        return UnknownOptionError(
            "load(…), save(…) and start(…) take no path with format('rstream'): set option streams to read, or "
            "option stream to write"
        )
    if hint := hint_of_other_connector(name):
        return UnknownOptionError(f"format rstream has no option {name!r}; {hint}")
    options = [option for _, table in _SIDES for option in table]
    other_name = near(name, options)
    names = ", ".join(dict.fromkeys(option.name for option in documented(options)))
    hint = f"did you mean {other_name!r}?" if other_name else f"valid options: {names}"
    return UnknownOptionError(f"format rstream has no option {name!r}; {hint}")


# -- the sink ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SinkOptions(AccessOptions):
    """Options of `df.writeStream` and `df.write`. Durations are in milliseconds."""

    TABLE: ClassVar[tuple[Option, ...]] = SINK
    SIDE: ClassVar[str] = "sink"

    stream: str | None
    stream_column: str | None
    shards: int | None
    shard_by: str | None
    id_column: str | None
    delivery: str
    transaction: str | None
    transaction_batch: int | None
    transaction_query: str | None
    chunk_size: int
    rows_per_second: int | None
    maxlen: int | None
    min_id: str | None
    retention: int | None
    retention_bytes: int | None
    trim: str | None
    nulls: str
    wait_replicas: int | None

    def checked(self) -> Self:
        if self.stream_column is not None and self.stream_column == self.id_column:
            raise InvalidOptionError(
                f"options streamColumn and idColumn contradict each other: column {self.id_column!r} cannot hold the "
                "name of a stream and an entry's id"
            )
        if self.shards is not None:
            self._check_shards()
        return self

    def _check_shards(self) -> None:
        if self.stream is None:
            raise InvalidOptionError("option shards needs option stream: it names the shards")
        check_names_of_shards("stream", (self.stream,))
        if self.shard_by == self.id_column:
            raise InvalidOptionError(
                f"options shardBy and idColumn contradict each other: column {self.shard_by!r} cannot hold a key, "
                "which is a field, and an entry's id"
            )
