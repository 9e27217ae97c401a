"""What is written once, and what it is called on the server. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.keys import lossy_key, narrowed_key, record_key


@dataclass(frozen=True)
class Batch:
    """What is written once. query: the streaming query's id, or a job's own; number: of the micro-batch; run: who is
    executing it, later ones sort higher; expires: whether nobody can replay it once its job has ended."""

    query: str
    number: int
    run: str
    expires: bool

    @classmethod
    def of_job(cls, run: str) -> Batch:
        """One `df.write`: nothing but its own tasks' retries and twins writes it again."""
        return cls(f"job-{run}", 0, run, True)

    @classmethod
    def of_query(cls, query: str, number: int, run: str, transaction: str | None = None) -> Batch:
        """A micro-batch. query: Spark's id of it; transaction: the name of one of several writes that it makes."""
        return cls(query if transaction is None else f"{query}.{transaction}", number, run, False)

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
        """Where the source says that the batch is a piece of one that was cut."""
        return narrowed_key(self.query.partition(".")[0])

    @property
    def lossy(self) -> str:
        """Where the source says that the batch has fewer entries than it had."""
        return lossy_key(self.query.partition(".")[0])

    @property
    def record(self) -> str:
        """The key that knows the query's streams, and what is closed."""
        return record_key(self.query)

    def is_named_by(self, value: bytes | None) -> bool:
        """Whether what stands under `told` or `lossy` speaks of this batch."""
        return value == str(self.number).encode()
