"""Plans by hand that go one way: what their story must tell, in this order. Each is for a rare case.

A moment is a number of ticks, or a request: `at("EXEC", "twin", 3)` is a copy of a task that stands still before its
third `EXEC`, and `at("HLEN", "wake")` lets it continue before the next chunk of another task, also in the next run.
Prefer a request: a change of the product does not move it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import redis

from tools.servers.server import Server
from tools.simulation.histories import CLAIMS, LENIENT, POISON, more, plan
from tools.simulation.in_process.refusals import CODES
from tools.simulation.powers_spark import TWIN_TICKS
from tools.simulation.run import run
from tools.simulation.setup import NEVER_AHEAD, Plan, Step

# -- a plan that goes one way ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """A plan, texts of its story in their order, and a pattern that is nowhere in it ("": there is none)."""

    plan: Plan
    texts: Sequence[str]
    never: str = ""


def told(
    texts: str | Sequence[str],
    *steps: Step | str,
    sink: str = "recorder",
    ahead: int = NEVER_AHEAD,
    never: str = "",
    **options: str,
) -> Told:
    """Return a plan of one stream with five entries, or of those of option `streams`."""
    made = plan(*steps, sink=sink, **options)
    given = dict(made.setup.options)
    streams = len(given["streams"].split(","))
    if "streamsPattern" in options:
        del given["streams"]
    has_values = any("misfit" in (step, getattr(step, "kind", "")) for step in steps)
    made = replace(made, setup=replace(made.setup, streams=streams, ahead=ahead, options=given, has_values=has_values))
    return Told(made, (texts,) if isinstance(texts, str) else texts, never)


def at(
    text: str, kind: str, nth: int = 1, amount: float = 0.0, how: float = 0.0, options: Sequence[tuple[str, str]] = ()
) -> Step:
    """Return a step that happens before the nth request with this text. A twin stands still before its own one."""
    delay, amount = (0, (nth - 1) / TWIN_TICKS) if kind == "twin" else (nth, amount)
    return Step(kind, delay, amount=amount, how=how, options=tuple(options), at=text)


# -- the begin of a query, shared groups, what is reserved, and a server whose keys were put back ----------------------


BOB_READS_ONE = Step("read")
BOB_READS_ALL = Step("read", amount=0.9)
BOB_LEAVES = Step("leave")
TWO = "s:0,s:1"
OF_THE_SECOND = 0.9  # choice of the second stream
ERROR = r"\[RSTREAM"


def more_of_the_second(count: int) -> Step:
    """So many entries of the second stream."""
    return Step("add", choice=OF_THE_SECOND, amount=(count - 0.5) / 8)


ACCOUNTS: Mapping[str, Told] = {
    "an older copy that does not know the stream": told(
        (), Step("restart", options=(("streams", "s:0"),)), "trigger", more(2), "trigger",
        Step("restart", options=(("streams", TWO),)), more_of_the_second(3), "trigger", more_of_the_second(2),
        "trigger", "trigger", Step("rollback", amount=0.9, how=0.9), "trigger", streams=TWO,
    ),
    "a new checkpoint of a group that is shared for a while": told(
        (), "trigger", more(3), BOB_READS_ALL, "trigger", Step("renew"), "trigger", more(3), BOB_READS_ALL,
        BOB_LEAVES, "trigger", more(2), "trigger", never=ERROR,
    ),
    "others join a stream without a batch": told(
        (), "trigger", more_of_the_second(3), "trigger", Step("read", choice=OF_THE_SECOND), more(2), "trigger",
        more_of_the_second(3), Step("read", choice=OF_THE_SECOND, amount=0.4), Step("leave", choice=OF_THE_SECOND),
        "trigger", streams=TWO, never=ERROR,
    ),
    "added below the begin": told(
        (), "trigger", more(3), "trigger", Step("clock", how=0.6), more(2), "trigger", "trigger",
        startingOffsets="1700000000900-0", never=ERROR,
    ),
    "killed before the first trigger": told(
        "batch 0: 6, 7, 8", Step("kill", 24), "trigger", more(3), "trigger", "trigger", startingOffsets="latest"
    ),
    "numbers of another checkpoint": told(
        '43-0 3.', "trigger", more(1), "trigger", "trigger", Step("renew"), more(1), "trigger"
    ),
    "killed with reserved entries": told(
        "batch 2: 9, 10", "trigger", more(3), Step("kill", 7), "trigger", more(2), "trigger", "trigger"
    ),
    "trimmed before it is reserved ahead": told(
        ("offsets/0", "[RSTREAM_DATA_LOSS]", "batch 1"), more(2), "trigger", Step("trim", amount=3 / 7), "trigger",
        "trigger", maxEntriesPerTrigger="2", ahead=1,
    ),
    "one stream put back": told(
        "It has returned to an older state", "trigger", "trigger", Step("backup"),
        Step("restart", options=(("streams", TWO), ("maxEntriesPerTrigger", "1"))), more(1), more_of_the_second(1),
        "trigger", Step("import_backup"), "trigger", "trigger", streams=TWO,
    ),
    "all keys put back": told(
        (), "trigger", more(2), "trigger", Step("backup"), more(2), "trigger", "trigger", "trigger",
        Step("import_backup", how=0.9), "trigger", "trigger", failOnDataLoss="false",
    ),
    "sought to the checkpoint below a batch of another stream": told(
        (), more_of_the_second(2), "trigger", more_of_the_second(2), "trigger", more_of_the_second(2), "trigger",
        "trigger", Step("kill"), Step("seek", how=0.99), more(2), "trigger", Step("kill"), "trigger", streams=TWO,
        never=ERROR,
    ),
    "handed over below a batch of the second backlog": told(
        ("batch 2: 8", "batch 3: 6"), "trigger", more(3), BOB_READS_ALL, more(1), "trigger",
        Step("give", amount=0.01, how=0.9), "trigger", at("EXISTS rstream:notes", "give", amount=0.01), "trigger",
        "trigger", "trigger",
    ),
    "put back under a query that reserves ahead": told(
        (), "trigger", Step("backup"), "trigger", Step("import_backup", how=0.3), "trigger", "trigger",
        maxEntriesPerTrigger="1", ahead=1,
    ),
    "one stream and the dead letters put back": told(
        ("XADD dead", "import_backup", "XADD dead"), "trigger", more_of_the_second(1), "misfit", "trigger",
        Step("backup"), "trigger", Step("kill"), Step("import_backup", how=0.3), "trigger", "trigger", streams=TWO,
        mode="DEADLETTER", deadLetterStream="dead",
    ),
    "set back below a deleted entry": told(
        "is at 0-0, below the checkpoint", "trigger", "trigger", Step("delete", amount=0.99, how=0.76), Step("setid"),
        "trigger",
    ),
    "others join before it is reserved ahead": told(
        (), more(2), "trigger", BOB_READS_ONE, "trigger", "trigger", maxEntriesPerTrigger="2", ahead=1,
        never=r"\(background\)[^\n]*XREADGROUP",
    ),
    "others read amid a range": told(
        "batch 2: 9, 10, 11, 12, 13", "trigger", more(1), BOB_READS_ONE, more(1), "trigger", more(6), Step("read", 8),
        "trigger", "trigger",
    ),
    "deleted before others join and read nothing": told(
        "counted: 2", "trigger", "trigger", BOB_READS_ONE, more(5), Step("delete", amount=0.3, how=0.43), "trigger",
        "trigger", failOnDataLoss="false",
    ),
    "others leave before the connection breaks": told(
        (), "trigger", more(2), BOB_READS_ONE, "trigger", BOB_LEAVES, "trigger", "trigger", "trigger", more(3),
        Step("delete", amount=0.99, how=0.3), Step("cut", how=0.1), "trigger", "trigger", "trigger",
        failOnDataLoss="false", never="at least 1 entry above",
    ),
    "without a pending list below a deleted entry": told(
        (), "trigger", Step("kill"), Step("delete", amount=0.99, how=0.2),
        Step("restart", options=(("streams", "s:0"),)),
        "trigger", "trigger", noAck="true", never=ERROR,
    ),
    "killed before a batch with old entries is acknowledged": told(
        ("batch 2: 6, 9", "batch 3: 10"), "trigger", more(3), BOB_READS_ONE, "trigger", Step("give", amount=0.99),
        more(1), "trigger", more(1), at("XACK", "kill"), "trigger", "trigger", "trigger",
    ),
    "killed before the group of a new stream exists": told(
        ("killed", "batch 1: 11, 12"), Step("restart", options=(("streams", "s:0"),)), "trigger", more(2),
        more_of_the_second(3), "trigger", Step("restart", options=(("streams", TWO),)), at("XGROUP CREATE", "kill"),
        "trigger", more_of_the_second(2), "trigger", "trigger", streams=TWO, startingOffsets="latest",
    ),
    "left out before its batch is acknowledged": told(
        (), more_of_the_second(2), "trigger", more_of_the_second(3), "trigger",
        Step("restart", options=(("streams", "s:0"),)), "trigger", more(1), "trigger", "trigger", streams=TWO,
    ),
    "a shared group without a pending list": told(
        "[RSTREAM_GROUP_SHARED]", "trigger", BOB_READS_ONE, Step("kill"), "trigger", noAck="true"
    ),
}  # fmt: skip


# -- claims, batches that kill their query, notes, dead letters, and removal -------------------------------------------


BOB_READS_THREE = Step("read", amount=0.4)
BOB_DIES = Step("die")
CRASH = Step("crash")
CRASH_AFTER_THE_SINK = Step("crash", how=0.9)
DELETED_BEFORE_ITS_TASK = Step("delete", 16, amount=0.99, how=0.6)
LETTERS = {"mode": "DEADLETTER", "deadLetterStream": "dead"}
SETTLE_THE_LAST = Step("settle", amount=0.01, how=0.9)

MODES: Mapping[str, Told] = {
    "claimed below maxDeliveries": told(
        "batch 1: 6, 7, 8", "trigger", more(4), BOB_READS_THREE, BOB_DIES, "trigger", "trigger", **CLAIMS, **POISON
    ),
    "claimed from a query": told(
        "batch 1: 6, 7, 8", "trigger", more(4), BOB_READS_THREE, Step("enlist"), BOB_DIES, "trigger", "trigger",
        **CLAIMS, maxDeliveries="1", deadLetterStream="dead",
    ),
    "a batch that kills": told(
        ("batch 1: 1", "batch 2: 2"), more(2), CRASH, CRASH, "trigger", "trigger", "trigger", "trigger", "trigger",
        "trigger", **POISON,
    ),
    "pieces with rows of the batch": told(
        (), more(2), CRASH, CRASH, "trigger", "trigger", "trigger", "trigger", "trigger", "trigger", sink="once",
        entriesPerPartition="2", **POISON,
    ),
    "missed by a lenient run before a strict one": told(
        "counted: 1", "trigger", more(5), DELETED_BEFORE_ITS_TASK, "trigger",
        Step("restart", options=(("streams", "s:0"),)), "trigger", "trigger", **LENIENT,
    ),
    "entries that do not fit in a batch that kills": told(
        ("It is read as 3 pieces", "XADD dead"), "trigger", more(2), "misfit", CRASH, CRASH, "trigger",
        "trigger", "trigger", "trigger", "trigger", "trigger", **LETTERS, maxDeliveries="2",
    ),
    "killed after the sink": told(
        (), more(2), CRASH_AFTER_THE_SINK, CRASH_AFTER_THE_SINK, "trigger", "trigger", "trigger", "trigger",
        sink="once", **POISON,
    ),
    "set aside, and read without maxDeliveries": told(
        "It is read as", more(2), CRASH, CRASH, "trigger", "trigger", "trigger",
        Step("restart", options=(("streams", "s:0"),)), "trigger", "trigger", "trigger", **POISON,
    ),
    "pieces above an older copy": told(
        (), "trigger", more(3), CRASH, CRASH, "trigger", "trigger", "trigger", "trigger",
        Step("rollback", amount=0.9, how=0.9), "trigger", "trigger", "trigger", **POISON, **LENIENT,
    ),
    "acknowledged before its batch is read again": told(
        (), "trigger", more(5), Step("read"), "trigger", more(4), CRASH, "trigger", SETTLE_THE_LAST, "trigger",
        "trigger", sink="once", **LENIENT,
    ),
    "missed by two runs": told(
        (), "trigger", more(5), CRASH, DELETED_BEFORE_ITS_TASK, "trigger", "trigger", "trigger", **LENIENT
    ),
    "missed by a run whose batch is skipped": told(
        (), "trigger", more(5), CRASH_AFTER_THE_SINK, DELETED_BEFORE_ITS_TASK, "trigger", "trigger", "trigger",
        sink="skipping", **LENIENT,
    ),
    "noted by a run whose batch is skipped": told(
        (), "trigger", "misfit", CRASH_AFTER_THE_SINK, "trigger", "trigger", "trigger", sink="skipping", **LETTERS
    ),
    "a late note": told(
        (), "trigger", "misfit", Step("twin", amount=0.1, how=0.55), "trigger", more(1), "trigger", Step("kill"),
        "trigger", "trigger", **LETTERS,
    ),
    "only dead letters": told(
        ("XADD dead", "MULTI | XINFO STREAM", "offsets/2"), "trigger", "trigger", "misfit", "trigger", Step("kill"),
        more(2), "trigger", "trigger", **LETTERS,
    ),
    "sent back after a retry": told(
        (), "misfit", "trigger", "trigger", "trigger", "trigger", "trigger", Step("redrive", amount=0.9), "trigger",
        retryDelay="1ms", **LETTERS,
    ),
    "removed with its batch": told(
        ("offsets/1", "(background) XTRIM s:0 MINID = 1700000000042-3", "offsets/2"), "trigger", more(2), "trigger",
        more(2), "trigger", "trigger", onCommit="delete", never="ACKED",
    ),
    "passed over before it is removed": told(
        "batch 2: 8, 9, 10", "trigger", more(2), "trigger", more(3), Step("setid", how=0.999), "trigger", "trigger",
        onCommit="delete",
    ),
    "deleted before it is claimed": told(
        "counted: 1", "trigger", "trigger", more(4), BOB_READS_THREE, BOB_DIES, Step("delete", amount=0.4, how=0.6),
        "trigger", "trigger", **CLAIMS, **LENIENT,
    ),
    "claimed beside a dead letter": told(
        ("XCLAIM s:0 g spark", "XCLAIM s:0 g spark", "offsets/2"), "trigger", "trigger", more(3), BOB_READS_THREE,
        Step("give", amount=0.01), Step("grab", amount=0.01), BOB_DIES, "trigger", "trigger",
        maxEntriesPerTrigger="2", **CLAIMS, **POISON,
    ),
    "killed after missing entries were counted": told(
        "counted: 1", "trigger", more(5), DELETED_BEFORE_ITS_TASK, "trigger", at("XPENDING", "kill", 2), "trigger",
        "trigger", never="counted: 1.*counted: 1", **LENIENT,
    ),
    "a redrive beside another one": told(
        "redrive 2000000: RedriveReport", "misfit", "misfit", "trigger", "trigger",
        Step("redrive", amount=0.3, how=0.09),
        Step("redrive", amount=0.9, how=0.58), **LETTERS,
    ),
    "a redrive that is overtaken": told(
        (), "misfit", "misfit", "trigger", "trigger", Step("redrive", amount=0.3, how=0.09),
        Step("redrive", amount=0.664, how=0.68), Step("redrive", amount=0.9, how=0.09),
        Step("redrive", amount=0.9, how=0.09), **LETTERS,
    ),
    "a missing group is there again": told(
        ("XADD dead", "XADD dead"), "trigger", "misfit", "trigger", Step("backup"), Step("destroy"),
        at("XGROUP CREATE", "import_backup", how=0.9), at("XREADGROUP", "kill"), "trigger", "trigger", **LETTERS,
        **LENIENT,
    ),
}  # fmt: skip


# -- drivers that are killed amid their tasks, queries on another machine ----------------------------------------------


PROCESSES: Mapping[str, Told] = {
    "killed amid its tasks": told(
        ("killed", "batch 0: 1, 2, 3, 4, 5"), Step("kill", 150), "trigger", "trigger", sink="once",
        entriesPerPartition="2",
    ),
    "killed amid its tasks, and with others": told(
        ("killed", "batch 0: 1, 2, 3, 4, 5"),
        Step("restart", 150, options=(("streams", "s:0"), ("entriesPerPartition", "3"))), "trigger", "trigger",
        sink="once", entriesPerPartition="2",
    ),
    "a failover between two jobs": told(
        ("promote_beside", "batch 5: 11, 12"), more(8), "trigger", "trigger", Step("lag", amount=0.25), "trigger",
        "trigger", "trigger", ahead=1, maxEntriesPerTrigger="2",
    ),
    "once more on another machine": told("batch 1: 6, 7", "trigger", Step("elsewhere"), more(2), "trigger"),
    "after one on another machine": told(
        ("another running query is consumer", "batch 1: 6, 7"), "trigger", Step("kill"), Step("elsewhere"), more(2),
        "trigger", Step("perish"), "trigger",
    ),
    "a consumer on another machine": told(
        ("batch 1: 7, 8", "batch 2: 6"), "trigger", more(3), Step("read"), Step("guest"), Step("die"), "trigger",
        Step("perish"), Step("stall"), "trigger", claimIdle="30m",
    ),
}  # fmt: skip


# -- one command that the server refuses once, with LOADING ------------------------------------------------------------


LOADING = (CODES.index("LOADING") + 0.5) / len(CODES)


def refused(text: str, nth: int = 1) -> Step:
    """The server refuses a command of the nth request with this text: the first that LOADING applies to."""
    return replace(at(text, "refuse", nth), choice=LOADING)


REFUSALS: Mapping[str, Told] = {
    "a step of a probe is refused": told(
        ("refused alone: XREADGROUP", "batch 1: 4, 5, 6"), "trigger", more(8), refused("REPLY SKIP"),
        "trigger", "trigger", "trigger", noAck="true", maxEntriesPerTrigger="3",
    ),
    "a look at a note is refused": told(
        ("refused alone: XPENDING s:0 g 17", "XADD dead"), "trigger", more(1), Step("read"), "misfit", more(2),
        Step("crash", how=0.9), "trigger", refused("XPENDING s:0 g 17"), "trigger", "trigger", sink="skipping",
        mode="DEADLETTER", deadLetterStream="dead",
    ),
    "a look at the sink's record is refused": told(
        ("refused alone: HGETALL rstream:sink", "batch 1: 6, 7, 8, 9"), "trigger", more(4), Step("crash", how=0.9),
        "trigger", refused("HGETALL rstream:sink"), "trigger", "trigger", sink="once", maxDeliveries="1",
        deadLetterStream="dead",
    ),
}  # fmt: skip


# -- the ledger of the exactly-once sink: tasks stand still, drivers are killed, keys and rows are lost ----------------


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


# -- changes of streams, groups and checkpoints ------------------------------------------------------------------------


TRIM_ALL = Step("trim", amount=0.99)
VANISH = Step("vanish")
MADE_AGAIN_AT_THE_END = Step("remake", how=0.0)

CHANGES: Mapping[str, Told] = {
    "restored after two acknowledgements": told(
        ("batch 2: 5, 6", "batch 3: 7, 8", "batch 4: 9"),
        more(4), "trigger", "trigger", Step("backup"), "trigger", "trigger", "trigger", Step("kill"),
        Step("restore"), "trigger", maxEntriesPerTrigger="2",
    ),
    "unread in a missing stream": told("at least 3", "trigger", VANISH, "trigger", maxEntriesPerTrigger="2", **LENIENT),
    "another stream of this name": told("Another stream was created under", "trigger", VANISH, more(2), "trigger"),
    "another stream with lower IDs": told(
        "batch 1: 6, 7", "trigger", Step("clock", how=0.0), VANISH, more(2), "trigger", **LENIENT
    ),
    "shared group made again": told(
        "above the checkpoint's", "trigger", more(3), BOB_READS_ONE, "trigger", more(2), MADE_AGAIN_AT_THE_END,
        "trigger",
    ),
    "trimmed in a shared group": told(
        "at least 6", "trigger", BOB_READS_ONE, "trigger", more(6), TRIM_ALL, "trigger", **LENIENT
    ),
    "deleted above a shared group": told(
        "at least 1", "trigger", more(1), BOB_READS_ONE, "trigger", more(5),
        Step("delete", amount=0.4, how=0.3), "trigger",
    ),
    "deleted before others join": told(
        "counted: ", "trigger", more(5), Step("delete", amount=0.4, how=0.3), BOB_READS_ONE, "trigger", **LENIENT
    ),
    "restored with as many entries": told(
        "It has returned to an older state", "trigger", Step("backup"), more(3), "trigger", Step("restore"), more(5),
        "trigger", never="below the checkpoint",
    ),
    "handed to a query without a pending list": told(
        "no batch has read them", "trigger", more(2), BOB_READS_ONE, Step("give", amount=0.99), Step("leave"),
        "trigger", noAck="true",
    ),
    "an older copy without the stream": told(
        "older copy of the checkpoint", "trigger", Step("restart", options=(("streams", "s:0,s:1"),)),
        Step("add", choice=0.9, amount=0.5), "trigger", Step("add", choice=0.9, amount=0.5), "trigger", "trigger",
        Step("rollback", amount=0.99), "trigger", streams="s:0,s:1",
    ),
    "sought back": told("batch 1: 3, 4, 5", "trigger", Step("seek", how=0.4), "trigger", "trigger"),
    "sought to the checkpoint": told(
        "batch 1: 6, 7", "trigger", Step("seek", how=0.99), more(2), "trigger", "trigger", "trigger"
    ),
    "sought before the first batch": told(
        "batch 0: 4, 5, 6, 7, 8", "trigger", "trigger", more(3), Step("renew"), Step("seek", 35, how=0.4), "trigger",
    ),
    "an older copy": told(
        "older copy of the checkpoint", "trigger", more(2), "trigger", more(2), "trigger", "trigger",
        Step("rollback", amount=0.01, how=0.9), "trigger",
    ),
    "an older copy with an unfinished batch": told(
        ("batch 2: 8, 9", "older copy of the checkpoint", "batch 1: 6, 7"), "trigger", more(2), "trigger", more(2),
        "trigger", "trigger",
        Step("rollback", amount=0.01, how=0.1), "trigger",
    ),
    "restored under a running query": told((), Step("trigger"), Step("backup"), "trigger", Step("restore"), "trigger"),
    "three batches and a rest": told((), "trigger", more(2), "trigger", more(2), "trigger", "trigger", "trigger"),
    "handed over and new": told(
        ("batch 2: 9, 10, 11", "batch 3: 6, 7, 8", "batch 4: 12, 13, 14"), "trigger", "trigger", more(3),
        Step("read", amount=0.4), more(3), "trigger", more(3), Step("give", amount=0.99), "trigger", "trigger",
        maxEntriesPerTrigger='{"*": 3}',
    ),
    "missing stream of a pattern": told(
        "stops reading the stream", "trigger", "trigger", VANISH, "trigger", streamsPattern="s:*", **LENIENT
    ),
    "notes deleted after their batch": told(
        ("batch 1: 6", "the end"), "trigger", "trigger", Step("evict", choice=0.6), Step("kill"), more(1), "trigger",
        mode="DEADLETTER", deadLetterStream="dead",
    ),
    "what waits for a retry is deleted": told(
        "rstream:retry:{s:0}:g:1", "misfit", "trigger", "trigger", deleted("rstream:retry:*"), Step("wait", how=0.5),
        "trigger", "trigger", retryDelay="30s", never="XADD dead", **LETTERS,
    ),
    "restored without a dead letter": told(
        ("XADD dead", "was deleted while a batch", "XADD dead"), "misfit", "trigger", Step("backup"), more(1),
        "trigger", Step("kill"), Step("restore"), "trigger", mode="DEADLETTER", deadLetterStream="dead", **LENIENT,
    ),
    "deleted while it is read": told(
        "counted: 1", "trigger", more(5), Step("delete", 16, amount=0.99, how=0.6), "trigger", "trigger", **LENIENT
    ),
    "deleted while a strict query reads it": told(
        "of a batch", "trigger", more(5), Step("delete", 16, amount=0.99, how=0.6), "trigger", "trigger",
    ),
    "handed over within a batch": told(
        ("batch 1: 7, 8", "batch 2: 6"), "trigger", more(3), BOB_READS_ONE, Step("slow", 11, amount=0.01),
        Step("give", 14, amount=0.99), "trigger",
        "trigger",
    ),
    "a new checkpoint of a shared group": told(
        (), "trigger", more(3), BOB_READS_ONE, "trigger", Step("renew"), more(3), "trigger", "trigger", "trigger"
    ),
    "a missing group is there at a second look": told(
        "batch 1: 6, 7", "trigger", more(2), Step("backup"), Step("destroy"), at("XINFO STREAM", "import_backup", 3),
        "trigger", never=ERROR,
    ),
    "another client joins while entries are reserved": told(
        "batch 1", "trigger", more(8), more(4), at("XREADGROUP", "read"), "trigger", "trigger"
    ),
    "numbers go on under a new checkpoint": told(
        "older copy of the checkpoint", "trigger", more(1), "trigger", "trigger", Step("renew"), more(1), "trigger",
        more(1), "trigger", "trigger", Step("rollback", amount=0.01, how=0.9), "trigger",
    ),
}  # fmt: skip


# -- all of them -------------------------------------------------------------------------------------------------------


TOLD: Mapping[str, Told] = {**CHANGES, **ACCOUNTS, **MODES, **PROCESSES, **REFUSALS, **SINK}


def missing(server: Server, client: redis.Redis, name: str) -> str | None:
    """Run a plan. Return the kind of its failure, or the text that its story lacks; None: all is well."""
    story: list[str] = []
    told = TOLD[name]
    outcome = run(server, client, told.plan, story.append)
    if outcome.failures:
        return outcome.failures[0].kind
    if told.never and re.search(told.never, "\n".join(story), re.DOTALL):
        return f"tells: {told.never}"
    lines = iter(story)
    return next((f"does not tell: {text}" for text in told.texts if not any(text in line for line in lines)), None)
