"""Options that contradict each other, need another one, or have a bad value: one table, and each pair has its row.

And what is wrong with options whatever they are for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from spark_streams.connector.errors import InvalidOptionError, RStreamError, UnknownOptionError, UnsupportedError
from spark_streams.connector.options.access_options import AccessOptions, SinkOptions, check_before_use, require_options
from spark_streams.connector.options.option import documented
from spark_streams.connector.options.source_options import BatchSourceOptions, SourceOptions
from spark_streams.connector.options.table import CONTRADICTIONS, NEEDS

QUERY = "be800551-afc6-46ac-a357-b30305364bfc"
URL = {"url": "redis://h"}
READ = {**URL, "streams": "a, b"}
STREAM = {**READ, "group": "g"}
PATTERN = {**URL, "streamsPattern": "o*", "group": "g"}
WRITE = {**URL, "stream": "s"}
LETTERS = {"deadLetterStream": "dead"}
DEADLETTER = {"mode": "DEADLETTER", **LETTERS}
ARCHIVE = {"archivePath": "/a", "startingOffsets": "earliest"}
SHARDS = {"shards": "4", "shardBy": "k"}

# By the kind of options: what is given beside what is needed, and what the error says.
REFUSED: Mapping[type[AccessOptions], list[tuple[dict[str, str], str]]] = {
    AccessOptions: [
        ({**URL, "username": "u", "credentialProvider": "a:b"}, "options username and credentialProvider contradict"),
        ({**URL, "password": "p", "passwordFile": "f"}, "options password and passwordFile contradict"),
    ],
    SourceOptions: [
        ({**STREAM, "streamsPattern": "o*"}, "options streams and streamsPattern contradict"),
        (
            {**STREAM, "startingOffsets": "latest", "startingTimestamp": "5"},
            "startingOffsets and startingTimestamp co",
        ),
        ({**PATTERN, "createStreams": "false"}, "options streamsPattern and createStreams contradict"),
        ({**PATTERN, "shards": "4"}, "options streamsPattern and shards contradict"),
        ({**STREAM, "createStreams": "false", "shards": "4"}, "options createStreams and shards contradict"),
        ({**STREAM, "streamsExcept": "c"}, "option streamsExcept needs option streamsPattern"),
        ({**STREAM, "ordered": "true", "minPartitions": "4"}, "options ordered and minPartitions contradict"),
        (
            {**STREAM, "ordered": "true", "entriesPerPartition": "4"},
            "ordered and entriesPerPartition contradict",
        ),
        ({**STREAM, "noAck": "true", "claimIdle": "5s"}, "options noAck and claimIdle contradict"),
        ({**STREAM, "noAck": "true", "maxDeliveries": "5", **LETTERS}, "options noAck and maxDeliveries contradict"),
        ({**STREAM, "noAck": "true", **DEADLETTER, "retryDelay": "1s"}, "options noAck and retryDelay contradict"),
        ({**STREAM, **DEADLETTER, "retryDelay": "soon"}, "must be a duration"),
        ({**STREAM, **DEADLETTER, "retryDelay": ",".join(["1s"] * 17)}, "must be at most 16 durations"),
        ({**STREAM, "maxTriggerDelay": "5s"}, "option maxTriggerDelay needs option minEntriesPerTrigger"),
        ({**STREAM, "maxTriggerDelay": "5", "minEntriesPerTrigger": "2"}, "must be a duration above 0 with its unit"),
        ({**STREAM, "maxDeliveries": "5"}, "option maxDeliveries needs option deadLetterStream"),
        ({**STREAM, "mode": "DEADLETTER"}, "mode=DEADLETTER needs option deadLetterStream"),
        ({**STREAM, **LETTERS}, "option deadLetterStream has nothing to receive"),
        ({**STREAM, "mode": "DEADLETTER", "deadLetterStream": "a"}, "deadLetterStream='a' is among the streams"),
        ({**STREAM, "targetBatchTime": "10"}, "must be a duration above 0 with its unit"),
        ({**STREAM, "targetBatchTime": "0s"}, "must be a duration above 0"),
        ({**STREAM, "targetBatchTime": '{"a": "10s"}'}, "must be a duration above 0"),
        ({**STREAM, **ARCHIVE, "targetBatchTime": "10s"}, "options archivePath and targetBatchTime contradict"),
        ({**STREAM, **ARCHIVE, **DEADLETTER}, "options archivePath and mode contradict"),
        ({**STREAM, **ARCHIVE, "retryDelay": "1s"}, "options archivePath and retryDelay contradict"),
        ({**STREAM, **ARCHIVE, "startingOffsets": "latest"}, "nothing to read with startingOffsets=latest"),
        ({**STREAM, "minEntriesPerTrigger": "5", "maxEntriesPerTrigger": "4"}, "minEntriesPerTrigger=5 is more than"),
        ({**STREAM, "mode": "FAILFAST", "columnNameOfCorruptRecord": "c"}, "columnNameOfCorruptRecord has no meaning"),
        ({**STREAM, "onNewCheckpoint": "restart"}, "onNewCheckpoint=restart needs option startingOffsets"),
        ({**STREAM, "endingOffsets": "latest"}, "'endingOffsets' belongs to spark.read, not to spark.readStream"),
        ({**STREAM, "inferSchema": "true"}, "'inferSchema' belongs to spark.read, not to spark.readStream"),
        ({**STREAM, "claimIdle": "0s"}, "must be a duration above 0"),
        ({**STREAM, "startingTimestamp": "yesterday"}, "must be a time as ISO-8601 or in milliseconds"),
        ({**STREAM, "startingTimestamp": "1960-01-01"}, "is before 1970"),
    ],
    BatchSourceOptions: [
        (
            {**READ, "endingOffsets": "5", "endingTimestamp": "5"},
            "endingOffsets and endingTimestamp contradict",
        ),
        ({**READ, **ARCHIVE, "ordered": "true"}, "options ordered and archivePath contradict"),
        ({**READ, "group": "g"}, "'group' belongs to spark.readStream, not to spark.read"),
        ({**READ, "startingOffsets": "latest"}, "must be earliest or an id"),
        (URL, "streams is missing (or streamsPattern)"),
    ],
    SinkOptions: [
        ({**WRITE, "transaction": "t", "delivery": "at-least-once"}, "options transaction and delivery contradict"),
        ({**WRITE, "transaction": "t", "transactionBatch": "0"}, "transactionBatch needs option transactionQuery"),
        ({**WRITE, "transaction": "t", "transactionQuery": QUERY}, "transactionQuery needs option transactionBatch"),
        ({**WRITE, "transactionBatch": "0", "transactionQuery": QUERY}, "transactionBatch needs option transaction:"),
        (
            {**WRITE, "transaction": "t", "transactionBatch": "-1", "transactionQuery": QUERY},
            "transactionBatch='-1' must be a whole number",
        ),
        (
            {**WRITE, "transaction": "t", "transactionBatch": "0", "transactionQuery": "billing"},
            "transactionQuery='billing' must be the ID of a query",
        ),
        ({**WRITE, "maxlen": "5", "minId": "5"}, "options maxlen and minId contradict"),
        ({**WRITE, "minId": "5", "retention": "1h"}, "options minId and retention contradict"),
        ({**WRITE, "trim": "maxlen", "maxlen": "5"}, "sink option trim='maxlen' must be acked"),
        ({**WRITE, "minId": "x"}, "minId='x' is not an entry ID"),
        ({**WRITE, "retention": "7"}, "retention='7' must be a duration"),
        ({**WRITE, "retentionBytes": "lots"}, "such as 64mb, 512kb, 2gb"),
        ({**WRITE, "retentionBytes": "0"}, "must be a size above 0"),
        ({**WRITE, "delivery": "twice"}, "must be one of exactly-once, at-least-once"),
        ({**WRITE, "waitReplicas": "0"}, "waitReplicas='0'"),
        ({**WRITE, "shards": "4"}, "option shards needs option shardBy"),
        ({**WRITE, "shardBy": "k"}, "option shardBy needs option shards"),
        ({**URL, **SHARDS}, "option shards needs option stream"),
        ({**WRITE, **SHARDS, "streamColumn": "to"}, "options streamColumn and shards contradict"),
        ({**WRITE, **SHARDS, "stream": "{s}:1"}, "has braces"),
        ({**WRITE, **SHARDS, "idColumn": "k"}, "options shardBy and idColumn contradict"),
        ({**WRITE, **SHARDS, "shards": "257"}, "at most 256"),
        ({**WRITE, "streamColumn": "x", "idColumn": "x"}, "options streamColumn and idColumn contradict"),
    ],
}
ROWS = [
    pytest.param(kind, given, said, id=f"{kind.__name__}-{said[:60]}")
    for kind, rows in REFUSED.items()
    for given, said in rows
]


@pytest.mark.parametrize(("kind", "given", "said"), ROWS)
def test_options_that_do_not_fit_are_refused_by_name(
    kind: type[AccessOptions], given: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidOptionError, match=re.escape(said)) as error:
        kind.parse(given)
    message = error.value.message
    if any(option.name in re.findall(r"\w+", message) for option in documented(kind.TABLE)):
        assert "(rstream help options#" in message


def test_each_pair_of_the_tables_has_a_row() -> None:
    said = {text for rows in REFUSED.values() for _, text in rows}
    pairs = [f"{name} and {other} contradict" for (name, _), (other, _), _ in CONTRADICTIONS]
    pairs += [f"{name} needs option {other}" for name, other, _ in NEEDS]
    assert [pair for pair in pairs if not any(pair in text for text in said)] == []


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (SourceOptions, {**STREAM, "ordered": "false", "minPartitions": "4", "noAck": "false", "claimIdle": "5m"}),
        (SourceOptions, {**STREAM, "createStreams": "true", "shards": "4"}),
        (SinkOptions, {**WRITE, "retentionBytes": "1mb", "maxlen": "5", "trim": "acked"}),
        (SinkOptions, {**WRITE, "transaction": "t", "delivery": "exactly-once"}),
    ],
)
def test_options_at_their_harmless_value_contradict_nothing(kind: type[AccessOptions], given: dict[str, str]) -> None:
    assert kind.parse(given).explicit == given.keys()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"streams": "a", "GROUP": "g", "checkpointLocation": "/x", "queryName": "q"},
        {"delivery": "exactly-once"},  # a sink's
        {"startingOffsets": "latest"},  # not in spark.read
        {"stream": "a", "maxlen": "5"},
    ],
)
def test_what_something_takes_passes(given: dict[str, str]) -> None:
    check_before_use(given)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"grup": "g"}, UnknownOptionError, "format rstream has no option 'grup'; did you mean 'group'?"),
        ({"Strem": "g"}, UnknownOptionError, "no option 'Strem'; did you mean 'stream'?"),
        (
            {"zzz": "g"},
            UnknownOptionError,
            "no option 'zzz'; valid options: url, username, .*, streams, .*, stream, .*waitReplicas",
        ),
        ({"path": "orders"}, UnknownOptionError, r"take no path .*: set option streams to read"),
        ({"mode": "IGNORE"}, InvalidOptionError, "source option mode='IGNORE' must be one of PERMISSIVE"),
        ({"maxlen": "many"}, InvalidOptionError, "sink option maxlen='many' must be a whole number"),
        ({"delivery": "sometimes"}, InvalidOptionError, "option delivery='sometimes' must be one of"),
        # As Spark makes a table of its catalog.
        ({"provider": "rstream", "url": "x", "option.url": "x"}, UnsupportedError, "CREATE TABLE .* loses its options"),
    ],
)
def test_what_nothing_takes_is_refused(given: dict[str, str], kind: type[RStreamError], message: str) -> None:
    with pytest.raises(kind, match=message):
        check_before_use(given)


def test_no_option_at_all_is_refused() -> None:
    require_options({"url": "embedded:"}, "say it")
    for given in ({}, {"checkpointlocation": "/x"}):
        with pytest.raises(
            InvalidOptionError, match="no option is set: say it. For a table of Spark's catalog: .*TEMPORARY VIEW"
        ):
            require_options(given, "say it")
