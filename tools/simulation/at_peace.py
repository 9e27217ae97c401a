"""The invariant at peace: what the checkpoint, the marks, the pending list and the record say of each other.

- The mark of each stream that the checkpoint names is as new as the checkpoint.
- Nothing is pending below the position but what the second backlog holds.
- The record of failed batches names only batches that can still be replayed.

These hold for all streams of the checkpoint, also for those that the query does not read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.commit_mark import Mark, committed_key
from spark_streams.connector.source.offset import HISTORY, Offset, StreamOffset
from spark_streams.connector.source.pending.poison_record import Piece, PoisonState, key_of
from spark_streams.operations.verify.history import id_key
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.mixes import is_behind
from tools.simulation.world import CONSUMER, GROUP, World


def check_invariant(world: World) -> None:
    """Check the three, unless a batch is not committed, or the plan's setup leaves it out."""
    query = world.query
    is_left_out = not world.setup.judges_marks or not query.offsets or query.committed < len(query.offsets) - 1
    if is_left_out or HISTORY in query.offsets[-1]:
        return
    checkpoint = Offset.from_json(query.offsets[-1])
    with unnoticed(world):
        check_marks(world, checkpoint)
        state = _record(world, checkpoint)
        check_second_backlog(world, checkpoint, state)
        check_record(world, checkpoint, state)


def _suspect(world: World, name: str, what: str, details: str) -> None:
    where = "listed" if name in world.query.reads() else "left out"
    causes = "+".join(sorted(world.model.stream(name).ever)) or "nothing"
    world.suspect(f"{what}, {where} | after {causes} | {world.query.mode}", details)


# -- commit marks ------------------------------------------------------------------------------------------------------


def check_marks(world: World, checkpoint: Offset) -> None:
    """Check the marks of all streams of the checkpoint."""
    for name, at in checkpoint.at.items():
        mark = Mark.parse(world.raw.get(committed_key(name, GROUP, CONSUMER)))
        is_evicted = not at.number and "evicted committed" in world.model.stream(name).ever
        is_same = _looks_the_same(world, name, at, mark)
        if mark is None and (is_same or is_evicted):  # after the first batch it is missed
            world.model.stream(name).causes.add("evicted committed")
        if is_same:
            continue
        if (how := _difference(at, mark)) and world.see(name).position is not None:
            details = f"{name}: the checkpoint is at {at}, the mark is {mark or 'missing'}"
            _suspect(world, name, f"mark behind | {how}", details)


def _looks_the_same(world: World, name: str, at: StreamOffset, mark: Mark | None) -> bool:
    """Whether in this run the mark was deleted, or a server was restored on which the group and the mark are where the
    query is: a run does not ask for the marks of groups that are as it has left them. The next one does."""
    is_there = mark is None or str(mark.id) == str(at.position) == world.see(name).position
    return is_there and world.query.running and world.set_back_in == world.query.runs


def _difference(at: StreamOffset, mark: Mark | None) -> str:
    """Return how a mark is behind the position of a stream in the checkpoint; "": it is not."""
    if not at.number or (mark is not None and (mark.number > at.number or mark.is_seek)):
        return ""
    if mark is None:
        return "missing"
    if mark.number < at.number:
        return "older"
    return "" if mark.token == at.token else "of another batch"


@contextlib.contextmanager
def unnoticed(world: World) -> Iterator[None]:
    """Look at the server without a trace in the digest, and without time: with this judge and without it, the commands
    and replies of a plan are the same."""
    if not isinstance(world.server, ProcessServer):
        yield
        return
    core = world.server.core
    cores, moment = [core, *core.others.values()], core.clock.moment
    digests = [one.digest.copy() for one in cores]
    try:
        yield
    finally:
        for one, digest in zip(cores, digests, strict=True):
            one.digest = digest
        core.clock.return_to(moment)


# -- the second backlog, and the record --------------------------------------------------------------------------------


def check_second_backlog(world: World, checkpoint: Offset, state: PoisonState) -> None:
    """Check that nothing is pending for the query up to its position that no batch will have: what is set aside waits,
    and so does what may be old in streams that are not read now. What others have handed over is `verdict`'s."""
    for name in () if is_behind(world.server) else checkpoint.streams:
        if name in checkpoint.left and name not in world.query.reads():
            continue
        seen, position = world.see(name), id_key(str(checkpoint[name]))
        held = {found for found in seen.ours() if id_key(found) <= position}
        aside = [part for piece in _pieces(state) for part in piece.ranges().get(name, ())]
        held -= {found for found in held if any(part.covers(StreamId.parse(found)) for part in aside)}
        held -= {entry.id for entry in world.model.entries_of(name, held) if entry.repeat_reasons or entry.shuffled}
        if held:
            _suspect(world, name, "pending below the position", f"{name} at {checkpoint[name]}: {sorted(held)}")


def check_record(world: World, checkpoint: Offset, state: PoisonState) -> None:
    """Check that the record names no entries of a stream that is read: an idle query has read its pieces. Parts of
    streams that are not read wait for the day on which they are, so the checkpoint names these."""
    reads = world.query.reads()
    for name in sorted(state.streams):
        if name not in checkpoint.at or name in reads:
            kept = {stream: piece.parts[stream] for piece in _pieces(state) for stream in piece.parts if stream == name}
            _suspect(world, name, "a record of what nobody reads", f"{kept} of {checkpoint.streams}")


def _record(world: World, checkpoint: Offset) -> PoisonState:
    text = world.raw.get(key_of("attempts", checkpoint)) if checkpoint.at else None
    return PoisonState() if text is None else PoisonState.from_json(text)


def _pieces(state: PoisonState) -> list[Piece]:
    return [*state.pieces.values(), *state.away.values()]
