"""What becomes of each finding: one table. docs/data-loss.md is printed from it (`python -m
spark_streams.source.group.remedies`).

A key is what is found, whether losses stop the query (`failOnDataLoss=true`), and who reads from the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from spark_streams.errors import DataLossError, GroupMissingError, StreamStateError
from spark_streams.source.group import messages
from spark_streams.source.group.finding import Finding, Kind, Ownership


class Act(Enum):
    """What the caller does with a finding that raises no error, each at the finding's `to`."""

    COUNT = auto()  # `lost` entries, in the log, the query's progress and the next offset
    PUT_GROUP = auto()  # create the group there, or set it there
    BEGIN_AT = auto()  # the query reads from there on
    DROP_MARK = auto()  # delete the commit mark: it speaks of something else
    FORGET = auto()  # what was counted of the stream
    LEAVE = auto()  # read the stream no more
    COVER_NOTES = auto()  # what tasks noted of the last batch is counted with it
    PASS = auto()  # go on without what lies below
    SHARE = auto()  # others read from the group


class Strictness(Enum):
    """Whether entries that are lost stop the query (option failOnDataLoss)."""

    STRICT = "true"
    LENIENT = "false"


@dataclass(frozen=True)
class Remedy:
    """does: what the query does, for the docs and the log. acts: the same, for the caller. is_quiet: nobody needs to
    know. error: raised instead; its message is the finding's problem and `advice`. short_advice: the same, for the
    docs."""

    does: str
    acts: frozenset[Act] = frozenset()
    is_quiet: bool = False
    error: type[StreamStateError] | None = None
    advice: str = ""
    short_advice: str = ""


class Key(NamedTuple):
    """What a remedy depends on."""

    kind: Kind
    strictness: Strictness
    ownership: Ownership


def _stop(error: type[StreamStateError], advice: str, short_advice: str) -> Remedy:
    return Remedy(f"stops with `{error.condition}`", error=error, advice=advice, short_advice=short_advice)


def _go_on(does: str, *acts: Act) -> Remedy:
    return Remedy(does, frozenset(acts))


def _quietly(does: str, *acts: Act) -> Remedy:
    return Remedy(does, frozenset(acts), is_quiet=True)


_THE_CHECKPOINT_COUNTS = _quietly("goes on from the checkpoint; the next commit sets the group")
_BEGIN_ANEW = _go_on(
    "counts the entries that it had not read, and reads what the stream holds now",
    *(Act.COUNT, Act.FORGET, Act.PUT_GROUP, Act.BEGIN_AT, Act.DROP_MARK),
)
_BEGIN_WHERE_IT_STANDS = _go_on(
    "counts the entries that it had not read, and goes on where the group stands",
    *(Act.COUNT, Act.FORGET, Act.BEGIN_AT, Act.DROP_MARK),
)
_SET_TO_CHECKPOINT = _go_on("sets the group to the checkpoint", Act.PUT_GROUP, Act.DROP_MARK)
_RESTORED = _go_on(
    "counts the entries that are gone, and goes on with what is there",
    *(Act.COUNT, Act.COVER_NOTES, Act.FORGET, Act.PUT_GROUP, Act.BEGIN_AT, Act.DROP_MARK),
)
_USE_LATER_CHECKPOINT = "Start it with the checkpoint that was used last, or set the group back"
_SET_GROUP_BACK = "Set the group back"
_KEEP_LONGER = "Keep the stream longer, or accept the loss"
_LATER_ALONE = _stop(DataLossError, messages.LATER_COPY + messages.LENIENT_ALONE, _USE_LATER_CHECKPOINT)
_RESTORED_STOPS = _stop(
    DataLossError, messages.READ_BEFORE, "Restore the server from a newer backup, or accept the loss"
)
_SHARED_STOPS = _stop(StreamStateError, messages.SHARED_BEHIND, "Let the other consumer read up to the checkpoint")


def _any(strict: Remedy, lenient: Remedy) -> dict[Ownership, tuple[Remedy, Remedy]]:
    """The same whoever reads from the group."""
    return dict.fromkeys(Ownership, (strict, lenient))


def _each(
    exclusive: tuple[Remedy, Remedy], shared: tuple[Remedy, Remedy], bookmark: tuple[Remedy, Remedy]
) -> dict[Ownership, tuple[Remedy, Remedy]]:
    return {Ownership.EXCLUSIVE: exclusive, Ownership.SHARED: shared, Ownership.BOOKMARK: bookmark}


