"""Table of all options: name, side, default, parser and documentation.

The tables of docs/reference/options.md are printed from here (`python -m tools.reference`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from spark_streams.model.ids import U64_MAX
from spark_streams.model.times import duration, moment
from spark_streams.options.per_stream import PerStream
from spark_streams.options.values import (
    count,
    delays,
    entry_id,
    flag,
    flag_or,
    function,
    glob,
    location,
    null_values,
    number,
    one_of,
    per_stream,
    positions,
    query_id,
    shards,
    size,
    streams,
    text,
)
from spark_streams.wire.address.address import Address, default_url

# Options of ACCESS for the login, in the order of Identity's fields.
IDENTITY = ("username", "password", "passwordFile", "credentialProvider")

REQUIRED = object()


@dataclass(frozen=True)
class Option:
    """An option.

    parse: converts a text to a value, raises ValueError; default: a value, REQUIRED, or a callable; shown: the default
    in docs/reference/options.md; doc: its documentation there, empty: only our own code sets it; deprecated: names
    that it had before, which still work and log a warning (options.names).
    """

    name: str
    parse: Callable[[str], object]
    default: object
    shown: str
    doc: str
    deprecated: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a user may write."""
        return self.name, *self.deprecated

    @property
    def field(self) -> str:
        """Name of its field in SourceOptions, BatchSourceOptions and SinkOptions, in snake case."""
        return re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", self.name)


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
_STREAMS = Option(
    "streams",
    streams,
    None,
    "this or `streamsPattern`",
    "The streams to read: names separated by commas, or a JSON list.",
)
_PATTERN = Option("streamsPattern", glob, None, "", "")
_EXCEPT = Option(
    "streamsExcept",
    streams,
    (),
    "none",
    "Streams of `streamsPattern` that are not read: names or patterns, separated by commas, or a JSON list.",
)
_STARTING = Option(
    "startingOffsets",
    positions("$", "earliest", "latest"),
    PerStream("$", {}),
    "`latest`",
    "Where a new group starts: `earliest`, `latest`, after an entry ID, or JSON of these by stream or pattern. "
    "An existing group continues at its position ([details](#start-of-a-group)).",
)
_ARCHIVE = Option(
    "archivePath",
    location,
    None,
    "none",
    "Path of the table of the job `archive` (Parquet or Delta). Entries that are no longer in the stream are read "
    "from there ([details](../guide/reading-tables.md#read-the-archive-too)).",
)
_BY_TIME = per_stream(moment, "a time", None)
_STARTING_TIME = Option(
    "startingTimestamp",
    _BY_TIME,
    None,
    "",
    "Instead of `startingOffsets`: a new group starts with the first entry at or after this time, or JSON of times by "
    "stream or pattern.",
)
_PER_PARTITION = Option("entriesPerPartition", count, 100_000, "`100000`", "About how many entries one task reads.")
_MIN_PARTITIONS = Option("minPartitions", count, None, "", "Use at least this many tasks, if there are enough entries.")
_ORDERED = Option(
    "ordered",
    flag,
    False,
    "`false`",
    "`true`: one task for each stream or shard, so that its rows come in stream order.",
)
_CORRUPT = Option(
    "columnNameOfCorruptRecord",
    text,
    "_corrupt_record",
    "`_corrupt_record`",
    "If the schema has this STRING column, mode `PERMISSIVE` fills it with the fields of an entry that has a bad "
    "value, as JSON.",
)
_NULL_VALUE = Option(
    "nullValue",
    null_values,
    (),
    "none",
    "Texts that stand for a missing value, such as `NA,null,-`, or a JSON list of them: they are null in every column. "
    "The empty text is null without this option, too, but not in STRING and BINARY columns "
    "([missing values](types.md#missing-values)).",
)

_ARROW = Option(
    "arrowBatches",
    flag_or("auto"),
    None,
    "`auto`",
    "Whether tasks pass Arrow record batches to Spark, or tuples, which are slower. `auto`: tuples if the platform is "
    "known not to take batches everywhere ([platforms](platforms.md#databricks)).",
)

