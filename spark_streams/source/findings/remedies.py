"""What the query does about each finding: one table.

docs/reference/data-loss.md is printed from it (`python -m tools.reference`).

A key is: the kind of the finding, failOnDataLoss, and how the query uses the group (exclusive, shared, bookmark).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from spark_streams.errors import DataLossError, GroupMissingError, StreamStateError
from spark_streams.source.findings import messages
from spark_streams.source.findings.finding import Finding, GroupUse, Kind
from spark_streams.source.findings.messages import Advice


class Act(Enum):
    """What the query does about a finding that raises no error. `to` and `lost` are fields of the finding.

    `repair_of` and the reconciler fix the order of the acts. The account (account.py) counts the entries of a stream.
    """

    COUNT = auto()  # count `lost` entries: in the log, the query's progress and the next offset
    PUT_GROUP = auto()  # create the group at `to`, or set it there
    CONTINUE_ABOVE = auto()  # continue above `to` at once, instead of above the checkpoint
    SKIP_TO = auto()  # read pending entries, then continue above `to`; the account counts the skipped (ENTRIES_LOST)
    DROP_MARK = auto()  # delete the commit mark: it belongs to another position of the group
    FORGET = auto()  # forget how many entries of the stream were read
    LEAVE = auto()  # stop reading the stream
    IGNORE_NOTED_LOSSES = auto()  # `lost` includes the losses that tasks of the last batch have noted
    SHARE = auto()  # treat the group as shared: others have read from it


class Strictness(Enum):
    """Whether entries that are lost stop the query (option failOnDataLoss)."""

    STRICT = "true"
    LENIENT = "false"


@dataclass(frozen=True)
class Remedy:
    """What the query does about a finding."""

    does: str  # in words, for docs and log
    acts: frozenset[Act] = frozenset()
    is_quiet: bool = False  # logged as INFO
    error: type[StreamStateError] | None = None  # raised instead; its message is the problem, then the advice
    advice: Advice | None = None


class Key(NamedTuple):
    """What a remedy depends on."""

    kind: Kind
    strictness: Strictness
    group_use: GroupUse


class Row(NamedTuple):
    """A row of docs/reference/data-loss.md."""

    kind: Kind
    group_uses: Sequence[GroupUse]
    strict: Remedy
    lenient: Remedy


def _stop(error: type[StreamStateError], advice: Advice) -> Remedy:
    return Remedy(f"stops with `{error.condition}`", error=error, advice=advice)


def _go_on(does: str, *acts: Act) -> Remedy:
    return Remedy(does, frozenset(acts))


def _quietly(does: str, *acts: Act) -> Remedy:
    return Remedy(does, frozenset(acts), is_quiet=True)


def _same(kind: Kind, group_uses: Sequence[GroupUse], remedy: Remedy) -> Row:
    """A row for a finding that failOnDataLoss makes no difference for."""
    return Row(kind, group_uses, remedy, remedy)


_ANY = tuple(GroupUse)
_EXCLUSIVE, _SHARED = (GroupUse.EXCLUSIVE,), (GroupUse.SHARED,)
_NOT_SHARED = (GroupUse.EXCLUSIVE, GroupUse.BOOKMARK)

_BEGIN_IN_NEW_STREAM = _go_on(
    "counts the entries that it had not read, and reads what the stream holds now",
    *(Act.COUNT, Act.FORGET, Act.PUT_GROUP, Act.CONTINUE_ABOVE, Act.DROP_MARK),
)
_SET_TO_CHECKPOINT = _go_on("sets the group to the checkpoint: nothing is lost", Act.PUT_GROUP, Act.DROP_MARK)
_READ_AGAIN = _go_on(
    "sets the group back to the checkpoint, and reads the entries in between again", Act.PUT_GROUP, Act.DROP_MARK
)
_SKIP = _go_on("counts the entries in between, and goes on at the group's position", Act.SKIP_TO)
_COUNT = _go_on("counts them, and goes on", Act.COUNT)

SECTIONS: Mapping[str, Sequence[Row]] = {
    "The stream or its group is missing": [
        _same(Kind.STREAM_LEFT, _ANY, _go_on("stops reading the stream", Act.FORGET, Act.LEAVE)),
        Row(
            Kind.PATTERN_STREAM_GONE,
            _ANY,
            _stop(DataLossError, messages.RESTORE_STREAM),
            _go_on(
                "counts the entries that it had not read, and stops reading the stream",
                *(Act.COUNT, Act.FORGET, Act.LEAVE),
            ),
        ),
        Row(Kind.STREAM_GONE, _ANY, _stop(DataLossError, messages.RESTORE_STREAM), _BEGIN_IN_NEW_STREAM),
        Row(Kind.STREAM_REPLACED, _NOT_SHARED, _stop(DataLossError, messages.RESTORE_STREAM), _BEGIN_IN_NEW_STREAM),
        Row(
            Kind.STREAM_REPLACED,
            _SHARED,
            _stop(DataLossError, messages.RESTORE_STREAM),
            _go_on(
                "counts the entries that it had not read, and goes on at the group's position",
                *(Act.COUNT, Act.FORGET, Act.CONTINUE_ABOVE, Act.DROP_MARK),
            ),
        ),
        Row(
            Kind.GROUP_GONE,
            _ANY,
            _stop(GroupMissingError, messages.CREATE_GROUP),
            _go_on(
                "creates the group at the checkpoint. It counts a loss if the stream holds no entry that was read: "
                "then the stream may have been created again",
                *(Act.COUNT, Act.PUT_GROUP, Act.DROP_MARK),
            ),
        ),
    ],
    "The group is below the checkpoint, or the server returned to an older state": [
        Row(
            Kind.SERVER_RESTORED,
            _NOT_SHARED,
            _stop(DataLossError, messages.RESTORE_SERVER),
            _go_on(
                "counts the missing entries, and goes on with those that are there",
                *(Act.COUNT, Act.IGNORE_NOTED_LOSSES, Act.FORGET, Act.PUT_GROUP, Act.CONTINUE_ABOVE, Act.DROP_MARK),
            ),
        ),
        _same(
            Kind.DELIVERIES_LOST,
            _EXCLUSIVE,
            _go_on("sets the group to the checkpoint: nothing is lost", Act.PUT_GROUP),
        ),
        Row(
            Kind.GROUP_BEHIND,
            _EXCLUSIVE,
            _stop(StreamStateError, messages.SET_TO_CHECKPOINT),
            _SET_TO_CHECKPOINT,
        ),
        _same(Kind.GROUP_BEHIND, _SHARED, _stop(StreamStateError, messages.LET_OTHERS_READ)),
    ],
    "The group is above the checkpoint": [
        Row(Kind.CHECKPOINT_OLDER, _EXCLUSIVE, _stop(DataLossError, messages.USE_LATER_ALONE), _READ_AGAIN),
        Row(
            Kind.CHECKPOINT_OLDER,
            _SHARED,
            _stop(DataLossError, messages.USE_LATER_SHARED),
            _go_on("counts a loss, and goes on above the commit mark", Act.COUNT, Act.CONTINUE_ABOVE),
        ),
        Row(Kind.CONSUMER_GONE, _EXCLUSIVE, _stop(DataLossError, messages.SET_BACK_ALONE), _SET_TO_CHECKPOINT),
        Row(
            Kind.CONSUMER_GONE,
            _SHARED,
            _stop(DataLossError, messages.SET_BACK_SHARED),
            _go_on("counts a loss, and goes on at the group's position", Act.COUNT),
        ),
        Row(Kind.GROUP_AHEAD, _EXCLUSIVE, _stop(DataLossError, messages.SET_BACK_OR_SKIP), _SKIP),
        Row(Kind.CHECKPOINT_OLDER_UNMARKED, _EXCLUSIVE, _stop(DataLossError, messages.USE_LATER_OR_SKIP), _SKIP),
        _same(Kind.OTHERS_LEFT, _EXCLUSIVE, _quietly("goes on at the group's position: nothing is lost", Act.SHARE)),
    ],
    "The group is at the checkpoint": [
        _same(Kind.REREAD_ASKED, _ANY, _quietly("reads again what the group delivers", Act.DROP_MARK)),
    ],
    "Entries are missing": [
        Row(Kind.ENTRIES_LOST, _ANY, _stop(DataLossError, messages.KEEP_LONGER), _COUNT),
        Row(
            Kind.BATCH_GONE,
            _ANY,
            _stop(DataLossError, messages.KEEP_LONGER),
            _go_on("counts them when the batch is committed", Act.COUNT),
        ),
        Row(Kind.PENDING_TAKEN, _ANY, _stop(DataLossError, messages.ACCEPT), _COUNT),
        Row(Kind.PENDING_REMOVED, _ANY, _stop(DataLossError, messages.START_AGAIN), _COUNT),
        _same(Kind.LETTER_GONE, _ANY, _COUNT),
        Row(
            Kind.NOTES_GONE,
            _ANY,
            _stop(DataLossError, messages.WITHOUT_LETTERS),
            _go_on("counts a loss, and acknowledges the batch", Act.COUNT),
        ),
    ],
}

REMEDIES: Mapping[Key, Remedy] = {
    Key(row.kind, strictness, group_use): remedy
    for rows in SECTIONS.values()
    for row in rows
    for group_use in row.group_uses
    for strictness, remedy in ((Strictness.STRICT, row.strict), (Strictness.LENIENT, row.lenient))
}


def remedy_of(finding: Finding, lenient: bool) -> Remedy:
    """Return what the query does about a finding."""
    return REMEDIES[Key(finding.kind, Strictness.LENIENT if lenient else Strictness.STRICT, finding.group_use)]


def error_of(finding: Finding, remedy: Remedy, place: messages.Place) -> StreamStateError:
    """Return the error of a remedy that has one."""
    assert remedy.error is not None
    assert remedy.advice is not None
    return remedy.error(messages.error_text(finding, remedy.advice, place))


def table() -> str:
    """Return the tables of docs/reference/data-loss.md, in Markdown."""
    return "\n\n".join(f"### {title}\n\n{_table(rows)}" for title, rows in SECTIONS.items())


def _table(rows: Sequence[Row]) -> str:
    columns = ["what the query finds", "use of the group"]
    columns += [f"`failOnDataLoss={strictness.value}`: the query" for strictness in Strictness]
    return "\n".join([f"| {' | '.join(columns)} |", "|---|---|---|---|", *_lines(rows)])


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        group_uses = "any" if row.group_uses == _ANY else ", ".join(use.value for use in row.group_uses)
        yield f"| {row.kind.value} | {group_uses} | {_cell(row.strict)} | {_cell(row.lenient)} |"


def _cell(remedy: Remedy) -> str:
    return remedy.does if remedy.advice is None else f"{remedy.does}. {remedy.advice.short}"
