"""What a query may find when it compares its streams and groups with its checkpoint, what it does about each finding,
and what a run counts.

    Snapshot ─▶ compare() ─▶ Finding ─▶ RECOVERY_ACTIONS ─▶ an error, or a corrected start (repair)
    (snapshot)  (compare)                                   (report)     (trigger.observe)

Tasks, claims and replays of a batch report lost entries as findings, too; the same table decides about them.
docs/reference/data-loss.md is printed from it (`python -m tools.reference`).
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector import counters
from spark_streams.connector.counters import RunCounter
from spark_streams.connector.errors import DataLossError, GroupMissingError, StreamStateError
from spark_streams.connector.keys import key_beside
from spark_streams.connector.operator_commands import command_on, create_command, seek_command
from spark_streams.connector.source.group_client import Membership

_log = logging.getLogger("spark_streams.source")


class Kind(Enum):
    """Kind of a finding. The value is the sentence that docs/reference/data-loss.md shows."""

    STREAM_MISSING = "The stream is missing, and so is its group."
    STREAM_REPLACED = "The group is missing, and the stream is not the one that the query has read."
    GROUP_MISSING = "The group is missing. Its stream exists."
    GROUP_BELOW = "The group is below the checkpoint."
    GROUP_ABOVE = "The group is above the checkpoint, and the entries in between are not pending for the query."
    CHECKPOINT_OLDER = "The checkpoint is an older copy: the query has committed a later batch. Or the mark is missing."
    SERVER_RESTORED = "The server has returned to an older state, without entries that the query has seen."
    ENTRIES_LOST = "Entries are missing that no batch has read."
    NOTES_LOST = "The notes of a batch (`mode=DEADLETTER`) or its record (`maxDeliveries`) are missing, or older."


class GroupUse(Enum):
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
    """One finding about one stream."""

    kind: Kind  # what is wrong
    stream: str
    group_use: GroupUse = GroupUse.ALONE  # whether others are in the group
    above: StreamId = MIN_ID  # the checkpoint's position, or the entry above which entries are missing
    position: StreamId | None = None  # of the group; None: there is no group
    mark: StreamId | None = None  # position of the commit mark; None: there is none
    # unread entries that are lost, at least; for SERVER_RESTORED, entries that the server no longer has, read ones, too
    lost: int = 0
    is_exact: bool = True  # whether exactly so many are
    other: str = ""  # another consumer of the group
    detail: str = ""  # which entries, for ENTRIES_LOST; the key of the record, for NOTES_LOST
    # a strict query need not stop: all entries up to the checkpoint are there and the query is alone (GROUP_BELOW), or
    # the loss was accepted before
    is_harmless: bool = False
    is_left: bool = False  # the missing stream is one of a pattern, and the query stops reading it

    @property
    def is_unmarked(self) -> bool:
        """Whether the commit mark is missing. The next acknowledgement writes it."""
        return self.kind is Kind.CHECKPOINT_OLDER and self.mark is None


def entries_lost(
    stream: str, lost: int, above: StreamId, detail: str, position: StreamId | None = None, is_harmless: bool = False
) -> Finding:
    """Return the finding for entries that were to be read, and are gone. detail: which ones."""
    return Finding(
        Kind.ENTRIES_LOST, stream, above=above, position=position, lost=lost, detail=detail, is_harmless=is_harmless
    )


def notes_lost(stream: str, above: StreamId, record: str = "") -> Finding:
    """Return the finding for lost notes of a batch, or for its lost record: at least one entry, for the key."""
    return Finding(Kind.NOTES_LOST, stream, above=above, lost=1, is_exact=False, detail=record)


class MessageContext(NamedTuple):
    """Words of a message. address: of the server; forgets: whether it loses its streams when its process ends."""

    member: Membership
    address: str
    forgets: bool = False


@dataclass(frozen=True, kw_only=True)
class RecoveryAction:
    """What a query does about a finding: a row of docs/reference/data-loss.md. Problem and advice are templates."""

    kind: Kind
    problem: str  # what is wrong, for the error and the log
    error: type[StreamStateError] = DataLossError  # of a strict query
    alone_advice: str  # what the error advises, if the query is alone in the group
    shared_advice: str = ""  # in a shared group; "": the same
    short: str  # the advice in the table
    alone: str  # what a lenient query does that is alone
    shared: str = ""  # what a lenient query does in a shared group; "": the same

    def advice(self, use: GroupUse) -> str:
        """Return what the error advises."""
        return self.alone_advice if use is GroupUse.ALONE else self.shared_advice or self.alone_advice

    def does(self, use: GroupUse) -> str:
        """Return what a lenient query does."""
        return self.alone if use is GroupUse.ALONE else self.shared or self.alone


ROWS = (
    RecoveryAction(
        kind=Kind.STREAM_MISSING,
        problem="stream {stream!r} at {address} is missing, and so is its group {group!r}",
        alone_advice="Restore it from a backup, or set failOnDataLoss=false to go on without what it held{forgets}",
        short="Restore the stream from a backup, or accept the loss",
        alone="counts the entries that it had not read, and creates stream and group again",
    ),
    RecoveryAction(
        kind=Kind.STREAM_REPLACED,
        problem=(
            "stream {stream!r} at {address} is missing, and so is its group {group!r}. Another stream was created "
            "under its name. The query has read up to {above}"
        ),
        alone_advice=(
            "Copy the entries of the new stream first, because a restore replaces them. Then restore the old stream "
            "from a backup. Or set failOnDataLoss=false to read what the new stream holds{forgets}"
        ),
        short="Restore the stream from a backup, or accept the loss",
        alone="counts the entries that it had not read, and reads what the stream holds now",
    ),
    RecoveryAction(
        kind=Kind.GROUP_MISSING,
        problem="stream {stream!r} at {address} no longer has group {group!r}. The checkpoint is at {above}",
        error=GroupMissingError,
        alone_advice=(
            "Create the group at the checkpoint ({create}), or set failOnDataLoss=false: the query then creates it "
            "there"
        ),
        shared_advice=(
            "Stop the other consumers of the group and create it at the checkpoint ({create}). Start this query before "
            "them. Or set failOnDataLoss=false: the query then creates it there"
        ),
        short="Create the group at the checkpoint",
        alone="creates the group at the checkpoint",
    ),
    RecoveryAction(
        kind=Kind.GROUP_BELOW,
        problem="group {group!r} of stream {stream!r} is at {position}, below the checkpoint's {above}",
        error=StreamStateError,
        alone_advice=(
            "The query has read the entries in between. Set the group to the checkpoint ({seek}), or set "
            "failOnDataLoss=false: the query then sets it there"
        ),
        shared_advice=(
            "Other consumers use this group, so it is not set forward automatically. Either start {other} and wait "
            "until it has reached {above} (it processes these entries again). Or, if it has finished them, set the "
            "group to the checkpoint ({seek})"
        ),
        short="Set the group to the checkpoint",
        alone="sets the group to the checkpoint",
        shared="goes on at the group's position, and reads entries again",
    ),
    RecoveryAction(
        kind=Kind.GROUP_ABOVE,
        problem=(
            "group {group!r} of stream {stream!r} is at {position}, above the checkpoint's {above}, and the entries in "
            "between are not pending for consumer {consumer!r}"
        ),
        alone_advice=(
            "To read the entries in between, set the group back ({seek}), or set failOnDataLoss=false: the query then "
            "sets it back. To go on without them, run: {skip}"
        ),
        shared_advice=(
            "To read the entries in between again, stop the other consumers, set the group back ({seek}), and start "
            "this query before them. To go on without these entries, set failOnDataLoss=false"
        ),
        short="Set the group back, or accept the loss",
        alone="sets the group back to the checkpoint, and reads the entries",
        shared="counts a loss, and goes on at the group's position",
    ),
    RecoveryAction(
        kind=Kind.CHECKPOINT_OLDER,
        problem=(
            "the checkpoint is at {above} of stream {stream!r}, and consumer {consumer!r} of group {group!r} {older}. "
            "The group is at {position}"
        ),
        alone_advice=(
            "Start the query with the checkpoint that was used last.{unmarked} To read the entries in between again "
            "with this one, set the group back ({seek})"
        ),
        short="Start it with the checkpoint that was used last, or set the group back",
        alone="sets the group back to the checkpoint, and reads the entries again",
        shared="counts a loss, and goes on at the commit mark, if there is one",
    ),
    RecoveryAction(
        kind=Kind.SERVER_RESTORED,
        problem=(
            "stream {stream!r}: the server has lost {lost} that it had. It has returned to an older state, or the "
            "stream was created again. The checkpoint is at {above}, group {group!r} at {position}"
        ),
        alone_advice=(
            "Restore a backup that reaches {above}, which replaces entries that were added since. Or set "
            "failOnDataLoss=false to go on with the entries that are there{forgets}"
        ),
        short="Restore a newer backup, or accept the loss",
        alone="counts the missing entries, and goes on with those that are there",
        shared="counts the missing entries, and goes on at the group's position",
    ),
    RecoveryAction(
        kind=Kind.ENTRIES_LOST,
        problem=(
            "stream {stream!r}: {lost}{where}{detail} {were} trimmed or deleted before group {group!r} read them, or "
            "another client has acknowledged or claimed them. The group is at {position}"
        ),
        alone_advice=(
            "Keep the stream longer than the lag of its slowest group, or set failOnDataLoss=false to go on without "
            "them"
        ),
        short="Keep the stream longer, or accept the loss",
        alone="counts them, and goes on",
        shared="counts at least so many, and goes on",
    ),
    RecoveryAction(
        kind=Kind.NOTES_LOST,
        problem=(
            "stream {stream!r} at {address}: key {notes!r} was deleted while a batch was read, or the server has "
            "returned to a state before that batch. It had {noted}"
        ),
        alone_advice=(
            "The entries of the batch are still pending. To list them, run {pending}. To {unnoted}, set "
            "failOnDataLoss=false for one run"
        ),
        short="List the pending entries, or accept the loss",
        alone="counts one entry, because their number is not known, and acknowledges the batch, or reads it again",
    ),
)

RECOVERY_ACTIONS: Mapping[Kind, RecoveryAction] = {row.kind: row for row in ROWS}


@dataclass
class DataLoss:
    """Losses of one run.

    If a connection breaks, a step of the run is tried again, and may find the same again. What a step has lost of a
    stream is the most that one attempt has reported. Within an attempt, reports add up."""

    allowed: bool  # failOnDataLoss=false
    place: MessageContext  # for errors
    counts: Counter[str] = field(default_factory=Counter)  # lost entries, per stream, which the progress shows
    _of_step: Counter[str] = field(default_factory=Counter)  # lost entries that the present step has counted
    _of_attempt: Counter[str] = field(default_factory=Counter)  # those that its present attempt has reported
    _logged: set[tuple[Kind, str, StreamId, str]] = field(default_factory=set)  # findings of the step without a number

    def refuse(self, findings: Sequence[Finding]) -> None:
        """Raise the error of the first finding that is not harmless if the query is strict."""
        for finding in findings:
            if not (self.allowed or finding.is_harmless):
                raise error_of(finding, self.place)

    def report(self, *findings: Finding) -> None:
        """Raise as `refuse` does. Otherwise log and count the findings."""
        self.refuse(findings)
        for finding in findings:
            stream, name = finding.stream, (finding.kind, finding.stream, finding.above, finding.detail)
            self._of_attempt[stream] += finding.lost
            more = self._of_attempt[stream] - self._of_step[stream]
            if more > 0:
                self._of_step[stream] += more
                self.count(replace(finding, lost=more))
            elif not finding.lost and name not in self._logged:
                self._logged.add(name)
                self.count(finding)

    def attempt_began(self) -> None:
        """A step of the run begins, or is tried again."""
        self._of_attempt.clear()

    def step_ended(self) -> None:
        """Forget what a step of the run has reported: the run knows its corrections."""
        self._of_step.clear()
        self._of_attempt.clear()
        self._logged.clear()

    def count(self, finding: Finding) -> None:
        """Log a finding, and count what is lost."""
        does = RECOVERY_ACTIONS[finding.kind].does(finding.group_use)
        if finding.is_left:
            does = "counts the entries that it had not read, and stops reading the stream"
        line = f"{problem_of(finding, self.place)}. The query {does}"
        if not finding.lost:
            _log.log(logging.INFO if finding.is_harmless else logging.WARNING, "%s", line)
            return
        self.counts[finding.stream] += finding.lost
        least = "" if finding.is_exact else "at least "
        _log.warning("%s. Lost entries of stream %r that are counted: %s%d", line, finding.stream, least, finding.lost)


def error_of(finding: Finding, place: MessageContext) -> StreamStateError:
    row = RECOVERY_ACTIONS[finding.kind]
    advice = row.advice(finding.group_use).format_map(_words(finding, place))
    return row.error(f"{problem_of(finding, place)}. {advice}")


def problem_of(finding: Finding, place: MessageContext) -> str:
    return RECOVERY_ACTIONS[finding.kind].problem.format_map(_words(finding, place))


def _words(finding: Finding, place: MessageContext) -> dict[str, object]:
    member, stream = place.member, finding.stream
    position = finding.above if finding.position is None else finding.position
    entries = "1 entry" if finding.lost == 1 else f"{finding.lost} entries"
    return {
        "stream": stream,
        "group": member.group,
        "consumer": member.consumer,
        "other": repr(finding.other) if finding.other else "the other consumer",
        "address": place.address,
        "forgets": " (embedded: forgets its streams when it ends)" if place.forgets else "",
        "above": finding.above,
        "position": "its last position" if finding.position is None else finding.position,
        "older": (
            "has no commit mark: it was deleted or evicted. So this may be an older copy of the checkpoint"
            if finding.is_unmarked
            else f"has committed a later batch, up to {finding.mark}: this is an older copy of the checkpoint, its "
            "last files are missing, or another checkpoint was used with this group"
        ),
        "unmarked": "" if not finding.is_unmarked else " If it is this one, set failOnDataLoss=false for one run.",
        "where": "" if finding.detail and finding.above == MIN_ID else f" above {finding.above}",
        "detail": f" {finding.detail}" if finding.detail else "",
        "lost": entries if finding.is_exact else f"at least {entries}",
        "were": "was" if finding.lost == 1 else "were",
        "seek": seek_command(stream, member.group, finding.above, member.consumer),
        "skip": seek_command(stream, member.group, position, member.consumer),
        "pending": command_on(stream, "pending", "--group", member.group, "--entries", "20"),
        "notes": finding.detail
        or key_beside(stream, "notes", member.group, member.consumer).decode("utf-8", "replace"),
        "noted": "the proof that the batch was read" if finding.detail else "the entries that do not fit the schema",
        "unnoted": "read them, again if they were read" if finding.detail else "acknowledge them without dead letters",
        "create": create_command(stream, member.group, finding.above),
    }


class RunCounters:
    """What a run has counted so far (model.counters.TABLE)."""

    def __init__(self) -> None:
        self._entries: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._values: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)

    def entries(self, counter: RunCounter) -> Counter[str]:
        return self._entries[counter.name]

    def values(self, counter: RunCounter) -> Counter[tuple[str, str]]:
        return self._values[counter.name]

    def to_json(self) -> dict[str, object]:
        """Return the counters above zero, as the query's progress shows them."""
        report: dict[str, object] = {}
        for counter in counters.TABLE:
            by_entries = counter.unit == "entries"
            if counts := dict(+self.entries(counter)) if by_entries else _by_stream(self.values(counter)):
                report[counter.name] = counts
        return report


def _by_stream(values: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    by_stream: dict[str, dict[str, int]] = {}
    for (stream, column), count in (+values).items():
        by_stream.setdefault(stream, {})[column] = count
    return by_stream
