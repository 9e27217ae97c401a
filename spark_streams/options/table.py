"""Every option, once: its name, which side it belongs to, its default, its check and its one-line documentation.

The tables of docs/reference/options.md are printed from here (`python -m tools.reference`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from spark_streams.ids import U64_MAX
from spark_streams.options.per_stream import PerStream
from spark_streams.options.values import (
    count,
    delays,
    duration,
    entry_id,
    flag,
    function,
    glob,
    moment,
    number,
    one_of,
    per_stream,
    positions,
    query_id,
    shards,
    size,
    streams,
    text,
    weights,
)
from spark_streams.wire.address import Address, default_url

# Those of ACCESS that say who connects, as Identity has them.
IDENTITY = ("username", "password", "passwordFile", "credentialProvider")

REQUIRED = object()


@dataclass(frozen=True)
class Option:
    """name: as users type it; parse: text → value, raises ValueError; default: a value, REQUIRED, or a callable;
    shown: the default as docs/reference/options.md shows it."""

    name: str
    parse: Callable[[str], object]
    default: object
    shown: str
    doc: str

    @property
    def field(self) -> str:
        """Its field in SourceOptions, BatchSourceOptions, SinkOptions: the name in Python's spelling."""
        return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", self.name)


_URL = Option(
    "url",
    Address.parse,
    lambda: Address.parse(default_url()),
    "`$RSTREAM_URL`, else `embedded:`",
    "The server: `redis://host:port/db`, `rediss://…` with TLS, `unix:///path`, `redis+sentinel://s1,s2/name/db` for "
    "the master that sentinels name, `redis+cluster://a,b` for a cluster, or `embedded:` for the bundled engine.",
)
# Who connects, and how patiently; beside every `url`.
ACCESS: tuple[Option, ...] = (
    _URL,
    Option("username", text, None, "the url's", "The user, where the url has no login; with one of the next two."),
    Option("password", text, None, "the url's", "The password, where the url has none. Spark hides it in plans."),
    Option(
        "passwordFile",
        text,
        None,
        "none",
        "A file whose first line is the password, on the driver and on each executor. It is read for each connection, "
        "so a password that was renewed is taken.",
    ),
    Option(
        "credentialProvider",
        function,
        None,
        "none",
        "`module:function`, which returns a `redis.CredentialProvider`, on the driver and on each executor; it is "
        "asked for each connection, for tokens that end ([identity](../guide/security.md)).",
    ),
    Option(
        "replyTimeout",
        duration,
        5_000,
        "`5s`",
        "A connection on which the server has said nothing for so long, though it was asked, is given up, and the step "
        "is tried again on a new one.",
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
_STARTING = Option(
    "startingOffsets",
    positions("$", "earliest", "latest"),
    PerStream("$", {}),
    "`latest`",
    "Where a new group starts: `earliest`, `latest`, after an id, or JSON of these by stream or Redis pattern "
    '(`{"orders": "earliest", "audit:*": "1700000000000-0"}`); streams that it does not name start at `latest`. '
    "A group that exists goes on where it is; a query without a checkpoint then logs that this option is not used.",
)
_BY_TIME = per_stream(moment, "a time", None)
_STARTING_TIME = Option(
    "startingTimestamp",
    _BY_TIME,
    None,
    "",
    "Instead of `startingOffsets`: a new group starts with the first entry at or after this time "
    "(ISO-8601, or milliseconds since the epoch), or JSON of these by stream or pattern.",
)
_PER_PARTITION = Option("entriesPerPartition", count, 100_000, "`100000`", "About how many entries one task reads.")
_MIN_PARTITIONS = Option(
    "minPartitions", count, None, "", "At least so many tasks, by smaller ones, where there are entries enough."
)
_ORDERED = Option(
    "ordered",
    flag,
    False,
    "`false`",
    "One task for each stream, or shard, so that its rows come in stream order.",
)
_CORRUPT = Option(
    "columnNameOfCorruptRecord",
    text,
    "_corrupt_record",
    "`_corrupt_record`",
    "In mode PERMISSIVE, where the schema has this STRING column: the fields of an entry with a bad value, as JSON.",
)

SOURCE: tuple[Option, ...] = (
    *ACCESS,
    _STREAMS,
    replace(
        _PATTERN,
        shown="this or `streams`",
        doc="Read every stream whose name matches this Redis pattern (`orders:*`). Streams that appear while the query "
        "runs, or while it is down, or that get their first entry then, are read from their first entry. Streams whose "
        "first entry is a dead letter are not among them, whoever wrote it: name those in `streams` to read letters. "
        "Nor are names that begin with `rstream:`, which are [the product's](keys.md).",
    ),
    Option(
        "createStreams",
        flag,
        True,
        "`true`",
        "Whether a stream of `streams` that does not exist yet is made, empty, and waited for. `false`: a query that "
        "starts with one is refused, and nothing is made; what its checkpoint knows is a loss where it is gone "
        "(`failOnDataLoss`).",
    ),
    Option(
        "shards",
        shards,
        None,
        "as the server knows it",
        "Each of `streams` is in so many [shards](shards.md), which are made where they are not there: for a query "
        "that may begin before the first sink. A stream that is in shards is read from all of them without this "
        "option.",
    ),
    Option(
        "group",
        text,
        REQUIRED,
        "",
        "The consumer group; it is created on first use and keeps the position. "
        "Queries of different groups all get every entry.",
    ),
    Option(
        "consumer",
        text,
        "spark",
        "`spark`",
        "The query's name in its group, whose consumers share the entries; one running query a name.",
    ),
    _STARTING,
    _STARTING_TIME,
    Option(
        "maxEntriesPerTrigger",
        per_stream(count, "a whole number above 0", None),
        PerStream(None, {}),
        "all",
        "The most entries in a micro-batch, shared between streams; or JSON of the most of each stream, by stream or "
        'pattern (`{"orders": 10000, "audit:*": 500}`), where streams that it does not name have no limit.',
    ),
    Option(
        "maxBytesPerTrigger",
        size,
        None,
        "all",
        "About how many bytes of field names and values a micro-batch has (`64mb`). It is a soft limit, as Delta's "
        "option of that name: a micro-batch may be larger, and has one entry at least.",
    ),
    Option(
        "streamWeights",
        weights,
        PerStream(1, {}),
        "all alike",
        'How a limit is shared, as JSON by stream or pattern: `{"orders": 3}` has three times the room of a stream '
        "that is not named, while both have more.",
    ),
    Option(
        "minEntriesPerTrigger",
        count,
        None,
        "",
        "Wait for so many entries, but no longer than `maxTriggerDelay`, before a micro-batch is made. "
        "`trigger(availableNow=True)` does not wait.",
    ),
    Option("maxTriggerDelay", duration, 900_000, "`15m`", "How long `minEntriesPerTrigger` may hold entries back."),
    _PER_PARTITION,
    _MIN_PARTITIONS,
    replace(
        _ORDERED,
        doc="One task for each stream, or shard, so that its rows come in stream order. Entries that `claimIdle` takes "
        "over come first in their micro-batch, and after later ones that were read before.",
    ),
    Option(
        "delivery",
        one_of("at-least-once", "at-most-once"),
        "at-least-once",
        "`at-least-once`",
        "`at-least-once`: entries are acknowledged once their batch is committed, and a batch that a crash interrupted "
        "is read again. `at-most-once`: they are acknowledged before they are read, and such a batch is given up.",
    ),
    Option(
        "onCommit",
        one_of("keep", "trim", "delete"),
        "keep",
        "`keep`",
        "What becomes of entries once their batch is committed and every group of the stream has been given and has "
        "acknowledged them. `keep`: they stay. `trim`: they are removed by whole nodes (`~`), a hundred entries or so "
        "at a time. `delete`: each of them is removed ([what that means](trimming.md#removing-committed-entries)).",
    ),
    Option(
        "noAck",
        flag,
        False,
        "`false`",
        "`true`: read without a pending list, the fastest mode. The checkpoint alone says what has been read. The "
        "group is a bookmark: it moves when a batch is committed, and no other consumer may read from it. Limits of a "
        "batch of more than 2,000 entries are estimates ([how near](#limits-with-noack)). If entries are pending for "
        "the query, it fails: a run without `noAck` reads them.",
    ),
    Option(
        "failOnDataLoss",
        flag,
        True,
        "`true`",
        "`true`: the query stops with a named error if entries were trimmed or deleted before it read them, or if a "
        "stream or group is gone. `false`: it goes on, and counts what was lost ([what is found](data-loss.md)).",
    ),
    Option(
        "mode",
        one_of("PERMISSIVE", "DROPMALFORMED", "FAILFAST", "DEADLETTER"),
        "PERMISSIVE",
        "`PERMISSIVE`",
        "A value that does not fit its column's type: null, drop the entry, stop, or move the entry to "
        "`deadLetterStream`.",
    ),
    _CORRUPT,
    Option(
        "claimIdle",
        duration,
        None,
        "never",
        "Take over the entries that other consumers of the group have left pending for this long (`5m`). "
        "Consumers that are running rstream queries keep theirs. Entries that a consumer released (`XNACK`) are taken "
        "at once, also without this option.",
    ),
    Option(
        "maxDeliveries",
        count,
        None,
        "unlimited",
        "An entry that was delivered this often or more without being acknowledged moves to `deadLetterStream`. A "
        "batch that has killed its query this often is cut until the entry that does it is found.",
    ),
    Option(
        "deadLetterStream",
        text,
        None,
        "",
        "Where entries go that cannot be processed: their fields untouched, `dl.*` fields beside them. Entries that a "
        "consumer released as fatal (`XNACK … FATAL`) go there, too.",
    ),
    Option(
        "retryDelay",
        delays,
        None,
        "none",
        "An entry that does not fit (mode `DEADLETTER`), or that the query's own rules refuse, comes back by itself "
        "after these times (`1m,10m,1h`), and only then is a dead letter "
        "([retries](dead-letters.md#retries)).",
    ),
)

BATCH_SOURCE: tuple[Option, ...] = (
    *ACCESS,
    _STREAMS,
    replace(
        _PATTERN,
        shown="this or `streams`",
        doc="Read every stream whose name matches this Redis pattern, but those whose first entry is a dead letter, "
        "and names that begin with `rstream:`.",
    ),
    replace(
        _STARTING,
        parse=positions("0", "earliest"),
        default=PerStream("0", {}),
        shown="`earliest`",
        doc="Where to start: `earliest`, after an id, or JSON of these by stream or Redis pattern.",
    ),
    replace(_STARTING_TIME, doc="Instead of `startingOffsets`: start with the first entry at or after this time."),
    Option(
        "endingOffsets",
        positions("$", "latest", missing_seq=U64_MAX),
        PerStream("$", {}),
        "`latest`",
        "Where to end: `latest`, up to and including an id, or JSON of these by stream or Redis pattern.",
    ),
    Option(
        "endingTimestamp",
        _BY_TIME,
        None,
        "",
        "Instead of `endingOffsets`: end with the last entry before this time, or JSON of times by stream or pattern.",
    ),
    _PER_PARTITION,
    _MIN_PARTITIONS,
    _ORDERED,
    Option(
        "mode",
        one_of("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
        "PERMISSIVE",
        "`PERMISSIVE`",
        "A value that does not fit its column's type: null, drop the entry, or stop.",
    ),
    _CORRUPT,
    Option(
        "inferSchema", flag, False, "`false`", "Without a schema: find columns and types from a sample of the entries."
    ),
    Option(
        "pushFilters",
        flag,
        False,
        "`false`",
        "Filters on stream, id and timestamp narrow what is read (needs `spark.sql.python.filterPushdown.enabled`). "
        "Only for a DataFrame that is used with one filter: load another one for the next.",
    ),
)

SINK: tuple[Option, ...] = (
    *ACCESS,
    Option(
        "stream",
        text,
        None,
        "this or `streamColumn`",
        "The stream to append to; with `streamColumn`, for rows in which that is null.",
    ),
    Option(
        "streamColumn",
        text,
        None,
        "none",
        "The STRING column that names the stream of each row. It is not written as a field.",
    ),
    Option(
        "shards",
        shards,
        None,
        "none",
        "Write `stream` as so many streams ([shards](shards.md)), at most 256: rows of one key go to one of them, "
        "in their order. The number stays as the first sink or query has it.",
    ),
    Option(
        "shardBy",
        text,
        None,
        "none",
        "With `shards`: the column with the key. It is a field like others; a null is as an empty key.",
    ),
    Option(
        "idColumn",
        text,
        None,
        "none: the server makes the ids",
        "The STRING column that holds the id of each row's entry (`<milliseconds>-<sequence>`, `<milliseconds>-*` or "
        "`<milliseconds>`); where it is null the server makes one. It is not written as a field.",
    ),
    Option(
        "delivery",
        one_of("exactly-once", "at-least-once"),
        "exactly-once",
        "`exactly-once`",
        "Whether rows that a retried task, a speculative twin or a replayed batch brings again are recognised.",
    ),
    Option(
        "transaction",
        text,
        None,
        "none",
        "`df.write` within `foreachBatch`: a name for this write, different from the function's other writes. Its rows "
        "are then those of the micro-batch, and written once also when Spark replays that.",
    ),
    Option(
        "transactionBatch",
        number,
        None,
        "what Spark tells",
        "With `transaction`: the number of the micro-batch. Needed over Spark Connect, which does not tell it; "
        "`spark_streams.transaction` gives it, and the next one.",
    ),
    Option(
        "transactionQuery",
        query_id,
        None,
        "what Spark tells",
        "With `transactionBatch`: the id of the query, which its checkpoint keeps.",
    ),
    Option(
        "chunkSize",
        count,
        5_000,
        "`5000`",
        "The most entries that are sent together (and at most 8 MB): one transaction where delivery is `exactly-once`.",
    ),
    Option(
        "rowsPerSecond",
        count,
        None,
        "no limit",
        "The most rows per second that the tasks of one batch, or of one `df.write`, append together.",
    ),
    Option("maxlen", count, None, "unbounded", "Trim each stream to about this many entries, once per chunk."),
    Option("minId", entry_id, None, "unbounded", "Trim entries whose id is below this one."),
    Option(
        "retention", duration, None, "unbounded", "Trim entries that are older (`36h`, `7d`), by the server's clock."
    ),
    Option(
        "retentionBytes",
        size,
        None,
        "unbounded",
        "Trim each stream to about so many bytes of the server's memory (`512mb`, `2gb`, or plain bytes), by what its "
        "entries take. It holds beside `maxlen`, `minId` and `retention`.",
    ),
    Option(
        "streamTtl",
        duration,
        None,
        "never",
        "A stream that this sink writes nothing to for so long (`7d`) expires: with its entries, read or not, and its "
        "groups.",
    ),
    Option(
        "trim",
        one_of("maxlen", "minid", "acked"),
        None,
        "by what is given",
        "`acked`: whatever the threshold, never what some group has not yet been given and acknowledged; "
        "without a threshold, all that every group has acknowledged.",
    ),
    Option("approximate", flag, True, "`true`", "Trim whole nodes only (`~`), or exactly to the threshold (`=`)."),
    Option("trimLimit", count, None, "the server's", "The most entries that one trimming removes (`LIMIT`)."),
    Option(
        "nulls",
        one_of("omit", "empty"),
        "omit",
        "`omit`",
        "A null value: leave its field out of the entry, or write an empty one.",
    ),
    Option(
        "waitReplicas",
        count,
        None,
        "none",
        "A task, and the batch, end only when so many replicas have acknowledged what was written (`WAIT`, for at most "
        "10 s).",
    ),
)


def but_access(options: Iterable[Option]) -> list[Option]:
    """Those that do not stand beside every `url`."""
    return [option for option in options if option not in ACCESS[1:]]
