"""Batch: the unit that is written once, and the names of its keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.connector import keys


@dataclass(frozen=True)
class SourceReport:
    """What the source reports of a batch. narrowed: it is a piece of a batch that was cut; lossy: some of its entries
    were lost after it was first read."""

    narrowed: bool = False
    lossy: bool = False


@dataclass(frozen=True)
class Batch:
    """Unit that is written once."""

    query: str  # ID of the streaming query, or of a job
    number: int  # of the micro-batch
    run: str  # its run; later ones sort higher
    expires: bool  # it cannot be replayed after its job has ended
    query_run: str = ""  # Spark's ID of the query's run

    @classmethod
    def of_job(cls, run: str) -> Batch:
        """Return the batch of one `df.write`: only retried and speculative tasks of the job write it again."""
        return cls(f"job-{run}", 0, run, True)

    @classmethod
    def of_query(cls, name: keys.MicroBatchName, run: str, transaction: str | None = None) -> Batch:
        """Return the batch of a micro-batch. transaction: the name of one of several writes within it."""
        query = name.query if transaction is None else f"{name.query}.{transaction}"
        return cls(query, name.number, run, False, name.query_run)

    @property
    def is_named_write(self) -> bool:
        """Whether the user's function decides whether the batch is written."""
        return "." in self.query

    @property
    def follows_another(self) -> bool:
        """Whether the sink must have closed a batch of this query before. Spark numbers the first batch 0, and the sink
        closes each batch, also without rows. A named write may be missing in any batch."""
        return self.number > 0 and not self.is_named_write

    @property
    def micro_batch(self) -> keys.MicroBatchName | None:
        """The micro-batch that it is a part of; None for the batch of a job."""
        return None if self.expires else keys.MicroBatchName(self.query.partition(".")[0], self.number, self.query_run)

    @property
    def kind_key(self) -> str:
        """The key in which the source reports the kind of the batch."""
        return keys.batch_kind_key(self.query.partition(".")[0])

    @property
    def kind_command(self) -> tuple[str, ...]:
        """The command whose reply `read_kind` takes."""
        kinds = ((keys.NARROWED, self.query_run), (keys.LOSSY, self.query_run), (keys.LOSSY, keys.ANY_RUN))
        return ("HMGET", self.kind_key, *(keys.batch_kind_field(kind, self.number, run) for kind, run in kinds))

    def read_kind(self, reply: Sequence[bytes | None]) -> SourceReport:
        """Return the kind of the batch that the source reported in this run of the query. An operator may declare the
        batch lossy in any run."""
        narrowed, lossy, lossy_in_any_run = reply
        return SourceReport(narrowed is not None, lossy is not None or lossy_in_any_run is not None)

    @property
    def record(self) -> str:
        """The key of the query's record: its streams, and the last batch that is closed."""
        return keys.record_key(self.query)
