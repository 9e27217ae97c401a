"""A stranger writes hostile entries, keys and names while queries read good entries: for minutes, by a seed.

    python -m tests.legs.hostile.entries --minutes 60 --seed 7 --server redis

Queries are driven as Spark drives them (tools/driving.py). Each round appends good entries, has the stranger
write beside them, and has every reader look: a query of a stream, one of a pattern, one whose failed entries wait for
another try, spark.read, dead letters, and the commands. At the end there is a table; the exit code is 1 if a query
ended, or a good entry was not read.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from spark_streams.connector.source.stream_reader import StreamReader
from tests.legs.hostile.readers import READERS, TRIES, WIDE
from tests.legs.hostile.stranger import Stranger
from tools.driving import ALL, LOOK_EACH_TIME, another_reader, forget_all, rows
from tools.servers.server import Server, running_engine, running_redis

GOOD = "good"  # the field that tells an entry of ours
_LETTERS = {"mode": "DEADLETTER", "deadLetterStream": "dead"}
# What each query is given; each has a group of its own.
QUERIES: dict[str, dict[str, str]] = {
    "query of a stream": {"group": "g"},
    "query of a pattern": {"group": "h", "streamsPattern": "[^l]*"},
    "query with dead letters": {"group": "i", **_LETTERS},
    "query with retries": {"group": "g2", **_LETTERS, "retryDelay": "1ms, 1ms"},
    "query of dead letters": {"group": "j", "streams": "dead"},
}


@dataclass
class Tally:
    """kinds: what the stranger wrote; appended: good entries; read_of: of these, by query; ended: queries and readers
    that ended; lost: good entries that a query did not read; problems: how, for people."""

    kinds: Counter[str] = field(default_factory=Counter)
    appended: int = 0
    read_of: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    lost: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def sent(self) -> int:
        """All that the stranger wrote."""
        return sum(self.kinds.values())

    @property
    def read(self) -> int:
        """Good entries, over all queries."""
        return sum(self.read_of.values())


class Query:
    """One, with its checkpoint."""

    def __init__(self, server: Server, name: str) -> None:
        self.name, self._server = name, server
        self._reader: StreamReader | None = None
        self._schema = TRIES if "retryDelay" in QUERIES[name] else WIDE
        self._at: dict[str, Any] | None = None
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        if self._reader is not None:
            self._reader.stop()
        self._reader = another_reader(self._server, self._schema, limits=LOOK_EACH_TIME, **QUERIES[self.name])

    def read(self) -> list[dict[str, Any]]:
        """The rows of a few triggers, each batch committed."""
        assert self._reader is not None
        found: list[dict[str, Any]] = []
        at = self._reader.initialOffset() if self._at is None else self._at
        for _ in range(4):
            end = self._reader.latestOffset(at, ALL)
            if end != at:
                found += rows(self._reader, at, end)
                self._reader.commit(end)
            self._at = at = end
        return found


class Soak:
    """Rounds of it on one server, which it empties. seed: of the stranger."""

    def __init__(self, server: Server, seed: int, tally: Tally | None = None) -> None:
        self._chance = random.Random(seed)
        self._stranger = Stranger(self._chance)
        self._server = server
        self.tally = Tally() if tally is None else tally
        self._client = server.client()
        self._written: set[int] = set()
        self._client.flushall()
        self._client.xgroup_create("s", "g", id="0", mkstream=True)
        self._client.xgroup_createconsumer("s", "g", "c")
        self._append()
        self._queries = [Query(server, name) for name in QUERIES]
        self._read: dict[str, set[int]] = {name: set() for name in QUERIES}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Good entries that a query has not read by now are lost."""
        forget_all()
        self._client.close()
        for name, read in self._read.items():
            if "streams" not in QUERIES[name] and (lost := self._written - read):
                self.tally.lost += len(lost)
                self.tally.problems.append(f"{name}: {len(lost)} good entries were not read")

    def round(self) -> None:
        """Good entries, hostile things beside them, and everything looks."""
        for _ in range(self._chance.randint(1, 8)):
            self.tally.kinds[self._stranger.strike(self._client)] += 1
            if self._chance.random() < 0.5:
                self._append()
        self._append()
        for query in self._queries:
            if self._chance.random() < 0.2:
                self._survives(query.name, query.start)
            self._survives(query.name, lambda query=query: self._record_rows(query))
        if self._chance.random() < _SHARE_OF_READERS:
            for name, read in READERS.items():
                self._survives(name, lambda read=read: read(self._server))

    def _append(self) -> None:
        number = len(self._written)
        self._client.xadd("s", {"n": number, GOOD: number})
        self._written.add(number)
        self.tally.appended += 1

    def _record_rows(self, query: Query) -> None:
        for row in query.read():
            number = dict(row["_fields"]).get(GOOD.encode())
            if number is not None:
                self._read[query.name].add(int(number))
                self.tally.read_of[query.name] += 1

    def _survives(self, name: str, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception:  # noqa: BLE001 - whatever ends a reader is counted
            self.tally.ended += 1
            self.tally.problems.append(f"{name}: {traceback.format_exc()}")


_SHARE_OF_READERS = 0.3  # of the rounds; the commands take seconds
ROUNDS = 15  # then the server is emptied and the queries begin anew


def main() -> int:
    """Run it, and print the table."""
    options = argparse.ArgumentParser(prog="python -m tests.legs.hostile.entries", description=__doc__)
    options.add_argument("--minutes", type=float, default=1.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--server", choices=["redis", "engine"], default="engine")
    given = options.parse_args()
    tally, seed = Tally(), given.seed
    with running_redis() if given.server == "redis" else running_engine() as server:
        until = time.monotonic() + 60 * given.minutes
        while time.monotonic() < until:
            with Soak(server, seed, tally) as soak:
                for _ in range(ROUNDS):
                    soak.round()
                    if time.monotonic() >= until:
                        break
            for problem in tally.problems:
                print(f"seed {seed}: {problem}", file=sys.stderr)
            tally.problems.clear()
            seed += 1
    print(f"{given.server}, seeds {given.seed} to {seed - 1}, {given.minutes:g} minutes")
    for kind, count in sorted(tally.kinds.items()):
        print(f"  {kind:<50} {count:>10,}")
    for name, count in tally.read_of.items():
        print(f"  good entries read by the {name:<25} {count:>10,}")
    print(f"{'inputs sent':<52} {tally.sent:>10,}\n{'good entries appended':<52} {tally.appended:>10,}")
    print(f"{'queries and readers ended':<52} {tally.ended:>10,}\n{'good entries lost':<52} {tally.lost:>10,}")
    return 1 if tally.ended or tally.lost else 0


if __name__ == "__main__":
    sys.exit(main())
