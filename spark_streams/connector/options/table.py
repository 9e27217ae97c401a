"""Table of all options, by the side that has them: those of every connection, of the source and of the sink.

The tables of docs/reference/options.md are printed from here (`python -m tools.reference`). source_table.py has the
options of the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spark_streams.base.given_text import duration
from spark_streams.connector.options.option import Option
from spark_streams.connector.options.parsers import (
    PerStream,
    count,
    entry_id,
    function,
    number,
    one_of,
    positions,
    query_id,
    shards,
    size,
    text,
)
from spark_streams.connector.options.source_table import SOURCE_GROUPS
from spark_streams.connector.wire.address.address import Address, default_url

_WHERE_TO_WRITE = (
    Option(
        "stream",
        text,
        None,
        "this or `streamColumn`",
        "Stream to append to. With `streamColumn`: for rows in which that column is null.",
    ),
    Option(
        "streamColumn",
        text,
        None,
        "none",
        "STRING column with the stream of each row. It is not written as a field.",
    ),
    Option(
        "shards",
        shards,
        None,
        "none",
        "Write `stream` as this many streams ([shards](keys.md#shards)). All rows of one key go to one of them, "
        "in order. The number of the first sink or query stays.",
    ),
    Option(
        "shardBy",
        text,
        None,
        "none",
        "With `shards`: the key column. It is also written as a field. Null counts as an empty key.",
    ),
    Option(
        "idColumn",
        text,
        None,
        "none: the server generates IDs",
        "STRING column with the entry ID of each row (`<milliseconds>-<sequence>`, `<milliseconds>-*` or "
        "`<milliseconds>`). If it is null, the server generates the ID. It is not written as a field.",
    ),
    Option(
        "nulls",
        one_of("omit", "empty"),
        "omit",
        "`omit`",
        "How to write a null value. `omit`: without its field. `empty`: as an empty field.",
    ),
)
_ONCE = (
    Option(
        "delivery",
        one_of("exactly-once", "at-least-once"),
        "exactly-once",
        "`exactly-once`",
        "`exactly-once`: a ledger recognises rows that retried tasks, speculative copies and replayed batches send "
        "again. `at-least-once`: they are written again.",
    ),
    Option(
        "transaction",
        text,
        None,
        "none",
        "For `df.write` within `foreachBatch`: a name for this write, different from the other writes of the function. "
        "Its rows are then written once, also when Spark replays the micro-batch. Over Spark Connect: "
        "[`spark_streams.transaction`](../guide/notebooks.md#write-once-within-foreachbatch) sets it.",
    ),
    # Returned by `spark_streams.transaction`: number of the micro-batch, and ID of the query in its checkpoint.
    Option("transactionBatch", number, None, "", ""),
    Option("transactionQuery", query_id, None, "", ""),
    Option(
        "waitReplicas",
        count,
        None,
        "none",
        "A task and its batch end only after this many replicas have acknowledged the writes (`WAIT`, at most 10 s).",
    ),
)
_TRIMMING = (
    Option(
        "trim",
        one_of("acked"),
        None,
        "none",
        "`acked`: never trim an entry that a group has not yet received and acknowledged. Without a threshold, trim "
        "all that every group has acknowledged.",
    ),
    Option("maxlen", count, None, "unbounded", "Trim each stream to about this many entries, once per chunk."),
    Option("minId", entry_id, None, "unbounded", "Trim entries whose ID is below this one."),
    Option(
        "retention",
        duration,
        None,
        "unbounded",
        "Trim entries that are older than this (`36h`, `7d`), by the server's clock.",
    ),
    Option(
        "retentionBytes",
        size,
        None,
        "unbounded",
        "Trim each stream to about this many bytes of the server's memory (`512mb`, `2gb`). It may be combined with "
        "`maxlen`, `minId` and `retention`.",
    ),
)
_PACE = (
    Option(
        "rowsPerSecond",
        count,
        None,
        "no limit",
        "Maximum number of rows per second that the tasks of one batch, or of one `df.write`, append together.",
    ),
    # Set by tests: the most rows of a request of at most 8 MB. With exactly-once it is one transaction.
    Option("chunkSize", count, 5_000, "", ""),
)
SINK_GROUPS: Mapping[str, tuple[Option, ...]] = {
    "Where to write": _WHERE_TO_WRITE,
    "Once": _ONCE,
    "Trimming": _TRIMMING,
    "Pace": _PACE,
}


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
