"""The source learns from Spark's calls that a query runs with asyncProgressTrackingEnabled."""

from __future__ import annotations

import pytest

from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.spark.data_source import CommitCalls


def test_a_batch_that_is_planned_before_the_one_before_it_is_committed_is_refused() -> None:
    calls = CommitCalls()
    calls.plan("", "a")
    calls.committed = "a"
    calls.plan("a", "b")
    calls.plan("a", "b")  # for another action on the batch
    with pytest.raises(UnsupportedError, match="Remove the option asyncProgressTrackingEnabled from writeStream"):
        calls.plan("b", "c")


def test_batches_of_an_earlier_run_are_not_of_interest() -> None:
    """A restart plans the batch that was logged, and Spark has committed the one before it in another process."""
    calls = CommitCalls()
    calls.plan("a", "b")
    calls.committed = "b"
    calls.plan("b", "c")
    assert calls == CommitCalls("c", "b")
