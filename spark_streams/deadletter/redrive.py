"""Letters on their way back: each page is one transaction of XADDs, XDEL and the fence's next state.

    → WATCH fence, letters   GET fence          nobody else moves letters of this stream
    → XRANGE letters                            a page; what was moved before is gone from it
    → WATCH destinations     TYPE …   MULTI     a command that fails inside EXEC would not hold up the others
    → XADD …   XDEL …   SET fence   EXEC

So a letter is moved once, whatever dies and whoever starts a second redrive. Live streams are written to all the time,
and a WATCH on them fails each time: after a few failures a page is tried with the fence alone. What could go wrong then
is noticed and made good: letters whose XADD failed are put back, those that somebody deleted meanwhile are counted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_streams.deadletter import transform
from spark_streams.deadletter.fence import KEPT_MS, MovingLease, State, fence_key, take_fence
from spark_streams.deadletter.orders import Load, Orders, load
from spark_streams.deadletter.page import LetterPage
from spark_streams.deadletter.reading import PageSize, extent, following, read_page
from spark_streams.deadletter.tally import Tally
from spark_streams.errors import RedriveTakenError, RStreamError, ServerReplyError, WrongKeyTypeError
from spark_streams.ids import StreamId
from spark_streams.wire.address import Address
from spark_streams.wire.connection import Argument, Reply, ReplyError, ReplyTooLargeError, pack
from spark_streams.wire.link import Link

_WATCHED_TRIES = 3  # of a page with all its keys watched
_PAGES_A_SECOND = 10  # under a rate


@dataclass
class Report:
    """What a redrive has done so far, or would do.

    bound: the last letter that it may move; goes_on: whether it continues one that was killed, and how many that one
    had moved_before; stopped: by `stop`; looked_at: letters; left: by the transform; vanished: moved letters that
    somebody else had deleted a moment before; tally: by (action, destination, stage, reason).
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
    ) -> None:
        """Raises InvalidOptionError, TransformError."""
        self._orders = orders.checked()
        self._repair = transform.load(orders.transform) if orders.transform is not None else None
        self._address, self._tell, self._clock, self._sleep = address, tell, clock, sleep
        self._size = PageSize()
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
        with Link(self._address) as link, contextlib.ExitStack() as held:
            lease = MovingLease(self._address)
            if not dry_run:
                held.callback(lease.release)
                lease.hold(link.server, [self._orders.stream])
            within = extent(link.server, self._orders.stream, self._orders.criteria)
            state = State.begin(self._orders.digest(), within.last)
            if not dry_run:
                state, self.report.goes_on = take_fence(link.server, self._orders.stream, state.orders, within.last)
                self.report.moved_before = state.moved + state.parked
            bound = StreamId.parse(state.bound)
            self.report.bound = state.bound
            self.report.total = min([within.length, *self._limits()])
            mover = _Mover(link, self._orders, state)
            first: StreamId | None = within.first
            while first is not None and first <= bound and self._room() != 0 and not self.report.stopped:
                if not dry_run:
                    lease.hold(link.server, [self._orders.stream])
                first = self._page(mover, first, bound)
                self.report.seconds = self._clock() - began
                self._tell(self.report)
                self._pace(began)
            if not dry_run and not self.report.stopped:
                mover.end()
            self.report.vanished = mover.vanished
        return self.report

    def _page(self, mover: _Mover, first: StreamId, bound: StreamId) -> StreamId | None:
        """One page; where the next one begins."""
        room = self._room()
        paced = self._orders.rate is not None and not self.report.dry_run
        budget = max(1, (self._orders.rate or 0) // _PAGES_A_SECOND) if paced else None
        wanted = min([many for many in (room, budget) if many is not None], default=None)

        def look() -> tuple[LetterPage, Load]:
            page, received = read_page(mover.link.server, self._orders.stream, first, bound, self._size.next(wanted))
            taken = load(page, self._orders, self._repair, wanted)
            self._size.learn(page.count, received, len(taken.rows) + taken.left)
            return page, taken

        while True:
            try:
                page, taken = look() if self.report.dry_run else mover.move(look)
                break
            except ReplyTooLargeError:
                mover.link.close()
                self._size.too_large()
            except RStreamError as error:
                mover.link.again(error)
        mover.link.backoff.succeeded()
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


class _Mover:
    """The transactions of one run. state: what the fence says."""

    def __init__(self, link: Link, orders: Orders, state: State) -> None:
        self.link = link
        self.vanished = 0
        self._orders = orders
        self._fence = fence_key(orders.stream)
        self._state = state
        self._unheard: tuple[State, LetterPage, Load] | None = None  # sent, and its outcome is not known

    def move(self, look: Callable[[], tuple[LetterPage, Load]]) -> tuple[LetterPage, Load]:
        """Look at a page, and move what is meant. Raises RedriveTakenError, ServerError; then `move` may be called
        again, and finds out what has happened."""
        tries = 0
        while True:
            watch_all = tries < _WATCHED_TRIES
            keys: list[Argument] = [self._fence, *([self._orders.stream] if watch_all else [])]
            fence = self._ask([("WATCH", *keys), ("GET", self._fence)])[1]
            heard = self._hear(fence)
            if heard is not None:
                self.link.server.execute("UNWATCH")
                return heard
            page, taken = look()
            if not len(taken.rows):
                self.link.server.execute("UNWATCH")
                return page, taken
            self._open(taken, watch_all)
            if self._send(page, taken):
                return page, taken
            tries += 1

    def end(self) -> None:
        """The run is complete: nothing is left of it."""
        held = self._ask([("WATCH", self._fence), ("GET", self._fence)])[1]
        if held == bytes(self._state):
            self._ask([("MULTI",), ("DEL", self._fence), ("EXEC",)])
        else:
            self._ask([("UNWATCH",)])

    def _hear(self, fence: bytes | None) -> tuple[LetterPage, Load] | None:
        """What became of a transaction whose reply was lost, if it was carried out. Raises RedriveTakenError."""
        unheard, self._unheard = self._unheard, None
        if fence == bytes(self._state):
            return None
        if unheard is not None and fence == bytes(unheard[0]):
            self._state = unheard[0]
            return unheard[1], unheard[2]
        self.link.server.execute("UNWATCH")
        raise RedriveTakenError(
            f"another process has taken over the redrive of stream {self._orders.stream!r} at {self.link.address} "
            "while this one stood still; it moves what is left"
        )

    def _open(self, taken: Load, watch: bool) -> None:
        """Begin the transaction. Destinations must be streams, or not exist. Raises WrongKeyTypeError."""
        watching: list[tuple[Argument, ...]] = [("WATCH", *taken.to)] if watch else []
        kinds = self._ask([*watching, *[("TYPE", stream) for stream in taken.to], ("MULTI",)])[len(watching) : -1]
        for stream, kind in zip(taken.to, kinds, strict=True):
            if kind not in (b"stream", b"none"):
                self.link.server.execute("DISCARD")
                raise WrongKeyTypeError(
                    f"letters of stream {self._orders.stream!r} cannot go to key {stream.decode('utf-8', 'replace')!r} "
                    f"at {self.link.address}: it holds a {kind.decode()}; name a stream (--to)"
                )

    def _send(self, page: LetterPage, taken: Load) -> bool:
        """Whether the transaction was carried out; not, where something that is watched has changed."""
        state = self._state.after(taken.moved, taken.parked)
        server = self.link.server
        remove = pack("XDEL", self._orders.stream, *taken.ids)
        store = pack("SET", self._fence, bytes(state), "PX", KEPT_MS)
        self._unheard = state, page, taken
        server.send(b"".join([taken.requests, remove, store, pack("EXEC")]))
        replies = server.replies(len(taken.ids) + 3)
        self._unheard = None
        refused = next((reply for reply in replies if isinstance(reply, ReplyError)), None)
        if refused is not None:
            raise server.error_of(refused, ("XADD", *taken.to[:1]))
        if replies[-1] is None:
            return False
        self._state = state
        added, deleted = replies[-1][: len(taken.ids)], replies[-1][len(taken.ids)]
        self.vanished += len(taken.ids) - deleted if isinstance(deleted, int) else 0
        failed = [at for at, reply in enumerate(added) if isinstance(reply, ReplyError)]
        if failed:
            self._put_back(page, taken, failed, added[failed[0]])
        return True

    def _put_back(self, page: LetterPage, taken: Load, failed: list[int], why: ReplyError) -> None:
        """Letters that were deleted, and whose entry was refused. Raises ServerReplyError."""
        rows = taken.rows[failed]
        commands = [
            ("XADD", self._orders.stream, "*", *[word for pair in fields for word in pair])
            for fields in page.whole(rows).to_pylist()
        ]
        self._ask([("MULTI",), *commands, ("EXEC",)])
        raise ServerReplyError(
            f"{len(failed)} letters of stream {self._orders.stream!r} at {self.link.address} could not be moved and "
            f"were put back at its end: {why}"
        )

    def _ask(self, commands: list[tuple[Argument, ...]]) -> list[Reply]:
        server = self.link.server
        replies: list[Reply] = server.pipeline(commands)
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ReplyError):
                raise server.error_of(reply, command)
        return replies
