"""Redrive of dead letters, page by page: read, plan, move (letter_page.py, redrive_plan.py, mover.py). And purge: read,
delete.

`rstream:lease:{stream}:redrive` is the lease of the process that works on the dead letters of a stream.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

from spark_streams.base.ids import StreamId
from spark_streams.connector.deadletter import letter_page, redrive_plan, transform
from spark_streams.connector.deadletter.listing import KindCounts
from spark_streams.connector.deadletter.mover import Mover, RedriveRun, RedriveState, Rehearsal, begin_or_continue
from spark_streams.connector.deadletter.post import DEAD_LETTER_LIMITS, DeadLetterLimits, PageSize
from spark_streams.connector.deadletter.transform import FieldPreview
from spark_streams.connector.deadletter.waiting_entries import refuse_returned_entries, refuse_to_redrive
from spark_streams.connector.errors import RedriveTakenError
from spark_streams.connector.keys import key_beside
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.lease import DEFAULT_TERMS, Lease, LeaseTerms
from spark_streams.connector.wire.session import Session


class RedriveLease(Lease):
    """The lease of the process that moves or purges dead letters of a stream. Raises RedriveTakenError."""

    def key_of(self, stream: str) -> bytes:
        return key_beside(stream, "lease", "redrive")

    def taken(self, stream: str, where: str) -> RedriveTakenError:
        return RedriveTakenError(
            f"another process moves or purges dead letters of stream {stream!r} at {self._address}{where}; "
            "let it end, or stop it"
        )


_PAGES_A_SECOND = 10  # under a rate


@dataclass
class RedriveReport:
    """Progress of a redrive, or the result of a dry run. The names are JSON fields."""

    stream: str  # of the dead letters
    dry_run: bool = False  # nothing is moved
    total: int = 0  # dead letters to examine
    bound: str = ""  # the last dead letter that it may move
    goes_on: bool = False  # it continues a killed redrive
    stopped: bool = False  # by `stop`
    moved_before: int = 0  # dead letters that the killed one had moved, also one with other options
    looked_at: int = 0  # examined dead letters
    last: str = ""  # the last of these
    moved: int = 0  # to their destinations
    parked: int = 0  # in the parking stream
    left: int = 0  # not moved by the transform
    homeless: int = 0  # not moved: they name no stream, or the dead-letter stream itself
    refused: int = 0  # not moved: their stream is not allowed
    vanished: int = 0  # moved, but deleted by another program just before
    seconds: float = 0.0
    fields: list[dict[str, str | None]] = field(default_factory=list)  # of a dry run: those that change (FieldPreview)
    counts: KindCounts = field(default_factory=KindCounts)  # by (action, destination, stage, reason)

    def facts(self) -> dict[str, object]:
        rate = round((self.moved + self.parked) / self.seconds) if self.seconds else 0
        names = ("action", "to", "stage", "reason")
        kinds = [{**dict(zip(names, kind, strict=True)), **asdict(count)} for kind, count in self.counts]
        plain = {name: value for name, value in vars(self).items() if name not in ("counts", "seconds")}
        to = [dict(zip(("action", "to", "letters"), destination, strict=True)) for destination in self.destinations()]
        return {**plain, "destinations": to, "seconds": round(self.seconds, 3), "letters_per_second": rate, "by": kinds}

    def destinations(self) -> list[tuple[str, str, int]]:
        """Return (action, stream, number of dead letters), sorted."""
        counts: Counter[tuple[str, str]] = Counter()
        for (action, to, _, _), count in self.counts:
            counts[action, to] += count.letters
        return sorted((action, to, letters) for (action, to), letters in counts.items())

    @property
    def has_matches(self) -> bool:
        """Whether any dead letter matched, in this run or in the run that it continues."""
        return bool(self.moved_before or self.moved or self.parked or self.left or self.homeless or self.refused)

    def add(self, plan: redrive_plan.PagePlan) -> None:
        """Count the dead letters of a page."""
        self.looked_at += plan.last + 1
        self.last = self.last if plan.last_id is None else plan.last_id.decode()
        self.left += plan.count(redrive_plan.Decision.LEFT)
        self.homeless += plan.count(redrive_plan.Decision.HOMELESS)
        self.refused += plan.count(redrive_plan.Decision.CLOSED)
        self.counts.merge(plan.counts)


class DeadLetterRedrive:
    """One run of a redrive. report: up to date after every page, also if `run` raises or is interrupted.

    tell: called after every page; clock, sleep: in seconds; terms: of its lease.
    """

    def __init__(
        self,
        address: Address,
        options: redrive_plan.RedriveOptions,
        tell: Callable[[RedriveReport], None] = lambda report: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        limits: DeadLetterLimits = DEAD_LETTER_LIMITS,
        terms: LeaseTerms = DEFAULT_TERMS,
    ) -> None:
        """Raises InvalidOptionError, TransformError."""
        self._options = options.checked()
        self._repair: transform.Loaded | None = options.changes.apply if options.changes else None
        if options.transform is not None:
            self._repair = transform.load(options.transform)
        self._address, self._tell, self._clock, self._sleep = address, tell, clock, sleep
        self._size, self._terms = PageSize(limits), terms
        self._destinations = redrive_plan.Destinations(options.stream, options.allow, options.exact, options.recorded)
        self.report = RedriveReport(options.stream)

    def stop(self) -> None:
        """End after the present page. May be called from a signal handler or another thread."""
        self.report.stopped = True

    def run(self, dry_run: bool = False) -> RedriveReport:
        """Move matching dead letters; dry_run: only count them.

        Raises RedriveTakenError if another process moves these dead letters, TransformError, ServerError.
        """
        report, stream = self.report, self._options.stream
        refuse_to_redrive(stream)
        report.dry_run = dry_run
        preview = None if self._repair is None or not dry_run else FieldPreview(self._repair)
        self._repair = preview or self._repair
        began = self._clock()
        lease = RedriveLease(self._address, "redrive", self._terms)
        with Session(self._address) as session, contextlib.ExitStack() as held:
            if not dry_run:
                held.callback(lease.release)
                session.run(lambda server: lease.hold(server, [stream]))
            within = session.run(lambda server: letter_page.extent(server, stream, self._options.criteria))
            state = RedriveState.begin(self._options.digest(), within.last)
            self._options = replace(self._options, criteria=within.criteria)
            if not dry_run:
                fresh = state
                state, report.goes_on = session.run(lambda server: begin_or_continue(server, stream, fresh))
            run = RedriveRun(session, stream, state)
            mover = (Rehearsal if dry_run else Mover)(run, self._options.parking or "")
            session.run(lambda server: mover.begin())
            before = state if report.goes_on else run.state  # the page that it has finished is of another redrive
            self._count(before, run)
            bound = StreamId.parse(state.bound)
            report.bound, report.moved_before = state.bound, before.moved + before.parked
            report.total = min([within.length, *self._remaining(run)])
            first: StreamId | None = within.first
            while first is not None and first <= bound and 0 not in self._remaining(run) and not report.stopped:
                if not dry_run:
                    lease.hold(session.get(), [stream])
                step = functools.partial(self._page, run, mover, first, bound)
                try:
                    plan = letter_page.run_with_smaller_pages(session, self._size, step)
                finally:
                    self._count(before, run)
                report.add(plan)
                report.fields = [] if preview is None else preview.rows
                first = None if plan.last_id is None else letter_page.following(plan.last_id)
                report.seconds = self._clock() - began
                self._tell(report)
                self._pace(began)
            report.vanished = mover.vanished
            if not report.stopped and not dry_run:
                session.run(lambda server: run.end())
        return report

    def _page(
        self, run: RedriveRun, mover: Mover, first: StreamId, bound: StreamId, server: Server
    ) -> redrive_plan.PagePlan:
        """Read the next page, plan it and move it. May be run again after a lost connection."""
        moved = mover.begin()
        if moved is not None:
            return moved
        plan = self._plan(run, first, bound, server)
        mover.move(plan)
        return plan

    def _plan(self, run: RedriveRun, first: StreamId, bound: StreamId, server: Server) -> redrive_plan.PagePlan:
        """Read and plan the next page."""
        paced = self._options.rate is not None and not self.report.dry_run
        budget = [max(1, (self._options.rate or 0) // _PAGES_A_SECOND)] if paced else []
        limit = min([*self._remaining(run), *budget], default=None)
        page, received = letter_page.read_page(server, self._options.stream, first, bound, self._size, limit)
        open_to = self._destinations.open_to(server, redrive_plan.origins(page, self._options))
        plan = redrive_plan.plan_page(page, self._options, self._repair, limit, open_to)
        self._size.learn(page.count, received, len(plan.rows) + plan.count(redrive_plan.Decision.LEFT))
        return plan

    def _count(self, before: RedriveState, run: RedriveRun) -> None:
        """Report the numbers in the state, which are right also after a lost connection."""
        self.report.moved, self.report.parked = run.state.moved - before.moved, run.state.parked - before.parked

    def _remaining(self, run: RedriveRun) -> list[int]:
        """Return how many dead letters may still be moved; empty: all."""
        limit, others = self._options.limit, 0 if self.report.goes_on else self.report.moved_before
        return [] if limit is None else [max(0, limit + others - run.state.moved - run.state.parked)]

    def _pace(self, began: float) -> None:
        if self._options.rate and not self.report.dry_run:
            due = began + (self.report.moved + self.report.parked) / self._options.rate
            if (early := due - self._clock()) > 0:
                self._sleep(early)


@dataclass
class Purged:
    """Progress of a purge."""

    total: int = 0  # entries of the stream at the start
    looked_at: int = 0  # entries examined so far
    last: str = ""  # the last dead letter that was, or would be, deleted
    deleted: int = 0  # their number
    counts: KindCounts = field(default_factory=KindCounts)  # of these, by (stream, stage, reason, error)


def purge(
    address: Address,
    stream: str,
    criteria: letter_page.Criteria,
    limit: int | None = None,
    dry_run: bool = False,
    tell: Callable[[Purged], None] = lambda purged: None,
    limits: DeadLetterLimits = DEAD_LETTER_LIMITS,
) -> Purged:
    """Delete matching dead letters that the stream holds now; other entries stay.

    Raises RedriveTakenError if another process moves or purges them, StreamStateError if a query reads them,
    ServerError.
    """
    refuse_returned_entries(stream)
    purged = Purged()
    lease = RedriveLease(address, "redrive")
    with Session(address) as session:
        try:
            if not dry_run:
                session.run(lambda server: lease.hold(server, [stream]))
            within = session.run(lambda server: letter_page.extent(server, stream, criteria))
            purged.total = within.length
            for page, selected in letter_page.dead_letter_pages(session, stream, within, limits):
                if not dry_run:
                    lease.hold(session.get(), [stream])
                rows = selected if limit is None else selected[: limit - purged.deleted]
                purged.looked_at += page.count
                purged.counts.add(page.ids, page.kind(), rows)
                purged.last = page.ids[rows[-1].item()].as_py().decode() if len(rows) else purged.last
                if dry_run or not len(rows):
                    purged.deleted += len(rows)
                else:
                    purged.deleted += _delete_letters(session, stream, page.ids.take(rows).to_pylist())
                tell(purged)
                if purged.deleted == limit:
                    break
        finally:
            lease.release()
    return purged


def _delete_letters(session: Session, stream: str, ids: Sequence[bytes]) -> int:
    """Delete these dead letters, and return how many were deleted: after a lost reply, all of them."""
    tries = 0

    def delete(server: Server) -> int:
        nonlocal tries
        tries += 1
        deleted: int = server.execute("XDEL", stream, *ids)
        return deleted

    deleted = session.run(delete)
    return deleted if tries == 1 else len(ids)
