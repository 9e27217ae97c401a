"""Moments of a query at which something happens to its server: between two of its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql.streaming.query import StreamingQuery

from tools.chaos.query import Fault, Query
from tools.chaos.scene import Scene

STAGES = ("started", "looked", "reserved", "logged", "reading", "writing", "closing", "written", "committed")


@dataclass(frozen=True)
class Moment:
    """Moment of a query. stage: a kill point; rows: that its task has processed by then."""

    stage: str
    batch: int = 1
    rows: int = 0

    @classmethod
    def by_chance(cls, scene: Scene, *stages: str) -> Moment:
        """Return a random moment in one of these stages."""
        stage = scene.random.choice(stages)
        batch = 0 if stage == "started" else scene.random.randint(0, 1)
        return cls(stage, batch, scene.random.choice([0, 5, 20]))

    @property
    def fault(self) -> Fault:
        """The fault that makes a query stand still at this moment."""
        return Fault("pause", self.batch, self.stage, self.rows)

    def __str__(self) -> str:
        return f"{self.stage}, batch {self.batch}"


def run_to_moment(scene: Scene, query: Query, moment: Moment, act: Callable[[], None]) -> StreamingQuery:
    """Run the query up to the moment, and act. Return the running query.

    Raises AssertionError if the moment does not come.
    """
    running = scene.start(query)
    scene.wait_for(query.held, f"the moment ({moment})", running)
    act()
    scene.resume(query)
    return running
