"""Name of a micro-batch. Pure."""

from __future__ import annotations

from typing import NamedTuple


class MicroBatchName(NamedTuple):
    """query: ID of the query; number: of the batch; query_run: Spark's ID of the run, which has one batch a number."""

    query: str
    number: int
    query_run: str = ""
