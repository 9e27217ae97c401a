"""The batch that Spark is at: made by this run, or read again after a crash."""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.source.entry_range import EntryRange
from spark_streams.source.offset import Offset


@dataclass
class CurrentBatch:
    """end: its offset, whose token names it; ranges: what it holds, None until that is known; is_new: this run has made
    it; is_counted: this run's attempt at it was counted; is_opened: this run has opened its notes (task_notes); is_cut:
    its entries were set aside, and what is left of it is less (source.recovery.poison_batch)."""

    end: Offset
    ranges: list[EntryRange] | None = None
    is_new: bool = False
    is_counted: bool = False
    is_opened: bool = False
    is_cut: bool = False
