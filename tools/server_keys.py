"""The tables of docs/reference/keys.md: names by the functions that the product makes them with, and what it does.

Of each key a function gives the name; type, writer, content and end are here, beside it. tests/simulation/test_keys.py
compares names and types with what is written, and tools/rights.py has the roles that may write it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple
from urllib.parse import unquote

from spark_streams.connector import keys
from spark_streams.connector.deadletter.mover import redrive_key, redriven_key
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.ledger import Keys
from tools.rights import ROLES

_STREAM, _DEAD = "orders", "orders:dead"
_GROUP, _CONSUMER, _QUERY, _TOKEN = "<group>", "<consumer>", "<query>", "<token>"
_OF_CONSUMER = dict(keys.keys_of_consumer(_STREAM, _GROUP, _CONSUMER))
_OF_GROUP = dict(keys.keys_of_group(_STREAM, _GROUP, 0))
_LEDGER = Keys.for_stream(_STREAM.encode(), Batch(_QUERY, 0, "<run>", expires=False))


class Key(NamedTuple):
    """Keys of one kind."""

    names: Sequence[str | bytes]
    type: str
    by: str  # who writes it
    content: str
    deleted: str


SOURCE = (
    Key(
        [_OF_CONSUMER["lease"]], "string", "driver", "the process that runs the query, and its session",
        "when the query ends. If its process is killed, as Spark may do in `query.stop()`, it stays: the next query"
        " takes it over, or `rstream groups delete` removes it.",
    ),
    Key(
        [keys.session_key(_GROUP, _TOKEN)], "string", "driver", "that a query runs: it is renewed",
        "10 s after the last renewal",
    ),
    Key(
        [_OF_CONSUMER["committed"]], "string", "driver", "the commit mark, see below",
        "with the group (`rstream groups delete`), or if a stream of a pattern is missing",
    ),
    Key(
        [keys.key_of_query("begun", _GROUP, _CONSUMER)], "string", "driver", "a query over a pattern has begun",
        "with its first checkpoint",
    ),
    Key(
        [_OF_CONSUMER["first"]], "string", "driver",
        "where the query begins on a stream that did not have its group when the query started",
        "with its first trigger; under a pattern with its first checkpoint",
    ),
    Key(
        [_OF_CONSUMER["notes"]], "hash", "tasks and driver", "notes of a batch, see below",
        "emptied with the commit of the batch, deleted with that of the next one; field `batch` stays, until a stream"
        " of a pattern is missing",
    ),
    Key(
        [_OF_CONSUMER["missing"]], "hash", "tasks, with `failOnDataLoss=false`",
        "how many entries of a range are missing, for each run of a batch",
        "with the commit of the batch, after the driver has logged the number",
    ),
    Key(
        [_OF_CONSUMER["attempts"]], "string", "driver",
        "beside one stream that the offset names: how many runs a batch has killed, and the pieces that are read"
        " separately",
        "with the first trigger of a run without `maxDeliveries` or with a new checkpoint; otherwise it stays",
    ),
    Key(
        [_OF_CONSUMER["tried"]], "hash", "a task, with `maxDeliveries`",
        "beside the same stream, by batch: Spark's number of it; used to ask the sink whether that batch is complete",
        "before the tasks of the next batch",
    ),
    Key(
        [_OF_CONSUMER["failure"]], "string", "`spark_streams.watch`, `run`",
        "beside the same stream: the error that ended a run, for the dead letter",
        "when a batch is set aside (`maxDeliveries`); otherwise it stays",
    ),
    Key(
        [keys.batch_kind_key(_QUERY)], "hash", "tasks",
        "fields `<kind> <batch>:<run ID>`, or `<kind> <batch>:any` if an operator sets it. Kinds: `narrowed`, a"
        " micro-batch that is a piece of an earlier one; `lossy`, a batch with fewer entries than before. Fields"
        " `reads:…`: the pattern that a source of the query reads, for its sink",
        "after a week; fields of a kind with those of a later batch",
    ),
    Key(
        [_OF_GROUP["forgotten"]], "string", "`rstream groups prune --hold`",
        "`<ms> <id>`: when the group was forgotten, and its position. Valid while the group stands there",
        "with the group, or by its query that accepts the loss",
    ),
    Key(
        [_OF_GROUP["copied"]], "string", "`rstream copy --groups`", "the group's position",
        "with the group, or after 30 days",
    ),
    Key(
        [_OF_GROUP["archive"]], "string", "job `archive`",
        "the job created the group before the stream's first entry",
        "if the group is not created after all; otherwise it stays",
    ),
)  # fmt: skip
SINK = (
    Key(
        [keys.record_key(_QUERY)], "hash", "sink",
        "the record: the last batch that wrote to each stream, and the last [closed](glossary.md) one",
        "stays with the query; a job's when it ends, a killed job's after a week",
    ),
    Key(
        [_LEDGER.head], "hash", "sink", "the head: batch, runs, done, rows, total",
        "when a batch that does not write to the stream is closed",
    ),
    Key([_LEDGER.parts], "set", "sink", "names of the keys below", "when the batch is closed"),
    Key(
        [_LEDGER.named("<batch>:<run>:<partition>")], "hash", "sink", "marks: fingerprints of written rows",
        "when the batch is closed",
    ),
    Key(
        [_LEDGER.named("<batch>:<run>:written"), _LEDGER.named("<batch>:<run>:claims")], "string", "sink",
        "number of rows written; rows of killed runs that were recognised", "when the batch is closed",
    ),
    Key(
        [_LEDGER.carried], "string", "sink", "fingerprints of rows that belong to later pieces",
        "when those pieces are written",
    ),
    Key(
        [keys.shards_key(_STREAM)], "hash", "driver, also of a query with option `shards`",
        "the stream has [shards](#shards): `shards` (how many), `rule`, `by` (the key column), `made` (all exist)",
        "`rstream shards orders --delete`",
    ),
    Key([keys.RUNS], "string", "driver", "the highest number that a run received", "stays"),
    Key(
        [keys.key_beside(_STREAM, "lease", f"load-{_QUERY}"), keys.session_key("load", _TOKEN)], "string", "job `load`",
        "the process that loads", "when it ends; the next process takes over that of a killed one",
    ),
    Key(
        [keys.pace_key("<name>")], "string", "tasks, with `rowsPerSecond`",
        "when the next rows may be sent, by the server's clock", "a minute after the last rows",
    ),
)  # fmt: skip
DEAD_LETTERS = (
    Key(
        [redrive_key(_DEAD)], "string", "`rstream dead redrive`",
        "its progress, and the streams that receive a page of dead letters",
        "when it has ended; a day after it was stopped or killed, unless a page is on its way",
    ),
    Key(
        [keys.key_beside(_DEAD, "lease", "redrive"), keys.session_key("redrive", _TOKEN)], "string", "the same",
        "the process that moves dead letters of this stream",
        "when it ends; the next process takes over that of a killed one",
    ),
    Key(
        [redriven_key(_STREAM, f"<{_DEAD}>")], "hash", "the same",
        "dead letters that the stream has received and that may still exist", "with the page",
    ),
    Key(
        [keys.key_beside(_STREAM, "retry", _GROUP, "<n>")], "stream",
        "driver; the sink, for dead letters of `route_dead_letters`",
        "entries that have failed n times and wait for a retry (`retryDelay`)",
        "each when it is due; the empty stream stays",
    ),
    Key(
        [_OF_GROUP["returned"]], "stream", "driver", "returned entries; the group reads it",
        "each with the commit of its batch, at the latest when a query of the group starts after a crash; the empty"
        " stream stays",
    ),
    Key(
        [_OF_GROUP["delays"]], "string", "driver",
        "the delays, in milliseconds, for `rstream dead list` and metrics",
        "with the first start without `retryDelay` while entries wait",
    ),
    Key(
        [keys.origins_key(_DEAD)], "hash", "what writes dead letters",
        "streams and groups from which the dead letters come, for a"
        " [redrive](../guide/dead-letters.md#send-them-back)",
        "never",
    ),
    Key(
        [keys.key_beside(_DEAD, "outbox", _GROUP, "<stream>")], "hash",
        "driver, if the dead letters are in another slot",
        "entries that have a dead letter and may still be pending",
        "when they are acknowledged; stays if its group is deleted before that",
    ),
)  # fmt: skip
TABLES: Mapping[str, Sequence[Key]] = {"source": SOURCE, "sink": SINK, "dead-letters": DEAD_LETTERS}


def shown(name: str | bytes) -> str:
    """Return a name with its placeholders: `rstream:lease:{orders}:<group>:<consumer>`."""
    return unquote(name.decode() if isinstance(name, bytes) else name)


def writers(key: Key) -> list[str]:
    """Return the roles whose users may write all keys of a kind, by the patterns of their rights."""
    names = [shown(name).replace(_GROUP, "billing").replace(f"<{_DEAD}>", _DEAD) for name in key.names]
    return [role for role, (patterns, *_) in ROLES.items() if all(_is_allowed(name, patterns) for name in names)]


def _is_allowed(name: str, patterns: str) -> bool:
    globs = [pattern[1:].replace("totals", _STREAM) for pattern in patterns.split() if pattern[0] == "~"]
    return any(fnmatchcase(name, glob.replace("[^", "[!")) for glob in globs)


def rows_of(part: str) -> list[str]:
    """Return a table of keys: their names, types, roles, writers, contents, and when they are deleted."""
    rows = ["| key | type | role | written by | content | deleted |", f"|{'---|' * 6}"]
    for key in TABLES[part]:
        names = ", ".join(f"`{shown(name)}`" for name in key.names)
        rows.append(f"| {names} | {key.type} | {', '.join(writers(key))} | {key.by} | {key.content} | {key.deleted} |")
    return rows
