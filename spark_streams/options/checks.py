"""Options that must fit each other: which contradict, and which need another one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spark_streams.errors import InvalidOptionError
from spark_streams.shards.names import may_be_in_shards

# Of each of these at most one may be given.
_ONE_OF_THESE = (
    ("streams", "streamsPattern"),
    ("startingOffsets", "startingTimestamp"),
    ("endingOffsets", "endingTimestamp"),
    ("maxlen", "minId", "retention"),
    ("password", "passwordFile", "credentialProvider"),
)
# Options that may not be given together; None: with any value.
_CONTRADICTIONS: tuple[tuple[tuple[str, object], tuple[str, object], str], ...] = (
    (("username", None), ("credentialProvider", None), "the provider names the user"),
    (("streamsPattern", None), ("createStreams", None), "a pattern reads what is there"),
    (("streamsPattern", None), ("shards", None), "a pattern finds shards by their own names"),
    (("createStreams", False), ("shards", None), "shards are made where they are not there"),
    (("streamColumn", None), ("shards", None), "the key's column says which stream a row goes to"),
    (("ordered", True), ("minPartitions", None), "an ordered stream is read by one task"),
    (("ordered", True), ("entriesPerPartition", None), "an ordered stream is read by one task"),
    (("noAck", True), ("delivery", "at-most-once"), "noAck leaves nothing to acknowledge, the checkpoint protects"),
    (("noAck", True), ("claimIdle", None), "a noAck query has the group for itself"),
    (("noAck", True), ("maxDeliveries", None), "without a pending list nobody counts deliveries"),
    (("delivery", "at-most-once"), ("claimIdle", None), "entries that are claimed are delivered at least twice"),
    (("delivery", "at-most-once"), ("maxDeliveries", None), "entries are delivered once"),
    (("noAck", True), ("retryDelay", None), "an entry that comes back is pending until it is processed"),
    (("delivery", "at-most-once"), ("retryDelay", None), "what is tried again is delivered at least twice"),
    (("transaction", None), ("delivery", "at-least-once"), "what is recognised is written exactly once"),
    (("approximate", False), ("trimLimit", None), "only whole nodes (~) are trimmed with a LIMIT"),
    (("trim", "maxlen"), ("minId", None), "trim=maxlen goes by length"),
    (("trim", "maxlen"), ("retention", None), "trim=maxlen goes by length"),
    (("trim", "minid"), ("maxlen", None), "trim=minid goes by id or age"),
    (("trim", "acked"), ("streamTtl", None), "a stream that expires takes along what groups still need"),
    (("shards", None), ("streamTtl", None), "a shard whose keys are quiet would expire by itself"),
)
_NEEDS = (
    ("transactionBatch", "transaction", "it says which micro-batch the named write is a part of"),
    ("transactionBatch", "transactionQuery", "batches of all queries have the same numbers"),
    ("transactionQuery", "transactionBatch", "a query has many micro-batches"),
    ("shards", "shardBy", "rows with the same value in that column go to the same shard"),
    ("shardBy", "shards", "it says how many streams the rows go to by that column"),
    ("maxTriggerDelay", "minEntriesPerTrigger", "it says how long that may wait"),
    ("maxDeliveries", "deadLetterStream", "entries that were delivered too often move there"),
)


def check_together(given: Collection[str], values: Mapping[str, object]) -> None:
    """Check what contradicts and what needs another option. given: the names that the user typed; values: of every
    option by name. Raises InvalidOptionError."""
    for group in _ONE_OF_THESE:
        both = [name for name in group if name in given]
        if len(both) > 1:
            raise InvalidOptionError(f"options {' and '.join(both)} contradict each other: give one of them")
    for (name, value), (other, forbidden), why in _CONTRADICTIONS:
        set_so = name in given and value in (None, values[name])
        if set_so and other in given and forbidden in (None, values[other]):
            raise InvalidOptionError(f"options {name} and {other} contradict each other: {why}")
    for name, needed, why in _NEEDS:
        if name in given and needed in values and needed not in given:
            raise InvalidOptionError(f"option {name} needs option {needed}: {why}")
    if "username" in given and not {"password", "passwordFile"} & set(given):
        raise InvalidOptionError("option username needs option password or passwordFile: a user has a password")


def check_names_of_shards(option: str, streams: Collection[str]) -> None:
    """Check that these streams may be in shards. option: the one that names them. Raises InvalidOptionError."""
    for stream in streams:
        if not may_be_in_shards(stream):
            raise InvalidOptionError(
                f"options shards and {option} contradict each other: {stream!r} has "
                "braces, which say in which slot of a cluster all its shards would stand; take a name without"
            )
