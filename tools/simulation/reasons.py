"""Why an entry may be missing, be there twice, come late or wait, or why its loss may be reported although it is none.

A reason belongs to an entry, and quotes the page that documents it (docs/reference). Powers and verdict record it when
it becomes true of the entry; the judge (spark_streams/operations/verify/judge.py) asks for nothing else.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """What is true of an entry. quote: words of a page that documents it."""

    quote: str

    def __new__(cls, text: str, quote: str) -> Reason:
        """Make a reason of its text, with its quote."""
        made = str.__new__(cls, text)
        made._value_, made.quote = text, quote
        return made

    # -- what a query answers for, and what becomes of the rest (guarantees.md, options.md, data-loss.md) --------------

    BEFORE = "before the start", "Where a new group, or `spark.read`, starts"
    EARLY = "removed before there was a group, or a checkpoint", "A query answers for entries from its first batch on"
    DROPPED = "does not fit, and was dropped", "`DROPMALFORMED`: skip the entry"
    A_LETTER = "a dead letter", "An entry that cannot be read becomes a dead letter with all its bytes"
    WAITS = "waits for a retry", "is read again after these times"
    THEIRS = "theirs", "Another client reads from the group | the clients share the entries"
    THEIRS_AND_DONE = "others have acknowledged it", "the clients share the entries"
    THEIRS_AND_LEFT = "others have left with it", "Or they delete its consumer or the group"
    TAKEN = "taken from the query, which may have read it", "If another client takes entries from a batch"
    HANDED = "handed over or archived: other entries were read before", "Later entries may have been read before"
    WITH_THE_NEXT = "handed over, and comes with the next batches", "are read with the next batches"
    NOT_PASSED_YET = (
        "removed above its group, which was set back",
        "They stay pending until the group has passed them again",
    )
    WAITS_FOR_THE_CLOCK = (
        "handed over before the clock was set back, and waits",
        "or wait until the clock has reached the time of their hand-over",
    )
    CUT = "its batch may have been cut", "Pieces that killed the query are read after the entries that follow them"
    WITHOUT_ORDER = "read without `ordered`", "With `ordered`, the entries of a stream come in one task"
    LOWER = "its ID is below that of an earlier entry", "or new IDs are lower (a clock was set back)"
    READ_ONCE_OF_TWO = "deleted while its task ran twice", "An entry that is deleted while its task runs twice"
    SOUGHT = "an operator has set the group back", "Those above the new position are delivered again"
    PASSED_OVER = "an operator has passed it over", "the commit mark says so, and the query goes on there"
    DONE_BY_OPERATOR = "acknowledged by the operator", "rstream groups ack"
    A_NEW_CHECKPOINT = "a new checkpoint", "A new checkpoint continues where the group stands"
    RESTARTED = (
        "onNewCheckpoint=restart",
        "the first trigger of a query without a checkpoint sets the group to `startingOffsets`",
    )
    RESTARTED_BESIDE = (
        "another process has set its group",
        "If the query is killed before its first micro-batch is in the checkpoint, the group is set again",
    )
    AT_LEAST_ONCE = "written at least once", "each row at least once"
    KEPT_BY_OPERATOR = "the operator keeps the written rows", "`lossy`, a batch with fewer entries than before"
    NOT_IN_THE_LIST = "its group changed while it was not read", "An existing group continues at its position"
    NO_CHECKPOINT = "the group changed before there was a checkpoint", "Where a new group, or `spark.read`, starts"
    DESTROYED_FIRST = (
        "its group was destroyed before a checkpoint named the stream",
        "An existing group continues at its position",
    )
    DROPPED_FROM_THE_LIST = (
        "its group was missing when the checkpoint dropped it",
        "An existing group continues at its position",
    )
    NAMED = "an error has reported its loss", "It says how many entries were lost"
    SETTLED = "its loss was counted, or given up", "the query counts the loss, and continues"
    NOT_READ = "its stream is not in the list", "Where a new group, or `spark.read`, starts"
    WITH_ALL = (
        "removed with its stream, maybe after the query's last look",
        "nobody knows how many entries a deleted stream got after the last trigger",
    )
    MISSED_BY_ONE = (
        "another execution of its task may have missed it",
        "It may be counted although its row or dead letter is written, or not counted",
    )
    REMOVED = "it has left its stream: the loss is judged", "Entries are missing that no batch has read"
    KILLS = "it may have killed the query too often", "an entry that was delivered that often without being"
    COMES_AGAIN = "its group was set back, and delivers it again", "sets the group to the checkpoint"
    CLAIMED = (
        "written, and claimed before it was acknowledged",
        "comes a second time, with a warning, if another client claims it",
    )
    TWO_QUERIES = "two queries share its group", "share the entries | one `group`, another `consumer`"
    LEFT_BY_A_RUN = "left by a run without noAck", "the query fails, and reads them once without `noAck`"

    # -- who runs the servers (unnoticed.md, data-loss.md) -------------------------------------------------------------

    LOST_BY_SERVER = "lost by the server before anybody has logged it", "Entries that no replica had are lost"
    ROW_LOST = "its row was lost by the server", "A server loses a complete batch of the sink with its ledger"
    NEWER_STATE = "an older state lacked it, and a newer one was restored", "restored once more, to a newer state"
    AFTER_SEEK = "the query goes on where the restored group is", "The query moves once more, and reads entries again"
    AS_MANY_ADDED = (
        "removed from a restored stream that looks like the one that was read",
        "producers add as many entries as were lost before the query's next trigger",
    )
    OF_THE_MODEL = (
        "the model goes on where the restored group is",
        "goes on at the group's position, and reads entries again",
    )
    BEFORE_ITS_GROUP = (
        "the server was restored to a state before its group",
        "restored to a state before the query's group was created",
    )
    STREAM_RESTORED = "its stream was deleted, and restored", "or before one of its streams was deleted"
    NOT_PENDING_ANY_MORE = "deleted with the pending list", "If they are not pending now, they are not reported"
    LEFT_AND_READ = (
        "pending and in no batch of the older copy, and read since",
        "If they are not pending now, they are not reported",
    )
    PENDING_FOR_OTHERS = (
        "pending for another consumer of the restored server",
        "So are entries that return to a dead consumer's pending list",
    )
    PENDING_BESIDE = (
        "pending again beside entries that no batch has",
        "or while entries are pending that no batch has",
    )

    # -- who may delete keys -------------------------------------------------------------------------------------------

    START_DELETED = "before a late group, and the stored start was deleted", "`rstream:begun:…`, `rstream:first:…`"
    NOTES_LOST = (
        "the server has lost the tasks' notes of it",
        "`rstream:missing:…`, or the server is restored to a state before it",
    )
    NOTES_DELETED = (
        "the notes of its batch were deleted amid a trigger",
        "Their entries are acknowledged without a dead letter",
    )
    NOTED_SINCE = (
        "its task has noted it after the state to which the server has returned",
        "It is not noticed: these entries become neither rows nor dead letters",
    )
    RECORD_OLDER = (
        "pending again, and the record of failed batches is older, or deleted",
        "and acknowledges the batch, or reads it again",
    )
    RETRIES_DELETED = (
        "the entries that wait for a retry were deleted",
        "The entries in it are lost, and not reported",
    )
    SET_ASIDE_SINCE = (
        "set aside after the state to which the server has returned",
        "counts one entry, because their number is not known",
    )
    MARK_DELETED = "pending again on a server without its mark", "or a restored server differs in nothing else"
    MARKS_DELETED = ("written, and the ledger of its batch was deleted", "Its rows are written again")
    OLDER_UNMARKED = (
        "read after an older copy of the checkpoint, and its stream has lost its mark",
        "A copy of the checkpoint from before the stream's first batch is not recognised as older",
    )

    # -- who operates queries and groups -------------------------------------------------------------------------------

    MOVED_AMID = "its group was moved amid a trigger", "Entries that are delivered again are read twice"
    OTHER_IN_REPLAY = "counted, or there again, when its batch is read again", "Missing ones may not be reported"
    SKIPPED_BESIDE = (
        "skipped, and not distinguishable from entries that others read",
        "Or a shared group is set forward",
    )
    DELETED_AMID = "deleted with its group amid a trigger", "Missing ones may not be reported"
    SHARED_SET_BACK = (
        "a shared group was set back, or restored, and goes on there",
        "goes on at the group's position, and reads entries again",
    )
    MOVED_FIRST = (
        "its group was moved before a checkpoint named the stream",
        "A group is moved before the first batch of its query",
    )
    NEWER_CHECKPOINT = (
        "an older copy of the checkpoint has replaced the record of its batch",
        "What the copy has left pending is read again",
    )
    COMMIT_LOST = (
        "removed by the query, and its commit is lost",
        "Lenient: the batch has fewer rows, or none, and nothing is counted",
    )
    OF_A_LATER_BATCH = (
        "set aside, claimed or handed over for a batch that an older checkpoint does not know",
        "These entries are not read again, and not counted",
    )
    PLANNED_AGAIN = "its batch is planned again after a set-back", "Later entries may have been read before"
    SENT_BACK_AGAIN = (
        "the operator has deleted the note of a redrive",
        "which names the command that continues",
    )
    SENT_BACK_BEFORE = (
        "sent back before its redrive was forgotten, or its stream alone was restored",
        "Dead letters are sent back again",
    )
    A_LETTER_BEFORE = (
        "a dead letter of a batch that an older copy of the checkpoint does not have",
        "sets the group back to the checkpoint, and reads the entries again",
    )
    NOTE_DISCARDED = "its note was discarded", "entries of its last batch that do not fit get no dead letter"
    EARLIER_BATCH_STAYS = (
        "an earlier batch of its number stays",
        "An exactly-once sink keeps the rows of the earlier batch",
    )
    CUT_AND_WRITTEN = (
        "its batch was cut, although a sink had written it that has lost its record",
        "Only exactly-once `writeStream`, with its record, writes no rows again",
    )
    LOOKS_KNOWN = (
        "removed from a stream that looks like the one that was read",
        "As many entries have left the stream as the query had read",
    )

    # -- who writes producers ------------------------------------------------------------------------------------------

    VANISHED_FIRST = "vanished before a checkpoint knew its stream", "The query has not committed a batch of it"
    BELOW_THE_BEGIN = (
        "below where the query begins in a stream that was created again",
        "New ones below the query's begin are not read",
    )
    READ_IN_PLACE = (
        "its stream was created again, and the batch read again",
        "A lenient query reads them again",
    )
    DELETED_AHEAD = "deleted ahead of a shared group", "`XDEL` of an entry above the position of a shared group"

    NOTE_REFUSED = (
        "the server has refused the note on its dead letter",
        "writes the dead letter, or sends the entries back, again",
    )

    # -- who writes other consumers of the group -----------------------------------------------------------------------

    REMOVED_AMID = (
        "removed from a shared group amid a trigger",
        "and a consumer (they, or the query) reads past them before the query looks again",
    )
    READ_PAST = (
        "removed, and others have read past it",
        "and a consumer (they, or the query) reads past them before the query looks again",
    )
    DONE_BY_OTHERS = "an operator has acknowledged it", "They acknowledge entries that were claimed"
    CONSUMER_DELETED_AMID = (
        "deleted with our consumer while the query takes a batch",
        "Or they delete its consumer or the group",
    )
    CONSUMER_DELETED_FIRST = (
        "deleted with our consumer before a checkpoint",
        "Or they delete its consumer or the group",
    )
    HANDED_WITHIN = "handed within the batch in flight", "within the range of a batch may be acknowledged unread"
    CLOCK_BACK = "handed over before the clock was set back", "or the server's clock was set back"
