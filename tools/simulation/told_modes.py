"""Plans by hand: claims, batches that kill their query, notes, dead letters, and removal."""

from __future__ import annotations

from collections.abc import Mapping

from tools.simulation.histories import CLAIMS, LENIENT, POISON, more
from tools.simulation.step import Step
from tools.simulation.told_plan import Told, at, told

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
        "redrive 2000000: Report", "misfit", "misfit", "trigger", "trigger", Step("redrive", amount=0.3, how=0.09),
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
