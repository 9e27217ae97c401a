"""What the sink, the reports and the pending lists say of each entry: the facts that the judge gets. And the marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import redis

from spark_streams.operations.verify.history import Outcome, Place, Row, Value, id_key
from spark_streams.operations.verify.judge import Counted, Facts, Fault, judge
from tools.simulation.at_peace import check_invariant
from tools.simulation.mixes import is_behind
from tools.simulation.model import OTHERS, Entry
from tools.simulation.reasons import Reason
from tools.simulation.sinks import OUT
from tools.simulation.world import GROUP, World, counted, is_ours

# -- a second group of the streams -------------------------------------------------------------------------------------


AUDIENCE = "audit"  # name of the group
# Events after which a missing entry, or the group, says nothing about the query.
_UNCLEAR = {"vanished", "flushed", "server set back"}


def check_removals(world: World) -> None:
    """Check that the query has removed no entry that the group has not acknowledged."""
    for name, before in world.audited.items():
        try:
            groups = {str(group["name"]): group for group in world.client.xinfo_groups(name)}
        except redis.ResponseError:
            continue
        if AUDIENCE not in groups or _UNCLEAR & world.model.stream(name).ever:
            continue
        present, last = set(world.see(name).ids), id_key(str(groups[AUDIENCE]["last-delivered-id"]))
        pending = {str(found["message_id"]) for found in world.client.xpending_range(name, AUDIENCE, "-", "+", 1000)}
        early = [
            entry.n
            for entry in world.model.alive(name)
            if entry.id not in present and entry.n not in before and (entry.key > last or entry.id in pending)
        ]
        if early:
            world.fail(f"removed before another group | {world.query.mode}", f"entries {early} of {name}")


# -- the verdict -------------------------------------------------------------------------------------------------------


# Entries removed with their stream may have been added after the query's last lookup.
_WITH_ALL = ("vanished", "flushed", "lost with the server's last writes")
# Without other events of a stream, its losses are counted exactly.
_EXACT = {"trimmed", "deleted"}


def at_peace(world: World) -> None:
    """Check that every entry is in the sink or its loss was reported. The query is idle, and no event has followed."""
    model, query = world.model, world.query
    world.births.update()
    check_removals(world)
    world.letters.observe()
    model.sunk |= {row.value[1] for row in world.sink.rows()}
    streams = query.reads()
    for name in streams:
        _judge_losses(world, name)
    # A run over a pattern that ends at the present entries reads no stream that a restored server has again since.
    ends = query.until is not None and "streamsPattern" in query.options and query.offsets
    _judge_pending(world, [name for name in streams if not ends or name in query.offsets[-1]["streams"]])
    for entry in model.missing(streams):
        entry.settled = True
    for entry in model.entries.values():
        entry.settled |= entry.looked_for and entry.n in model.sunk
    for entry in model.entries.values():
        if entry.stream in streams:
            entry.lenient_reasons.clear()
    for name in streams:
        if name in model.streams:
            if query.is_lenient:
                model.streams[name].forgiven |= model.streams[name].causes
            if model.streams[name].in_checkpoint:  # else the query may notice the events later
                seen, causes = world.see(name), model.streams[name].causes
                pending = model.entries_of(name, seen.pending)  # for others: a claim notices it later
                is_below = id_key(seen.position or "0-0") < id_key(query.logged(name))  # noticed with the next entry
                # What others have read since the last batch, the checkpoint does not know.
                is_above = id_key(seen.position or "0-0") > id_key(query.logged(name))
                lasting = {"group set back"} if is_below else {"others read"} if is_above else set[str]()
                model.streams[name].causes = {entry.removed_by for entry in pending if entry.removed_by}
                model.streams[name].causes |= lasting & causes
            model.streams[name].skipped.clear()
            model.streams[name].gone.clear()
            model.streams[name].back.clear()
            if model.streams[name].counted:
                model.streams[name].told = model.streams[name].counted
                model.streams[name].told_by = {*model.streams[name].runs}
            model.streams[name].counted = 0
            model.streams[name].runs.clear()
            model.streams[name].was_lenient = query.is_lenient
    out = model.stream(OUT)
    if out.seen == out.happened:
        out.causes.clear()
    world.away = False
    check_invariant(world)
    world.operator.at_peace()


def has_unread_entries(world: World) -> bool:
    """Whether the group has undelivered entries: with several streams, triggers may take turns. With noAck the
    checkpoint counts, also if an operator has set the group forward."""
    states = {"unread", "passed over"} if "noAck" in world.query.options else {"unread"}
    due = [entry for entry in world.model.missing(world.query.reads()) if not entry.removed_by]
    return any(_state(world, entry) in states for entry in due)


def at_the_end(world: World) -> None:
    """Check that no entry is lost, duplicated, unknown, out of order or pending."""
    model, reads = world.model, world.query.reads()
    _judge_pending(world, reads, at_last=True)
    facts: dict[tuple[Place, Value], Facts] = {}  # a restored server may give an ID a second time
    highest: dict[str, tuple[int, int]] = {}
    for entry in model.entries.values():
        found = facts[entry.place, ("p", entry.n)] = facts_of(entry)
        if entry.stream not in reads:
            found.may_miss |= {Reason.NOT_READ}
        if world.sink.may_repeat:
            found.may_repeat |= {Reason.AT_LEAST_ONCE}
        if entry.key < highest.setdefault(entry.stream, entry.key):
            found.may_reorder |= {Reason.LOWER}
        highest[entry.stream] = max(highest[entry.stream], entry.key)
        if entry.removed_by and entry.looked_for:
            found.may_reorder |= {Reason.READ_ONCE_OF_TWO}
        found.is_reported |= entry.named
    for row in world.sink.rows():
        found = facts.setdefault((row.place, row.value), Facts(row.place, row.value))
        found.rows.append(row)
        if world.sink.may_repeat and len(found.rows) > 1:
            found.may_reorder |= {Reason.AT_LEAST_ONCE}
    judgement = judge(facts.values())
    world.used.update(judgement.used)
    for fault, words in _AT_THE_END.items():
        if wrong := judgement.found.get(fault):
            entries = [entry for one in wrong if (entry := model.entry_at(*one.place)) is not None]
            world.fail(kind_of(world, fault, entries), f"{words}: {_shown(entries) if entries else judgement}")


_AT_THE_END = {
    Fault.LOST: "lost",
    Fault.PHANTOM: "phantom",
    Fault.TWICE: "twice",
    Fault.REORDERED: "out of order",
}


def facts_of(entry: Entry) -> Facts:
    """Return what is known of an entry at any time."""
    late = entry.repeat_reasons | entry.late_reasons | ({Reason.HANDED} if entry.shuffled else set())
    return Facts(
        entry.place,
        ("p", entry.n),
        Outcome.OK,
        is_reported=entry.settled,
        may_miss=frozenset(entry.excuses),
        may_repeat=frozenset(entry.repeat_reasons),
        may_reorder=frozenset(late),
    )


def row_of(entry: Entry) -> Row:
    """Return a row of the entry, at no certain place in the sink."""
    return Row(entry.place, ("p", entry.n), 0, 0, 0, 0)


def _judge_losses(world: World, name: str) -> None:
    """Check that a strict query has named every loss in a stream, and that a lenient one has counted exactly as many,
    if nothing else has happened to the stream. A loss may be reported once more after a restart."""
    model, is_lenient = world.model, world.query.is_lenient
    if name not in model.streams:
        return
    stream = model.streams[name]
    arrived = sorted(model.entries_of(name), key=lambda entry: entry.key)  # in which order is judged at the end
    facts = [_facts_at_peace(world, entry, is_lenient) for entry in arrived]
    told = stream.told if stream.runs.isdisjoint(stream.told_by) else 0
    counted = Counted(
        stream.counted,
        again=told,
        at_least=not stream.ever <= _EXACT,
        may_repeat=len(stream.runs) != 1,
        stops=not is_lenient,
    )
    judgement = judge(facts, {name: counted} if is_lenient or stream.was_lenient else {})
    world.used.update(judgement.used)
    for fault, wrong in judgement.found.items():
        entries = [entry for one in wrong if (entry := model.entry_at(*one.place)) is not None]
        details = f"{name}: {stream.counted} are reported as lost, and not in the sink are {_shown(entries)}"
        world.fail(kind_of(world, fault, entries, name), details)


def _facts_at_peace(world: World, entry: Entry, is_lenient: bool) -> Facts:
    """Return what is known of an entry when the query has read all there is."""
    facts, stream = facts_of(entry), world.model.streams[entry.stream]
    facts.after = frozenset(stream.ever)
    is_due = stream.born and world.model.is_due(entry) and not entry.settled
    if entry.n in world.model.sunk:
        facts.rows = [row_of(entry)]
    if not stream.born:
        facts.may_miss |= {Reason.BEFORE}
    if entry.named and not is_lenient:
        facts.is_reported = True
    # Documented: XDEL ahead of a shared group resets the server's counts; so does XTRIM before the query's first batch.
    is_reset = "deleted" in stream.ever or stream.removed_at_first
    if entry.removed_by and is_reset and stream.ever & OTHERS:
        facts.may_miss |= {Reason.DELETED_AHEAD}
        facts.may_count |= {Reason.DELETED_AHEAD} if is_due else frozenset()
    if entry.removed_by in _WITH_ALL and (is_lenient or stream.was_lenient):
        facts.may_miss |= {Reason.WITH_ALL}
        facts.may_count |= {Reason.WITH_ALL} if is_due else frozenset()
    if is_lenient:
        facts.may_miss |= entry.lenient_reasons - ({Reason.MISSED_BY_ONE} if not entry.removed_by else set())
        facts.may_count |= {Reason.MISSED_BY_ONE} if is_due and entry.lenient_reasons else frozenset()
    if entry.removed_by in _EXACT and stream.moved_at_first and not is_lenient:
        facts.may_miss |= {Reason.MOVED_FIRST}
    if not entry.settled and Reason.EARLY in entry.excuses:
        facts.may_count |= {Reason.EARLY}
    if not entry.settled and entry.removed_unacknowledged and Reason.DROPPED in entry.excuses:
        facts.may_count |= {Reason.DROPPED}  # nobody knows that it would have been
    is_there = facts.rows or entry.excuses & {Reason.DROPPED, Reason.A_LETTER}
    if not entry.settled and entry.looked_for and is_there:
        facts.may_count |= {Reason.MISSED_BY_ONE}
    return facts


def _judge_pending(world: World, streams: Iterable[str], at_last: bool = False) -> None:
    """Check that no entry is pending. at_last: also entries that others handed over, which may take another run.
    Documented: if the server's clock went back, what was handed over before waits for the time at which it was."""
    for name in streams:
        seen = world.see(name)
        later = set[str]()
        if seen.position is not None and is_behind(world.server):
            rows = world.client.xpending_range(name, GROUP, "-", "+", 10_000)
            later = {row["message_id"] for row in rows if not row["time_since_delivered"]}
        facts = []
        for entry in world.model.entries_of(name, seen.ours()):
            found = Facts(entry.place, is_pending=True)
            if not at_last and entry.shuffled:
                found.may_wait |= {Reason.WITH_THE_NEXT}
            if entry.removed_by and seen.position is not None and entry.key > id_key(seen.position):
                found.may_wait |= {Reason.NOT_PASSED_YET}
            if entry.id in later:
                found.may_wait |= {Reason.WAITS_FOR_THE_CLOCK}
            facts.append(found)
        judgement = judge(facts)
        world.used.update(judgement.used)
        if wrong := judgement.found.get(Fault.PENDING):
            entries = [entry for one in wrong if (entry := world.model.entry_at(*one.place)) is not None]
            world.fail(
                kind_of(world, Fault.PENDING, entries, name), f"still pending at an idle tick: {_shown(entries)}"
            )


