"""Options of `spark.readStream` and `spark.read`, in the groups of docs/reference/options.md."""

from __future__ import annotations

from collections.abc import Mapping

from spark_streams.base.given_text import duration, moment
from spark_streams.base.ids import U64_MAX
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
        None,
        "this or `streamsPattern`",
        "The streams to read: names separated by commas, or a JSON list.",
    ),
    Option(
        "streamsPattern",
        glob,
        None,
        "this or `streams`",
        "Read every stream whose name matches this Redis pattern (`orders:*`). A query also reads those that are "
        "created later ([details](#streams-of-a-pattern)).",
    ),
    Option(
        "streamsExcept",
        streams,
        (),
        "none",
        "Streams of `streamsPattern` that are not read: names or patterns, separated by commas, or a JSON list.",
    ),
    Option(
        "shards",
        shards,
        None,
        "as recorded on the server",
        "Number of [shards](keys.md#shards) of each stream in `streams`, if the query starts before the first sink. "
        "Existing shards are read without this option.",
        only="stream",
    ),
    Option(
        "createStreams",
        flag,
        True,
        "`true`",
        "`true`: missing streams of `streams` are created empty. `false`: the query fails at start if a stream is "
        "missing. A missing stream that the checkpoint names is a loss (`failOnDataLoss`).",
        only="stream",
    ),
    Option(
        "archivePath",
        location,
        None,
        "none",
        "Path of the table of the job `archive` (Parquet or Delta). Entries that are no longer in the stream are read "
        "from there ([details](../guide/reading-tables.md#read-the-archive-too)).",
    ),
    Option(
        "inferSchema",
        flag,
        False,
        "`false`",
        "`true`: without a schema, derive columns and types from a sample of entries.",
        only="batch",
    ),
    Option(
        "pushFilters",
        flag,
        False,
        "`false`",
        "`true`: filters on stream, ID and timestamp limit the entries that are read (needs "
        "`spark.sql.python.filterPushdown.enabled`). Use the DataFrame with one filter only, and load another one for "
        "the next filter.",
        only="batch",
    ),
)
_WHERE_TO_START_AND_END = (
    Option(
        "startingOffsets",
        positions("$", "earliest", "latest"),
        PerStream("$", {}),
        "`latest`; batch: `earliest`",
        "Where a new group, or `spark.read`, starts: `earliest`, `latest` (stream only), after an entry ID, or JSON of "
        "these by stream or pattern. An existing group continues at its position ([details](#start-of-a-group)).",
    ),
    Option(
        "startingTimestamp",
        _BY_TIME,
        None,
        "",
        "Instead of `startingOffsets`: start with the first entry at or after this time, or JSON of times by stream or "
        "pattern.",
    ),
    Option(
        "endingOffsets",
        positions("$", "latest", missing_seq=U64_MAX),
        PerStream("$", {}),
        "`latest`",
        "Where to end: `latest`, up to and including an entry ID, or JSON of these by stream or Redis pattern.",
        only="batch",
    ),
    Option(
        "endingTimestamp",
        _BY_TIME,
        None,
        "",
        "Instead of `endingOffsets`: end with the last entry before this time, or JSON of times by stream or pattern.",
        only="batch",
    ),
    Option(
        "onNewCheckpoint",
        one_of("resume", "restart"),
        "resume",
        "`resume`",
        "What a query without a checkpoint does if its group exists. `resume`: it continues at the group's position. "
        "`restart`: it sets the group to `startingOffsets` and reads again ([details](#start-of-a-group)).",
        only="stream",
    ),
)
_HOW_MUCH = (
    Option(
        "maxEntriesPerTrigger",
        per_stream(count, "a whole number above 0", None),
        PerStream(None, {}),
        "all",
        "Maximum number of entries in a micro-batch, shared between streams. Or JSON with a maximum by stream or "
        'pattern (`{"orders": 10000}`); other streams have no limit.',
        only="stream",
    ),
    Option(
        "maxBytesPerTrigger",
        size,
        None,
        "all",
        "[Soft limit](#limits-of-a-micro-batch) for the bytes of field names and values in a micro-batch (`64mb`). "
        "A micro-batch has at least one entry and may be larger.",
        only="stream",
    ),
    Option(
        "targetBatchTime",
        duration,
        None,
        "none",
        "About how long a micro-batch takes (`10s`). The limit of each micro-batch follows the speed of the last ones. "
        "The first one of a run is small. Use no trigger interval ([details](#limit-by-time)).",
        only="stream",
    ),
    Option(
        "minEntriesPerTrigger",
        count,
        None,
        "",
        "Wait until this many entries are available, but no longer than `maxTriggerDelay`. "
        "`trigger(availableNow=True)` does not wait.",
        only="stream",
    ),
    Option(
        "maxTriggerDelay",
        duration,
        900_000,
        "`15m`",
        "Maximum time that `minEntriesPerTrigger` may delay entries.",
        only="stream",
    ),
    Option("entriesPerPartition", count, 100_000, "`100000`", "About how many entries one task reads."),
    Option("minPartitions", count, None, "", "Use at least this many tasks, if there are enough entries."),
    Option(
        "ordered",
        flag,
        False,
        "`false`",
        "`true`: one task for each stream or shard, so that its rows come in stream order. Entries of `claimIdle` may "
        "come after later entries.",
    ),
    Option(
        "arrowBatches",
        flag_or("auto"),
        None,
        "`auto`",
        "Whether tasks pass Arrow record batches to Spark, or tuples, which are slower. `auto`: tuples if the platform "
        "is known not to take batches everywhere ([platforms](platforms.md#databricks)).",
    ),
)
_WHO_ELSE_READS = (
    Option(
        "group",
        text,
        REQUIRED,
        "",
        "Consumer group. It is created on first use and keeps the position. "
        "Queries in different groups all get every entry.",
        only="stream",
    ),
    Option(
        "consumer",
        text,
        "spark",
        "`spark`",
        "Consumer name within the group. Consumers of a group share its entries. Only one running query may use a "
        "name.",
        only="stream",
    ),
    Option(
        "claimIdle",
        duration,
        None,
        "never",
        "Claim entries that other consumers of the group have left pending for this long (`5m`). Consumers of "
        "running rstream queries keep theirs.",
        only="stream",
    ),
    Option(
        "noAck",
        flag,
        False,
        "`false`",
        "`true`: read without a pending list, the fastest mode. No other consumer may read from the group "
        "([details](#reading-with-noack)).",
        only="stream",
    ),
)
_BAD_ENTRIES = (
    Option(
        "mode",
        one_of("PERMISSIVE", "DROPMALFORMED", "FAILFAST", "DEADLETTER"),
        "PERMISSIVE",
        "`PERMISSIVE`",
        "What to do if a value does not fit its column's type. `PERMISSIVE`: null. `DROPMALFORMED`: skip the entry. "
        "`FAILFAST`: fail. `DEADLETTER` (stream only): move the entry to `deadLetterStream`.",
    ),
    Option(
        "columnNameOfCorruptRecord",
        text,
        "_corrupt_record",
        "`_corrupt_record`",
        "If the schema has this STRING column, mode `PERMISSIVE` fills it with the fields of an entry that has a bad "
        "value, as JSON.",
    ),
    Option(
        "nullValue",
        null_values,
        (),
        "none",
        "Texts that stand for a missing value, such as `NA,null,-`, or a JSON list of them: they are null in every "
        "column. The empty text is null without this option, too, but not in STRING and BINARY columns "
        "([missing values](types.md#missing-values)).",
    ),
    Option(
        "deadLetterStream",
        text,
        None,
        "",
        "Stream for entries that cannot be processed, with unchanged fields and additional `dl.*` fields. Entries that "
        "a consumer released as fatal (`XNACK … FATAL`) go there, too.",
        only="stream",
    ),
    Option(
        "maxDeliveries",
        count,
        None,
        "unlimited",
        "An entry that was delivered this often without being acknowledged moves to `deadLetterStream`, also if it "
        "kills its query ([details](../guide/dead-letters.md#keep-what-kills-the-query)).",
        only="stream",
    ),
    Option(
        "retryDelay",
        delays,
        None,
        "none",
        "An entry that does not fit (mode `DEADLETTER`), or that the query rejects, is read again after these times "
        "(`1m,10m,1h`). After the last retry it becomes a dead letter ([retries](dead-letters.md#retries)).",
        only="stream",
    ),
)
_REMOVAL = (
    Option(
        "onCommit",
        one_of("keep", "trim", "delete"),
        "keep",
        "`keep`",
        "What to do with entries after every group has acknowledged them. `keep`: they stay. `trim`: remove whole "
        "nodes (`~`). `delete`: remove each entry ([details](../guide/trim.md#the-query-trims)).",
        only="stream",
    ),
    Option(
        "failOnDataLoss",
        flag,
        True,
        "`true`",
        "`true`: the query fails with a named error if unread entries, a stream or the group are missing. `false`: it "
        "continues and counts the loss ([data loss](data-loss.md)).",
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
