"""What a query may find when it holds its streams and groups against its checkpoint. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_streams.ids import MIN_ID, StreamId


class Kind(Enum):
    """What is found of one stream. The value is the sentence that docs/data-loss.md shows."""

    STREAM_LEFT = "A stream of the pattern is gone, and the query had nothing to read from it."
    PATTERN_STREAM_GONE = "A stream of the pattern is gone, with entries that the query had read or was to read."
    STREAM_GONE = "The stream is gone, and its group with it."
    STREAM_REPLACED = "Another stream has the name of the one that the query has read."
    GROUP_GONE = "The group is gone. Its stream is as it was."
    SERVER_RESTORED = "The server came back without entries that the query has read and committed."
    DELIVERIES_LOST = "The server came back with all entries, but the group stands below the checkpoint."
    GROUP_BEHIND = "The group was set back below the checkpoint, or made anew there."
    CHECKPOINT_OLDER = "The commit mark is above the checkpoint: the checkpoint is an older copy."
    CONSUMER_GONE = "The group is above the checkpoint and no longer has the query's consumer."
    GROUP_AHEAD = "The group was set forward: entries above the checkpoint were given to nobody."
    CHECKPOINT_OLDER_UNMARKED = "The group has read more than the checkpoint knows of, and the commit mark is gone."
    OTHERS_LEFT = "Another consumer has read from the group, and left it."
    ENTRIES_LOST = "Entries above the query's position were trimmed or deleted before the query read them."
    BATCH_GONE = "Entries of a batch were trimmed or deleted before a task read them."
    PENDING_TAKEN = "Other clients acknowledged or claimed entries of a batch or claim that is to be read again."
    PENDING_REMOVED = "Pending entries were trimmed or deleted before the query could claim them."
    LETTER_GONE = "An entry was trimmed or deleted before it became a dead letter."
    NOTES_GONE = "The key with the notes of tasks (`rstream:notes:…`) was deleted while a batch was read."
    MARK_ABOVE = "The group was set back to an older copy of the checkpoint, to read again."


class Ownership(Enum):
    """Who reads from a group."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    BOOKMARK = "bookmark"


@dataclass(frozen=True)
class Start:
    """A position for a group. position: entries above it are to be delivered. read: how many entries the stream has had
    up to there; None: not known. amid: the stream has come to there, so that number stays."""

    position: StreamId
    read: int | None = None
    amid: bool = False

    def words(self) -> tuple[str, ...]:
        """The option of XGROUP CREATE and SETID that tells the group."""
        return () if self.read is None else ("ENTRIESREAD", str(self.read))


@dataclass(frozen=True)
class Finding:
    """One thing that is found of one stream.

    logged: the checkpoint's position. position: the group's; None: there is no group. mark: the commit mark's. to:
    where the query goes on, if it does. lost: entries that are lost; None: at least one, and the server cannot tell how
    many. committed: how many of these were read and committed; None: some. other: another consumer of the group. what:
    words for the message, such as which entries.
    """

    kind: Kind
    stream: str
    ownership: Ownership = Ownership.EXCLUSIVE
    logged: StreamId = MIN_ID
    position: StreamId | None = None
    mark: StreamId | None = None
    to: Start = Start(MIN_ID)
    lost: int | None = 0
    committed: int | None = 0
    other: str = ""
    what: str = ""
