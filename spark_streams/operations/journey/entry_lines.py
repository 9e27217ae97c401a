"""Lines of a journey: whether the stream has the entry, what became of it in each group, and the verdict. Pure.

A line is one statement about an entry, its source, and why it is not known if it is not exact. Of the stream:

    exists                                              added, at the time of its ID
    above the last ID, or nothing was ever removed      this stream never had it
    the highest deleted ID                              deleted
    pending, above the highest deleted ID               trimmed
    pending, above the first ID                         deleted: trimming begins at the head
    any other                                           trimmed, deleted or never added

A pending entry was in this stream. `XTRIM … ACKED` removes others from the middle, and no count tells. A dead letter
proves that a stream of this name had the entry: it may have been deleted and created again, or restored.

The server records no acknowledgement of an entry. What is neither pending nor above the group's position was
acknowledged, or the group passed it: it began above it (XGROUP CREATE), was set (XGROUP SETID), or read without a
pending list.
What is above the position may have been delivered before the group was set back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_streams.base.given_text import from_milliseconds
from spark_streams.base.ids import is_time
from spark_streams.base.printable import name_text
from spark_streams.base.units import counted, duration
from spark_streams.connector.wire.xinfo import FATAL
from spark_streams.operations.journey.entry_facts import EntryFacts, GroupFacts, Pending

RAISE_LIMIT = "raise --limit"  # of a line that is not known because a page was cut
_OF_BATCH = "this is known of the batch, not of the entry: the query may have written no row of it"


@dataclass(frozen=True)
class JourneyLine:
    """One statement about an entry. It is exact if it is proved of this entry, now."""

    event: str  # a word for programs
    text: str  # for people
    source: str  # command, key or field that says so
    at: int | None = None  # Unix ms; None: no time is known
    why_unknown: str = ""  # "" if the line is proved
    group: str = ""  # of consumers
    facts: Mapping[str, object] = field(default_factory=dict)  # more values for programs
    is_of_batch: bool = False  # proved of a whole batch, of which the entry may have no row

    @property
    def is_exact(self) -> bool:
        """Whether the line is proved of this entry."""
        return not self.why_unknown and not self.is_of_batch

    @property
    def known(self) -> str:
        """`exact`, `of the batch`, or `not known, because …`."""
        if self.why_unknown:
            return f"not known, because {self.why_unknown}"
        return "of the batch" if self.is_of_batch else "exact"

    def texts(self, name: str) -> Sequence[str]:
        """Return the fact that is a list of texts; empty if the line lacks it."""
        texts = self.facts.get(name)
        return texts if isinstance(texts, list) else []

    def as_json(self) -> dict[str, object]:
        """Return the JSON object."""
        return {
            "event": self.event,
            "group": self.group or None,
            "at_ms": self.at,
            "text": self.text,
            "exact": self.is_exact,
            "because": self.why_unknown or (_OF_BATCH if self.is_of_batch else None),
            "source": self.source,
            **self.facts,
        }


def time_text(at: int | None) -> str:
    """Return a time in UTC for people."""
    try:
        return "-" if at is None else from_milliseconds(at).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except OverflowError:  # a number that is no time
        return str(at)


def in_order(lines: Iterable[JourneyLine]) -> list[JourneyLine]:
    """Return lines with a time in its order, then the others as they come."""
    return sorted(lines, key=lambda line: (line.at is None, line.at or 0))


_STREAM_INFO = "XINFO STREAM"
_SET = "XSETID may have set these counts"
_BEFORE_7 = "servers before Redis 7 do not record which entries were deleted"


def is_never_added(facts: EntryFacts) -> bool:
    """Whether this stream never had the entry, by its counts."""
    return facts.fields is None and _absent(facts, is_proved=False).event == "never added"


def presence_lines(facts: EntryFacts, is_proved: bool) -> list[JourneyLine]:
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
        lines.append(JourneyLine("duplicates", text, f"{_STREAM_INFO}: iids-duplicates", why_unknown=why, facts=values))
    if facts.expires_in is not None:
        at = facts.now + facts.expires_in
        lines.append(JourneyLine("expires", "the stream expires with all its entries", "PTTL", at))
    return lines


def _added(facts: EntryFacts) -> JourneyLine:
    if is_time(facts.id, facts.now):
        return JourneyLine("added", "added at the time of its ID", "entry ID", facts.id.ms)
    return JourneyLine("added", "added", "entry ID", why_unknown="its ID is not a time", facts={"time_known": False})


def _absent(facts: EntryFacts, is_proved: bool) -> JourneyLine:
    """Return what is known of an entry that the stream does not have."""
    state, event = facts.after, "removed" if is_proved or facts.is_pending else "absent"
    if not state.exists:
        why = "a stream that was deleted or has expired leaves no trace"
        return JourneyLine(event, "the stream does not exist", _STREAM_INFO, why_unknown=why)
    is_above = facts.id > facts.state.last
    if not facts.is_pending and (is_above or state.added == state.length):
        if is_proved:
            return JourneyLine(
                event, "not in the present stream, which was created again or restored since", _STREAM_INFO
            )
        how = f"its last ID is {facts.state.last}" if is_above else "no entry was ever removed"
        return JourneyLine("never added", f"this stream never had it: {how}", _STREAM_INFO, why_unknown=_SET)
    if state.added is None:
        return JourneyLine(event, "the stream does not have it", _STREAM_INFO, why_unknown=_BEFORE_7)
    possible = _possible_ends(facts, is_proved)
    if len(possible) == 1:
        return JourneyLine(possible[0], f"{possible[0]} from the stream", f"{_STREAM_INFO}, XPENDING")
    why = "the server does not record which entries left the stream"
    text = f"the stream does not have it: {' or '.join(possible)}"
    return JourneyLine(event, text, _STREAM_INFO, why_unknown=why, facts={"possible": possible})


def _possible_ends(facts: EntryFacts, is_proved: bool) -> list[str]:
    """Return what may have happened to an entry that is not in its stream."""
    state, entry = facts.after, facts.id
    if entry == state.deleted:
        return ["deleted"]
    deleted = ["deleted"] if entry < state.deleted else []
    if facts.is_pending:
        is_below_first = not state.length or (state.first is not None and entry < state.first)
        return [*(["trimmed"] if is_below_first else []), *deleted] or ["trimmed", "deleted"]
    return ["trimmed", *deleted, "left behind with an earlier state of the stream" if is_proved else "never added"]


_REFUSED = ". The user may not read the commit marks of queries, which say more"


def group_line(facts: EntryFacts, group: GroupFacts, proof: str = "") -> JourneyLine:
    """Return the line of one group. proof: what shows that the entry was delivered to it, such as its dead letter."""
    name, position = name_text(group.info.name), group.info.last_delivered
    if group.pending is not None:
        return _pending_line(name, group.pending, facts)
    if facts.id > position and facts.fields is not None:
        return _undelivered_line(name, group)
    if proof:
        text = "delivered, and no longer pending: acknowledged, or dropped with its consumer or group"
        return JourneyLine("delivered", text, f"XPENDING, {proof}", group=name)
    if facts.id > position:
        text = f"will not be delivered: it has left the stream, and the group stands before it, at {position}"
        return JourneyLine("never", text, "XINFO GROUPS", group=name)
    begun = [(consumer, mark) for consumer, mark in group.marks if mark.is_begin and facts.id <= mark.id]
    if begun and len(begun) == len(group.marks):
        consumer, mark = begun[0]
        text = (
            f"not read from the group under the present checkpoint of {name_text(consumer)}: it begins above {mark.id}"
        )
        return JourneyLine("never", text, "commit mark", group=name, facts={"begins_above": str(mark.id)})
    why = (
        "the server records no acknowledgement of an entry: the group may also have passed it, because it began above "
        f"it, was set, or read without a pending list{_REFUSED * facts.marks_refused}"
    )
    text = f"not pending, and the group stands at {position}{_of_marks(group, facts)}"
    values = {"position": str(position)}
    return JourneyLine(
        "acknowledged or passed", text, "XINFO GROUPS, XPENDING", why_unknown=why, group=name, facts=values
    )


def _pending_line(group: str, pending: Pending, facts: EntryFacts) -> JourneyLine:
    is_fatal = pending.deliveries == FATAL
    deliveries = "released as fatal" if is_fatal else counted(pending.deliveries, "delivery", "deliveries")
    values: dict[str, object] = {"deliveries": pending.deliveries, "consumer": None, "idle_ms": None}
    if pending.idle < 0 or not pending.consumer:
        text = f"pending for no consumer: it was released, {deliveries}"
        return JourneyLine("pending", text, "XPENDING", group=group, facts=values)
    values |= {"consumer": name_text(pending.consumer), "idle_ms": pending.idle}
    text = f"pending for consumer {values['consumer']}, {deliveries}, idle for {duration(pending.idle)}"
    return JourneyLine("pending", text, "XPENDING", facts.now - pending.idle, group=group, facts=values)


def _undelivered_line(group: str, facts: GroupFacts) -> JourneyLine:
    text, why = "not delivered yet", ""
    if facts.before is None:
        why = "the stream's name is not UTF-8, so the entries before it were not counted"
    else:
        least = "at least " if facts.at_least else ""
        text = f"{text}, as the group stands: {least}{counted(facts.before, 'entry', 'entries')} before it"
        why = f"only so many entries were counted; {RAISE_LIMIT}" if facts.at_least else ""
    values = {"before_at_least" if facts.at_least else "before": facts.before}
    return JourneyLine("not delivered", text, "XINFO GROUPS, XRANGE", why_unknown=why, group=group, facts=values)


def _of_marks(group: GroupFacts, facts: EntryFacts) -> str:
    return "".join(
        f"; batch {mark.number} of the stream for {name_text(consumer)} is committed and ends at {mark.id}"
        f"{'' if mark.has_pending_list else ', read without a pending list'}"
        for consumer, mark in group.marks
        if facts.id <= mark.id and mark.number
    )


Said = Callable[[JourneyLine], str]


def _batch(line: JourneyLine) -> str:
    return f"in batch {line.facts['batch']} of query {line.facts['query'] or '(no ID)'}"


def _row(line: JourneyLine) -> str:
    return f"its row is in table {line.facts['table']}" if line.facts["files"] else f"no row in {line.facts['table']}"


# Events in the order of the verdict, and what it says of each.
_SAID: Mapping[str, Said] = {
    "batch": _batch,
    "trimmed": lambda _: "removed from the stream",
    "deleted": lambda _: "removed from the stream",
    "removed": lambda _: "removed from the stream",
    "absent": lambda line: (
        f"not in the stream: {' or '.join(possible)}" if (possible := line.texts("possible")) else line.text
    ),
    "never added": lambda _: "never added",
    "dead": lambda line: f"dead letter {line.facts['stream']}/{line.facts['id']}",
    "waiting": lambda line: f"waits for attempt {line.facts['attempt']}" if "attempt" in line.facts else line.text,
    "returned": lambda line: f"returned as {line.facts['stream']}/{line.facts['id']}",
    "pending": lambda line: f"pending in group {line.group}",
    "not delivered": lambda line: f"not delivered to group {line.group}",
    "sent back": lambda line: f"sent back as {line.facts['stream']}/{line.facts['id']}" if "id" in line.facts else "",
    "row": _row,
    "archived": lambda line: "archived" if "files" in line.facts else "",
}
_PRESENT, _AFTER = "in the stream", "never added"  # it comes after these events
_GONE = {"trimmed", "deleted", "removed", "absent", "never added"}
# What the line itself says is not known in detail, but its event is proved.
_PROVED = {"removed", "absent", "not delivered", "waiting"}


def verdict(lines: Sequence[JourneyLine]) -> str:
    """Return the verdict. What is not proved of this entry has the word `perhaps`."""
    parts: list[str] = []
    is_gone = any(line.event in _GONE for line in lines)
    for event, said in _SAID.items():
        parts += [_PRESENT] if event == _AFTER and not is_gone else []
        for line in lines:
            if line.event == event and (text := said(line)):
                parts.append(text if line.is_exact or event in _PROVED else f"perhaps {text}")
    return "; ".join(dict.fromkeys(parts))
