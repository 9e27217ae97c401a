"""TaskContext of PySpark for the simulation: the task and the micro-batch that a thread executes.

See docs/internals/facts.md, S8.
"""

from __future__ import annotations

import threading

_current = threading.local()


class TaskPlace:
    """One execution of a task."""

    def __init__(self, query: str, number: int, query_run: str, partition: int) -> None:
        self._properties = {
            "sql.streaming.queryId": query,
            "streaming.sql.batchId": str(number),
            "spark.jobGroup.id": query_run,
        }
        self._partition = partition

    def __enter__(self) -> None:
        _current.place = self

    def __exit__(self, *_: object) -> None:
        _current.place = None

    @staticmethod
    def get() -> TaskPlace | None:
        """Return the task of this thread; None on the driver."""
        return getattr(_current, "place", None)

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)

    def partitionId(self) -> int:
        return self._partition
