"""Plans by hand: drivers that are killed amid their tasks, queries on another machine, and a failover between two jobs
of the background thread."""

from __future__ import annotations

from collections.abc import Mapping

from tools.simulation.histories import more
from tools.simulation.step import Step
from tools.simulation.told_plan import Told, told

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
