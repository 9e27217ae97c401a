"""The triggers of a run: its steps, the jobs of the background worker between them, and the time without entries.

A step asks or changes the server, with what the run knows before it, and returns what it knows then. After a broken
connection, Session.run waits for the server and runs the step again. Each attempt begins by making the run state
unknown, so a step that fails leaves it unknown: the next attempt asks the server.

While the tasks of a batch run, the worker acknowledges the batch before. If many entries are left, it reserves the next
batch first (trigger.batch_contents). Each trigger waits for these jobs.

Spark asks an idle query for new entries a hundred times a second. The query asks the server only once, with a blocking
read of all streams (wire.connect), and again when something else may be due: a retry, a claim, maxTriggerDelay.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import DataLossError, GroupMissingError, RStreamError, StreamStateError
from spark_streams.connector.source.group.begin import Opened, Opening
from spark_streams.connector.source.group.recovery import DataLoss
from spark_streams.connector.source.group.streams import StreamSet
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.source.trigger.acknowledge import Acknowledging, LoggedBatch
from spark_streams.connector.source.trigger.run_state import Job, Reserved, RunState
from spark_streams.connector.source.trigger.trigger import Trigger, TriggerResult
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import BlockedRead, connect
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.session import Session

_log = logging.getLogger("spark_streams.source")


_TRIES = 5  # attempts of a trigger during which streams or groups vanish (failOnDataLoss=false)
T = TypeVar("T")
Step = Callable[[GroupClient, RunState], tuple[T, RunState]]


@dataclass
class RunSteps:
    """The steps of one run."""

    session: Session
    member: Membership
    limits: Limits
    losses: DataLoss
    run: RunState  # what the run knows

    def take(self, step: Step[T]) -> T:
        """Run a step with what this run knows. The step returns what is known after it."""
        return self.session.run(partial(self._attempt, step))

    def _attempt(self, step: Step[T], server: Server) -> T:
        run, self.run = self.run, self.run.unknown()
        self.losses.attempt_began()
        result, self.run = step(GroupClient(server, self.member, self.limits), run)
        self.losses.step_ended()
        return result

    def ask(self, question: Callable[[GroupClient], T]) -> T:
        """Run a step that does not change what this run knows."""
        return self.take(partial(_asked, question))

    def take_again(self, step: Step[T]) -> T:
        """Run a step again if a stream or group vanishes under it and losses are allowed: then it counts the loss."""
        for _ in range(_TRIES - 1):
            try:
                return self.take(step)
            except (GroupMissingError, DataLossError):
                if not self.losses.allowed:
                    raise
        return self.take(step)


def _asked(question: Callable[[GroupClient], T], client: GroupClient, run: RunState) -> tuple[T, RunState]:
    return question(client), run


class BackgroundWorker:
    """Runs jobs in order, in a thread and over a connection of its own. Jobs rely on what the driver has seen after the
    last `wait`. A server that answers over a newer connection may be in an older state, and its commit mark would then
    hide what it has forgotten. So `wait` makes the connection, before the driver looks. If it breaks, the jobs that
    were submitted before the next `wait` fail with it. A job may be interrupted at any point. One thread may use the
    worker."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._jobs: queue.SimpleQueue[tuple[Callable[[Server], object], Future[object]] | None] = queue.SimpleQueue()
        self._submitted: list[Future[object]] = []
        self._broken: Exception | None = None  # since the last `wait`
        self._thread: threading.Thread | None = None
        self._server: Server | None = None  # of the thread

    def __reduce__(self) -> tuple[type[BackgroundWorker], tuple[Address]]:
        return BackgroundWorker, (self._address,)

    def submit(self, job: Callable[[Server], object]) -> Future[object]:
        """Run this job after the earlier ones, also if one of them has found a missing stream or group."""
        if self._thread is None:
            # A daemon: a process that ends does not wait for it.
            self._thread = threading.Thread(target=self._work, name="rstream-beside", daemon=True)
            self._thread.start()
        result = Future[object]()
        self._jobs.put((job, result))
        self._submitted.append(result)
        return result

    def wait(self) -> None:
        """Wait for all jobs, and for a connection. Raises the jobs' first error: StreamStateError, ServerError."""
        self._end_jobs()
        if self._server is None:
            self.submit(_nothing)
            self._end_jobs()

    def _end_jobs(self) -> None:
        submitted, self._submitted = self._submitted, []
        errors = [error for error in [result.exception() for result in submitted] if error is not None]
        self._broken = None  # no job is left
        if errors:
            raise errors[0]

    def close(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (submitted := self._jobs.get()) is not None:
            job, result = submitted
            try:
                if self._broken is not None:
                    raise self._broken
                if self._server is None:
                    self._server = connect(self._address)
                self._server.renew_login()
                result.set_result(job(self._server))
            except Exception as error:  # noqa: BLE001 - `wait` raises it
                if not isinstance(error, StreamStateError):
                    self._broken = error
                self._disconnect()  # in the middle of a reply, perhaps
                result.set_exception(error)
        self._disconnect()

    def _disconnect(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


@dataclass
class Triggering:
    opening: Opening
    streams: StreamSet
    trigger: Trigger
    acknowledging: Acknowledging
    worker: BackgroundWorker
    prefetching: Future[object] | None = None  # the reservation for the next trigger

    def next(
        self, client: GroupClient, run: RunState, checkpoint: Offset, limit: int | None
    ) -> tuple[TriggerResult, RunState]:
        """Run a trigger, and start its background jobs."""
        run = self._after_jobs(run)
        with collection_paused():
            opened = self.opened(client, checkpoint, run)
            result = self.trigger.next(client, opened, limit, run)
        # Tasks read while the next batch is reserved, and no longer while Spark commits: then entries are acknowledged.
        # So the server always has work.
        if result.prefetch is not None:
            self.prefetching = self.worker.submit(partial(_beside, result.prefetch.work, client))
        for job in result.jobs:
            self.worker.submit(partial(_beside, job, client))
        return result, result.run

    def opened(self, client: GroupClient, checkpoint: Offset, run: RunState) -> Opened:
        """Open the run if it knows nothing yet, and return where the trigger begins."""
        streams, begin = self.streams, checkpoint
        if not run.is_known:
            begin = self.opening.open(client, checkpoint)
        elif streams.is_match_due():
            self.opening.join(client, checkpoint)
        names = streams.of_trigger(client, begin)
        start = streams.without_unused_returned(run.start_of(begin))
        forgotten = start.at.keys() - {*names} - checkpoint.at.keys()  # of a pattern, and missing: Spark logged none
        dropped = checkpoint.at.keys() - begin.at.keys()
        return Opened(checkpoint, start.without(forgotten | dropped), names)

    def commit(self, client: GroupClient, run: RunState, end: Offset) -> tuple[None, RunState]:
        """Acknowledge the batch that ends here, without another trigger."""
        run = self._after_jobs(run)
        acknowledged, _ = self.acknowledging.at_once(client, LoggedBatch.of_run(client, end, run))
        # The next trigger finds what was reserved ahead in the pending list.
        return None, acknowledged if run.prefetched is None else run.unknown()

    def _after_jobs(self, run: RunState) -> RunState:
        """Wait for the background jobs. Return what this run knows then."""
        reserving, self.prefetching = self.prefetching, None
        try:
            self.worker.wait()
        except StreamStateError:
            # A stream or group is missing: the following steps decide what to do about it.
            return run.unknown()
        prefetched = None if reserving is None else reserving.result()
        return replace(run, prefetched=prefetched) if isinstance(prefetched, Reserved) and run.is_known else run


def _nothing(_server: Server) -> None:
    """Only connect."""


def _beside(job: Job, client: GroupClient, server: Server) -> object:
    return job(replace(client, server=server))


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the collector of this process, if it runs. A trigger over 10,000 streams makes some 300,000 small values.
    The collector would search them, and all else in the process, twice in vain: a quarter of the trigger."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_MARGIN = 0.05  # seconds that the server is given to end a blocking read by itself
_SHORTEST = 0.01  # seconds that the first call after a batch waits; each one after it waits twice as long


class Idle:
    """The idle times of one query. now: a monotonic clock, in seconds; sleep: waits that many seconds."""

    def __init__(
        self,
        address: Address,
        now: Callable[[], float],
        limits: Limits,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._read = BlockedRead(address)
        self._now, self._sleep = now, sleep
        self._longest = limits.idle_wait
        self._wait = 0.0  # seconds that the next call waits
        self._since: Offset | None = None  # the checkpoint at which the query is idle
        self._until = 0.0

    def begin(self, checkpoint: Offset, last: Mapping[str, StreamId], seconds: float) -> None:
        """Begin an idle time: no stream had an entry above the checkpoint. last: the last ID of each stream then;
        seconds: until the trigger must ask the server again."""
        if seconds <= 0:
            return
        if self._read.refused is None:
            try:
                self._read.begin(last, seconds)
            except RStreamError:
                self._read.close()  # the next trigger meets the same error, and raises it
                return
            self._tell()
        self._since, self._until = checkpoint, self._now() + seconds + _MARGIN

    def batch_ran(self) -> None:
        """Make the next calls wait only briefly: Spark asks one source after the other."""
        self._wait = 0.0

    def lasts(self, checkpoint: Offset) -> bool:
        """Wait for a new entry, at most Limits.idle_wait. Return whether the query is still idle."""
        if self._since is None or self._since != checkpoint or self._now() >= self._until:
            self._since = None
            return False
        self._wait = min(self._longest, max(_SHORTEST, 2 * self._wait))
        if self._read.refused is not None:
            self._sleep(self._wait)
            self._since = None
        elif self._read.is_over(self._wait):
            self._since = None
            self._tell()
        return self._since is not None

    def _tell(self) -> None:
        if (reason := self._read.refused) is not None:
            _log.warning("an idle query asks the server %.0f times a second: %s", 1 / self._longest, reason)

    def close(self) -> None:
        self._since = None
        self._read.close()