_COUNTS = _go_on("counts them, and goes on", Act.COUNT)
_PASS = _go_on("counts what lies between, and goes on where the group stands", Act.PASS)
_OTHERS = (_quietly("goes on: others may have read it", Act.SHARE),) * 2
_CHECKPOINT = (_THE_CHECKPOINT_COUNTS,) * 2
_GONE = _stop(DataLossError, messages.RESTORE, "Restore the stream from a backup, or accept the loss")
# Strict, then lenient.
_ROWS: Mapping[Kind, Mapping[Ownership, tuple[Remedy, Remedy]]] = {
    Kind.STREAM_LEFT: _any(*[_go_on("reads the stream no more", Act.COUNT, Act.FORGET, Act.LEAVE)] * 2),
    Kind.PATTERN_STREAM_GONE: _any(
        _GONE,
        _go_on(
            "counts the entries that it had not read, and reads the stream no more", Act.COUNT, Act.FORGET, Act.LEAVE
        ),
    ),
    Kind.STREAM_GONE: _any(_GONE, _BEGIN_ANEW),
    Kind.STREAM_REPLACED: _each((_GONE, _BEGIN_ANEW), (_GONE, _BEGIN_WHERE_IT_STANDS), (_GONE, _BEGIN_ANEW)),
    Kind.GROUP_GONE: _any(
        _stop(GroupMissingError, messages.CREATE, "Create the group at the checkpoint"),
        _go_on("creates the group at the checkpoint", Act.PUT_GROUP, Act.DROP_MARK),
    ),
    Kind.SERVER_RESTORED: _each(
        (_RESTORED_STOPS, _RESTORED),
        (_SHARED_STOPS, _SHARED_STOPS),
        (_RESTORED_STOPS, _RESTORED),
    ),
    Kind.DELIVERIES_LOST: _each(
        (_go_on("sets the group to the checkpoint; nothing is lost", Act.PUT_GROUP),) * 2,
        (_SHARED_STOPS, _SHARED_STOPS),
        _CHECKPOINT,
    ),
    Kind.GROUP_BEHIND: _each(
        (_stop(StreamStateError, messages.BEHIND, "Set the group to the checkpoint"), _SET_TO_CHECKPOINT),
        (_SHARED_STOPS, _SHARED_STOPS),
        _CHECKPOINT,
    ),
    Kind.CHECKPOINT_OLDER: _each(
        (_LATER_ALONE, _SET_TO_CHECKPOINT),
        (
            _stop(DataLossError, messages.LATER_COPY + messages.LENIENT_SHARED, _USE_LATER_CHECKPOINT),
            _go_on("counts a loss, and goes on after what was committed", Act.COUNT, Act.BEGIN_AT),
        ),
        _CHECKPOINT,
    ),
    Kind.CONSUMER_GONE: _each(
        (_stop(DataLossError, messages.SET_BACK + messages.LENIENT_ALONE, _SET_GROUP_BACK), _SET_TO_CHECKPOINT),
        (
            _stop(DataLossError, messages.SET_BACK + messages.LENIENT_SHARED, _SET_GROUP_BACK),
            _go_on("counts a loss, and goes on where the group stands", Act.COUNT),
        ),
        _CHECKPOINT,
    ),
    Kind.GROUP_AHEAD: _each((_stop(DataLossError, messages.SEEK_AHEAD, _SET_GROUP_BACK), _PASS), _OTHERS, _CHECKPOINT),
    Kind.CHECKPOINT_OLDER_UNMARKED: _each(
        (_stop(DataLossError, messages.SEEK_UNMARKED, _USE_LATER_CHECKPOINT), _PASS), _OTHERS, _CHECKPOINT
    ),
    Kind.OTHERS_LEFT: _any(*[_quietly("goes on where the group stands", Act.SHARE)] * 2),
    Kind.ENTRIES_LOST: _any(_stop(DataLossError, messages.KEEP_LONGER, _KEEP_LONGER), _COUNTS),
    Kind.BATCH_GONE: _any(
        _stop(DataLossError, messages.KEEP_LONGER, _KEEP_LONGER),
        _go_on("counts them when the batch is committed", Act.COUNT),
    ),
    Kind.PENDING_TAKEN: _any(_stop(DataLossError, messages.GO_ON, "Accept the loss"), _COUNTS),
    Kind.PENDING_REMOVED: _any(_stop(DataLossError, messages.NEXT_RUN, "Start it again"), _COUNTS),
    Kind.LETTER_GONE: _any(_COUNTS, _COUNTS),
    Kind.NOTES_GONE: _any(
        _stop(DataLossError, messages.WITHOUT_LETTERS, "Accept the loss for one run"),
        _go_on("counts a loss, and acknowledges the batch", Act.COUNT),
    ),
    Kind.MARK_ABOVE: _any(*[_quietly("reads again what the group delivers", Act.DROP_MARK)] * 2),
}

REMEDIES: Mapping[Key, Remedy] = {
    Key(kind, strictness, ownership): remedy
    for kind, row in _ROWS.items()
    for ownership, pair in row.items()
    for strictness, remedy in zip(Strictness, pair, strict=True)
}


def remedy_of(finding: Finding, lenient: bool) -> Remedy:
    """Return what becomes of a finding."""
    return REMEDIES[Key(finding.kind, Strictness.LENIENT if lenient else Strictness.STRICT, finding.ownership)]


def error_of(finding: Finding, remedy: Remedy, place: messages.Place) -> StreamStateError:
    """Return the error of a remedy that has one."""
    assert remedy.error is not None
    return remedy.error(messages.told(finding, remedy.advice, place))


def _cell(remedy: Remedy) -> str:
    return f"{remedy.does}. {remedy.short_advice}" if remedy.short_advice else remedy.does


def _rows() -> Iterator[str]:
    """Owners of groups with the same remedies share a row."""
    for kind, row in _ROWS.items():
        owners: dict[tuple[str, str], list[str]] = {}
        for ownership, (strict, lenient) in row.items():
            owners.setdefault((_cell(strict), _cell(lenient)), []).append(ownership.value)
        for (if_strict, if_lenient), some in owners.items():
            who = "any" if len(some) == len(Ownership) else ", ".join(some)
            yield f"| {kind.value} | {who} | {if_strict} | {if_lenient} |"


def table() -> str:
    """Return the table of docs/data-loss.md, in Markdown."""
    head = "| what is found | the group | `failOnDataLoss=true`: the query | `failOnDataLoss=false`: the query |"
    return "\n".join([head, "|---|---|---|---|", *_rows()])


if __name__ == "__main__":
    print(table())
