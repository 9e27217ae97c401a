"""What all parts of a job have: keys of its configuration, lines of its plan, facts of its summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from spark_streams.connector.options.sink_options import SinkOptions
from spark_streams.connector.watch.lineage.datasets import Dataset

Facts = Mapping[str, object]


class JobPart:
    """Part of a job. KEYS: keys of the configuration; REQUIRED: dotted keys that must be set."""

    KEYS: ClassVar[Mapping[str, object]] = {}
    REQUIRED: ClassVar[Sequence[str]] = ()

    def plan(self) -> Facts:
        """Return the lines of `--check`."""
        return {}

    def summary(self) -> Facts:
        """Return the facts of the job's last line."""
        return {}


class WrittenPart(JobPart):
    """Part to which a query writes."""

    def streams(self) -> Mapping[str, SinkOptions]:
        """Return the streams among it, by the key that names each in messages."""
        return {}

    def datasets(self) -> Iterable[Dataset | None]:
        """Return its tables and streams for the lineage, None for those that rows name."""
        return ()

    def open(self, streams: Sequence[str]) -> None:
        """Get ready for the first micro-batch. streams: what the query reads."""
