"""P31: the rate of source and sink by the value of an option, compared with the default."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

from tools.bench.row import Row
from tools.bench.servers import Running, running
from tools.bench.sink import spark_rate
from tools.bench.source import BATCH, STEADY, drain
from tools.bench.spark import load

_OF_THE_SOURCE = {
    "maxEntriesPerTrigger": (10_000, 100_000, 1_000_000),  # the default of `drain` is 500,000
    "entriesPerPartition": (25_000, 500_000),
}
_OF_THE_SINK = {"chunkSize": (500, 20_000)}


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. The servers run while the stack is open."""
    source, sink = (stack.enter_context(running("redis-server")) for _ in range(2))

    @functools.cache
    def loaded() -> Running:
        load(source, "s", BATCH + STEADY)
        drain(source)  # warm-up of the JVM, not measured
        return source

    def read(**options: str) -> Callable[[], float]:
        return lambda: drain(loaded(), **options)

    def write(**options: str) -> Callable[[], float]:
        return lambda: spark_rate(sink, **options)

    return [
        Row("P31", f"{name}={value}", "as P1 and P11, with this option; peer: without it", "/s", None,
            measure(**{name: str(value)}), measure(), "default", rounds=1)
        for measure, options in ((read, _OF_THE_SOURCE), (write, _OF_THE_SINK))
        for name, values in options.items()
        for value in values
    ]  # fmt: skip
