"""Options of Spark's Kafka connector and of spark-redis, and what replaces them here.

The rows are the tables of docs/guide/migrate.md, and the hints of errors about unknown options. Pure.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass


@dataclass(frozen=True)
class OldOption:
    """Options of another connector, and what replaces them here."""

    names: tuple[str, ...]  # of the other connector; `*` stands for any text
    instead: str  # Markdown: what replaces them
    note: str = ""  # Markdown
    other: str = ""  # what else is named in the first column, such as columns


KAFKA_READ = (
    OldOption(
        ("kafka.bootstrap.servers",), "`url`", "`redis://host:6379/0`. A Redis Cluster: `redis+cluster://host:6379`."
    ),
    OldOption(("subscribe",), "`streams`"),
    OldOption(
        ("kafka.group.id", "groupIdPrefix"),
        "`group`",
        "Required. It holds the position and the pending entries. Two queries that both read all entries need two.",
    ),
    OldOption(
        ("subscribePattern",),
        "`streamsPattern`",
        "A Redis pattern (`orders:*`), no regular expression. Later streams are read from their first entry.",
        "(regular expression)",
    ),
    OldOption(
        ("assign",),
        "`streams`",
        "A stream has no partitions. Use several streams, or [shards](order-by-key.md) under one name.",
    ),
    OldOption(
        (),
        "`startingOffsets`",
        "`earliest`, `latest`, an ID, or JSON by stream. The query reads what comes **after** the ID.",
        "`startingOffsets`",
    ),
    OldOption(
        ("startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
        "`startingTimestamp`",
        "One time for all streams, or JSON by stream.",
    ),
    OldOption(
        ("endingOffsetsByTimestamp",),
        "`endingTimestamp`",
        "`spark.read` only, as with Kafka. `endingOffsets` is alike.",
    ),
    OldOption(
        ("maxOffsetsPerTrigger",),
        "`maxEntriesPerTrigger`, `maxBytesPerTrigger`",
        "For all streams together, or JSON by stream.",
    ),
    OldOption(("minOffsetsPerTrigger",), "`minEntriesPerTrigger`", "`maxTriggerDelay` limits how long it waits."),
    OldOption(
        ("maxRecordsPerPartition",),
        "`entriesPerPartition`",
        "`minPartitions` is alike. Many tasks read one stream. With `ordered=true`, one task reads each stream.",
    ),
    OldOption(
        (), "`failOnDataLoss`", "The [kinds of loss](../reference/data-loss.md) are those of Redis.", "`failOnDataLoss`"
    ),
    OldOption(("includeHeaders",), "not needed", "An entry has fields, and each is a column."),
    OldOption(
        ("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
        "not needed",
        "The query waits for an unreachable server.",
    ),
    OldOption(
        ("kafka.security.protocol", "kafka.sasl.*", "kafka.ssl.*"),
        "`url`",
        "`rediss://user:password@host:6379/0?ssl_ca_certs=/path/ca.pem`. See [security](security.md).",
    ),
    OldOption(
        (),
        "the fields, with types",
        "Declare the columns in `.schema(…)`. You need no `from_json`.",
        "columns `key`, `value`",
    ),
    OldOption(
        (),
        "`_stream STRING`, `_id STRING`, `_timestamp TIMESTAMP`",
        "Add them to the schema if you need them.",
        "columns `topic`, `offset`, `timestamp`",
    ),
)
KAFKA_WRITE = (
    OldOption(("topic",), "`stream`", "The server is `url`, as for reading."),
    OldOption(
        (),
        "`streamColumn`",
        "This option names the column. No column is used because of its name.",
        "column `topic`, column `partition`",
    ),
    OldOption(
        ("kafka.partitioner.class",),
        "`shards`, `shardBy`",
        "[Rows of a key stay in order](order-by-key.md). The number is fixed.",
        "and partitions, by column `key`",
    ),
    OldOption((), "columns", "Each column becomes a field.", "columns `key`, `value`, `headers`"),
    OldOption(("kafka.acks",), "`waitReplicas`"),
    OldOption(
        ("kafka.enable.idempotence", "kafka.transactional.id"),
        "`delivery`",
        "The default is `exactly-once`, also across restarts of the query.",
    ),
    OldOption(
        (),
        "`retention`, `retentionBytes`, `maxlen`, `minId`",
        "The sink trims. `trim=acked` never removes what a group still needs.",
        "`retention.ms`, `retention.bytes` of a topic",
    ),
)
KAFKA_REST = (
    # The other settings of Kafka's clients; the rows above have precedence.
    OldOption(("kafka.*",), "`url`", "Other settings of Kafka's clients have no counterpart."),
)
SPARK_REDIS = (
    OldOption(
        ("spark.redis.*", "host", "port", "auth", "db", "ssl"),
        "`url`",
        "`redis://:auth@host:port/db`, or `rediss://…`",
    ),
    OldOption(("stream.keys",), "`streams`"),
    OldOption(("stream.group.name",), "`group`", "Required; spark-redis has the default `spark-source`."),
    OldOption(("stream.consumer.prefix",), "`consumer`", "One name for the query, not one for each task."),
    OldOption(
        ("stream.offsets",),
        "`startingOffsets`",
        "For a new group only. A group that exists continues at its position.",
    ),
    OldOption(
        ("stream.parallelism",),
        "`entriesPerPartition`, `minPartitions`",
        "Tasks share one consumer. `ordered=true` keeps the order of a stream.",
    ),
    OldOption(("stream.read.batch.size",), "not needed", "`maxEntriesPerTrigger` limits a micro-batch."),
    OldOption(
        ("stream.read.block",), "not needed", "Spark's trigger decides how often the query checks for new entries."
    ),
    OldOption(
        ("table", "keys.pattern", "key.column", "model", "infer.schema"),
        "not needed",
        "These are for hashes. Streams: `streams`; a schema: `inferSchema`.",
    ),
    OldOption(
        (),
        "the same",
        "If a value does not fit its type, it becomes null and is counted. Option `mode` changes this.",
        "columns for fields, `_id`",
    ),
    OldOption((), "`writeStream`", "spark-redis has no sink for streams.", "`foreachBatch` to write"),
)
_CONNECTORS = (
    ("Spark's Kafka connector", (*KAFKA_READ, *KAFKA_WRITE, *KAFKA_REST)),
    ("spark-redis", SPARK_REDIS),
)


def hint_of_other_connector(name: str) -> str | None:
    """Return a sentence on what replaces an option of another connector; None if it is of none."""
    for connector, rows in _CONNECTORS:
        for row in rows:
            if any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for pattern in row.names):
                options = row.instead.replace("`", "")
                instead = "it is not needed here" if options == "not needed" else f"use {options.replace(', ', ' or ')}"
                return f"it is an option of {connector}: {instead} (rstream help migrate)"
    return None


def table_of_rows(connector: str, rows: tuple[OldOption, ...]) -> str:
    """Return the Markdown table of a connector's options."""
    lines = [f"| {connector} | rstream | note |", "|---|---|---|"]
    for row in rows:
        names = ", ".join(f"`{name}`" for name in row.names)
        first = " ".join(filter(None, (names, row.other))) if row.names else row.other
        lines.append(f"| {first} | {row.instead} | {row.note} |".replace("|  |", "| |"))
    return "\n".join(lines)
