"""Whether a stream has an entry, and what is known of an entry that it does not have. Pure.

    exists                                              added, at the time of its ID
    above the last ID, or nothing was ever removed      this stream never had it
    the highest deleted ID                              deleted
    pending, above the highest deleted ID               trimmed
    pending, above the first ID                         deleted: trimming begins at the head
    any other                                           trimmed, deleted or never added

A pending entry was in this stream. `XTRIM … ACKED` removes others from the middle, and no count tells. A dead letter
proves that a stream of this name had the entry: it may have been deleted and created again, or restored.
"""

from __future__ import annotations

from spark_streams.base.ids import is_time
from spark_streams.operations.journey.facts import EntryFacts
from spark_streams.operations.journey.line import Line

_SOURCE = "XINFO STREAM"
_SET = "XSETID may have set these counts"
_OLD = "servers before Redis 7 do not record which entries were deleted"


def is_never_added(facts: EntryFacts) -> bool:
    """Whether this stream never had the entry, by its counts."""
    return facts.fields is None and _absent(facts, is_proved=False).event == "never added"


def presence_lines(facts: EntryFacts, is_proved: bool) -> list[Line]:
    """Return the lines about adding and removing the entry. is_proved: a copy that a query has written names it, or an
    archive has it."""
    was_there = facts.fields is not None or facts.is_pending or is_proved
    lines = [_added(facts)] if was_there else []
    if facts.fields is None:
        lines.append(_absent(facts, is_proved))
    if facts.adds is not None and facts.adds.duplicates and was_there:
        text = f"{facts.adds.duplicates:,} repeated adds of this stream were refused (XADD IDMP)"
        why = "the server counts them for the stream, not for an entry"
        values = {"duplicates_of_stream": facts.adds.duplicates}
        lines.append(Line("duplicates", text, f"{_SOURCE}: iids-duplicates", why_unknown=why, facts=values))
    if facts.expires_in is not None:
        at = facts.now + facts.expires_in
        lines.append(Line("expires", "the stream expires with all its entries", "PTTL", at))
    return lines


def _added(facts: EntryFacts) -> Line:
    if is_time(facts.id, facts.now):
        return Line("added", "added at the time of its ID", "entry ID", facts.id.ms)
    return Line("added", "added", "entry ID", why_unknown="its ID is not a time", facts={"time_known": False})


def _absent(facts: EntryFacts, is_proved: bool) -> Line:
    """Return what is known of an entry that the stream does not have."""
    state, event = facts.after, "removed" if is_proved or facts.is_pending else "absent"
    if not state.exists:
        why = "a stream that was deleted or has expired leaves no trace"
        return Line(event, "the stream does not exist", _SOURCE, why_unknown=why)
    is_above = facts.id > facts.state.last
    if not facts.is_pending and (is_above or state.added == state.length):
        if is_proved:
            return Line(event, "not in the present stream, which was created again or restored since", _SOURCE)
        how = f"its last ID is {facts.state.last}" if is_above else "no entry was ever removed"
        return Line("never added", f"this stream never had it: {how}", _SOURCE, why_unknown=_SET)
    if state.added is None:
        return Line(event, "the stream does not have it", _SOURCE, why_unknown=_OLD)
    possible = _possible(facts, is_proved)
    if len(possible) == 1:
        return Line(possible[0], f"{possible[0]} from the stream", f"{_SOURCE}, XPENDING")
    why = "the server does not record which entries left the stream"
    text = f"the stream does not have it: {' or '.join(possible)}"
    return Line(event, text, _SOURCE, why_unknown=why, facts={"possible": possible})


def _possible(facts: EntryFacts, is_proved: bool) -> list[str]:
    """Return what may have happened to an entry that is not in its stream."""
    state, entry = facts.after, facts.id
    if entry == state.deleted:
        return ["deleted"]
    deleted = ["deleted"] if entry < state.deleted else []
    if facts.is_pending:
        is_below_first = not state.length or (state.first is not None and entry < state.first)
        return [*(["trimmed"] if is_below_first else []), *deleted] or ["trimmed", "deleted"]
    return ["trimmed", *deleted, "left behind with an earlier state of the stream" if is_proved else "never added"]
