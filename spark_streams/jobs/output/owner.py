"""Owner of an output: the query whose batches the output has, recorded in the output itself.

| output | where its owner is recorded |
|---|---|
| folder of files, Delta table by path (`delta`) | the file `_schema.json` in it |
| `deltalake`, `pyiceberg`, table of Spark's catalog | the table's property `spark-streams.owner` |
| other formats, and `shared = true` | nowhere |

A job looks for another owner before its query starts. It records itself with its first batch: the query then holds the
lease of its group, so no other run of the query writes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import SparkSession

from spark_streams.connector.errors import TableError
from spark_streams.connector.micro_batch import application
from spark_streams.jobs.job import Job
from spark_streams.jobs.output.batch_name import query_id
from spark_streams.jobs.output.store import read_text

PROPERTY = "spark-streams.owner"
TAKE_OVER = "--take-over"


class Owner(NamedTuple):
    """application: `<query>:<output>`, which identifies it; job, group: of the query, for messages."""

    application: str
    job: str = ""
    group: str = ""

    def to_json(self) -> str:
        """Return it as the value of a property."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str | None) -> Owner | None:
        """Parse the value of a property, None without one. Raises ValueError."""
        if text is None:
            return None
        fields = json.loads(text)
        if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
            raise ValueError(f"{text!r} names no owner")
        return cls(str(fields.get("application", "")), str(fields.get("job", "")), str(fields.get("group", "")))

    @property
    def shown(self) -> str:
        query, _, output = self.application.partition(":")
        name = f"query {query}" if query else "a query with a new checkpoint"
        return f"output {output!r} of job {self.job or '?'}, group {self.group!r} ({name})"


@dataclass(frozen=True)
class Claimant:
    """The job that writes an output. query: the ID in its checkpoint, "" if the checkpoint is new; take_over: whether
    it may take an output from another owner."""

    job: str = ""
    group: str = ""
    query: str = ""
    take_over: bool = False

    @classmethod
    def of_job(cls, job: Job, spark: SparkSession) -> Claimant:
        text = read_text(spark, str(job.get("job.checkpoint")), "metadata")
        return cls(job.name, str(job.get("source.group")), json.loads(text)["id"] if text else "", job.take_over)

    def before_start(self, output: str) -> Owner:
        """Return this job as the owner of an output, before its query starts."""
        return Owner(application(self.query, output), self.job, self.group)

    def of_running_query(self, spark: SparkSession, output: str) -> Owner:
        """Return this job as the owner of an output, on the thread of its query."""
        return Owner(application(query_id(spark), output), self.job, self.group)

    def check(self, shown: str, where: str, found: Owner | None, ours: Owner) -> str:
        """Return what `--check` says about an owner. shown: the table; where: its settings. Raises TableError."""
        if found is None or found.application == ours.application:
            return ""
        if self.take_over:
            return f"taken over from {found.shown}"
        raise TableError(
            f"{shown} belongs to {found.shown}, and this is {ours.shown}: two queries must not write one table. Write "
            f"to another table ({where}). If this job is to continue the table instead, stop the other one, and start "
            f"this one once with {TAKE_OVER}"
        )
