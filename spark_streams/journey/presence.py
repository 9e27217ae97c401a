"""Whether a stream has an entry, and what is known of an entry that it does not have. Pure.

    exists                                              added, at the time of its ID
    above the last ID                                   not added
    nothing was ever removed (entries-added = length)   never added to this stream
    the highest deleted ID                              deleted
    above the highest deleted ID, below the first ID    trimmed, or never added
    above both                                          never added: a deleted entry would have raised the highest one
    any other                                           deleted, trimmed or never added

That an entry was there is proved by a group in which it is pending. A dead letter proves it, too, but not that the
stream is still the same one: it may have been deleted and created again.
"""

from __future__ import annotations

from spark_streams.journey.facts import EntryFacts
from spark_streams.journey.line import Line
from spark_streams.model.id_times import is_time

_OLD = "servers before Redis 7 do not record which entries were deleted"


def is_never_added(facts: EntryFacts) -> bool:
    """Whether the server proves that this stream never had the entry."""
    return facts.fields is None and facts.state.exists and _absent(facts, has_copies=False).event in (
        "not added", "never added"
    )  # fmt: skip


def presence_lines(facts: EntryFacts, has_copies: bool) -> list[Line]:
    """Return the lines about adding and removing the entry. has_copies: a dead letter or a retry names it."""
    was_there = facts.fields is not None or facts.is_pending or has_copies
    lines = [_added(facts)] if was_there else []
    if facts.fields is None:
        lines.append(_absent(facts, has_copies))
    if facts.adds is not None and facts.adds.duplicates and was_there:
        lines.append(
            Line(
                "duplicates",
                f"{facts.adds.duplicates:,} repeated adds of this stream were refused (XADD IDMP)",
                "XINFO STREAM: iids-duplicates",
                why_unknown="the server counts them for the stream, not for an entry",
                facts={"duplicates_of_stream": facts.adds.duplicates},
            )
        )
    if facts.expires_in is not None:
        lines.append(
            Line("expires", "the stream expires with all its entries", "PTTL", facts.now + facts.expires_in)
        )  # fmt: skip
    return lines


def _added(facts: EntryFacts) -> Line:
    if is_time(facts.id, facts.now):
        return Line("added", "added at the time of its ID", "entry ID", facts.id.ms)
    return Line("added", "added", "entry ID", why_unknown="its ID is not a time", facts={"time_known": False})


def _absent(facts: EntryFacts, has_copies: bool) -> Line:
    """Return what is known of an entry that the stream does not have."""
    state, entry, source = facts.after, facts.id, "XINFO STREAM"
    was_there = facts.is_pending or has_copies
    if not state.exists:
        why = "a stream that was deleted or has expired leaves no trace"
        return Line("removed" if was_there else "absent", "the stream does not exist", source, why_unknown=why)
    if entry > facts.state.last and not was_there:
        return Line("not added", f"not added: the stream's last ID is {facts.state.last}", source)
    if state.added is None:
        return Line("absent", "the stream does not have it", source, why_unknown=_OLD)
    if state.added == state.length:
        if was_there:
            return Line("removed", "removed with the whole stream, which was created again since", source)
        return Line("never added", "this stream never had it: no entry was ever removed", source)
    if entry == state.deleted:
        return Line("deleted", "deleted: it is the stream's highest deleted ID", f"{source}: max-deleted-entry-id")
    below_first = not state.length or (state.first is not None and entry < state.first)
    if entry > state.deleted and facts.is_pending:
        return Line("trimmed", "trimmed: no entry from its ID on was deleted one by one", source)
    if entry > state.deleted and not was_there and not below_first:
        return Line("never added", "this stream never had it: no entry from its ID on was ever deleted", source)
    possible = ["trimmed"] if below_first else []
    possible += ["deleted"] if entry < state.deleted else []
    possible += [] if facts.is_pending else ["removed with the whole stream"] if was_there else ["never added"]
    return Line(
        "removed" if was_there else "absent",
        f"the stream does not have it: {' or '.join(possible)}",
        source,
        why_unknown="the server does not record which entries left the stream",
        facts={"possible": possible},
    )
