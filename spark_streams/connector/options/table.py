"""Table of all options, by the side that has them: those of every connection, of the source and of the sink.

The tables of docs/reference/options.md are printed from here (`python -m tools.reference`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spark_streams.base.given_text import duration, moment
from spark_streams.base.ids import U64_MAX
from spark_streams.connector.options import parsers
from spark_streams.connector.options.option import REQUIRED, Option
from spark_streams.connector.wire.address import Address, default_url

# -- spark.readStream and spark.read, in the groups of docs/reference/options.md ---------------------------------------

_BY_TIME = parsers.per_stream(moment, "a time", None)

_WHAT_TO_READ = (
    Option(
        "streams",
        parsers.streams,
        "The streams to read: names separated by commas, or a JSON list.",
        shown="this or `streamsPattern`",
    ),
    Option(
        "streamsPattern",
        parsers.glob,
        "Read every stream whose name matches this Redis pattern (`orders:*`). A query also reads those that are "
        "created later ([details](#streams-of-a-pattern)).",
        shown="this or `streams`",
    ),
    Option(
        "streamsExcept",
        parsers.streams,
        "Streams of `streamsPattern` that are not read: names or patterns, separated by commas, or a JSON list.",
        default=(),
    ),
    Option(
        "shards",
        parsers.shards,
        "Number of [shards](keys.md#shards) of each of `streams`, if the query starts before the first sink. "
        "Existing shards need no option.",
        shown="as recorded on the server",
        only="stream",
    ),
    Option(
        "createStreams",
        parsers.flag,
        "`true`: the query creates missing streams, empty, with its group. So trimming by others keeps the first "
        "entries for it. `false`: the query fails at start if a stream is missing. A missing stream that the "
        "checkpoint names is a loss (`failOnDataLoss`).",
        default=True,
        only="stream",
    ),
    Option(
        "archivePath",
        parsers.location,
        "Path of the table of the job `archive` (Parquet or Delta). Entries that are no longer in the stream are read "
        "from there ([details](../guide/reading-tables.md#read-the-archive-too)).",
    ),
    Option(
        "inferSchema",
        parsers.flag,
        "`true`: without a schema, derive columns and types from a sample of entries.",
        default=False,
        only="batch",
    ),
    Option(
        "pushFilters",
        parsers.flag,
        "`true`: filters on stream, ID and timestamp limit the entries that are read (needs "
        "`spark.sql.python.filterPushdown.enabled`). Each filter needs a DataFrame of its own.",
        default=False,
        only="batch",
    ),
)
_WHERE_TO_START_AND_END = (
    Option(
        "startingOffsets",
        parsers.positions("$", "earliest", "latest"),
        "Where a new group, or `spark.read`, starts: `earliest`, `latest` (stream only), after an entry ID, or JSON of "
        "these by stream or pattern. An existing group continues at its position ([details](#start-of-a-group)).",
        default=parsers.PerStream("$", {}),
        shown="`latest`; batch: `earliest`",
    ),
    Option(
        "startingTimestamp",
        _BY_TIME,
        "Instead of `startingOffsets`: start with the first entry at or after this time, or JSON of times by stream or "
        "pattern.",
    ),
    Option(
        "endingOffsets",
        parsers.positions("$", "latest", missing_seq=U64_MAX),
        "Where to end: `latest`, up to and including an entry ID, or JSON of these by stream or pattern.",
        default=parsers.PerStream("$", {}),
        shown="`latest`",
        only="batch",
    ),
    Option(
        "endingTimestamp",
        _BY_TIME,
        "Instead of `endingOffsets`: end with the last entry before this time, or JSON of times by stream or pattern.",
        only="batch",
    ),
    Option(
        "onNewCheckpoint",
        parsers.one_of("resume", "restart"),
        "For a query without a checkpoint whose group exists. `resume`: it continues at the group's position. "
        "`restart`: it sets the group to `startingOffsets` ([details](#start-of-a-group)).",
        default="resume",
        only="stream",
    ),
)
_HOW_MUCH = (
    Option(
        "maxEntriesPerTrigger",
        parsers.per_stream(parsers.count, "a whole number above 0", None),
        "Maximum number of entries in a micro-batch, shared between streams. Or JSON with a maximum by stream or "
        'pattern (`{"orders": 10000}`); other streams have no limit.',
        default=parsers.PerStream(None, {}),
        shown="all",
        only="stream",
    ),
    Option(
        "maxBytesPerTrigger",
        parsers.size,
        "[Soft limit](#limits-of-a-micro-batch) for the bytes of field names and values in a micro-batch (`64mb`). "
        "A micro-batch has at least one entry and may be larger.",
        shown="all",
        only="stream",
    ),
    Option(
        "targetBatchTime",
        duration,
        "About how long a micro-batch takes (`10s`): its limit follows the speed of the last ones. Use no trigger "
        "interval ([details](#limit-by-time)).",
        only="stream",
    ),
    Option(
        "minEntriesPerTrigger",
        parsers.count,
        "Wait until this many entries are available, but no longer than `maxTriggerDelay`. "
        "`trigger(availableNow=True)` does not wait.",
        only="stream",
    ),
    Option(
        "maxTriggerDelay",
        duration,
        "Maximum time that `minEntriesPerTrigger` may delay entries.",
        default=900_000,
        shown="`15m`",
        only="stream",
    ),
    Option("entriesPerPartition", parsers.count, "About how many entries one task reads.", default=100_000),
    Option("minPartitions", parsers.count, "Use at least this many tasks, if there are enough entries."),
    Option(
        "ordered",
        parsers.flag,
        "`true`: one task for each stream or shard, so that its rows come in stream order, except "
        "[entries of other consumers](guarantees.md#source).",
        default=False,
    ),
    Option(
        "arrowBatches",
        parsers.flag_or_auto,
        "Whether tasks pass Arrow record batches to Spark, or tuples, which are slower. `auto`: tuples if the platform "
        "is known not to take batches everywhere ([platforms](platforms.md#databricks)).",
        shown="`auto`",
    ),
)
_WHO_ELSE_READS = (
    Option(
        "group",
        parsers.text,
        "Consumer group. It is created on first use and keeps the position. "
        "Queries in different groups all get every entry.",
        default=REQUIRED,
        only="stream",
    ),
    Option(
        "consumer",
        parsers.text,
        "Consumer name within the group. Consumers of a group share its entries. Only one running query may use a "
        "name.",
        default="spark",
        only="stream",
    ),
    Option(
        "claimIdle",
        duration,
        "Claim entries that other consumers of the group have left pending for this long (`5m`). Consumers of "
        "running rstream queries keep theirs.",
        shown="never",
        only="stream",
    ),
    Option(
        "noAck",
        parsers.flag,
        "`true`: read without a pending list, the fastest mode. No other consumer may read from the group "
        "([details](#reading-with-noack)).",
        default=False,
        only="stream",
    ),
)
_BAD_ENTRIES = (
    Option(
        "mode",
        parsers.one_of("PERMISSIVE", "DROPMALFORMED", "FAILFAST", "DEADLETTER"),
        "What to do if a value does not fit its column's type. `PERMISSIVE`: null. `DROPMALFORMED`: skip the entry. "
        "`FAILFAST`: fail. `DEADLETTER` (stream only): move the entry to `deadLetterStream`.",
        default="PERMISSIVE",
    ),
    Option(
        "columnNameOfCorruptRecord",
        parsers.text,
        "If the schema has this STRING column, mode `PERMISSIVE` fills it with the fields of an entry that has a bad "
        "value, as JSON.",
        default="_corrupt_record",
    ),
    Option(
        "nullValue",
        parsers.null_values,
        "Texts that stand for a missing value, such as `NA,null,-`, or a JSON list of them: they are null in every "
        "column. The empty text is null without this option, too, but not in STRING and BINARY columns "
        "([missing values](types.md#missing-values)).",
        default=(),
    ),
    Option(
        "deadLetterStream",
        parsers.text,
        "Stream for entries that cannot be processed, with unchanged fields and `dl.*` fields. Entries that a consumer "
        "released as fatal (`XNACK … FATAL`) go there, too.",
        only="stream",
    ),
    Option(
        "maxDeliveries",
        parsers.count,
        "An entry that was delivered this often without being acknowledged moves to `deadLetterStream`, also if it "
        "kills its query ([details](../guide/dead-letters.md#keep-what-kills-the-query)).",
        shown="unlimited",
        only="stream",
    ),
    Option(
        "retryDelay",
        parsers.delays,
        "An entry that does not fit (mode `DEADLETTER`), or that the query rejects, is read again after these times "
        "(`1m,10m,1h`). After the last retry it becomes a dead letter ([retries](dead-letters.md#retries)).",
        only="stream",
    ),
)
_REMOVAL = (
    Option(
        "onCommit",
        parsers.one_of("keep", "trim", "delete"),
        "What to do with entries after every group has acknowledged them. `keep`: they stay. `trim`: remove whole "
        "nodes (`~`). `delete`: remove each entry ([details](../guide/trim.md#the-query-trims)).",
        default="keep",
        only="stream",
    ),
    Option(
        "failOnDataLoss",
        parsers.flag,
        "`true`: the query fails with a named error if unread entries, a stream or the group are missing. `false`: it "
        "continues and counts the loss ([data loss](data-loss.md)).",
        default=True,
        only="stream",
    ),
)
SOURCE_GROUPS: Mapping[str, tuple[Option, ...]] = {
    "Choose streams": _WHAT_TO_READ,
    "Choose or share a group": _WHO_ELSE_READS,
    "Start and end": _WHERE_TO_START_AND_END,
    "Limit and divide micro-batches": _HOW_MUCH,
    "Handle bad entries": _BAD_ENTRIES,
    "Remove entries, accept losses": _REMOVAL,
}


# -- df.writeStream and df.write ---------------------------------------------------------------------------------------

_WHERE_TO_WRITE = (
    Option(
        "stream",
        parsers.text,
        "Stream to append to. With `streamColumn`: for rows in which that column is null.",
        shown="this or `streamColumn`",
    ),
    Option(
        "streamColumn",
        parsers.text,
        "STRING column with the stream of each row. It is not written as a field.",
    ),
    Option(
        "shards",
        parsers.shards,
        "Write `stream` as this many streams ([shards](keys.md#shards)). All rows of one key go to one of them, "
        "in order. The number of the first sink or query stays.",
    ),
    Option(
        "shardBy",
        parsers.text,
        "With `shards`: the key column. It is also written as a field. Null counts as an empty key.",
    ),
    Option(
        "idColumn",
        parsers.text,
        "STRING column with the entry ID of each row (`<milliseconds>-<sequence>`, `<milliseconds>-*` or "
        "`<milliseconds>`). If it is null, the server generates the ID. It is not written as a field.",
        shown="none: the server generates IDs",
    ),
    Option(
        "nulls",
        parsers.one_of("omit", "empty"),
        "How to write a null value. `omit`: without its field. `empty`: as an empty field.",
        default="omit",
    ),
)
_ONCE = (
    Option(
        "delivery",
        parsers.one_of("exactly-once", "at-least-once"),
        "`exactly-once`: a ledger recognises rows that a retry, copy or replay sends again. `at-least-once`: they are "
        "written again.",
        default="exactly-once",
    ),
    Option(
        "transaction",
        parsers.text,
        "For `df.write` within `foreachBatch`: a name for this write, different from others of the function. Its rows "
        "are written once, also when Spark replays the micro-batch. Over Spark Connect: "
        "[`spark_streams.transaction`](../guide/notebooks.md#write-once-within-foreachbatch).",
    ),
    # Returned by `spark_streams.transaction`: number of the micro-batch, and ID of the query in its checkpoint.
    Option("transactionBatch", parsers.number, ""),
    Option("transactionQuery", parsers.query_id, ""),
    Option(
        "waitReplicas",
        parsers.count,
        "A task and its batch end only after this many replicas have acknowledged the writes (`WAIT`, at most 10 s).",
    ),
)
_TRIMMING = (
    Option(
        "trim",
        parsers.one_of("acked"),
        "`acked`: never trim an entry that a group has not acknowledged. Without a threshold, trim all that every "
        "group has acknowledged.",
    ),
    Option("maxlen", parsers.count, "Trim each stream to about this many entries, once per chunk.", shown="unbounded"),
    Option("minId", parsers.entry_id, "Trim entries whose ID is below this one.", shown="unbounded"),
    Option(
        "retention",
        duration,
        "Trim entries that are older than this (`36h`, `7d`), by the server's clock.",
        shown="unbounded",
    ),
    Option(
        "retentionBytes",
        parsers.size,
        "Trim each stream to about this many bytes of the server's memory (`512mb`). It may be combined with the "
        "others.",
        shown="unbounded",
    ),
)
_PACE = (
    Option(
        "rowsPerSecond",
        parsers.count,
        "Maximum number of rows per second that the tasks of one batch, or of one `df.write`, append together.",
        shown="no limit",
    ),
    # Set by tests: the most rows of a request of at most 8 MB. With exactly-once it is one transaction.
    Option("chunkSize", parsers.count, "", default=5_000, shown=""),
)
SINK_GROUPS: Mapping[str, tuple[Option, ...]] = {
    "Choose streams and IDs": _WHERE_TO_WRITE,
    "Write once": _ONCE,
    "Trim": _TRIMMING,
    "Limit the rate": _PACE,
}


# Options of ACCESS for the login, in the order of Identity's fields.
IDENTITY = ("username", "password", "passwordFile", "credentialProvider")

_URL = Option(
    "url",
    Address.parse,
    "The server: `redis://host:port/db`, `rediss://…` with TLS, `unix:///path`, `redis+sentinel://s1,s2/name/db` for "
    "the master that sentinels name, `redis+cluster://a,b` for a cluster, or `embedded:` for the bundled engine.",
    default=lambda: Address.parse(default_url()),
    shown="`$RSTREAM_URL`, else `embedded:`",
)
# Options of every connection: the server, the login and the time limit.
ACCESS: tuple[Option, ...] = (
    _URL,
    Option(
        "username",
        parsers.text,
        "User name, if the URL has none. Also set `password`, `passwordFile` or `credentialProvider`.",
        shown="the url's",
    ),
    Option("password", parsers.text, "Password, if the URL has none. Spark hides it in plans.", shown="the url's"),
    Option(
        "passwordFile",
        parsers.text,
        "File whose first line is the password, on the driver and on each executor. It is read for each new "
        "connection, so a renewed password is used.",
    ),
    Option(
        "credentialProvider",
        parsers.function,
        "`module:function`, which returns a `redis.CredentialProvider`, on the driver and on each executor. It is "
        "called for each new connection, so tokens may expire "
        "([identities](../guide/security.md#log-in-with-an-identity-of-a-cloud)).",
    ),
    Option(
        "replyTimeout",
        duration,
        "If the server does not reply within this time, the connection is closed and the request is repeated on a new "
        "one.",
        default=5_000,
        shown="`5s`",
    ),
)
# What differs in `spark.read`.
_IN_BATCH: Mapping[str, Mapping[str, Any]] = {
    "startingOffsets": {"parse": parsers.positions("0", "earliest"), "default": parsers.PerStream("0", {})},
    "mode": {"parse": parsers.one_of("PERMISSIVE", "DROPMALFORMED", "FAILFAST")},
}


def _options(groups: Mapping[str, tuple[Option, ...]]) -> tuple[Option, ...]:
    return tuple(option for group in groups.values() for option in group)


SOURCE: tuple[Option, ...] = (*ACCESS, *(one for one in _options(SOURCE_GROUPS) if one.only != "batch"))
BATCH_SOURCE: tuple[Option, ...] = (
    *ACCESS,
    *(replace(one, **_IN_BATCH.get(one.name, {})) for one in _options(SOURCE_GROUPS) if one.only != "stream"),
)
SINK: tuple[Option, ...] = (*ACCESS, *_options(SINK_GROUPS))


# -- options that depend on each other ---------------------------------------------------------------------------------

# At most one option of each line may be set.
ONE_OF_THESE = (
    ("streams", "streamsPattern"),
    ("startingOffsets", "startingTimestamp"),
    ("endingOffsets", "endingTimestamp"),
    ("maxlen", "minId", "retention"),
    ("password", "passwordFile", "credentialProvider"),
)
# Options that may not be set together, with the reason. None: with any value.
CONTRADICTIONS: tuple[tuple[tuple[str, object], tuple[str, object], str], ...] = (
    (("username", None), ("credentialProvider", None), "the provider names the user"),
    (("streamsPattern", None), ("createStreams", None), "a pattern reads existing streams"),
    (("streamsPattern", None), ("shards", None), "a pattern finds shards by their own names"),
    (("createStreams", False), ("shards", None), "missing shards are always created"),
    (("streamColumn", None), ("shards", None), "shardBy selects the stream of each row"),
    (("ordered", True), ("minPartitions", None), "an ordered stream is read by one task"),
    (("ordered", True), ("entriesPerPartition", None), "an ordered stream is read by one task"),
    (
        ("archivePath", None),
        ("mode", "DEADLETTER"),
        "entries of an archive are not pending, so they have no dead letter",
    ),
    (("archivePath", None), ("retryDelay", None), "entries of an archive are not pending, so they cannot be retried"),
    (("archivePath", None), ("targetBatchTime", None), "batches of an archive have no limit by time"),
    (("noAck", True), ("claimIdle", None), "a noAck query is the only reader of its group"),
    (("noAck", True), ("maxDeliveries", None), "without a pending list, deliveries are not counted"),
    (("noAck", True), ("retryDelay", None), "an entry that is retried must stay pending"),
    (("transaction", None), ("delivery", "at-least-once"), "transaction means exactly-once"),
)
NEEDS = (
    ("transactionBatch", "transaction", "it names the write within the micro-batch"),
    ("transactionBatch", "transactionQuery", "batches of all queries have the same numbers"),
    ("transactionQuery", "transactionBatch", "a query has many micro-batches"),
    ("shards", "shardBy", "rows with the same value in that column go to the same shard"),
    ("shardBy", "shards", "it sets the number of shards"),
    ("streamsExcept", "streamsPattern", "it leaves out streams of the pattern"),
    ("maxTriggerDelay", "minEntriesPerTrigger", "it limits how long that option waits"),
    ("maxDeliveries", "deadLetterStream", "entries with too many deliveries move there"),
)