SOURCE: tuple[Option, ...] = (
    *ACCESS,
    _STREAMS,
    replace(
        _PATTERN,
        shown="this or `streams`",
        doc="Read every stream whose name matches this Redis pattern (`orders:*`), also streams that are created later "
        "([details](#streams-of-a-pattern)).",
    ),
    _EXCEPT,
    Option(
        "onNewCheckpoint",
        one_of("resume", "restart"),
        "resume",
        "`resume`",
        "What a query without a checkpoint does if its group exists. `resume`: it continues at the group's position. "
        "`restart`: it sets the group to `startingOffsets` and reads again ([details](#start-of-a-group)).",
    ),
    _ARCHIVE,
    Option(
        "createStreams",
        flag,
        True,
        "`true`",
        "`true`: missing streams of `streams` are created empty. `false`: the query fails at start if a stream is "
        "missing. A missing stream that the checkpoint names is a loss (`failOnDataLoss`).",
    ),
    Option(
        "shards",
        shards,
        None,
        "as recorded on the server",
        "Number of [shards](keys.md#shards) of each stream in `streams`, if the query starts before the first sink. "
        "Existing shards are read without this option.",
    ),
    Option(
        "group",
        text,
        REQUIRED,
        "",
        "Consumer group. It is created on first use and keeps the position. "
        "Queries in different groups all get every entry.",
    ),
    Option(
        "consumer",
        text,
        "spark",
        "`spark`",
        "Consumer name within the group. Consumers of a group share its entries. Only one running query may use a "
        "name.",
    ),
    _STARTING,
    _STARTING_TIME,
    Option(
        "maxEntriesPerTrigger",
        per_stream(count, "a whole number above 0", None),
        PerStream(None, {}),
        "all",
        "Maximum number of entries in a micro-batch, shared between streams. Or JSON with a maximum by stream or "
        'pattern (`{"orders": 10000}`); other streams have no limit.',
    ),
    Option(
        "maxBytesPerTrigger",
        size,
        None,
        "all",
        "[Soft limit](#limits-of-a-micro-batch) for the bytes of field names and values in a micro-batch (`64mb`). "
        "A micro-batch has at least one entry and may be larger.",
    ),
    Option(
        "targetBatchTime",
        duration,
        None,
        "none",
        "About how long a micro-batch takes (`10s`). The limit of each micro-batch follows the speed of the last ones. "
        "The first one of a run is small. Use no trigger interval ([details](#limit-by-time)).",
    ),
    Option(
        "minEntriesPerTrigger",
        count,
        None,
        "",
        "Wait until this many entries are available, but no longer than `maxTriggerDelay`. "
        "`trigger(availableNow=True)` does not wait.",
    ),
    Option(
        "maxTriggerDelay", duration, 900_000, "`15m`", "Maximum time that `minEntriesPerTrigger` may delay entries."
    ),
    _PER_PARTITION,
    _MIN_PARTITIONS,
    replace(
        _ORDERED,
        doc="`true`: one task for each stream or shard, so that its rows come in stream order. Entries of `claimIdle` "
        "may come after later entries.",
    ),
    Option(
        "onCommit",
        one_of("keep", "trim", "delete"),
        "keep",
        "`keep`",
        "What to do with entries after every group has acknowledged them. `keep`: they stay. `trim`: remove whole "
        "nodes (`~`). `delete`: remove each entry ([details](../guide/trim.md#the-query-trims)).",
    ),
    Option(
        "noAck",
        flag,
        False,
        "`false`",
        "`true`: read without a pending list, the fastest mode. No other consumer may read from the group "
        "([details](#reading-with-noack)).",
    ),
    Option(
        "failOnDataLoss",
        flag,
        True,
        "`true`",
        "`true`: the query fails with a named error if unread entries, a stream or the group are missing. `false`: it "
        "continues and counts the loss ([data loss](data-loss.md)).",
    ),
    Option(
        "mode",
        one_of("PERMISSIVE", "DROPMALFORMED", "FAILFAST", "DEADLETTER"),
        "PERMISSIVE",
        "`PERMISSIVE`",
        "What to do if a value does not fit its column's type. `PERMISSIVE`: null. `DROPMALFORMED`: skip the entry. "
        "`FAILFAST`: fail. `DEADLETTER`: move the entry to `deadLetterStream`.",
    ),
    _CORRUPT,
    _NULL_VALUE,
    _ARROW,
    Option(
        "claimIdle",
        duration,
        None,
        "never",
        "Claim entries that other consumers of the group have left pending for this long (`5m`). Consumers of "
        "running rstream queries keep theirs.",
    ),
    Option(
        "maxDeliveries",
        count,
        None,
        "unlimited",
        "An entry that was delivered this often without being acknowledged moves to `deadLetterStream`, also if it "
        "kills its query ([details](../guide/dead-letters.md#keep-what-kills-the-query)).",
    ),
    Option(
        "deadLetterStream",
        text,
        None,
        "",
        "Stream for entries that cannot be processed, with unchanged fields and additional `dl.*` fields. Entries that "
        "a consumer released as fatal (`XNACK … FATAL`) go there, too.",
    ),
    Option(
        "retryDelay",
        delays,
        None,
        "none",
        "An entry that does not fit (mode `DEADLETTER`), or that the query rejects, is read again after these times "
        "(`1m,10m,1h`). After the last retry it becomes a dead letter ([retries](dead-letters.md#retries)).",
    ),
)

