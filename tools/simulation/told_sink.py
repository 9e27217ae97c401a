"""Plans by hand: the ledger of the exactly-once sink. Tasks stand still, drivers are killed, keys and rows are lost."""

from __future__ import annotations

from collections.abc import Mapping

from tools.simulation.histories import LENIENT, POISON, more
from tools.simulation.setup import Step
from tools.simulation.told_source import Told, at, told

RECORD = "rstream:sink:q0"
HEAD = "rstream:sink:{out}:q0"
KIND = "rstream:told:q0"  # what the source reports of the batch
A_CHUNK = "HLEN"  # the checks of a chunk, which come before it
READS = "XRANGE s:0 ("  # a task reads entries
CLOSES = f"HGETALL {RECORD}"  # the driver begins to close a batch
MIDDLE, LAST = 0.5, 0.99
TO_THE_END = 0.999


def deleted(key: str) -> Step:
    """The first key of this pattern is deleted."""
    return Step("evict", options=(("key", key),))


def deleted_at(key: str, text: str) -> Step:
    """The same, before the first request with this text."""
    return at(text, "evict", options=(("key", key),))


def one_pending_deleted(nth: int, amount: float) -> Step:
    """An entry of the batch is deleted before a task reads entries for the nth time."""
    return at(READS, "delete", nth, amount=amount, how=0.6)


# A task stands still before it names its stream in the record, and has read all entries of its batch, which are then
# trimmed: the next execution has none.
NAMES_ITS_STREAM_LATER = (
    at(f"HSET {RECORD}", "twin", how=TO_THE_END),
    at(READS, "trim", amount=LAST),
)

SINK: Mapping[str, Told] = {
    "a second attempt in a run after a killed one": told(
        ("killed", "batch 1: 6"), "trigger", more(5), at(A_CHUNK, "kill", 3), "trigger", at(A_CHUNK, "fail", 3),
        "trigger", "trigger", sink="once",
    ),
    "a retry with fewer rows": told(
        "in an earlier attempt that this one does not have", "trigger", more(5), at(A_CHUNK, "fail", 3),
        one_pending_deleted(3, MIDDLE), deleted_at(KIND, f"HMGET {KIND}"), "trigger", "trigger", sink="once", **LENIENT,
    ),
    "a run with fewer rows": told(
        "an earlier run of batch 1 of query q0 wrote 1 rows", "trigger", more(5), at(A_CHUNK, "kill", 3), "trigger",
        one_pending_deleted(1, MIDDLE), deleted_at(KIND, f"HMGET {KIND}"), "trigger", "trigger", sink="once", **LENIENT,
    ),
    "a copy of a task has more rows": told(
        "has 4 rows for stream 'out', but the ledger has 5", "trigger", more(5), at("EXEC", "twin", 3, how=TO_THE_END),
        one_pending_deleted(1, LAST), at(CLOSES, "wake"), deleted_at(KIND, f"HMGET {KIND}"), "trigger", "trigger",
        sink="once", **LENIENT,
    ),
    "the number of rows is deleted": told(
        "has 5 rows for stream 'out', but the ledger has 0", deleted_at(f"{HEAD}:0:*:written", CLOSES), "trigger",
        "trigger", sink="once",
    ),
    "marks are deleted before the batch is closed": told(
        "has lost the marks", at(A_CHUNK, "kill", 4), "trigger", deleted_at(f"{HEAD}:0:*:0", CLOSES), "trigger",
        sink="once",
    ),
    "the ledger is deleted between two batches": told(
        "is the first batch of the query on this server", "trigger", deleted(RECORD), deleted(HEAD), more(2), "trigger",
        sink="once",
    ),
    "restored between two batches": told(
        "batches 1 to 2 of query q0 came before batch 3", "trigger", Step("backup"), more(2), "trigger", more(2),
        "trigger", "trigger", Step("restore"), more(2), "trigger", "trigger", sink="once",
    ),
    "restored amid a task": told(
        "task 0 fails: [RSTREAM_LEDGER] 1 chunks that batch 1 of query q0 wrote", "trigger", more(5),
        at(A_CHUNK, "backup", 2), at(A_CHUNK, "restore", 4), "trigger", "trigger", sink="once",
    ),
    "a task of a killed run begins": told(
        "it ends: [RSTREAM_LEDGER] another run of batch 0", at("UNWATCH", "twin", how=TO_THE_END), at(A_CHUNK, "kill"),
        "trigger", at(A_CHUNK, "wake"), "trigger", "trigger", sink="once",
    ),
    "a task of a killed run goes on": told(
        "it ends: [RSTREAM_LEDGER] another run of batch 0", at("EXEC", "twin", 3, how=TO_THE_END), at(READS, "kill"),
        "trigger", at(A_CHUNK, "wake"), "trigger", "trigger", sink="once",
    ),
    "a task begins a stream after its batch": told(
        "it ends: None", *NAMES_ITS_STREAM_LATER, "trigger", more(1), at("UNWATCH", "wake"), "trigger", "trigger",
        sink="once", never="RSTREAM_LEDGER", **LENIENT,
    ),
    "a task begins a stream while its batch is closed": told(
        "keeping 5 rows of entries that were lost since", *NAMES_ITS_STREAM_LATER, at(f"WATCH {RECORD}", "wake"),
        "trigger", more(1), "trigger", "trigger", sink="once", never="RSTREAM_LEDGER", **LENIENT,
    ),
    "killed while its batch is closed": told(
        (), more(2), Step("crash"), "trigger", at(f"WATCH {RECORD}", "kill"), "trigger", "trigger", "trigger",
        "trigger", sink="once", **POISON,
    ),
    "a batch that was cut has no record": told(
        (), more(2), Step("crash"), Step("crash"), "trigger", "trigger", deleted(RECORD), "trigger", "trigger",
        "trigger", "trigger", sink="once", entriesPerPartition="2", **POISON,
    ),
}  # fmt: skip
