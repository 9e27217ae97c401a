"""The invariant of commit marks: while the query is idle, the mark of each stream that the checkpoint names, and that
has the group, is as new as the checkpoint. It does not matter whether the stream is in the query's list."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from spark_streams.connector.source.commit_mark import Mark, committed_key
from spark_streams.connector.source.offset import StreamOffset
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.world import CONSUMER, GROUP, World


def check(world: World) -> None:
    """Check the marks of all streams of the checkpoint, unless the plan's setup leaves that out."""
    query = world.query
    if not world.setup.judges_marks or not query.offsets or query.committed < len(query.offsets) - 1:
        return
    with _unnoticed(world):
        for name, text in query.offsets[-1]["streams"].items():
            at = StreamOffset.parse(text)
            mark = Mark.parse(world.raw.get(committed_key(name, GROUP, CONSUMER)))
            if (how := _difference(at, mark)) and world.see(name).position is not None:
                where = "listed" if name in query.reads() else "left out"
                causes = "+".join(sorted(world.model.stream(name).ever)) or "nothing"
                details = f"{name}: the checkpoint is at {at}, the mark is {mark or 'missing'}"
                world.suspect(f"mark behind | {how}, {where} | after {causes} | {query.mode}", details)


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
def _unnoticed(world: World) -> Iterator[None]:
    """Look at the server without a trace in the digest, and without time: with this judge and without it, the commands
    and replies of a plan are the same."""
    if not isinstance(world.server, ProcessServer):
        yield
        return
    core = world.server.core
    digest, moment = core.digest.copy(), core.clock.moment
    try:
        yield
    finally:
        core.digest = digest
        core.clock.return_to(moment)
