"""Options that must fit each other: which contradict, and which need another one. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any

from spark_streams.errors import InvalidOptionError
from spark_streams.ids import MIN_ID, StreamId
from spark_streams.options.per_stream import PerStream
from spark_streams.redis_pattern import is_pattern
from spark_streams.shards.names import Shard, may_be_in_shards

# Of each of these at most one may be given.
_ONE_OF_THESE = (
    ("streams", "streamsPattern"),
    ("startingOffsets", "startingTimestamp"),
    ("endingOffsets", "endingTimestamp"),
    ("maxlen", "minId", "retention"),
    ("password", "passwordFile", "credentialProvider"),
)
# Options that may not be given together; None: with any value.
_CONTRADICTIONS: tuple[tuple[tuple[str, Any], tuple[str, Any], str], ...] = (
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


# Options that may name streams, or patterns of them.
_BY_STREAM = (
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxEntriesPerTrigger",
    "streamWeights",
)


def check_together(given: Collection[str], values: dict[str, Any]) -> None:
    """Options that must fit each other; given: the names that the user typed. Raises InvalidOptionError."""
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
    if "streams" in values:
        _check_source(given, values)
    if "trim" in values:
        _check_trimming(given, values)
    column = values.get("streamColumn")
    if column is not None and column == values["idColumn"]:
        raise InvalidOptionError(
            f"options streamColumn and idColumn contradict each other: column {column!r} cannot hold the name of a "
            "stream and an entry's id"
        )
    if values.get("shards") is not None:
        _check_shards(values)


def _check_shards(values: dict[str, Any]) -> None:
    """What is to be in shards. Raises InvalidOptionError."""
    is_source = "streams" in values
    if not is_source and values["stream"] is None:
        raise InvalidOptionError("option shards needs option stream: what the shards are called after")
    for stream in (values["streams"] or ()) if is_source else (values["stream"],):
        if not may_be_in_shards(stream):
            raise InvalidOptionError(
                f"options shards and {'streams' if is_source else 'stream'} contradict each other: {stream!r} has "
                "braces, which say in which slot of a cluster all its shards would stand; take a name without"
            )
    if not is_source and values["shardBy"] == values["idColumn"]:
        raise InvalidOptionError(
            f"options shardBy and idColumn contradict each other: column {values['shardBy']!r} cannot hold a key, "
            "which is a field, and an entry's id"
        )


def _check_source(given: Collection[str], values: dict[str, Any]) -> None:
    """What holds between the options of a source. Folds the timestamps into the offsets. Raises InvalidOptionError."""
    names = values["streams"]
    if names is None and values["streamsPattern"] is None:
        raise InvalidOptionError("source option streams is missing (or streamsPattern): say which streams to read")
    if names is not None:
        _check_named(names, values)
    for moment_option, offsets in (("startingTimestamp", "startingOffsets"), ("endingTimestamp", "endingOffsets")):
        times: PerStream[int | None] | None = values.get(moment_option)
        if times is not None:
            values[offsets] = _offsets_of(times, values[offsets].otherwise)
    _check_limits(given, values)
    letters = values.get("deadLetterStream")
    if letters is None and values["mode"] == "DEADLETTER":
        raise InvalidOptionError("mode=DEADLETTER needs option deadLetterStream: where the entries go")
    if letters is not None and values["mode"] != "DEADLETTER" and values["maxDeliveries"] is None:
        raise InvalidOptionError(
            "option deadLetterStream has nothing to receive: set mode=DEADLETTER, maxDeliveries or both"
        )
    if letters is not None and names is not None and letters in names:
        raise InvalidOptionError(f"deadLetterStream={letters!r} is among the streams that are read: name another one")
    if "columnNameOfCorruptRecord" in given and values["mode"] != "PERMISSIVE":
        raise InvalidOptionError(f"columnNameOfCorruptRecord has no meaning in mode={values['mode']}: drop it")


def _check_named(names: tuple[str, ...], values: dict[str, Any]) -> None:
    """Raises InvalidOptionError where an option by stream names one that is not read."""
    for which in _BY_STREAM:
        given: PerStream[Any] | None = values.get(which)
        for stream in () if given is None else given.unmeant(names):
            shard = Shard.named(stream)
            if shard is not None and shard.stream in names:
                continue
            near = difflib.get_close_matches(stream.lower(), {name.lower(): name for name in names}, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            what = f"stream {stream!r}, which is not" if not is_pattern(stream) else f"{stream!r}, which matches none"
            raise InvalidOptionError(f"{which} names {what} among streams{hint}")


def _offsets_of(times: PerStream[int | None], otherwise: str) -> PerStream[str]:
    """The offsets that times stand for: the first id of that millisecond is the first one read, or the first one not
    read any more. otherwise: of streams without a time."""

    def before(milliseconds: int | None) -> str:
        if milliseconds is None:
            return otherwise
        first = StreamId(milliseconds, 0)
        return str(first.previous() if first > MIN_ID else MIN_ID)

    return times.map(before, before(times.otherwise))


def _check_limits(given: Collection[str], values: dict[str, Any]) -> None:
    """What holds between the limits of a micro-batch. Raises InvalidOptionError."""
    if "minEntriesPerTrigger" not in values:
        return
    most: PerStream[int | None] = values["maxEntriesPerTrigger"]
    least = values["minEntriesPerTrigger"]
    if least is not None:
        limits = [most.otherwise] if not most.named else [most.of(stream) for stream in values["streams"] or ()]
        known = [limit for limit in limits if limit is not None]
        if known and len(known) == len(limits) and least > sum(known):
            raise InvalidOptionError(f"minEntriesPerTrigger={least} is more than maxEntriesPerTrigger={sum(known)}")
    is_shared = most.otherwise is not None or values["maxBytesPerTrigger"] is not None
    if "streamWeights" in given and not is_shared:
        raise InvalidOptionError(
            "option streamWeights needs option maxEntriesPerTrigger (one number for all streams) or "
            "maxBytesPerTrigger: without a limit every stream is read to its end"
        )


def _check_trimming(given: Collection[str], values: dict[str, Any]) -> None:
    """What holds between the trimming options of a sink. Raises InvalidOptionError."""
    thresholds = ("maxlen", "minId", "retention", "retentionBytes")
    threshold = any(name in given for name in thresholds)
    strategy = values["trim"]
    by_strategy = {"maxlen": ("maxlen", "retentionBytes"), "minid": ("minId", "retention")}
    if strategy in by_strategy and not any(name in given for name in by_strategy[strategy]):
        needed = " or ".join(by_strategy[strategy])
        raise InvalidOptionError(f"option trim={strategy} needs option {needed}: how far to trim")
    for name in ("approximate", "trimLimit"):
        if name in given and not threshold and strategy is None:
            raise InvalidOptionError(
                f"option {name} needs one of {', '.join(thresholds)} or trim=acked: nothing is trimmed"
            )
