"""What a run does, chosen by its seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

SCHEMA = "p STRING, n LONG, _stream STRING, _id STRING"
BAD = "none"  # a number that the schema cannot decode: the entry must become a dead letter


@dataclass(frozen=True)
class Plan:
    """prefix: of all names, also the group's; seconds: of faults; login: options of source and sink; spark_submit:
    command that starts a driver, empty: Spark of this Python; fails_over: ask for failovers; keeps: leave the keys."""

    prefix: str
    seed: int
    seconds: float
    login: Mapping[str, str]
    spark_submit: str = ""
    fails_over: bool = False
    keeps: bool = False

    @property
    def streams(self) -> list[str]:
        """Input streams."""
        return [f"{self.prefix}:in:{n}" for n in range(2)]

    @property
    def out(self) -> str:
        """Output stream."""
        return f"{self.prefix}:out"

    @property
    def dead(self) -> str:
        """Dead-letter stream."""
        return f"{self.prefix}:dead"

    def source(self) -> dict[str, str]:
        """Return the options of the source."""
        limit = self.chance("limit").choice([500, 1_000, 2_000])
        names = {"streams": ",".join(self.streams), "group": self.prefix, "deadLetterStream": self.dead, **self.login}
        choices = {"maxEntriesPerTrigger": str(limit), "ordered": "true", "mode": "DEADLETTER"}
        return {**names, **choices, "startingOffsets": "earliest"}

    def sink(self) -> dict[str, str]:
        """Return the options of the sink."""
        return {"stream": self.out, "chunkSize": str(self.chance("chunk").choice([100, 1_000, 5_000])), **self.login}

    def chance(self, use: str) -> random.Random:
        """Return a generator for one use, which the choices of other uses do not change."""
        return random.Random(f"{self.seed} {use}")
