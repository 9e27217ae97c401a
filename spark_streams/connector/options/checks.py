"""Checks between options: which contradict each other, and which need another one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.shards.names import MAX_NAME, may_be_in_shards

# At most one option of each line may be set.
_ONE_OF_THESE = (
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


def check_together(explicit_options: Collection[str], values: Mapping[str, object]) -> None:
    """Raise InvalidOptionError if options contradict each other, or if an option lacks another one that it needs.

    explicit_options: names of the options that the user has set; values: of every option, by name.
    """
    for group in _ONE_OF_THESE:
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