BATCH_SOURCE: tuple[Option, ...] = (
    *ACCESS,
    _STREAMS,
    replace(
        _PATTERN,
        shown="this or `streams`",
        doc="Read every stream whose name matches this Redis pattern. Names that begin with `rstream:` are left out.",
    ),
    _EXCEPT,
    replace(
        _STARTING,
        parse=positions("0", "earliest"),
        default=PerStream("0", {}),
        shown="`earliest`",
        doc="Where to start: `earliest`, after an entry ID, or JSON of these by stream or Redis pattern.",
    ),
    replace(_STARTING_TIME, doc="Instead of `startingOffsets`: start with the first entry at or after this time."),
    Option(
        "endingOffsets",
        positions("$", "latest", missing_seq=U64_MAX),
        PerStream("$", {}),
        "`latest`",
        "Where to end: `latest`, up to and including an entry ID, or JSON of these by stream or Redis pattern.",
    ),
    Option(
        "endingTimestamp",
        _BY_TIME,
        None,
        "",
        "Instead of `endingOffsets`: end with the last entry before this time, or JSON of times by stream or pattern.",
    ),
    _ARCHIVE,
    _PER_PARTITION,
    _MIN_PARTITIONS,
    _ORDERED,
    Option(
        "mode",
        one_of("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
        "PERMISSIVE",
        "`PERMISSIVE`",
        "What to do if a value does not fit its column's type. `PERMISSIVE`: null. `DROPMALFORMED`: skip the entry. "
        "`FAILFAST`: fail.",
    ),
    _CORRUPT,
    _NULL_VALUE,
    _ARROW,
    Option(
        "inferSchema",
        flag,
        False,
        "`false`",
        "`true`: without a schema, derive columns and types from a sample of entries.",
    ),
    Option(
        "pushFilters",
        flag,
        False,
        "`false`",
        "`true`: filters on stream, ID and timestamp limit the entries that are read (needs "
        "`spark.sql.python.filterPushdown.enabled`). Use the DataFrame with one filter only, and load another one for "
        "the next filter.",
    ),
)

SINK: tuple[Option, ...] = (
    *ACCESS,
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
    # Set by tests: the most rows of a request of at most 8 MB. With exactly-once it is one transaction.
    Option("chunkSize", count, 5_000, "", ""),
    Option(
        "rowsPerSecond",
        count,
        None,
        "no limit",
        "Maximum number of rows per second that the tasks of one batch, or of one `df.write`, append together.",
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
    Option(
        "trim",
        one_of("acked"),
        None,
        "none",
        "`acked`: never trim an entry that a group has not yet received and acknowledged. Without a threshold, trim "
        "all that every group has acknowledged.",
    ),
    Option(
        "approximate",
        flag,
        True,
        "`true`",
        "`true`: trim whole nodes only (`~`). `false`: trim exactly to the threshold (`=`).",
    ),
    Option(
        "nulls",
        one_of("omit", "empty"),
        "omit",
        "`omit`",
        "How to write a null value. `omit`: without its field. `empty`: as an empty field.",
    ),
    Option(
        "waitReplicas",
        count,
        None,
        "none",
        "A task and its batch end only after this many replicas have acknowledged the writes (`WAIT`, at most 10 s).",
    ),
)


def documented(options: Iterable[Option]) -> list[Option]:
    """Return the options that users set."""
    return [option for option in options if option.doc]


def without_access(options: Iterable[Option]) -> list[Option]:
    """Return the options without the login and the time limit of the connection."""
    return [option for option in options if option not in ACCESS[1:]]
