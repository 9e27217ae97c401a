"""The words of errors and log lines about findings: what is wrong, then what to do. The table of remedies says which
advice belongs to which finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_streams.model.commit_mark import committed_key
from spark_streams.model.operator_commands import create_command, replay_command, seek_command
from spark_streams.source.findings.finding import Finding, Kind
from spark_streams.source.membership import Membership


class Place(NamedTuple):
    """Words of a message. address: of the server; forgets: whether it loses its streams when its process ends."""

    member: Membership
    address: str
    forgets: bool = False


class Advice(NamedTuple):
    """What to do. text: for the error, a template; short: for docs/reference/data-loss.md."""

    text: str
    short: str


# What is wrong, for the error and the log.
PROBLEMS: Mapping[Kind, str] = {
    Kind.STREAM_LEFT: "stream {stream!r} is missing. The query had nothing to read from it",
    Kind.PATTERN_STREAM_GONE: "stream {stream!r} at {address} is missing, and so is its group {group!r}",
    Kind.STREAM_GONE: "stream {stream!r} at {address} is missing, and so is its group {group!r}",
    Kind.STREAM_REPLACED: (
        "stream {stream!r} at {address} is missing, and so is its group {group!r}. Another stream was created under "
        "its name"
    ),
    Kind.GROUP_GONE: "stream {stream!r} at {address} no longer has group {group!r}",
    Kind.SERVER_RESTORED: (
        "stream {stream!r}: the server has lost {lost}, {committed} of them read and committed, up to the checkpoint's "
        "{above}. A replica that lagged behind became the master, an older file was loaded, or the stream was created "
        "again"
    ),
    Kind.DELIVERIES_LOST: (
        "group {group!r} of stream {stream!r} is at {position}, below the checkpoint's {above}. A replica that lagged "
        "behind became the master, or an older file was loaded. The entries in between were read and committed"
    ),
    Kind.GROUP_BEHIND: "group {group!r} of stream {stream!r} is at {position}, below the checkpoint's {above}",
    Kind.CHECKPOINT_OLDER: (
        "the checkpoint is at {above} of stream {stream!r}, and consumer {consumer!r} of group {group!r} has committed "
        "all up to {mark}. This is an older copy of the checkpoint, its last files are missing, or another checkpoint "
        "was used with this group"
    ),
    Kind.CONSUMER_GONE: (
        "group {group!r} of stream {stream!r} no longer has consumer {consumer!r}. The group was created again, or the "
        "consumer was deleted. Entries between the checkpoint's {above} and the group's {position} would be skipped"
    ),
    Kind.GROUP_AHEAD: (
        "group {group!r} of stream {stream!r} was set forward to {position}. Entries above {above} were delivered to "
        "no consumer"
    ),
    Kind.CHECKPOINT_OLDER_UNMARKED: (
        "group {group!r} of stream {stream!r} has read {lost} above {above} up to {position} that the checkpoint does "
        "not know, and the query's commit mark {key!r} is missing. This is an older copy of the checkpoint, another "
        "checkpoint was used with this group, or another consumer has read them and left"
    ),
    Kind.OTHERS_LEFT: (
        "another consumer of group {group!r} has read entries of stream {stream!r} up to {position}, and has left the "
        "group"
    ),
    Kind.REREAD_ASKED: (
        "group {group!r} of stream {stream!r} was set back to the checkpoint's {above}. Entries up to {mark} were read "
        "before"
    ),
    Kind.ENTRIES_LOST: (
        "stream {stream!r}: {lost} above {above} {were} trimmed or deleted before group {group!r} read them, or the "
        "server has lost them"
    ),
    Kind.BATCH_GONE: (
        "stream {stream!r}: {detail} of a batch of group {group!r}, above {above} up to {position}, are missing: they "
        "were trimmed, deleted, or claimed by another consumer"
    ),
    Kind.PENDING_TAKEN: (
        "stream {stream!r}: {lost} {detail} {are} no longer pending. Another client acknowledged or claimed them, or "
        "deleted the consumer {consumer!r} or one that it had made"
    ),
    Kind.PENDING_REMOVED: (
        "stream {stream!r}: {lost} {detail} {were} trimmed or deleted before consumer {consumer!r} could claim them"
    ),
    Kind.LETTER_GONE: "stream {stream!r}: {lost} {were} trimmed or deleted before becoming a dead letter",
    Kind.NOTES_GONE: (
        "stream {stream!r} at {address}: key {detail!r} was deleted while a batch was read. In it, tasks had noted the "
        "entries that do not fit the schema. Their number is not known"
    ),
}

RESTORE_STREAM = Advice(
    "Restore it from a backup, or set failOnDataLoss=false to go on without what it held{forgets}",
    "Restore the stream from a backup, or accept the loss",
)
CREATE_GROUP = Advice(
    "Create it at the checkpoint ({create}), or set failOnDataLoss=false: the query then creates it there",
    "Create the group at the checkpoint",
)
KEEP_LONGER = Advice(
    "Keep the stream longer than the lag of its slowest group, or set failOnDataLoss=false to go on without them",
    "Keep the stream longer, or accept the loss",
)
ACCEPT = Advice("Set failOnDataLoss=false to go on without them", "Accept the loss")
START_AGAIN = Advice(
    "They are no longer pending. Start the query again: the next run goes on without them",
    "Start the query again: it continues without these entries",
)
WITHOUT_LETTERS = Advice(
    "The entries of the batch are still pending (rstream pending {stream} --group {group} --entries 20 lists them). "
    "To acknowledge them without dead letters, set failOnDataLoss=false for one run",
    "Accept the loss for one run",
)
RESTORE_SERVER = Advice(
    "The entries that were read are in the query's sink. Restore the server from a newer backup, or set "
    "failOnDataLoss=false to go on without the missing entries",
    "Restore the server from a newer backup, or accept the loss",
)
SET_TO_CHECKPOINT = Advice(
    "It was created again or set back. The query has read the entries in between: set the group to the checkpoint "
    "({seek}). To read them again, start with a new checkpoint; or set the group as said, and then run: {replay}",
    "Set the group to the checkpoint",
)
LET_OTHERS_READ = Advice(
    "The server returned to an older state, or the group was created again or set back. Consumer {other!r} reads "
    "from the group, too, and the server cannot tell which entries in between it was given and has not finished. Let "
    "{other!r} read up to there before this query is started: it reads again what it has finished, and what this query "
    "has committed. Only if {other!r} has finished all that it was given, set the group to the checkpoint instead: the "
    "entries in between are not delivered again ({seek})",
    "Let the other consumer read up to the checkpoint",
)
_USE_LATER = (
    "Start the query with the checkpoint that was used last. To read the entries in between again with this one, set "
    "the group back ({seek})"
)
_USE_LATER_SHORT = "Start it with the checkpoint that was used last, or set the group back"
_SET_BACK = "Set the group back ({seek})"
_SET_BACK_SHORT = "Set the group back"
_IF_ALONE = ", or set failOnDataLoss=false: the query then sets it back"
_IF_SHARED = ", or set failOnDataLoss=false: the query then goes on without the entries in between"
USE_LATER_ALONE = Advice(_USE_LATER + _IF_ALONE, _USE_LATER_SHORT)
USE_LATER_SHARED = Advice(_USE_LATER + _IF_SHARED, _USE_LATER_SHORT)
USE_LATER_OR_SKIP = Advice(
    "Start the query with the checkpoint that was used last. To read them again with this one, set the group back "
    "({seek}), or set failOnDataLoss=false to go on without them",
    _USE_LATER_SHORT,
)
SET_BACK_ALONE = Advice(_SET_BACK + _IF_ALONE, _SET_BACK_SHORT)
SET_BACK_SHARED = Advice(_SET_BACK + _IF_SHARED, _SET_BACK_SHORT)
SET_BACK_OR_SKIP = Advice(_SET_BACK + ", or set failOnDataLoss=false to go on without them", _SET_BACK_SHORT)


def number(entries: int | None) -> str:
    """Return a number of entries in words. None: at least one."""
    if entries is None:
        return "at least 1 entry (the server cannot tell how many)"
    return "1 entry" if entries == 1 else f"{entries} entries"


def problem_of(finding: Finding, place: Place) -> str:
    """Return what is wrong."""
    return PROBLEMS[finding.kind].format_map(_words(finding, place))


def error_text(finding: Finding, advice: Advice, place: Place) -> str:
    """Return what is wrong and what to do."""
    return f"{PROBLEMS[finding.kind]}. {advice.text}".format_map(_words(finding, place))


def _words(finding: Finding, place: Place) -> dict[str, object]:
    member, stream = place.member, finding.stream
    position = finding.above if finding.position is None else finding.position
    return {
        "stream": stream,
        "group": member.group,
        "consumer": member.consumer,
        "other": finding.other,
        "address": place.address,
        "forgets": " (embedded: forgets its streams when it ends)" if place.forgets else "",
        "above": finding.above,
        "position": position,
        "mark": finding.mark,
        "detail": finding.detail,
        "lost": number(finding.lost),
        "are": "is" if finding.lost in (1, None) else "are",
        "were": "was" if finding.lost in (1, None) else "were",
        "committed": "perhaps some" if finding.committed is None else finding.committed,
        "key": committed_key(stream, member.group, member.consumer).decode("utf-8", "replace"),
        "seek": seek_command(stream, member.group, finding.above),
        "create": create_command(stream, member.group, finding.above),
        "replay": replay_command(stream, member.group, position.next()),
    }
