"""Table of all options, by the side that has them.

The tables of docs/reference/options.md are printed from here (`python -m tools.reference`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spark_streams.base.times import duration
from spark_streams.connector.options.option import Option
from spark_streams.connector.options.per_stream import PerStream
from spark_streams.connector.options.sink_table import SINK_GROUPS
from spark_streams.connector.options.source_table import SOURCE_GROUPS
from spark_streams.connector.options.values import function, one_of, positions, text
from spark_streams.connector.wire.address.address import Address, default_url

# Options of ACCESS for the login, in the order of Identity's fields.
IDENTITY = ("username", "password", "passwordFile", "credentialProvider")

_URL = Option(
    "url",
    Address.parse,
    lambda: Address.parse(default_url()),
    "`$RSTREAM_URL`, else `embedded:`",
    "The server: `redis://host:port/db`, `rediss://…` with TLS, `unix:///path`, `redis+sentinel://s1,s2/name/db` for "
    "the master that sentinels name, `redis+cluster://a,b` for a cluster, or `embedded:` for the bundled engine.",
)
# Options of every connection: the server, the login and the time limit.
ACCESS: tuple[Option, ...] = (
    _URL,
    Option(
        "username",
        text,
        None,
        "the url's",
        "User name, if the URL has none. Also set `password`, `passwordFile` or `credentialProvider`.",
    ),
    Option("password", text, None, "the url's", "Password, if the URL has none. Spark hides it in plans."),
    Option(
        "passwordFile",
        text,
        None,
        "none",
        "File whose first line is the password, on the driver and on each executor. It is read for each new "
        "connection, so a renewed password is used.",
    ),
    Option(
        "credentialProvider",
        function,
        None,
        "none",
        "`module:function`, which returns a `redis.CredentialProvider`, on the driver and on each executor. It is "
        "called for each new connection, so tokens may expire ([logins](access.md#logins)).",
    ),
    Option(
        "replyTimeout",
        duration,
        5_000,
        "`5s`",
        "If the server does not reply within this time, the connection is closed and the request is repeated on a new "
        "one.",
    ),
)
# What differs in `spark.read`.
_IN_BATCH: Mapping[str, Mapping[str, Any]] = {
    "startingOffsets": {"parse": positions("0", "earliest"), "default": PerStream("0", {})},
    "mode": {"parse": one_of("PERMISSIVE", "DROPMALFORMED", "FAILFAST")},
}


def _options(groups: Mapping[str, tuple[Option, ...]]) -> tuple[Option, ...]:
    return tuple(option for group in groups.values() for option in group)


SOURCE: tuple[Option, ...] = (*ACCESS, *(one for one in _options(SOURCE_GROUPS) if one.only != "batch"))
BATCH_SOURCE: tuple[Option, ...] = (
    *ACCESS,
    *(replace(one, **_IN_BATCH.get(one.name, {})) for one in _options(SOURCE_GROUPS) if one.only != "stream"),
)
SINK: tuple[Option, ...] = (*ACCESS, *_options(SINK_GROUPS))
