"""Compare the sink, the counted losses and the pending lists with the model."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import redis

from spark_streams.operations.verify.history import Added, History, Outcome, check_history, id_key
from tools.simulation.at_peace import check_invariant
from tools.simulation.mixes import is_behind
from tools.simulation.model import DROPPED, EARLY, Entry
from tools.simulation.sinks import OUT
from tools.simulation.world import GROUP, World, counted, is_ours

if TYPE_CHECKING:
    from collections.abc import Iterable


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
    missing = model.missing(streams)
    for name in streams:
        missing_here = [entry for entry in missing if entry.stream == name]
        (_check_counts if query.is_lenient else _check_names)(world, name, missing_here)
    _check_pending(world, streams)
    for entry in missing:
        entry.settled = True
    for entry in model.entries.values():
        entry.settled |= entry.looked_for and entry.n in model.sunk
    for name in streams:
        if name in model.streams:
            if query.is_lenient:
                model.streams[name].forgiven |= model.streams[name].causes
            if model.streams[name].in_checkpoint:  # else the query may notice the events later
                seen, causes = world.see(name), model.streams[name].causes
                pending = model.entries_of(name, seen.pending)  # for others: a claim notices it later
                is_below = id_key(seen.position or "0-0") < id_key(query.logged(name))  # noticed with the next entry
                model.streams[name].causes = {entry.removed_by for entry in pending if entry.removed_by} | (
                    {"group set back"} & causes if is_below else set()
                )
            model.streams[name].skipped.clear()
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
    """Whether the group has undelivered entries: with several streams, triggers may take turns."""
    due = [entry for entry in world.model.missing(world.query.reads()) if not entry.removed_by]
    return any(_state(world, entry) == "unread" for entry in due)


def at_the_end(world: World) -> None:
    """Check that no entry is duplicated, unknown, out of order or pending."""
    model = world.model
    _check_pending(world, world.query.reads(), at_last=True)
    history = History(acks_seen=False)
    highest: dict[str, tuple[int, int]] = {}
    for entry in model.entries.values():
        # A stream that was created again, by producers whose clock was set back.
        is_lower = entry.key < highest.setdefault(entry.stream, entry.key)
        highest[entry.stream] = max(highest[entry.stream], entry.key)
        history.added.append(Added(entry.stream, ("p", entry.n), Outcome.OK, entry.id))
        if entry.removed_by or entry.excuses or entry.settled or entry.named or entry.stream not in world.query.reads():
            history.removed.add(entry.place)
        if (
            is_lower
            or entry.shuffled
            or entry.repeat_reasons
            or (entry.removed_by and entry.looked_for)  # documented: only one of two executions has read it
            or world.query.was_limited
            or not world.query.always_ordered
        ):
            history.unordered.add(entry.place)
    history.rows = world.sink.rows()
    report = check_history(history)
    for kind, values in (("lost", report.lost), ("phantom", report.phantom)):
        if values:
            entries = [model.entries[value[1]] for value in values if value[1] in model.entries]
            world.fail(kind_of(world, kind, entries), f"{kind}: {values}")
    twice = [model.entries[value[1]] for value in report.duplicated if not model.entries[value[1]].repeat_reasons]
    if twice and not world.sink.may_repeat:
        world.fail(kind_of(world, "twice", twice), f"twice: {_shown(twice)}")
    if report.reordered:
        entries = [entry for place in report.reordered if (entry := model.entry_at(*place)) is not None]
        world.fail(kind_of(world, "reordered", entries), f"out of order: {_shown(entries)}")


def _check_names(world: World, name: str, missing: list[Entry]) -> None:
    """Check for a strict query that an error has named every loss."""
    silent = [entry for entry in missing if not entry.named and not _may_pass(world, entry)]
    if world.model.streams[name].moved_at_first:
        silent = [entry for entry in silent if entry.removed_by not in ("trimmed", "deleted")]
    stream = world.model.streams[name]
    if stream.was_lenient:  # a lenient run has counted what it passed, or has reported "at least" so many
        rest = [entry for entry in silent if entry.removed_by not in _WITH_ALL][stream.counted :]
        silent = rest if stream.ever <= _EXACT or not stream.counted else []
    if silent:
        failure = "silent" if world.model.streams[name].ever else "lost"
        world.fail(kind_of(world, failure, silent), f"not in the sink, and no error reported it: {_shown(silent)}")


def _check_counts(world: World, name: str, missing: list[Entry]) -> None:
    """Check for a lenient query that the log has reported every loss: exactly as many, if nothing else has happened to
    the stream. A loss may be reported once more after a restart."""
    if name not in world.model.streams:
        return
    reported = world.model.streams[name].counted
    minimum = sum(not _may_pass(world, entry) and entry.removed_by not in _WITH_ALL for entry in missing)
    stream = world.model.streams[name]
    told = stream.told if stream.runs.isdisjoint(stream.told_by) else 0
    maximum = len(missing) + told + sum(_may_be_counted(world, entry) for entry in world.model.entries_of(name))
    is_exact = world.model.streams[name].ever <= _EXACT
    if not is_exact:
        minimum = min(minimum, 1)  # at least one must be reported
    is_once = len(world.model.streams[name].runs) == 1
    if reported < minimum or (is_exact and is_once and reported > maximum):
        failure = "uncounted" if reported < minimum else "counted too much"
        details = f"{name}: {len(missing)} are not in the sink, {reported} are reported as lost"
        world.fail(kind_of(world, failure, missing, name), f"{details}: {_shown(missing)}")


def _may_be_counted(world: World, entry: Entry) -> bool:
    """Whether the query may count an entry that it need not have read.

    It had not read the state of the stream yet; or the entry is in the sink, or was dropped, and another execution of
    its task may have missed it (documented).
    """
    was_found_missing = entry.looked_for and (entry.n in world.model.sunk or DROPPED in entry.excuses)
    return (EARLY in entry.excuses or was_found_missing) and not entry.settled


def _may_pass(world: World, entry: Entry) -> bool:
    """Whether a loss may go unnoticed (documented): XDEL ahead of a shared group resets the server's counts."""
    ever = world.model.streams[entry.stream].ever
    return bool(entry.removed_by) and "deleted" in ever and bool(ever & {"others read", "entries taken from us"})


def _check_pending(world: World, streams: Iterable[str], at_last: bool = False) -> None:
    """Check that no entry is pending. at_last: also entries that others handed over, which may take another run.
    Documented: if the server's clock went back, what was handed over before waits for the time at which it was."""
    for name in streams:
        seen = world.see(name)
        pending = world.model.entries_of(name, seen.ours())
        entries = [entry for entry in pending if at_last or not (entry.repeat_reasons or entry.shuffled)]
        if seen.position is not None and is_behind(world.server):
            rows = world.client.xpending_range(name, GROUP, "-", "+", 10_000)
            later = {row["message_id"] for row in rows if not row["time_since_delivered"]}
            entries = [entry for entry in entries if entry.id not in later]
        if entries:
            world.fail(kind_of(world, "pending", entries, name), f"still pending at an idle tick: {_shown(entries)}")


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
    if entry.id in seen.pending:
        return "pending" if is_ours(seen.pending[entry.id]) else "theirs"
    return "unread" if entry.key > id_key(seen.position) else "passed over"


def _shown(entries: list[Entry]) -> str:
    numbers = Counter(entry.stream for entry in entries)
    return f"{counted(entry.n for entry in entries)} of {dict(numbers)}"
