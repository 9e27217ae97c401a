"""Whether the watched queries are alive, for `/healthz`: events of Spark in, a reason out.

Spark reports each micro-batch, and an idle query every ten seconds, when a trigger ends. A trigger that waits for its
server does not end, nor does one whose batch hangs. So a query is alive if its last trigger ended within the limit, or
if the next one has not begun, because it is not due.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable

from spark_streams.base.printable import printable
from spark_streams.base.times import duration

LEAST = 30.0  # seconds: three reports of an idle query
Activity = tuple[bool, str]  # whether a trigger has begun and not ended, and what Spark says of the query


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
        self._last: dict[str, tuple[str, str, float]] = {}  # by run: name of the query, event, time
        self._none_since = now()  # since when no query runs

    def seen(self, run: str, query: str, event: str) -> None:
        """Record an event of a run, such as the end of a trigger."""
        self._last[run] = query, event, self._now()

    def ended(self, run: str) -> None:
        """Record the end of a run."""
        self._none_since = self._now()
        self._last.pop(run, None)

    def trouble(self) -> str | None:
        """Return what is wrong, since when, and what to do; None: nothing is."""
        last = dict(self._last)
        if not last and (since := self._since(self._none_since)):
            return f"no query runs {since}. Read the program's log, and start the program again.\n"
        for run, (query, event, at) in last.items():
            is_active, said = (self._activity(run) or (True, "nothing")) if (since := self._since(at)) else (False, "")
            if is_active:
                return printable(
                    f"query {query!r} has ended no trigger {since}. Its last event is {event!r}, and Spark says: {said}"
                    ". Its server does not answer (rstream doctor), or its batch hangs or takes longer. Start the "
                    "program again: it continues where it was. If a batch may take longer, raise unhealthy_after."
                ) + "\n"  # fmt: skip
        return None

    def _since(self, at: float) -> str:
        """Return the time of this moment, empty within the limit."""
        seconds = self._now() - at
        began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
        text = f"since {began:%Y-%m-%dT%H:%M:%SZ} ({seconds:.0f} s, unhealthy_after is {self._limit:.0f} s)"
        return text if seconds > self._limit else ""
