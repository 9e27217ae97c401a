"""Check that Spark commits each batch before it plans the next one (docs/internals/facts.md, S3).

With `asyncProgressTrackingEnabled`, Spark plans a batch while the log of the batch before it is not written, and writes
no log for most batches. A source cannot see the options of its query's sink. It sees that `commit` is not called.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.connector.errors import UnsupportedError


@dataclass
class CommitCalls:
    """Names of the last batch that this run has planned, and of the last one that Spark has committed."""

    planned: str = ""
    committed: str = ""

    def plan(self, before: str, batch: str) -> None:
        """Note a batch that is planned. before: the name of the batch before it.

        Raises UnsupportedError if this run has planned the batch before it, and Spark has not committed that."""
        if before and before == self.planned and before != self.committed:
            raise UnsupportedError(
                "the query runs with asyncProgressTrackingEnabled: Spark starts a micro-batch before the one before it "
                "is in the checkpoint, so the source cannot know which entries it may acknowledge. Remove the option "
                "asyncProgressTrackingEnabled from writeStream"
            )
        self.planned = batch
