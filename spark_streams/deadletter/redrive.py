"""Dead letters on their way back, page after page: which are meant, at what rate, and what is told of it.

A page is one transaction (moving.py), so a letter is moved once, whatever dies and whoever starts a second redrive.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_streams.deadletter import transform
from spark_streams.deadletter.fence import MovingLease, State, take_fence
from spark_streams.deadletter.limits import LETTER_LIMITS, LetterLimits
from spark_streams.deadletter.moving import Mover
from spark_streams.deadletter.orders import Load, Orders, load
from spark_streams.deadletter.page import LetterPage
from spark_streams.deadletter.reading import Extent, PageSize, extent, following, read_page, run_with_smaller_pages
from spark_streams.deadletter.tally import Tally
from spark_streams.ids import StreamId
from spark_streams.wire.address import Address
from spark_streams.wire.connection import Connection
from spark_streams.wire.session import Session

_PAGES_A_SECOND = 10  # under a rate


@dataclass
class Report:
    """What a redrive has done so far, or would do.

    bound: the last letter that it may move; goes_on: whether it continues one that was killed, and how many that one
    had moved_before; stopped: by `stop`; looked_at: letters; left: by the transform; homeless: that stay because they
    name no stream to go to, or that of the letters itself; vanished: moved letters that somebody else had deleted a
    moment before; tally: by (action, destination, stage, reason).
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
    vanished: int = 0
    seconds: float = 0.0
    tally: Tally = field(default_factory=Tally)

    def facts(self) -> dict[str, Any]:
        """The same for programs."""
        rate = round((self.moved + self.parked) / self.seconds) if self.seconds else 0
        names = ("action", "to", "stage", "reason")
        kinds = [{**dict(zip(names, kind, strict=True)), **asdict(count)} for kind, count in self.tally]
        plain = {name: value for name, value in vars(self).items() if name not in ("tally", "seconds")}
        return {**plain, "seconds": round(self.seconds, 3), "letters_per_second": rate, "by": kinds}

    def add(self, taken: Load) -> None:
        """One page's."""
        self.looked_at += taken.last + 1
        self.moved += taken.moved
        self.parked += taken.parked
        self.left += taken.left
        self.homeless += taken.homeless
        self.tally.merge(taken.tally)


class Redrive:
    """One run of it. report: up to date after every page, also when `run` raises or is interrupted.

    tell: called after every page; clock, sleep: in seconds.
    """

    def __init__(
        self,
        address: Address,
        orders: Orders,
        tell: Callable[[Report], None] = lambda report: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        limits: LetterLimits = LETTER_LIMITS,
    ) -> None:
        """Raises InvalidOptionError, TransformError."""
        self._orders = orders.checked()
        self._repair = transform.load(orders.transform) if orders.transform is not None else None
        self._address, self._tell, self._clock, self._sleep = address, tell, clock, sleep
        self._size = PageSize(limits)
        self.report = Report(orders.stream)

    def stop(self) -> None:
        """End after the page that is under way; may be called from a signal handler or another thread."""
        self.report.stopped = True

    def run(self, dry_run: bool = False) -> Report:
        """Move what is meant; dry_run: only count.

        Raises RedriveTakenError where another process moves these letters, TransformError, ServerError.
        """
        self.report.dry_run = dry_run
        began = self._clock()
        with Session(self._address) as session, contextlib.ExitStack() as held:
            lease = MovingLease(self._address)
            if not dry_run:
                held.callback(lease.release)
            within, state = self._begin(session, lease)
            bound = StreamId.parse(state.bound)
            self.report.bound = state.bound
            self.report.total = min([within.length, *self._limits()])
            mover = Mover(session, self._orders, state)
            first: StreamId | None = within.first
            while first is not None and first <= bound and self._room() != 0 and not self.report.stopped:
                if not dry_run:
                    lease.hold(session.get(), [self._orders.stream])
                first = self._page(mover, first, bound)
                self.report.seconds = self._clock() - began
                self._tell(self.report)
                self._pace(began)
            if not dry_run and not self.report.stopped:
                session.run(lambda server: mover.end())
            self.report.vanished = mover.vanished
        return self.report

    def _begin(self, session: Session, lease: MovingLease) -> tuple[Extent, State]:
        """(where letters are looked at, the state of the run). Raises as `run` does."""
        stream, dry_run = self._orders.stream, self.report.dry_run
        if not dry_run:
            session.run(lambda server: lease.hold(server, [stream]))
        within = session.run(lambda server: extent(server, stream, self._orders.criteria))
        state = State.begin(self._orders.digest(), within.last)
        if not dry_run:
            fresh = state
            state, self.report.goes_on = session.run(lambda server: take_fence(server, stream, fresh))
            self.report.moved_before = state.moved + state.parked
        return within, state

    def _page(self, mover: Mover, first: StreamId, bound: StreamId) -> StreamId | None:
        """One page; where the next one begins."""
        room = self._room()
        paced = self._orders.rate is not None and not self.report.dry_run
        budget = max(1, (self._orders.rate or 0) // _PAGES_A_SECOND) if paced else None
        wanted = min([many for many in (room, budget) if many is not None], default=None)

        def look() -> tuple[LetterPage, Load]:
            page, received = read_page(mover.session.get(), self._orders.stream, first, bound, self._size, wanted)
            taken = load(page, self._orders, self._repair, wanted)
            self._size.learn(page.count, received, len(taken.rows) + taken.left)
            return page, taken

        def move(server: Connection) -> tuple[LetterPage, Load]:
            return look() if self.report.dry_run else mover.move(look)

        page, taken = run_with_smaller_pages(mover.session, self._size, move)
        self.report.add(taken)
        return following(page.ids[taken.last].as_py()) if page.count else None

    def _limits(self) -> list[int]:
        return [] if self._orders.limit is None else [max(0, self._orders.limit - self.report.moved_before)]

    def _room(self) -> int | None:
        """How many letters may still go."""
        return next((max(0, limit - self.report.moved - self.report.parked) for limit in self._limits()), None)

    def _pace(self, began: float) -> None:
        if self._orders.rate and not self.report.dry_run:
            due = began + (self.report.moved + self.report.parked) / self._orders.rate
            if (early := due - self._clock()) > 0:
                self._sleep(early)
