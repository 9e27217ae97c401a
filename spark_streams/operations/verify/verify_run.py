"""One run: start a driver again and again, disturb it, then let it read the rest; judge, and delete the keys."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import statistics
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from urllib.parse import quote, urlsplit

from spark_streams.base.version import __version__
from spark_streams.connector.errors import InvalidOptionError, QueryError, RStreamError, UnsupportedError
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.session import Session
from spark_streams.operations.verify import server_side
from spark_streams.operations.verify.checkpoint_log import CheckpointLog
from spark_streams.operations.verify.history import Outcome
from spark_streams.operations.verify.judge import Fault, judge
from spark_streams.operations.verify.observer import RunObserver
from spark_streams.operations.verify.producer import Feed, sender
from spark_streams.operations.verify.relay import DOWN, EXEC, UP, Relay
from spark_streams.operations.verify.result import RunResult, Sum
from spark_streams.operations.verify.running_query import DRIVER, PATIENCE, QUIET, RunningQuery, RunPlan, kill_session

# Kinds of events.
KILL_AMID, KILL, BREAK, FAILOVER = "driver killed in a batch", "driver killed", "connections broken", "failover"
LOST = "reply to EXEC lost"
_FAILED = "query ended"
_FAILOVERS = (0.3, 0.65)  # when, as parts of the time
_FAILOVER_WITHIN = 30.0  # seconds
_GIVE_UP = 3  # drivers in a row whose query failed; kills after the time, until one is in a batch
_NEVER_TRIED = {
    "server": "a crash, a restart, a full memory or disk: verify stops no server",
    "executors": "their loss; a driver that stands still and continues later",
    "other queries": "groups with other readers, retryDelay, shards, sinks other than a stream",
}
Tell = Callable[[str], object]


class HungQueryError(QueryError):
    """The query makes no progress, so nothing is proved."""


def verify(
    plan: RunPlan, address: Address, login: Mapping[str, str], tell: Tell, at_end: Callable[[], None]
) -> RunResult:
    """Run once, and delete the keys of the run in any case. login: variables for a driver; tell: takes lines of
    progress; at_end: is called before processes are stopped and keys deleted. If this process is killed, another one
    does both.

    Raises InvalidOptionError if keys with the prefix exist, QueryError if the first driver does not run, ServerError.
    """
    folder = Path(tempfile.mkdtemp(prefix="rstream-verify-"))
    clean = partial(_clean, address, plan, folder)
    engine = [Path(urlsplit(address.url).path).parent] if plan.has_engine else []  # it ends with this process
    with _heir([folder, *engine], clean) as inherit, contextlib.ExitStack() as closing:
        with connect(address) as server:
            if server_side.own_keys(server, plan.prefix):
                raise InvalidOptionError(f"keys with the prefix {plan.prefix} exist; run the command again")
            about = server_side.about(server)
        if not plan.has_engine:
            inherit()
            closing.callback(clean, tell)
        if (relay := None if plan.spark_submit else _relay_to(address, folder)) is not None:
            closing.enter_context(relay)
        run = _VerifyRun(plan, address, login, folder, relay, tell)
        closing.callback(run.close)
        closing.callback(at_end)
        return run.result(about)


@contextlib.contextmanager
def _heir(folders: Sequence[Path], clean: Callable[[Tell], object]) -> Iterator[Callable[[], object]]:
    """Start a process that waits for the end of this one. If this one is killed amid the block, it ends the driver,
    cleans, if the yielded function was called, and removes the folders. The first one is removed in any case."""
    told, held = os.pipe()
    if (heir := os.fork()) == 0:
        try:
            os.close(held)
            os.setsid()  # no signal of the terminal reaches it
            nowhere = os.open(os.devnull, os.O_RDWR)
            for standard in range(3):
                os.dup2(nowhere, standard)
            words = b"".join(iter(partial(os.read, told, 1), b""))
            if not words.endswith(b"."):
                if (driver := folders[0] / DRIVER).exists():
                    kill_session(int(driver.read_text()))
                if words:
                    clean(print)
                for folder in folders:
                    shutil.rmtree(folder, ignore_errors=True)
        finally:
            os._exit(0)
    os.close(told)
    try:
        yield partial(os.write, held, b"+")
    finally:
        shutil.rmtree(folders[0])
        os.write(held, b".")
        os.close(held)
        os.waitpid(heir, 0)


def _clean(address: Address, plan: RunPlan, folder: Path, tell: Tell) -> None:
    """Delete the keys until none is left: a task of a killed driver may still write. It has a minute, and a minute more
    while the server does not answer."""
    if plan.keeps:
        return
    prefix, deleted, deadline = plan.prefix, 0, time.monotonic() + QUIET
    query = CheckpointLog(folder / "checkpoint").query_id()
    try:
        with Session(address, "deleting keys", is_known=True) as session:
            delete = partial(server_side.delete_own_keys, prefix=prefix, query_id=query)
            while found := session.run(delete):
                deleted += found
                if time.monotonic() > deadline:
                    tell(f"keys with {prefix} in their names are written again and again: end what writes them")
                    break
                time.sleep(0.2)
        tell(f"{deleted} keys deleted")
    except RStreamError as error:
        tell(f"keys with {prefix} in their names are left: {error.message}")


def _relay_to(address: Address, folder: Path) -> Relay | None:
    """Return a relay to one server without TLS. Only a Spark on this machine can use it."""
    if address.is_cluster or address.asks_sentinels:
        return None
    url = address.resolve()
    parts = urlsplit(url)
    has_login = parts.scheme == "unix" and (parts.netloc or parts.query)  # which the relay's URL would lack
    return Relay(url, folder) if parts.scheme in ("redis", "unix") and not has_login else None


def reached_through(address: Address, relay: Relay | None, name: str) -> Address:
    """Return the address that producers and query use: of the relay, or with a name for CLIENT LIST."""
    if relay is not None and relay.path is not None:
        return Address.parse(f"unix://{quote(str(relay.path))}")
    if relay is not None:
        named = address if address.nodes else Address.parse("redis://127.0.0.1")
        return named.node("127.0.0.1", relay.port)
    url = address.resolve() if address.is_embedded else address.url
    url = re.sub(r"client_name=[^&]*&?", "", url).rstrip("?&")
    return replace(address, url=f"{url}{'&' if '?' in url else '?'}client_name={name}")


class _VerifyRun:
    """The state of a run."""

    def __init__(
        self, plan: RunPlan, address: Address, login: Mapping[str, str], folder: Path, relay: Relay | None, tell: Tell
    ) -> None:
        self._plan, self._address, self._folder, self._relay, self._tell = plan, address, folder, relay, tell
        self._chance, self._checkpoint = plan.chance("disturbance"), CheckpointLog(folder / "checkpoint")
        reached = reached_through(address, relay, plan.prefix)
        self._environment = {**login, "RSTREAM_URL": reached.url}
        self._feeds = [Feed(sender(reached), plan, number) for number in range(2)]
        self._observer = RunObserver(address, plan, self._checkpoint, [feed.added for feed in self._feeds])
        self._query: RunningQuery | None = None
        self._failovers = [plan.seconds * part for part in _FAILOVERS if plan.fails_over]
        self._began = time.time()
        self._events: list[tuple[float, str, str]] = []  # seconds since then, kind, details
        self._untried = {FAILOVER: "--allow-failover was not given", BREAK: "there was no time"}
        self._untried[LOST] = "there was no time" if relay else "this needs one server, without TLS, and local Spark"

    def close(self) -> None:
        """End all that runs."""
        if self._query is not None:
            self._query.kill()
        for feed in self._feeds:
            feed.stop()
        self._observer.close()

    def result(self, about: Mapping[str, str]) -> RunResult:
        """Run, and judge. Raises QueryError if the first driver does not run its query."""
        for thread in (*self._feeds, self._observer):
            thread.start()
        in_vain = 0
        while in_vain < _GIVE_UP and not self._is_over():
            query = self._start()
            self._live(query)
            in_vain = 0 if self._kill(query) else in_vain + 1
            time.sleep(self._chance.uniform(0, 1))
        for feed in self._feeds:
            feed.stop()
        return self._judged(about, self._drain())

    def _is_over(self) -> bool:
        """Whether the time is over. It goes on for a few kills if none was in a batch."""
        late = sum(kind == KILL and at > self._plan.seconds for at, kind, _ in self._events)
        return self._seconds() > self._plan.seconds and (late >= _GIVE_UP or self._count(KILL_AMID) > 0)

    # -- the query -------------------------------------------------------------------------------------------------

    def _start(self, drains: bool = False) -> RunningQuery:
        self._query = RunningQuery(self._plan, self._folder, self._environment, drains)
        return self._query

    def _live(self, query: RunningQuery) -> None:
        """Let the query run up to the moment of its kill, and break connections meanwhile."""
        chance, before = self._chance, self._checkpoint.committed()
        if before >= 0 and chance.random() < 0.2:
            query.wait(chance.uniform(0, 8))  # it is killed while it starts, or soon after
            return
        self._advance(query, lambda: query.is_up and self._checkpoint.committed() > before)
        for _ in range(chance.randint(1, 3)):
            query.wait(chance.uniform(0.2, 2.0))
            if self._failovers and self._seconds() > self._failovers[0]:
                self._failovers.pop(0)
                self._try(FAILOVER, self._fail_over, query)
            else:
                kind = self._chance.choice([BREAK, LOST]) if self._relay else BREAK
                self._try(kind, partial(self._break, kind), query)
        query.wait(5, lambda: self._checkpoint.logged() > self._checkpoint.committed())
        # Half of the kills come as soon as a batch is logged, and so do those that the run still lacks.
        is_soon = chance.random() < 0.5 or self._seconds() > self._plan.seconds
        query.wait(0 if is_soon else chance.uniform(0, 0.3))

    def _advance(self, query: RunningQuery, condition: Callable[[], bool] = lambda: False) -> None:
        """Wait for the condition, or the query's end. Tell each idle minute. Raises HungQueryError after five."""
        logs, since = self._checkpoint, time.monotonic()
        before = (logs.logged(), logs.committed())
        while not query.wait(QUIET, condition) and query.end() is None:
            if before != (before := (logs.logged(), logs.committed())):
                since = time.monotonic()
            elif (quiet := time.monotonic() - since) >= PATIENCE:
                log = " ".join(query.log().split())[-700:]
                raise HungQueryError(f"the query has made no progress for {quiet:.0f} s, at batch {before[0]}: {log}")
            else:
                self._tell(f"no progress for {quiet:.0f} s, at batch {before[0]}")

    def _kill(self, query: RunningQuery) -> bool:
        """Kill the driver. Return False if its query had failed before. Raises QueryError if it never ran."""
        error, is_up = query.end(), query.is_up
        query.kill()
        logged = self._checkpoint.logged()
        if error is not None and logged == -1:
            raise QueryError(f"the driver ended before its first batch: {error}")
        is_amid = is_up and logged > self._checkpoint.committed()
        killed = (KILL_AMID if is_amid else KILL, f"batch {logged}" if is_up else "while it started")
        self._note(*(killed if error is None else (_FAILED, error)))
        return error is None

    def _drain(self) -> str:
        """Run the query until it has read everything. Return "", or why it has not."""
        for _ in range(_GIVE_UP):
            query = self._start(drains=True)
            self._advance(query)
            error = query.end() or ""
            query.kill()
            if not error:
                return ""
            self._note(_FAILED, error)
        return f"The query did not read everything: {error}"

    # -- the server's side -----------------------------------------------------------------------------------------

    def _try(self, kind: str, act: Callable[[RunningQuery], str], query: RunningQuery) -> None:
        """Do something to the server, and note what has happened, or why it cannot be tried."""
        try:
            if done := act(query):
                self._note(kind, done)
        except RStreamError as error:
            self._untried[kind] = error.message

    def _break(self, kind: str, query: RunningQuery) -> str:
        """Close connections of the query and of the producers."""
        relay, chance = self._relay, self._chance
        if relay is None:
            with connect(self._address) as server:
                killed = server_side.kill_connections(server, self._plan.prefix)
            return f"{killed} by CLIENT KILL" if killed else ""
        where, after, is_all = chance.choice([UP, DOWN]), chance.randint(0, 3_000), chance.random() < 0.3
        if kind == LOST:
            where, after = EXEC, after % 3
        before = relay.cut_so_far
        relay.break_at(where, after)
        if not query.wait(3, lambda: relay.cut_so_far > before):
            return ""
        if kind == LOST:  # a kill at once would leave the writer no time to write again what it has written
            batch = self._checkpoint.committed()
            query.wait(3, lambda: self._checkpoint.committed() > batch)
            return f"after {after} others"
        if is_all:
            relay.cut_all()
        return f"{'all' if is_all else 'one'}, after {after:,} bytes {where}"

    def _fail_over(self, query: RunningQuery) -> str:
        before = self._master()
        server_side.fail_over(self._address, self._plan.out)
        if not query.wait(_FAILOVER_WITHIN, lambda: self._master() not in ("", before)):
            raise UnsupportedError(f"there was no other master within {_FAILOVER_WITHIN:g} s of the request")
        return f"{self._master()} has replaced {before}"

    def _master(self) -> str:
        with contextlib.suppress(RStreamError):  # while a sentinel promotes a replica
            return server_side.master_of(self._address, self._plan.out)
        return ""

    # -- the report --------------------------------------------------------------------------------------------------

    def _seconds(self) -> float:
        return time.time() - self._began

    def _note(self, kind: str, detail: str) -> None:
        self._events.append((self._seconds(), kind, detail))
        self._tell(f"{kind}: {detail}")

    def _count(self, kind: str) -> int:
        return sum(kind == each for _, each, _ in self._events)

    def _judged(self, about: Mapping[str, str], cause: str) -> RunResult:
        facts, lost, plan = self._observer.facts(), self._observer.lost_by_server, self._plan
        report, rows, letters = judge(facts), sum(len(one.rows) for one in facts), sum(one.letters for one in facts)
        outcomes = [entry.outcome for feed in self._feeds for entry in feed.added]
        if lost.intersection(entry.place for entry in report.found.get(Fault.LOST, ())):
            cause += f" {len(lost)} of the entries that the server had confirmed are not in their stream any more."
        spark = json.loads((self._folder / "versions.json").read_text())
        options = {name: value for name, value in (plan.source() | plan.sink()).items() if plan.prefix not in value}
        events = enumerate(self._events, 1)
        sections = {
            "times of waiting": self._waiting(),
            "server, Spark, settings": {
                **about,
                "Spark": ", ".join(f"{name} {value}" for name, value in spark.items()),
                "spark-streams": __version__,
                "options": " ".join(f"{name}={value}" for name, value in options.items()),
                "seed": f"{plan.seed}, for {plan.seconds / 60:g} minutes; {self._seconds():.0f} s in all",
            },
            "not tried": {name: why for name, why in self._untried.items() if not self._count(name)} | _NEVER_TRIED,
            "what was done": {f"{n}. at {at:.1f} s": f"{kind}: {what}" for n, (at, kind, what) in events},
        }
        evidence = {
            "entries": outcomes.count(Outcome.OK),
            "rows": rows,
            "dead letters": letters,
            "acknowledgements seen in time": self._observer.seen_in_time,
            "batches": self._checkpoint.committed() + 1,
            "kills of the driver": self._count(KILL) + self._count(KILL_AMID),
            "kills in a batch": self._count(KILL_AMID),
        }
        unconfirmed, unknown = len(self._observer.unconfirmed), outcomes.count(Outcome.UNKNOWN)
        done = (outcomes.count(Outcome.OK), unconfirmed, rows, letters)
        added_up = Sum(*done, not_added=max(0, unknown - unconfirmed))
        return RunResult(report, evidence, sections, cause.strip(), added_up)

    def _waiting(self) -> dict[str, str]:
        """Return how long rows waited, and how long none came after an event."""
        waits, rows_ms, found = self._observer.waits, self._observer.written_ms, dict[str, str]()
        if len(waits) > 1:
            cuts = statistics.quantiles(waits, n=100)
            found["from XADD to row"] = f"median {cuts[49]:.1f} s, 99 % {cuts[98]:.1f} s, longest {max(waits):.1f} s"
        pauses = dict[str, list[float]]()
        for (at, kind, _), (end, _, _) in pairwise([*self._events, (inf, "", "")]):
            row = bisect_left(rows_ms, 1000 * (self._began + at))
            if row < len(rows_ms) and (came := rows_ms[row] / 1000 - self._began) < end:
                pauses.setdefault(kind, []).append(came - at)
        for kind, waited in pauses.items():
            found[f"{kind}, to the next row"] = f"longest {max(waited):.1f} s, of {len(waited)}"
        return found
