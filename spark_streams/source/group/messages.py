"""What errors and log lines say of findings: what is wrong, then what to do. Which advice goes with which finding is in
the table of remedies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_streams.operator_commands import create_command, replay_command, seek_command
from spark_streams.retention.commit_mark import committed_key
from spark_streams.source.group.finding import Finding, Kind
from spark_streams.source.membership import Membership


class Place(NamedTuple):
    """Words of a message. address: of the server. forgets: whether its streams are gone when its process ends."""

    member: Membership
    address: str
    forgets: bool = False


# What is wrong, for the error and the log.
PROBLEMS: Mapping[Kind, str] = {
    Kind.STREAM_LEFT: "stream {stream!r} is gone",
    Kind.PATTERN_STREAM_GONE: "stream {stream!r} at {address} is gone, and its group {group!r} with it",
    Kind.STREAM_GONE: "stream {stream!r} at {address} is gone, and its group {group!r} with it",
    Kind.STREAM_REPLACED: (
        "stream {stream!r} at {address} is gone, and its group {group!r} with it: another one has its name"
    ),
    Kind.GROUP_GONE: "stream {stream!r} at {address} has no group {group!r} any more",
    Kind.SERVER_RESTORED: (
        "stream {stream!r}: {lost} that the server had are gone, {committed} of them read and committed, up to the "
        "checkpoint's {logged}: a replica that lagged behind became the master, an older file was loaded, or the "
        "stream was made anew"
    ),
    Kind.DELIVERIES_LOST: (
        "the server has lost that group {group!r} of stream {stream!r} was given what lies above {position} up to the "
        "checkpoint's {logged} (a replica that lagged behind became the master, or an older file was loaded): it was "
        "read and committed"
    ),
    Kind.GROUP_BEHIND: "group {group!r} of stream {stream!r} stands at {position}, below the checkpoint's {logged}",
    Kind.CHECKPOINT_OLDER: (
        "the checkpoint stands at {logged} of stream {stream!r}, and consumer {consumer!r} of group {group!r} has "
        "committed all up to {mark}: it is an older copy of the checkpoint, its last files are gone, or another "
        "checkpoint was used with this group"
    ),
    Kind.CONSUMER_GONE: (
        "group {group!r} of stream {stream!r} no longer knows consumer {consumer!r}: it was made anew, or the consumer "
        "was deleted, and what lies between the checkpoint's {logged} and the group's {position} would be passed over"
    ),
    Kind.GROUP_AHEAD: (
        "group {group!r} of stream {stream!r} stands at {position}, and nothing above {logged} was given to anybody: "
        "it was set forward"
    ),
    Kind.CHECKPOINT_OLDER_UNMARKED: (
        "group {group!r} of stream {stream!r} has read {lost} above {logged} up to {position} that the checkpoint does "
        "not know of, and the query's commit mark {key!r} is gone: the checkpoint is an older copy, another checkpoint "
        "was used with this group, or another consumer has read them and left"
    ),
    Kind.OTHERS_LEFT: (
        "another consumer of group {group!r} has read entries of stream {stream!r} up to {position}, and left the group"
    ),
    Kind.ENTRIES_LOST: (
        "stream {stream!r}: {lost} above {logged} were trimmed or deleted before group {group!r} read them"
    ),
    Kind.BATCH_GONE: (
        "stream {stream!r}: {what} that group {group!r} was given above {logged} up to {position} are gone (trimmed, "
        "deleted, or claimed by another consumer)"
    ),
    Kind.PENDING_TAKEN: (
        "stream {stream!r}: {lost} {what} (acknowledged, claimed by another consumer, or XGROUP DELCONSUMER)"
    ),
    Kind.PENDING_REMOVED: "stream {stream!r}: {lost} {what}",
    Kind.LETTER_GONE: "stream {stream!r}: {lost} were trimmed or deleted while they were pending",
    Kind.NOTES_GONE: (
        "stream {stream!r} at {address}: key {what!r} was deleted while a batch was read. It held the notes on entries "
        "that do not fit the schema, and their number is not known"
    ),
    Kind.MARK_ABOVE: (
        "group {group!r} of stream {stream!r} was set back to the checkpoint's {logged}, and entries up to {mark} were "
        "read before"
    ),
}

RESTORE = "; restore it from a backup, or set failOnDataLoss=false to go on without what it held{forgets}"
CREATE = (
    "; create it where the checkpoint stands ({create}), or set failOnDataLoss=false: the query creates it there by "
    "itself"
)
KEEP_LONGER = (
    "; keep the stream longer than the lag of its slowest group, or set failOnDataLoss=false to go on without them"
)
GO_ON = "; set failOnDataLoss=false to go on without them"
NEXT_RUN = "; they are pending no more, and the next run goes on without them"
WITHOUT_LETTERS = (
    ". The entries of the batch are still pending (rstream pending {stream} --group {group} --entries 20 lists them). "
    "To acknowledge them without dead letters, set failOnDataLoss=false for one run"
)
READ_BEFORE = "; what was read is where the query has written it; set failOnDataLoss=false to go on without them"
BEHIND = (
    ": it was made anew or set back. The query has read what lies between: set the group to the checkpoint ({seek}). "
    "To read it again, start with a new checkpoint; or set the group as said, and give this checkpoint that part "
    "again: {replay}"
)
SHARED_BEHIND = (
    ": the server has lost what the group was given between (a replica that lagged behind became the master, or an "
    "older file was loaded), or the group was made anew or set back; consumer {other!r} reads from it, too, and nobody "
    "can tell what it was given there and has not finished. Let {other!r} read up to there before this query is "
    "started: again what it has finished, and what this query has committed. Only if {other!r} has finished all that "
    "it was given, set the group to the checkpoint instead: what lies between is not delivered again ({seek})"
)
LATER_COPY = (
    ". Start the query with the checkpoint that was used last. To read again with this one what lies between, set the "
    "group back ({seek})"
)
SET_BACK = "; set the group back ({seek})"
SEEK_AHEAD = ". Set it back ({seek}), or set failOnDataLoss=false to go on without what lies between"
SEEK_UNMARKED = (
    ". Start the query with the checkpoint that was used last. To read them again with this one, set the group back "
    "({seek}), or set failOnDataLoss=false to go on without what lies between"
)
LENIENT_ALONE = ", or set failOnDataLoss=false: the query sets it back by itself"
LENIENT_SHARED = ", or set failOnDataLoss=false: the query goes on without what lies between"


def number(entries: int | None) -> str:
    """Return a number of entries in words."""
    return "at least 1 entry (the server cannot tell how many)" if entries is None else f"{entries} entries"


def problem_of(finding: Finding, place: Place) -> str:
    """Return what is wrong."""
    return PROBLEMS[finding.kind].format_map(_words(finding, place))


def told(finding: Finding, advice: str, place: Place) -> str:
    """Return what is wrong and what to do."""
    return (PROBLEMS[finding.kind] + advice).format_map(_words(finding, place))


def _words(finding: Finding, place: Place) -> dict[str, object]:
    member, stream = place.member, finding.stream
    position = finding.logged if finding.position is None else finding.position
    return {
        "stream": stream,
        "group": member.group,
        "consumer": member.consumer,
        "other": finding.other,
        "address": place.address,
        "forgets": " (embedded: forgets its streams when it ends)" if place.forgets else "",
        "logged": finding.logged,
        "position": position,
        "mark": finding.mark,
        "what": finding.what,
        "lost": number(finding.lost),
        "committed": "some" if finding.committed is None else finding.committed,
        "key": committed_key(stream, member.group, member.consumer).decode("utf-8", "replace"),
        "seek": seek_command(stream, member.group, finding.logged),
        "create": create_command(stream, member.group, finding.logged),
        "replay": replay_command(stream, member.group, position.next()),
    }