def kind_of(world: World, failure: str, entries: list[Entry], name: str = "") -> str:
    """Return the kind of a failure: the fault, the state of the entries, the events of their streams, and the mode."""
    states = "+".join(sorted({_state(world, entry) for entry in entries})) or "none"
    streams = {entry.stream for entry in entries} | ({name} if name in world.model.streams else set())
    causes = "+".join(sorted({cause for stream in streams for cause in world.model.streams[stream].ever})) or "nothing"
    return f"{failure} | {states} | after {causes} | {world.query.mode}"


def _state(world: World, entry: Entry) -> str:
    """Return the event that removed an entry, or its place. An entry below the query's begin is not its entry, also if
    it is removed later."""
    if entry.n in world.births.passed:
        return "before its late group"
    if entry.removed_by:
        return entry.removed_by
    seen = world.see(entry.stream)
    if seen.position is None:
        return "without a group"
    if entry.key > id_key(seen.position):  # also if it is pending: the group delivers it again
        return "unread"
    if entry.id in seen.pending:
        return "pending" if is_ours(seen.pending[entry.id]) else "theirs"
    return "passed over"


def _shown(entries: list[Entry]) -> str:
    numbers = Counter(entry.stream for entry in entries)
    return f"{counted(entry.n for entry in entries)} of {dict(numbers)}"
