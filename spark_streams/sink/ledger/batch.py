"""What is written once, and what it is called on the server. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.model.keys import ANY_RUN, LOSSY, NARROWED, record_key, told_key, told_value
from spark_streams.model.micro_batch import MicroBatchName


@dataclass(frozen=True)
class Kind:
    """What the source tells of a batch. narrowed: it is a piece of one that was cut; lossy: some of its entries are
    lost since it was first read."""

    narrowed: bool = False
    lossy: bool = False


@dataclass(frozen=True)
class Batch:
    """What is written once. query: the streaming query's id, or a job's own; number: of the micro-batch; run: who is
    executing it, later ones sort higher; expires: whether nobody can replay it once its job has ended; query_run:
    Spark's id of the query's run."""

    query: str
    number: int
    run: str
    expires: bool
    query_run: str = ""

    @classmethod
    def of_job(cls, run: str) -> Batch:
        """One `df.write`: nothing but its own tasks' retries and twins writes it again."""
        return cls(f"job-{run}", 0, run, True)

    @classmethod
    def of_query(cls, of: MicroBatchName, run: str, transaction: str | None = None) -> Batch:
        """A micro-batch. transaction: the name of one of several writes that it makes."""
        query = of.query if transaction is None else f"{of.query}.{transaction}"
        return cls(query, of.number, run, False, of.query_run)

    @property
    def is_named_write(self) -> bool:
        """Whether the user's function decides if it is written at all."""
        return "." in self.query

    @property
    def follows_another(self) -> bool:
        """Whether the sink must have closed a batch of this query before: Spark numbers the first one 0, and each batch
        is closed, also if it has no rows. A named write may be left out of any of them."""
        return self.number > 0 and not self.is_named_write

    @property
    def told(self) -> str:
        """The key under which the source tells what the batch is."""
        return told_key(self.query.partition(".")[0])

    @property
    def asks_kind(self) -> tuple[str, ...]:
        """The command whose reply `kind` reads."""
        return ("HMGET", self.told, NARROWED, LOSSY)

    def kind(self, reply: Sequence[bytes | None]) -> Kind:
        """What the batch is, by what was told in this run of the query. An operator may call it lossy in any run. A
        number without a run, as another version wrote it, counts as nothing: the source tells it in each run."""
        narrowed, lossy = reply
        here, in_any_run = (told_value(self.number, run).encode() for run in (self.query_run, ANY_RUN))
        return Kind(narrowed == here, lossy in (here, in_any_run))

    @property
    def record(self) -> str:
        """The key that knows the query's streams, and what is closed."""
        return record_key(self.query)
