"""Whether the watched queries are alive, for `/healthz`: events of Spark in, a reason out.

Spark reports each micro-batch, and an idle query every ten seconds, when a trigger ends. A trigger that waits for its
server does not end, nor does one whose batch hangs. So a query is alive if its last trigger ended within the limit, or
if the next one has not begun, because it is not due.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass

from spark_streams.model.printable import printable
from spark_streams.model.times import duration

LEAST = 30.0  # seconds: three reports of an idle query
_REMEDY = (
    "Check the server (rstream doctor) and the stages of the batch in Spark's pages, then start the program again: it "
    "continues where it was. If a batch may take longer, raise unhealthy_after.\n"
)


@dataclass(frozen=True)
class Activity:
    """What Spark says of a query. is_active: a trigger has begun and not ended."""

    is_active: bool
    message: str


@dataclass(frozen=True)
class _Sign:
    """The last event of a run, and its time."""

    query: str
    event: str
    at: float


def limit_of(text: str) -> float:
    """Parse `unhealthy_after` into seconds. Raises ValueError."""
    seconds = duration(text) / 1000
    if seconds < LEAST:
        raise ValueError(f"must be at least {LEAST:.0f}s, because an idle query reports only every 10 s")
    return seconds


class Health:
    """The last event of each running query. Events and questions may come from any thread.

    limit: seconds; activity: asks Spark about a run, None if it does not know it; now: a monotonic clock, in seconds.
    """

    def __init__(
        self, limit: float, activity: Callable[[str], Activity | None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._activity, self._now = limit, activity, now
        self._signs: dict[str, _Sign] = {}  # by run
        self._none_since = now()  # since when no query runs

    def seen(self, run: str, query: str, event: str) -> None:
        """Record an event of a run, such as the end of a trigger."""
        self._signs[run] = _Sign(query, event, self._now())

    def ended(self, run: str) -> None:
        """Record the end of a run."""
        self._none_since = self._now()
        self._signs.pop(run, None)

    def trouble(self) -> str | None:
        """Return what is wrong, since when, and what to do; None: nothing is."""
        signs = dict(self._signs)
        if not signs and self._is_late(self._none_since):
            return (
                f"no query runs {self._since(self._none_since)}. None has begun, or the program goes on after its end. "
                "Read the program's log, and start it again.\n"
            )
        for run, sign in signs.items():
            if not self._is_late(sign.at):
                continue
            activity = self._activity(run)
            if activity is None or activity.is_active:
                said = f", and Spark says: {activity.message}" if activity is not None else ""
                return printable(
                    f"query {sign.query!r} has ended no trigger {self._since(sign.at)}. Its last event is "
                    f"{sign.event!r}{said}. Its server does not answer, or its batch hangs or takes longer. "
                ) + _REMEDY  # fmt: skip
        return None

    def _is_late(self, at: float) -> bool:
        return self._now() - at > self._limit

    def _since(self, at: float) -> str:
        seconds = self._now() - at
        began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
        return f"since {began:%Y-%m-%dT%H:%M:%SZ} ({seconds:.0f} s, unhealthy_after is {self._limit:.0f} s)"
