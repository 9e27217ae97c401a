"""Plans by hand of the source: its begin, shared groups, reserved entries, modes, processes and refused commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tools.simulation.histories import CLAIMS, LENIENT, POISON, more, plan
from tools.simulation.in_process.refusals import CODES
from tools.simulation.powers_spark import TWIN_TICKS
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
