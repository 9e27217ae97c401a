"""What became of an entry in one group. Pure.

The server records no acknowledgement of an entry. What is neither pending nor above the group's position was
acknowledged, or the group passed it: it began above it (XGROUP CREATE), was set (XGROUP SETID), or read with NOACK.
What is above the position may have been delivered before the group was set back.
"""

from __future__ import annotations

from spark_streams.base.printable import name_text
from spark_streams.base.units import counted, duration
from spark_streams.connector.admin.groups import FATAL, Mark
from spark_streams.operations.journey.facts import EntryFacts, GroupFacts, Pending
from spark_streams.operations.journey.line import Line

_REFUSED = ". The user may not read the commit marks of queries, which say more"


def group_line(facts: EntryFacts, group: GroupFacts, proof: str = "") -> Line:
    """Return the line of one group. proof: what shows that the entry was delivered to it, such as its dead letter."""
    name, position = name_text(group.info.name), group.info.last_delivered
    if group.pending is not None:
        return _pending_line(name, group.pending, facts)
    if facts.id > position and facts.fields is not None:
        return _undelivered_line(name, group)
    if proof:
        text = "delivered, and no longer pending: acknowledged, or dropped with its consumer or group"
        return Line("delivered", text, f"XPENDING, {proof}", group=name)
    if facts.id > position:
        text = f"will not be delivered: it has left the stream, and the group stands before it, at {position}"
        return Line("never", text, "XINFO GROUPS", group=name)
    begun = [(consumer, mark) for consumer, mark in group.marks if mark.is_begin and facts.id <= mark.id]
    if begun and len(begun) == len(group.marks):
        consumer, mark = begun[0]
        text = (
            f"not read from the group under the present checkpoint of {name_text(consumer)}: it begins above {mark.id}"
        )
        return Line("never", text, "commit mark", group=name, facts={"begins_above": str(mark.id)})
    why = (
        "the server records no acknowledgement of an entry: the group may also have passed it, because it began above "
        f"it, was set, or read with NOACK{_REFUSED * facts.marks_refused}"
    )
    text = f"not pending, and the group stands at {position}{_of_marks(group, facts)}"
    values = {"position": str(position)}
    return Line("acknowledged or passed", text, "XINFO GROUPS, XPENDING", why_unknown=why, group=name, facts=values)


def _pending_line(group: str, pending: Pending, facts: EntryFacts) -> Line:
    is_fatal = pending.deliveries == FATAL
    deliveries = "released as fatal" if is_fatal else counted(pending.deliveries, "delivery", "deliveries")
    values: dict[str, object] = {"deliveries": pending.deliveries, "consumer": None, "idle_ms": None}
    if pending.idle < 0 or not pending.consumer:
        text = f"pending for no consumer: it was released, {deliveries}"
        return Line("pending", text, "XPENDING", group=group, facts=values)
    values |= {"consumer": name_text(pending.consumer), "idle_ms": pending.idle}
    text = f"pending for consumer {values['consumer']}, {deliveries}, idle for {duration(pending.idle)}"
    return Line("pending", text, "XPENDING", facts.now - pending.idle, group=group, facts=values)


def _undelivered_line(group: str, facts: GroupFacts) -> Line:
    text, why = "not delivered yet", ""
    if facts.before is None:
        why = "the stream's name is not UTF-8, so the entries before it were not counted"
    else:
        least = "at least " if facts.at_least else ""
        text = f"{text}, as the group stands: {least}{counted(facts.before, 'entry', 'entries')} before it"
        why = "only so many entries were counted; raise --limit" if facts.at_least else ""
    values = {"before_at_least" if facts.at_least else "before": facts.before}
    return Line("not delivered", text, "XINFO GROUPS, XRANGE", why_unknown=why, group=group, facts=values)


def _of_marks(group: GroupFacts, facts: EntryFacts) -> str:
    shown = [_mark_text(consumer, mark) for consumer, mark in group.marks if facts.id <= mark.id and mark.number]
    return "".join(f"; {text}" for text in shown)


def _mark_text(consumer: str, mark: Mark) -> str:
    no_ack = "" if mark.has_pending_list else ", read with noAck"
    return f"batch {mark.number} of the stream for {name_text(consumer)} is committed and ends at {mark.id}{no_ack}"
