"""From what was reserved to what one task reads. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from spark_streams.ids import StreamId


@dataclass(frozen=True)
class Run:
    """Entries of one stream with after < id ≤ last that are pending for our consumer.

    count: how many of them are ours; owned: whether they are all that the stream held there when they were delivered
    (then XRANGE reads them), or others read from the same range (then our own pending list must be asked).
    """

    stream: str
    after: StreamId
    last: StreamId
    count: int
    owned: bool


def tasks(runs: Iterable[Run], entries_per_task: int) -> list[Run]:
    """Join neighbouring runs of a stream until a task holds about `entries_per_task` entries.

    Only runs that touch and are owned alike are joined. A run is never cut: its inner ids are not known.
    """
    joined: list[Run] = []
    for run in runs:
        if run.count == 0:
            continue
        before = joined[-1] if joined else None
        if (
            before is not None
            and before.stream == run.stream
            and before.last == run.after
            and before.owned == run.owned
            and before.count + run.count <= entries_per_task
        ):
            joined[-1] = replace(before, last=run.last, count=before.count + run.count)
        else:
            joined.append(run)
    return joined


def share(limit: int, backlog: Mapping[str, int], turn: int = 0) -> dict[str, int]:
    """Divide `limit` entries between streams: nobody gets more than its backlog, the small ones are served whole, and
    what is left is divided evenly. Where there are more streams than entries they take turns (turn: counts triggers),
    so that no stream starves.
    """
    names = sorted(stream for stream, wanted in backlog.items() if wanted > 0)
    if limit < len(names):
        first = turn * limit
        return {names[(first + at) % len(names)]: 1 for at in range(limit)}
    shares: dict[str, int] = {}
    left = limit
    waiting = sorted(names, key=lambda stream: (backlog[stream], stream))
    for position, stream in enumerate(waiting):
        shares[stream] = min(backlog[stream], -(-left // (len(waiting) - position)))
        left -= shares[stream]
    return shares
