"""The sink, the counted losses and the pending lists held against the model."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tools.chaos.checker import check
from tools.chaos.history import Added, History, Outcome, id_key
from tools.simulation.model import EARLY, GIVEN_UP, Entry
from tools.simulation.once import OUT
from tools.simulation.plan import DEAD
from tools.simulation.world import World, counted, is_ours

if TYPE_CHECKING:
    from collections.abc import Iterable


# What goes with its stream may have come after the query's last look at it.
_WITH_ALL = ("vanished", "flushed", "lost with the server's last writes")
# Where nothing else has happened to a stream, its losses are counted exactly.
_EXACT = {"trimmed", "deleted"}


def at_peace(world: World) -> None:
    """The query has found nothing more to do, and nothing has happened meanwhile: everything is where it must be, or
    its loss has been told."""
    model, query = world.model, world.query
    world.births.look()
    _hold_letters(world)
    model.sunk |= {row.value[1] for row in world.sink.rows()}
    streams = query.reads()
    missing = model.missing(streams)
    for name in streams:
        here = [one for one in missing if one.stream == name]
        (_hold_counts if query.is_lenient else _hold_names)(world, name, here)
    _hold_pending(world, streams)
    for one in missing:
        one.settled = True
    for one in model.entries.values():
        one.settled |= one.looked_for and one.n in model.sunk
    for name in streams:
        if name in model.streams:
            if query.is_lenient:
                model.streams[name].forgiven |= model.streams[name].causes
            if model.streams[name].known:  # else it may find only later what has happened
                model.streams[name].causes.clear()
            model.streams[name].skipped.clear()
            model.streams[name].counted = 0
            model.streams[name].remembered = query.lost(name)
            model.streams[name].was_lenient = query.is_lenient
    out = model.stream(OUT)
    if out.seen == out.happened:
        out.causes.clear()
    world.away = False
    world.operator.at_peace()


def something_unread(world: World) -> bool:
    """Whether entries wait that the group has yet to come to: a trigger may take turns."""
    due = [one for one in world.model.missing(world.query.reads()) if not one.gone]
    return any(_went(world, one) == "unread" for one in due)


def at_the_end(world: World) -> None:
    """Nothing twice, nothing made up, nothing out of order, nothing left pending."""
    model = world.model
    _hold_pending(world, world.query.reads(), at_last=True)
    history = History(acks_seen=False)
    highest: dict[str, tuple[int, int]] = {}
    for one in model.entries.values():
        # A stream that was made again, by producers whose clock was set back.
        is_lower = one.key < highest.setdefault(one.stream, one.key)
        highest[one.stream] = max(highest[one.stream], one.key)
        history.added.append(Added(one.stream, ("p", one.n), Outcome.OK, one.id))
        if one.gone or one.excuses or one.settled or one.named or one.stream not in world.query.reads():
            history.removed.add(one.place)
        if is_lower or one.shuffled or one.again or world.query.was_limited or not world.query.always_ordered:
            history.unordered.add(one.place)
    history.rows = world.sink.rows()
    report = check(history)
    for kind, values in (("lost", report.lost), ("phantom", report.phantom)):
        if values:
            some = [model.entries[value[1]] for value in values if value[1] in model.entries]
            world.fail(_kind(world, kind, some), f"{kind}: {values}")
    twice = [model.entries[value[1]] for value in report.duplicated if not model.entries[value[1]].again]
    if twice and not world.sink.may_repeat:
        world.fail(_kind(world, "twice", twice), f"twice: {_shown(twice)}")
    if report.reordered:
        some = [one for place in report.reordered if (one := model.at(*place)) is not None]
        world.fail(_kind(world, "reordered", some), f"out of order: {_shown(some)}")


def _hold_names(world: World, name: str, missing: list[Entry]) -> None:
    """A strict query: every loss has been named in an error."""
    silent = [one for one in missing if not one.named and not _may_pass(world, one)]
    if world.model.streams[name].moved_at_first:
        silent = [one for one in silent if one.gone not in ("trimmed", "deleted")]
    if world.model.streams[name].was_lenient:  # what a lenient run has passed over, it has counted
        silent = [one for one in silent if one.gone not in _WITH_ALL][world.model.streams[name].counted :]
    if silent:
        what = "silent" if world.model.streams[name].ever else "lost"
        world.fail(_kind(world, what, silent), f"not in the sink, and no error has said so: {_shown(silent)}")


def _hold_counts(world: World, name: str, missing: list[Entry]) -> None:
    """A lenient query: the log has told of every loss, and the checkpoint has counted each once."""
    if name not in world.model.streams:
        return
    told = world.model.streams[name].counted
    remembered = world.query.lost(name) - world.model.streams[name].remembered
    least = sum(not _may_pass(world, one) and one.gone not in _WITH_ALL for one in missing)
    most = len(missing) + sum(_may_be_counted(world, one) for one in world.model.of(name))
    if not world.model.streams[name].ever <= _EXACT:
        least, most = min(least, 1), 1 << 30  # not without a word
    if told < least or remembered > most:
        what = "uncounted" if told < least else "counted too much"
        told_of = f"{name}: {len(missing)} are not in the sink, {told} are told to be lost, {remembered} counted"
        world.fail(_kind(world, what, missing, name), f"{told_of}: {_shown(missing)}")


def _may_be_counted(world: World, one: Entry) -> bool:
    """Whether the query may count an entry that it need not have read: it had not looked at the stream yet, or a run
    with at-most-once has given the entry up, and a later run without it reads its batch again. Or it is in the sink:
    documented, another execution of its task may have found it missing."""
    was_found_missing = one.looked_for and one.n in world.model.sunk
    return (bool(one.excuses & {EARLY, GIVEN_UP}) or was_found_missing) and not one.settled


def _may_pass(world: World, one: Entry) -> bool:
    """Documented: where others read from the group, too, XDEL ahead of it takes the server's counts away."""
    ever = world.model.streams[one.stream].ever
    return bool(one.gone) and "deleted" in ever and bool(ever & {"others read", "entries taken from us"})


