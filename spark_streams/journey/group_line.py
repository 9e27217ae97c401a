"""What became of an entry in one group. Pure.

The server records no acknowledgement of an entry. What is neither pending nor above the group's position was
acknowledged, or the group passed it: it began above it (XGROUP CREATE), was set (XGROUP SETID), or read with NOACK.
"""

from __future__ import annotations

from spark_streams.journey.facts import EntryFacts, GroupFacts, Pending
from spark_streams.journey.line import Line
from spark_streams.model.commit_mark import Mark
from spark_streams.model.printable import name_text
from spark_streams.monitor.terminal.units import counted, duration
from spark_streams.wire.replies.released import FATAL

_REFUSED = ". The user may not read the commit marks of queries, which say more"


def group_line(facts: EntryFacts, group: GroupFacts, proof: str = "") -> Line:
    """Return the line of one group. proof: what shows that the entry was delivered to it, such as its dead letter."""
    name, position = name_text(group.info.name), group.info.last_delivered
    if group.pending is not None:
        return _pending_line(name, group.pending, facts)
    if facts.id > position and facts.fields is not None:
        return _undelivered_line(name, group)
    if facts.id > position and not proof:
        return Line(
            "never", f"not delivered: it has left the stream, and the group stands at {position}", "XINFO GROUPS",
            group=name,
        )  # fmt: skip
    if proof:
        text = "acknowledged: it was delivered, and is not pending"
        return Line("acknowledged", text, f"XPENDING, {proof}", group=name)
    begun = [(consumer, mark) for consumer, mark in group.marks if mark.is_begin and facts.id <= mark.id]
    if begun and len(begun) == len(group.marks):
        consumer, mark = begun[0]
        return Line(
            "never",
            f"never read by the query {name_text(consumer)}: it begins above {mark.id}",
            "commit mark",
            group=name,
            facts={"begins_above": str(mark.id)},
        )
    return Line(
        "acknowledged or passed",
        f"not pending, and the group stands at {position}{_of_marks(group, facts)}",
        "XINFO GROUPS, XPENDING",
        why_unknown="the server records no acknowledgement of an entry: the group may also have passed it, because it "
        "began above it, was set, or read with NOACK" + _REFUSED * facts.marks_refused,
        group=name,
        facts={"position": str(position)},
    )


def _pending_line(group: str, pending: Pending, facts: EntryFacts) -> Line:
    deliveries = "released as fatal" if pending.deliveries == FATAL else counted(pending.deliveries, "delivery",
                                                                                 "deliveries")  # fmt: skip
    values: dict[str, object] = {"deliveries": pending.deliveries, "consumer": None, "idle_ms": None}
    if pending.idle < 0 or not pending.consumer:
        text = f"pending for no consumer: it was released, {deliveries}"
        return Line("pending", text, "XPENDING", group=group, facts=values)
    values |= {"consumer": name_text(pending.consumer), "idle_ms": pending.idle}
    text = f"pending for consumer {values['consumer']}, {deliveries}, idle for {duration(pending.idle)}"
    return Line("pending", text, "XPENDING", facts.now - pending.idle, group=group, facts=values)


def _undelivered_line(group: str, facts: GroupFacts) -> Line:
    text, source = "not delivered yet", "XINFO GROUPS, XRANGE"
    if facts.before is None:
        why = "the stream's name is not UTF-8, so the entries before it were not counted"
        return Line("not delivered", text, source, why_unknown=why, group=group, facts={"before": None})
    if facts.at_least:
        text = f"{text}: at least {counted(facts.before, 'entry', 'entries')} before it"
        why = "only so many entries were counted; raise --limit"
        return Line(
            "not delivered", text, source, why_unknown=why, group=group, facts={"before_at_least": facts.before}
        )
    text = f"{text}: {counted(facts.before, 'entry', 'entries')} before it"
    return Line("not delivered", text, source, group=group, facts={"before": facts.before})


def _of_marks(group: GroupFacts, facts: EntryFacts) -> str:
    shown = [_mark_text(consumer, mark) for consumer, mark in group.marks if facts.id <= mark.id and mark.number]
    return "".join(f"; {text}" for text in shown)


def _mark_text(consumer: str, mark: Mark) -> str:
    no_ack = ", read with noAck" if mark.no_ack else ""
    return f"batch {mark.number} of the stream for {name_text(consumer)} is committed and ends at {mark.id}{no_ack}"
