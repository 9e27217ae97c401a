"""Plans by hand: one command that the server refuses once, with LOADING."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tools.simulation.histories import more
from tools.simulation.in_process.refusals import CODES
from tools.simulation.step import Step
from tools.simulation.told_plan import Told, at, told

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
