"""The triggers of a run, and the jobs of the background worker between them.

While the tasks of a batch run, the worker acknowledges the batch before. If many entries are left, it reserves the next
batch first (trigger.prefetch). Each trigger waits for these jobs.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.source.group.opening import Opened, Opening
from spark_streams.connector.source.group.start import fetch_marks
from spark_streams.connector.source.group.state import Reserved
from spark_streams.connector.source.group.stream_set import StreamSet
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.source.trigger.acknowledge import Acknowledging
from spark_streams.connector.source.trigger.background import BackgroundWorker
from spark_streams.connector.source.trigger.run_state import RunState
from spark_streams.connector.source.trigger.trigger import Trigger, TriggerResult
from spark_streams.connector.wire.connection.server import Server


class Triggering:
    """Runs the triggers of one run."""

    def __init__(
        self,
        opening: Opening,
        streams: StreamSet,
        trigger: Trigger,
        acknowledging: Acknowledging,
        worker: BackgroundWorker,
    ) -> None:
        self._opening = opening
        self._streams = streams
        self._trigger = trigger
        self._acknowledging = acknowledging
        self._worker = worker
        self._prefetching: Future[object] | None = None  # the reservation for the next trigger

    def next(
        self, server: Server, checkpoint: Offset, limit: int | None, run: RunState
    ) -> tuple[TriggerResult, RunState]:
        """Run a trigger, and start its background jobs."""
        run = self._after_jobs(run)
        with collection_paused():
            opened = self.opened(server, checkpoint, run)
            result = self._trigger.next(server, opened, limit, run)
        # Tasks read while the next batch is reserved, and no longer while Spark commits: then entries are acknowledged.
        # So the server always has work.
        if result.prefetch is not None:
            self._prefetching = self._worker.submit(result.prefetch.work)
        for job in result.jobs:
            self._worker.submit(job)
        return result, result.run

    def opened(self, server: Server, checkpoint: Offset, run: RunState) -> Opened:
        """Open the run if it knows nothing yet, and return where the trigger begins."""
        streams, begin = self._streams, checkpoint
        if not run.is_known:
            begin = self._opening.open(server, checkpoint)
        elif streams.is_match_due():
            self._opening.join(server, checkpoint)
        names = streams.of_trigger(server, begin)
        start = streams.without_unused_returned(run.start_of(begin))
        forgotten = start.at.keys() - {*names} - checkpoint.at.keys()  # of a pattern, and missing: Spark logged none
        return Opened(checkpoint, start.without(forgotten), names)

    def commit(self, server: Server, end: Offset, run: RunState) -> tuple[None, RunState]:
        """Acknowledge the batch that ends here, without another trigger."""
        run = self._after_jobs(run)
        marks = None if run.settled is not None else fetch_marks(server, self._streams.member, end.streams)
        acknowledged, _ = self._acknowledging.acknowledge(server, end, run, marks)
        # The next trigger finds what was reserved ahead in the pending list.
        return None, acknowledged if run.prefetched is None else run.unknown()

    def _after_jobs(self, run: RunState) -> RunState:
        """Wait for the background jobs. Return what this run knows then."""
        reserving, self._prefetching = self._prefetching, None
        try:
            self._worker.wait()
        except StreamStateError:
            # A stream or group is missing: the following steps decide what to do about it.
            return run.unknown()
        prefetched = None if reserving is None else reserving.result()
        return replace(run, prefetched=prefetched) if isinstance(prefetched, Reserved) and run.is_known else run


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the collector of this process, if it runs.

    A trigger over 10,000 streams makes some 300,000 small values, none of which refers to itself. The collector would
    search them, and everything else in the process, twice in vain: a quarter of the trigger.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
