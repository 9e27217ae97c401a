"""What a history knows to be true: its entries, and the files of its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tools.simulation.core_model.facts import ZERO, Id

BEFORE_FIRST = " before the first batch"  # of the checkpoint, that is: it cannot know of it


class KilledError(BaseException):
    """The process of the driver is killed. No code of the product may catch it."""


@dataclass
class Entry:
    """Truth about one entry.

    other: another consumer is or was responsible for it; needed: time since when it is ours again (handed over); hurt,
    cause: the last danger; reads: tokens of committed batches that have it, with the times; reread: how many of these
    do not count, because it was still pending when a new checkpoint began; undone: those that an older copy of the
    checkpoint lacks; dead: it is a dead letter; removed: it is not in the stream; vanished: the server has lost it;
    visible: a look of the query could notice that it is missing (it was above D and the server knew entries-read), or
    it was in a logged batch; forgotten: it was removed before the first batch of a new checkpoint, and was not
    pending."""

    other: bool = False
    needed: int = 0
    hurt: int = 0
    cause: str = "nothing"
    reads: list[tuple[str, int]] = field(default_factory=list)
    reread: int = 0
    undone: list[tuple[str, int]] = field(default_factory=list)
    dead: bool = False
    removed: bool = False
    vanished: bool = False
    visible: bool = False
    forgotten: bool = False

    def is_served(self) -> bool:
        """Whether a committed batch has it, it is a dead letter, or another consumer has it."""
        return self.dead or (self.other and not self.needed) or any(at >= self.needed for _, at in self.reads)


@dataclass
class Checkpoint:
    """Spark's offset log, and how many of its batches are in the commit log. inherited: tokens of the batches that were
    committed when it began."""

    offsets: list[Any] = field(default_factory=list)
    committed: int = 0
    inherited: frozenset[str] = frozenset()

    def batches(self) -> frozenset[str]:
        """Return the tokens of the batches whose rows the sink has."""
        return self.inherited | {offset.token for offset in self.offsets[: self.committed]}

    def end(self) -> Id:
        """Return the end of the last logged batch."""
        return self.offsets[-1].position if self.offsets else ZERO


@dataclass(frozen=True)
class Scenario:
    """powers: what may happen; amid: operators act between any two commands, not only between triggers; in_step:
    nothing happens between two commands, so that two subjects with other commands have the same history."""

    name: str
    powers: tuple[str, ...]
    strict: bool = True
    amid: bool = False
    in_step: bool = False
