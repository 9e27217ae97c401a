"""What a query may find when it compares its streams and groups with its checkpoint. Values only.

    Look ─▶ compare() ─▶ Finding ─▶ REMEDIES ─▶ an error, or a corrected start (repair)
    (state)  (compare)              (remedies)   (report)     (trigger.observe)

Tasks, claims and replays of a batch report lost entries as findings, too; the same table decides about them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_streams.base.ids import MIN_ID, StreamId


class Kind(Enum):
    """Kind of a finding. The value is the sentence that docs/reference/data-loss.md shows."""

    STREAM_MISSING = "The stream is missing, and so is its group."
    STREAM_REPLACED = "The group is missing, and the stream is not the one that the query has read."
    GROUP_MISSING = "The group is missing. Its stream exists."
    GROUP_BELOW = "The group is below the checkpoint."
    GROUP_ABOVE = "The group is above the checkpoint, and the entries in between are not pending for the query."
    CHECKPOINT_OLDER = "The query has committed a batch that the checkpoint does not have: it is an older copy."
    SERVER_RESTORED = "The server has returned to an older state, without entries that the query has seen."
    ENTRIES_LOST = "Entries are missing that no batch has read."
    NOTES_LOST = "The notes of a batch (`mode=DEADLETTER`) are missing, or older than the batch."


class GroupUse(Enum):
    """Whether other consumers are in the query's group, now or at the last offset."""

    ALONE = "alone"
    SHARED = "shared"


@dataclass(frozen=True)
class Start:
    """A position for a group: it delivers the entries above it. read: how many entries were ever added up to there,
    None: unknown; passed: entries that the stream has below `latest`."""

    position: StreamId
    read: int | None = None
    passed: int = 0

    def words(self) -> tuple[str, ...]:
        """Return the option of XGROUP CREATE and SETID that sets how many entries the group has read."""
        return () if self.read is None else ("ENTRIESREAD", str(self.read))


@dataclass(frozen=True)
class Finding:
    """One finding about one stream.

    above: the checkpoint's position, or the entry above which entries are missing; position: of the group, None: there
    is no group; mark: position of the commit mark, None: there is none; lost: unread entries that are lost, at least;
    for SERVER_RESTORED, entries that the server no longer has, read ones, too; is_exact: whether exactly so many are;
    other: another consumer of the group; detail: which entries, for ENTRIES_LOST; is_harmless: a strict query need not
    stop: all entries up to the checkpoint are there and the query is alone (GROUP_BELOW), or the loss was accepted
    before; is_left: the missing stream is one of a pattern, and the query stops reading it.
    """

    kind: Kind
    stream: str
    group_use: GroupUse = GroupUse.ALONE
    above: StreamId = MIN_ID
    position: StreamId | None = None
    mark: StreamId | None = None
    lost: int = 0
    is_exact: bool = True
    other: str = ""
    detail: str = ""
    is_harmless: bool = False
    is_left: bool = False
