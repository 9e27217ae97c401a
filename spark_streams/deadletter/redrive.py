"""Dead letters on their way back, page after page: which are meant, at what rate, and what is told of it.

A page is one transaction (mover.py), so each is moved once, whatever dies and whoever starts a second redrive.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_streams.deadletter import transform
from spark_streams.deadletter.destinations import Destinations
from spark_streams.deadletter.kind_counts import KindCounts
from spark_streams.deadletter.limits import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.deadletter.mover import Mover
from spark_streams.deadletter.mover_across_slots import MoverAcrossSlots
from spark_streams.deadletter.page import DeadLetterPage
from spark_streams.deadletter.page_reader import Extent, PageSize, extent, following, read_page, run_with_smaller_pages
from spark_streams.deadletter.redrive_lock import RedriveLease, RedriveState, begin_or_continue
from spark_streams.deadletter.redrive_plan import PagePlan, RedriveOptions, origins, plan_page
from spark_streams.deadletter.waiting import refuse_to_redrive
from spark_streams.ids import StreamId
from spark_streams.wire.address import Address
from spark_streams.wire.server import Server
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

    def facts(self) -> dict[str, Any]:
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
        """One page's."""
        self.looked_at += plan.last + 1
        self.moved += plan.moved
        self.parked += plan.parked
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
        refuse_to_redrive(self._address, self._options.stream)
        self.report.dry_run = dry_run
        began = self._clock()
        with Session(self._address) as session, contextlib.ExitStack() as held:
            lease = RedriveLease(self._address, "redrive")
            if not dry_run:
                held.callback(lease.release)
            within, state = self._begin(session, lease)
            bound = StreamId.parse(state.bound)
            self.report.bound = state.bound
            self.report.total = min([within.length, *self._limits()])
            across = self._address.is_cluster
            mover = (MoverAcrossSlots if across else Mover)(session, self._options, state)
            first: StreamId | None = within.first
            while first is not None and first <= bound and self._room() != 0 and not self.report.stopped:
                if not dry_run:
                    lease.hold(session.get(), [self._options.stream])
                first = self._page(mover, first, bound)
                self.report.seconds = self._clock() - began
                self._tell(self.report)
                self._pace(began)
            if not dry_run and not self.report.stopped:
                session.run(lambda server: mover.end())
            self.report.vanished = mover.vanished
        return self.report

    def _begin(self, session: Session, lease: RedriveLease) -> tuple[Extent, RedriveState]:
        """(where dead letters are looked at, the state of the run). Raises as `run` does."""
        stream, dry_run = self._options.stream, self.report.dry_run
        if not dry_run:
            session.run(lambda server: lease.hold(server, [stream]))
        within = session.run(lambda server: extent(server, stream, self._options.criteria))
        state = RedriveState.begin(self._options.digest(), within.last)
        if not dry_run:
            fresh = state
            state, self.report.goes_on = session.run(lambda server: begin_or_continue(server, stream, fresh))
            self.report.moved_before = state.moved + state.parked
        return within, state

    def _page(self, mover: Mover | MoverAcrossSlots, first: StreamId, bound: StreamId) -> StreamId | None:
        """One page; where the next one begins."""
        room = self._room()
        paced = self._options.rate is not None and not self.report.dry_run
        budget = max(1, (self._options.rate or 0) // _PAGES_A_SECOND) if paced else None
        wanted = min([many for many in (room, budget) if many is not None], default=None)

        def look() -> tuple[DeadLetterPage, PagePlan]:
            page, received = read_page(mover.session.get(), self._options.stream, first, bound, self._size, wanted)
            open_to = self._destinations.open_to(mover.session.get(), origins(page, self._options))
            plan = plan_page(page, self._options, self._repair, wanted, open_to)
            self._size.learn(page.count, received, len(plan.rows) + plan.left)
            return page, plan

        def move(server: Server) -> tuple[DeadLetterPage, PagePlan]:
            return look() if self.report.dry_run else mover.move(look)

        try:
            page, plan = run_with_smaller_pages(mover.session, self._size, move)
        finally:
            self.report.moved += mover.uncounted
            mover.uncounted = 0
        self.report.add(plan)
        return following(page.ids[plan.last].as_py()) if page.count else None

    def _limits(self) -> list[int]:
        return [] if self._options.limit is None else [max(0, self._options.limit - self.report.moved_before)]

    def _room(self) -> int | None:
        """How many dead letters may still go."""
        return next((max(0, limit - self.report.moved - self.report.parked) for limit in self._limits()), None)

    def _pace(self, began: float) -> None:
        if self._options.rate and not self.report.dry_run:
            due = began + (self.report.moved + self.report.parked) / self._options.rate
            if (early := due - self._clock()) > 0:
                self._sleep(early)
