"""Options of Spark's Kafka connector and of spark-redis: the hints of errors about unknown options. Pure.

docs/guide/migrate.md has them as tables with notes, in this order; a test compares both.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

# What replaces an option; empty: it is not needed. `*` stands for any text; the first line that matches counts.
KAFKA: Mapping[str, str] = {
    "kafka.bootstrap.servers": "url",
    "subscribe": "streams",
    "kafka.group.id": "group",
    "groupIdPrefix": "group",
    "subscribePattern": "streamsPattern",
    "assign": "streams",
    "startingOffsetsByTimestamp": "startingTimestamp",
    "startingOffsetsByTimestampStrategy": "startingTimestamp",
    "endingOffsetsByTimestamp": "endingTimestamp",
    "maxOffsetsPerTrigger": "maxEntriesPerTrigger or maxBytesPerTrigger",
    "minOffsetsPerTrigger": "minEntriesPerTrigger",
    "maxRecordsPerPartition": "entriesPerPartition",
    "includeHeaders": "",
    "kafkaConsumer.pollTimeoutMs": "",
    "fetchOffset.numRetries": "",
    "fetchOffset.retryIntervalMs": "",
    "kafka.security.protocol": "url",
    "kafka.sasl.*": "url",
    "kafka.ssl.*": "url",
    "topic": "stream",
    "kafka.partitioner.class": "shards or shardBy",
    "kafka.acks": "waitReplicas",
    "kafka.enable.idempotence": "delivery",
    "kafka.transactional.id": "delivery",
    "kafka.*": "url",  # other settings of Kafka's clients; no line of the tables
}
SPARK_REDIS: Mapping[str, str] = {
    **dict.fromkeys(("spark.redis.*", "host", "port", "auth", "db", "ssl"), "url"),
    "stream.keys": "streams",
    "stream.group.name": "group",
    "stream.consumer.prefix": "consumer",
    "stream.offsets": "startingOffsets",
    "stream.parallelism": "entriesPerPartition or minPartitions",
    **dict.fromkeys(("stream.read.batch.size", "stream.read.block"), ""),
    **dict.fromkeys(("table", "keys.pattern", "key.column", "model", "infer.schema"), ""),
}


def hint_of_other_connector(name: str) -> str | None:
    """Return a sentence on what replaces an option of another connector; None if it is of none."""
    for connector, options in (("Spark's Kafka connector", KAFKA), ("spark-redis", SPARK_REDIS)):
        for pattern, ours in options.items():
            if fnmatch.fnmatchcase(name.lower(), pattern.lower()):
                instead = f"use {ours}" if ours else "it is not needed here"
                return f"it is an option of {connector}: {instead} (rstream help migrate)"
    return None