def _hold_letters(world: World) -> None:
    """Entries that were given up are in the dead-letter stream, and not in the sink (but for rows that an execution
    wrote before it was killed)."""
    for _, fields in world.client.xrange(DEAD):
        one = world.model.at(fields["dl.stream"], fields["dl.id"])
        if one is None or "a letter" in one.excuses:
            continue
        if one.n in world.model.sunk and not one.again and world.setup.sink == "recorder":
            world.fail(_kind(world, "a letter and a row", [one]), f"entry {one.n} is in both")
        one.excuses.add("a letter")


def _hold_pending(world: World, streams: Iterable[str], at_last: bool = False) -> None:
    """at_last: also what others have handed to us, which may take another run."""
    for name in streams:
        ours = world.see(name).ours()
        some = [one for one in world.model.of(name, ours) if at_last or not one.again]
        if some:
            world.fail(_kind(world, "pending", some, name), f"still pending at an idle tick: {_shown(some)}")


def _kind(world: World, what: str, some: list[Entry], name: str = "") -> str:
    """What is wrong, how the entries went, what has happened to their streams, how the query reads."""
    went = "+".join(sorted({_went(world, one) for one in some})) or "none"
    streams = {one.stream for one in some} | ({name} if name in world.model.streams else set())
    causes = "+".join(sorted({cause for one in streams for cause in world.model.streams[one].ever})) or "nothing"
    return f"{what} | {went} | after {causes} | {world.query.mode}"


def _went(world: World, one: Entry) -> str:
    """What took it away, or where it is."""
    if one.gone:
        return one.gone
    if one.n in world.births.passed:
        return "before its late group"
    seen = world.see(one.stream)
    if seen.position is None:
        return "without a group"
    if one.id in seen.pending:
        return "pending" if is_ours(seen.pending[one.id]) else "theirs"
    return "unread" if one.key > id_key(seen.position) else "passed over"


def _shown(some: list[Entry]) -> str:
    numbers = Counter(one.stream for one in some)
    return f"{counted(one.n for one in some)} of {dict(numbers)}"
