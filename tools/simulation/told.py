"""Plans by hand that go one way: what their story must tell, in this order. Each is for a rare case.

A moment is a number of ticks, or a request: `at("EXEC", "twin", 3)` is a copy of a task that stands still before its
third `EXEC`, and `at("HLEN", "wake")` lets it continue before the next chunk of another task, also in the next run.
Prefer a request: a change of the product does not move it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import redis

from tools.servers.server import Server
from tools.simulation.histories import LENIENT, more
from tools.simulation.run import run
from tools.simulation.setup import Step
from tools.simulation.told_sink import SINK
from tools.simulation.told_source import ACCOUNTS, MODES, PROCESSES, REFUSALS, Told, told

TRIM_ALL = Step("trim", amount=0.99)
VANISH = Step("vanish")
BOB_READS_ONE = Step("read")
MADE_AGAIN_AT_THE_END = Step("remake", how=0.0)

TOLD: Mapping[str, Told] = {
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
    "numbers go on under a new checkpoint": told(
        "older copy of the checkpoint", "trigger", more(1), "trigger", "trigger", Step("renew"), more(1), "trigger",
        more(1), "trigger", "trigger", Step("rollback", amount=0.01, how=0.9), "trigger",
    ),
    **ACCOUNTS,
    **MODES,
    **PROCESSES,
    **REFUSALS,
    **SINK,
}  # fmt: skip


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
