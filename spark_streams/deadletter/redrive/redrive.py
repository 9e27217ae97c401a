"""Dead letters on their way back, page after page: read, plan, move (page_reader.py, redrive_plan.py, mover.py)."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from spark_streams.deadletter import transform
from spark_streams.deadletter.kind_counts import KindCounts
from spark_streams.deadletter.limits import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.deadletter.page_reader import PageSize, extent, following, read_page, run_with_smaller_pages
from spark_streams.deadletter.redrive.destinations import Destinations
from spark_streams.deadletter.redrive.mover import Mover, Rehearsal
from spark_streams.deadletter.redrive.page_plan import PagePlan
from spark_streams.deadletter.redrive.redrive_lock import RedriveLease, RedriveRun, RedriveState, begin_or_continue
from spark_streams.deadletter.redrive.redrive_plan import RedriveOptions, origins, plan_page
from spark_streams.deadletter.retry.waiting_entries import refuse_to_redrive
from spark_streams.model.ids import StreamId
from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.server import Server
from spark_streams.wire.session import Session

_PAGES_A_SECOND = 10  # under a rate


@dataclass
class Report:
    """What a redrive has done so far, or would do.

    bound: the last dead letter that it may move; goes_on: whether it continues one that was killed, and how many
    that one had moved_before; stopped: by `stop`; looked_at: dead letters; left: by the transform; homeless: that stay
    because they name no stream to go to, or the dead-letter stream itself; refused: that stay because their stream is
    not open to them (destinations.py); vanished: moved ones that somebody else had
    deleted a moment before; counts: by (action, destination, stage, reason).
    """

    stream: str
    dry_run: bool = False
    total: int = 0
    bound: str = ""
    goes_on: bool = False
    stopped: bool = False
    moved_before: int = 0
    looked_at: int = 0
    moved: int = 0
    parked: int = 0
    left: int = 0
    homeless: int = 0
    refused: int = 0
    vanished: int = 0
    seconds: float = 0.0
    counts: KindCounts = field(default_factory=KindCounts)

    def facts(self) -> dict[str, object]:
        """The same for programs."""
        rate = round((self.moved + self.parked) / self.seconds) if self.seconds else 0
        names = ("action", "to", "stage", "reason")
        kinds = [{**dict(zip(names, kind, strict=True)), **asdict(count)} for kind, count in self.counts]
        plain = {name: value for name, value in vars(self).items() if name not in ("counts", "seconds")}
        to = [dict(zip(("action", "to", "letters"), one, strict=True)) for one in self.destinations()]
        return {**plain, "destinations": to, "seconds": round(self.seconds, 3), "letters_per_second": rate, "by": kinds}

    def destinations(self) -> list[tuple[str, str, int]]:
        """(action, stream, how many dead letters), by stream."""
        found: Counter[tuple[str, str]] = Counter()
        for (action, to, _, _), count in self.counts:
            found[action, to] += count.letters
        return sorted((action, to, letters) for (action, to), letters in found.items())

    @property
    def found(self) -> bool:
        """Whether any dead letter was meant, by it or by the run that it continues."""
        return bool(self.moved_before or self.moved or self.parked or self.left or self.homeless or self.refused)

    def add(self, plan: PagePlan) -> None:
        """Count what a page was found to hold."""
        self.looked_at += plan.last + 1
        self.left += plan.left
        self.homeless += plan.homeless
        self.refused += plan.refused
        self.counts.merge(plan.counts)


class Redrive:
    """One run of it. report: up to date after every page, also when `run` raises or is interrupted.

    tell: called after every page; clock, sleep: in seconds.
    """

    def __init__(
        self,
        address: Address,
        options: RedriveOptions,
        tell: Callable[[Report], None] = lambda report: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        limits: DeadLetterLimits = DEAD_LETTER_LIMITS,
    ) -> None:
        """Raises InvalidOptionError, TransformError."""
        self._options = options.checked()
        self._repair = transform.load(options.transform) if options.transform is not None else None
        self._address, self._tell, self._clock, self._sleep = address, tell, clock, sleep
        self._size = PageSize(limits)
        self._destinations = Destinations(options.stream, options.allow)
        self.report = Report(options.stream)

    def stop(self) -> None:
        """End after the page that is under way; may be called from a signal handler or another thread."""
        self.report.stopped = True

    def run(self, dry_run: bool = False) -> Report:
        """Move what is meant; dry_run: only count.

        Raises RedriveTakenError where another process moves these dead letters, TransformError, ServerError.
        """
        report, stream = self.report, self._options.stream
        refuse_to_redrive(self._address, stream)
        report.dry_run = dry_run
        began = self._clock()
        lease = RedriveLease(self._address, "redrive")
        with Session(self._address) as session, contextlib.ExitStack() as held:
            if not dry_run:
                held.callback(lease.release)
                session.run(lambda server: lease.hold(server, [stream]))
            within = session.run(lambda server: extent(server, stream, self._options.criteria))
            state = RedriveState.begin(self._options.digest(), within.last)
            if not dry_run:
                fresh = state
                state, report.goes_on = session.run(lambda server: begin_or_continue(server, stream, fresh))
            run = RedriveRun(session, stream, state)
            mover = Rehearsal(run) if dry_run else Mover(run)
            session.run(lambda server: mover.begin())
            self._count(state, run)
            bound = StreamId.parse(state.bound)
            report.bound, report.moved_before = state.bound, state.moved + state.parked
            report.total = min([within.length, *self._room(run)])
            first: StreamId | None = within.first
            while first is not None and first <= bound and 0 not in self._room(run) and not report.stopped:
                if not dry_run:
                    lease.hold(session.get(), [stream])
                step = functools.partial(self._page, run, mover, first, bound)
                try:
                    plan = run_with_smaller_pages(session, self._size, step)
                finally:
                    self._count(state, run)
                report.add(plan)
                first = None if plan.last_id is None else following(plan.last_id)
                report.seconds = self._clock() - began
                self._tell(report)
                self._pace(began)
            report.vanished = mover.vanished
            if not report.stopped and not dry_run:
                session.run(lambda server: run.end())
        return report

    def _page(self, run: RedriveRun, mover: Mover, first: StreamId, bound: StreamId, server: Server) -> PagePlan:
        """Read the next page, plan it and move it. May be run again after a lost connection."""
        while (moved := mover.begin()) is None:
            plan = self._plan(run, first, bound, server)
            if mover.move(plan):
                return plan
        return moved

    def _plan(self, run: RedriveRun, first: StreamId, bound: StreamId, server: Server) -> PagePlan:
        """Read the next page, and plan what is to be done with it."""
        paced = self._options.rate is not None and not self.report.dry_run
        budget = [max(1, (self._options.rate or 0) // _PAGES_A_SECOND)] if paced else []
        wanted = min([*self._room(run), *budget], default=None)
        page, received = read_page(server, self._options.stream, first, bound, self._size, wanted)
        open_to = self._destinations.open_to(server, origins(page, self._options))
        plan = plan_page(page, self._options, self._repair, wanted, open_to)
        self._size.learn(page.count, received, len(plan.rows) + plan.left)
        return plan

    def _count(self, before: RedriveState, run: RedriveRun) -> None:
        """Report what the state says: it is right also after a lost connection."""
        self.report.moved, self.report.parked = run.state.since(before)

    def _room(self, run: RedriveRun) -> list[int]:
        """How many dead letters may still go; empty: all."""
        limit = self._options.limit
        return [] if limit is None else [max(0, limit - run.state.moved - run.state.parked)]

    def _pace(self, began: float) -> None:
        if self._options.rate and not self.report.dry_run:
            due = began + (self.report.moved + self.report.parked) / self._options.rate
            if (early := due - self._clock()) > 0:
                self._sleep(early)
