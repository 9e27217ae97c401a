"""Options of `spark.readStream` and `spark.read`, in the groups of docs/reference/options.md."""

from __future__ import annotations

from collections.abc import Mapping

from spark_streams.base.ids import U64_MAX
from spark_streams.base.times import duration, moment
from spark_streams.connector.options.option import REQUIRED, Option
from spark_streams.connector.options.parsers import (
    PerStream,
    count,
    delays,
    flag,
    flag_or,
    glob,
    location,
    null_values,
    one_of,
    per_stream,
    positions,
    shards,
    size,
    streams,
    text,
)

_BY_TIME = per_stream(moment, "a time", None)

_WHAT_TO_READ = (
    Option(
        "streams",
        streams,
        "The streams to read: names separated by commas, or a JSON list.",
        shown="this or `streamsPattern`",
    ),
    Option(
        "streamsPattern",
        glob,
        "Read every stream whose name matches this Redis pattern (`orders:*`). A query also reads those that are "
        "created later ([details](#streams-of-a-pattern)).",
        shown="this or `streams`",
    ),
    Option(
        "streamsExcept",
        streams,
        "Streams of `streamsPattern` that are not read: names or patterns, separated by commas, or a JSON list.",
        default=(),
    ),
    Option(
        "shards",
        shards,
        "Number of [shards](keys.md#shards) of each stream in `streams`, if the query starts before the first sink. "
        "Existing shards are read without this option.",
        shown="as recorded on the server",
        only="stream",
    ),
    Option(
        "createStreams",
        flag,
        "`true`: missing streams of `streams` are created empty. `false`: the query fails at start if a stream is "
        "missing. A missing stream that the checkpoint names is a loss (`failOnDataLoss`).",
        default=True,
        only="stream",
    ),
    Option(
        "archivePath",
        location,
        "Path of the table of the job `archive` (Parquet or Delta). Entries that are no longer in the stream are read "
        "from there ([details](../guide/reading-tables.md#read-the-archive-too)).",
    ),
    Option(
        "inferSchema",
        flag,
        "`true`: without a schema, derive columns and types from a sample of entries.",
        default=False,
        only="batch",
    ),
    Option(
        "pushFilters",
        flag,
        "`true`: filters on stream, ID and timestamp limit the entries that are read (needs "
        "`spark.sql.python.filterPushdown.enabled`). Use the DataFrame with one filter only, and load another one for "
        "the next filter.",
        default=False,
        only="batch",
    ),
)
_WHERE_TO_START_AND_END = (
    Option(
        "startingOffsets",
        positions("$", "earliest", "latest"),
        "Where a new group, or `spark.read`, starts: `earliest`, `latest` (stream only), after an entry ID, or JSON of "
        "these by stream or pattern. An existing group continues at its position ([details](#start-of-a-group)).",
        default=PerStream("$", {}),
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
        positions("$", "latest", missing_seq=U64_MAX),
        "Where to end: `latest`, up to and including an entry ID, or JSON of these by stream or Redis pattern.",
        default=PerStream("$", {}),
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
        one_of("resume", "restart"),
        "What a query without a checkpoint does if its group exists. `resume`: it continues at the group's position. "
        "`restart`: it sets the group to `startingOffsets` and reads again ([details](#start-of-a-group)).",
        default="resume",
        only="stream",
    ),
)
_HOW_MUCH = (
    Option(
        "maxEntriesPerTrigger",
        per_stream(count, "a whole number above 0", None),
        "Maximum number of entries in a micro-batch, shared between streams. Or JSON with a maximum by stream or "
        'pattern (`{"orders": 10000}`); other streams have no limit.',
        default=PerStream(None, {}),
        shown="all",
        only="stream",
    ),
    Option(
        "maxBytesPerTrigger",
        size,
        "[Soft limit](#limits-of-a-micro-batch) for the bytes of field names and values in a micro-batch (`64mb`). "
        "A micro-batch has at least one entry and may be larger.",
        shown="all",
        only="stream",
    ),
    Option(
        "targetBatchTime",
        duration,
        "About how long a micro-batch takes (`10s`). The limit of each micro-batch follows the speed of the last ones. "
        "The first one of a run is small. Use no trigger interval ([details](#limit-by-time)).",
        only="stream",
    ),
    Option(
        "minEntriesPerTrigger",
        count,
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
    Option("entriesPerPartition", count, "About how many entries one task reads.", default=100_000),
    Option("minPartitions", count, "Use at least this many tasks, if there are enough entries."),
    Option(
        "ordered",
        flag,
        "`true`: one task for each stream or shard, so that its rows come in stream order. Entries of `claimIdle` may "
        "come after later entries.",
        default=False,
    ),
    Option(
        "arrowBatches",
        flag_or("auto"),
        "Whether tasks pass Arrow record batches to Spark, or tuples, which are slower. `auto`: tuples if the platform "
        "is known not to take batches everywhere ([platforms](platforms.md#databricks)).",
        shown="`auto`",
    ),
)
_WHO_ELSE_READS = (
    Option(
        "group",
        text,
        "Consumer group. It is created on first use and keeps the position. "
        "Queries in different groups all get every entry.",
        default=REQUIRED,
        only="stream",
    ),
    Option(
        "consumer",
        text,
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
        flag,
        "`true`: read without a pending list, the fastest mode. No other consumer may read from the group "
        "([details](#reading-with-noack)).",
        default=False,
        only="stream",
    ),
)
_BAD_ENTRIES = (
    Option(
        "mode",
        one_of("PERMISSIVE", "DROPMALFORMED", "FAILFAST", "DEADLETTER"),
        "What to do if a value does not fit its column's type. `PERMISSIVE`: null. `DROPMALFORMED`: skip the entry. "
        "`FAILFAST`: fail. `DEADLETTER` (stream only): move the entry to `deadLetterStream`.",
        default="PERMISSIVE",
    ),
    Option(
        "columnNameOfCorruptRecord",
        text,
        "If the schema has this STRING column, mode `PERMISSIVE` fills it with the fields of an entry that has a bad "
        "value, as JSON.",
        default="_corrupt_record",
    ),
    Option(
        "nullValue",
        null_values,
        "Texts that stand for a missing value, such as `NA,null,-`, or a JSON list of them: they are null in every "
        "column. The empty text is null without this option, too, but not in STRING and BINARY columns "
        "([missing values](types.md#missing-values)).",
        default=(),
    ),
    Option(
        "deadLetterStream",
        text,
        "Stream for entries that cannot be processed, with unchanged fields and additional `dl.*` fields. Entries that "
        "a consumer released as fatal (`XNACK … FATAL`) go there, too.",
        only="stream",
    ),
    Option(
        "maxDeliveries",
        count,
        "An entry that was delivered this often without being acknowledged moves to `deadLetterStream`, also if it "
        "kills its query ([details](../guide/dead-letters.md#keep-what-kills-the-query)).",
        shown="unlimited",
        only="stream",
    ),
    Option(
        "retryDelay",
        delays,
        "An entry that does not fit (mode `DEADLETTER`), or that the query rejects, is read again after these times "
        "(`1m,10m,1h`). After the last retry it becomes a dead letter ([retries](dead-letters.md#retries)).",
        only="stream",
    ),
)
_REMOVAL = (
    Option(
        "onCommit",
        one_of("keep", "trim", "delete"),
        "What to do with entries after every group has acknowledged them. `keep`: they stay. `trim`: remove whole "
        "nodes (`~`). `delete`: remove each entry ([details](../guide/trim.md#the-query-trims)).",
        default="keep",
        only="stream",
    ),
    Option(
        "failOnDataLoss",
        flag,
        "`true`: the query fails with a named error if unread entries, a stream or the group are missing. `false`: it "
        "continues and counts the loss ([data loss](data-loss.md)).",
        default=True,
        only="stream",
    ),
)
SOURCE_GROUPS: Mapping[str, tuple[Option, ...]] = {
    "What to read": _WHAT_TO_READ,
    "Where to start and end": _WHERE_TO_START_AND_END,
    "How much": _HOW_MUCH,
    "Who else reads": _WHO_ELSE_READS,
    "Bad entries": _BAD_ENTRIES,
    "Removal": _REMOVAL,
}
