"""What a query may find when it compares its streams and groups with its checkpoint. Values only.

    Snapshot ─▶ diagnose() ─▶ Finding ─▶ REMEDIES ─▶ an error, or a Repair that the reconciler carries out
    (snapshot)  (diagnosis)              (remedies)  (data_loss)    (repair, microbatch.reconcile)

Tasks, claims and replays of a batch report findings of their own; the same table decides about them.

To add a finding:

1. Add a `Kind` here. Its value is the sentence that docs/reference/data-loss.md shows.
2. Return it from `diagnosis._Stream._problem` (the first match counts) or `explained`, or report it where it is found.
3. Add what is wrong to `messages.PROBLEMS`, and its rows to `remedies.SECTIONS`.
4. If the query is to do something new, add an `Act`, a field of `Repair`, and the step in `Reconciler._carry_out`.
5. Print the tables into docs/reference/data-loss.md (`python -m tools.reference`). Tests fail if
   you leave out 3 or 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_streams.model.ids import MIN_ID, StreamId


class Kind(Enum):
    """Kind of a finding. The value is the sentence that docs/reference/data-loss.md shows."""

    STREAM_LEFT = "A stream of the pattern is missing. The query had nothing to read from it."
    PATTERN_STREAM_GONE = "A stream of the pattern is missing. The query had read entries of it, or was to read some."
    STREAM_GONE = "The stream is missing, and so is its group."
    STREAM_REPLACED = "The stream was deleted, and another stream was created under its name."
    GROUP_GONE = "The group is missing. Its stream exists, and nothing shows that it was created again."
    SERVER_RESTORED = "The server returned to an older state, without entries that the query has seen."
    DELIVERIES_LOST = "The server returned to an older state: all entries are there, but the group is lower."
    GROUP_BEHIND = "The group was set back below the checkpoint, or was created again there."
    CHECKPOINT_OLDER = "The commit mark is above the checkpoint: the checkpoint is an older copy."
    CONSUMER_GONE = "The group no longer has the query's consumer: it was created again, or the consumer was deleted."
    GROUP_AHEAD = "The group was set forward: entries above the checkpoint were delivered to no consumer."
    CHECKPOINT_OLDER_UNMARKED = (
        "The group has read entries that the checkpoint does not know, and the commit mark is missing."
    )
    OTHERS_LEFT = "Another consumer has read from the group, and has left it."
    REREAD_ASKED = (
        "The query uses an older copy of its checkpoint, and the group was set back to its position, so that the query "
        "reads the entries again."
    )
    ENTRIES_LOST = "Entries were trimmed or deleted before the query read them, or the server has lost them."
    BATCH_GONE = "Entries of a batch were trimmed, deleted or claimed by others before a task read them."
    PENDING_TAKEN = (
        "Another client acknowledged or claimed entries that were pending for the query, before the query read them."
    )
    PENDING_REMOVED = "Pending entries were trimmed or deleted before the query could claim them."
    LETTER_GONE = "Entries were trimmed or deleted before they became dead letters."
    NOTES_GONE = (
        "The key `rstream:notes:…`, in which tasks note entries that do not fit the schema, was deleted before the "
        "batch was committed."
    )


class GroupUse(Enum):
    """How a query uses a group: alone, together with other consumers, or (noAck) only to show where it is."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    BOOKMARK = "bookmark"


@dataclass(frozen=True)
class Start:
    """A position for a group: it delivers the entries above it."""

    position: StreamId
    read: int | None = None  # how many entries the stream has had up to there; None: unknown
    amid: bool = False  # the stream had entries up to there when the position was chosen, so that number stays

    def words(self) -> tuple[str, ...]:
        """Return the option of XGROUP CREATE and SETID that sets how many entries the group has read."""
        return () if self.read is None else ("ENTRIESREAD", str(self.read))


@dataclass(frozen=True)
class Finding:
    """One finding about one stream."""

    kind: Kind
    stream: str
    group_use: GroupUse = GroupUse.EXCLUSIVE
    above: StreamId = MIN_ID  # entries above it are concerned: the checkpoint's position, unless more is known
    position: StreamId | None = None  # the group's; None: there is no group
    mark: StreamId | None = None  # the commit mark's position; None: there is no mark
    to: Start = Start(MIN_ID)  # where the query goes on if no error is raised
    lost: int | None = 0  # entries that are lost; None: at least one, and the server cannot tell how many
    committed: int | None = 0  # how many of them were read and committed; None: perhaps some
    other: str = ""  # another consumer of the group
    detail: str = ""  # words for the message, such as which entries
