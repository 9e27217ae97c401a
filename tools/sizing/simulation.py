"""A query over many shards in steps of time: producers, servers, driver, executors and failovers.

The query runs trigger after trigger. The driver reserves what each shard has, for all streams of all shards. Then the
tasks read, while the driver lists and acknowledges entries. A trigger ends when every shard's entries are read, so one
shard that is away delays the whole query. After its failover the entries of its current trigger, which are pending, are
read again from the start.

The thread of a server executes the producers' XADD and the query's commands in proportion to their demand. While a
shard is away, its producers keep their entries, and send them when it is back. The costs are those of the model,
without its factor `overlap`: phases of a trigger are simulated instead.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tools.sizing.costs import Costs
from tools.sizing.model import Machines, Workload, driver_us, network_bytes, server_us, tasks_us

STEP = 0.02  # seconds
RATES = (1e6, 1e7)
SERVERS = (10, 30, 100)
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Failover:
    """A shard that does not answer for some seconds."""

    shard: int
    start: float
    seconds: float


@dataclass(frozen=True)
class Scenario:
    """A workload on machines, for some seconds."""

    workload: Workload
    machines: Machines
    queries: int = 1  # the shards are divided among them, and the cores too
    interval: float = 0.0  # trigger interval in seconds
    seconds: float = 120.0
    failovers: tuple[Failover, ...] = ()
    jitter: float = 0.1  # standard deviation of a shard's arrivals in a step
    seed: int = 1


@dataclass(frozen=True)
class Recovery:
    """A failover, and what followed."""

    failover: Failover
    peak: float  # entries that were not yet committed, of all shards
    catch_up: float  # seconds from the end of the failover until the lag was as before; inf: not within the run


@dataclass(frozen=True)
class Outcome:
    """What the simulation counted."""

    produced: float
    committed: float
    backlog: float  # produced and not committed at the end, in producers, servers and triggers
    read_twice: float  # entries that were read a second time
    triggers: int
    trigger_seconds: float  # mean
    fixed_seconds: float  # mean of a trigger's part before its tasks read
    use: dict[str, float]  # utilisation by resource: mean over the run, of the busiest shard
    peak_backlog: float
    peak_memory: float  # bytes of a server above what it stores anyway: entries not committed, pending entries
    lag_p50: float
    lag_p99: float
    recoveries: tuple[Recovery, ...]
    stable: bool  # the backlog does not grow

    @property
    def limit(self) -> str:
        """The resource with the highest utilisation."""
        return max(self.use, key=self.use.__getitem__)


def random_failovers(servers: int, count: int, seconds: float, seed: int) -> tuple[Failover, ...]:
    """Return failovers of 5 to 15 s, evenly spaced in time, of shards by chance."""
    chance = random.Random(seed)
    gap = seconds / (count + 1)
    return tuple(
        Failover(chance.randrange(servers), round(gap * (number + 0.7), 3), round(chance.uniform(5, 15), 3))
        for number in range(count)
    )


@dataclass
class _Query:
    """State of a query over the shards of `mine`."""

    mine: slice
    streams: int
    cores: float
    fixed_left: float = 0.0  # seconds that remain until the tasks read
    driver_left: float = 0.0  # seconds of the driver's process for the entries, beside the tasks
    next_start: float = 0.0
    began: float = 0.0
    active: bool = False
    triggers: int = 0
    trigger_seconds: float = 0.0
    fixed_seconds: float = 0.0
    driver_seconds: float = 0.0


@dataclass
class _State:
    """Cumulative entries of each shard: produced ≥ stored ≥ reserved ≥ committed."""

    produced: Array
    stored: Array
    reserved: Array
    committed: Array
    read: Array  # of the current trigger
    server_busy: Array
    away: npt.NDArray[np.bool_]
    network: float = 0.0
    core_seconds: float = 0.0
    read_twice: float = 0.0
    peak_memory: float = 0.0
    lags: dict[int, float] = field(default_factory=dict)  # steps → entries


def simulate(costs: Costs, scenario: Scenario) -> Outcome:
    """Run the scenario."""
    return _Simulation(costs, scenario).run()


class _Simulation:
    def __init__(self, costs: Costs, scenario: Scenario) -> None:
        self._costs, self._scenario = costs, scenario
        workload, machines = scenario.workload, scenario.machines
        shards = machines.servers
        self._steps = round(scenario.seconds / STEP)
        self._add = costs.server_add_us / 1e6
        self._server = server_us(costs, workload) / 1e6 - self._add
        self._task = tasks_us(costs, workload) / 1e6
        self._driver = driver_us(costs, workload) / 1e6
        self._bytes = network_bytes(workload)
        self._state = _State(
            produced=np.zeros(shards),
            stored=np.zeros(shards),
            reserved=np.zeros(shards),
            committed=np.zeros(shards),
            read=np.zeros(shards),
            server_busy=np.zeros(shards),
            away=np.zeros(shards, dtype=bool),
        )
        edges = [round(shards * number / scenario.queries) for number in range(scenario.queries + 1)]
        self._queries = [
            _Query(slice(a, b), round(workload.streams * (b - a) / shards), machines.cores / scenario.queries)
            for a, b in itertools.pairwise(edges)
        ]
        self._history = np.zeros((self._steps + 1, shards))  # produced, by step
        self._backlogs = np.zeros(self._steps)
        self._chance = np.random.default_rng(scenario.seed)

    def run(self) -> Outcome:
        for step in range(self._steps):
            now = step * STEP
            self._fail_over(now)
            self._produce(step)
            self._serve(now)
            for query in self._queries:
                self._advance(query, step)
            state = self._state
            waiting = state.produced - state.committed
            self._backlogs[step] = waiting.sum()
            held = self._costs.pending_bytes * (state.reserved - state.committed)
            if self._scenario.workload.mode != "group":
                held = held * 0
            stored = (state.stored - state.committed) * (
                self._scenario.workload.value_bytes + self._costs.entry_bytes
            )  # fmt: skip
            state.peak_memory = max(state.peak_memory, float((held + stored).max()))
        return self._outcome()

    def _fail_over(self, now: float) -> None:
        """Take shards away. What a task had read of one in this trigger is read again."""
        state = self._state
        away = np.zeros_like(state.away)
        for failover in self._scenario.failovers:
            if failover.start <= now < failover.start + failover.seconds:
                away[failover.shard] = True
        begins = away & ~state.away
        unfinished = begins & (state.read < state.reserved - state.committed)
        state.read_twice += float(state.read[unfinished].sum())
        state.read[unfinished] = 0.0
        state.away = away

    def _produce(self, step: int) -> None:
        state, shards = self._state, self._scenario.machines.servers
        mean = self._scenario.workload.rate / shards * STEP
        noise = self._chance.normal(1.0, self._scenario.jitter, shards).clip(0.0, None)
        state.produced += mean * noise
        self._history[step + 1] = state.produced

    def _serve(self, now: float) -> None:
        """Let each server execute XADD, and the commands of the tasks, for one step."""
        state = self._state
        adding = state.produced - state.stored
        reading = np.zeros_like(adding)
        for query in self._queries:
            if query.active and query.fixed_left <= 0:
                unread = (state.reserved - state.committed - state.read)[query.mine]
                # A core is occupied by an entry while the server and the task work on it.
                share = query.cores * STEP / (self._server + self._task)
                wanted = np.where(state.away[query.mine], 0.0, unread)
                total = float(wanted.sum())
                reading[query.mine] = wanted * min(1.0, share / total) if total else 0.0
        up = ~state.away
        seconds = (adding * self._add + reading * self._server) * up
        through = (adding + reading) * self._bytes / 2
        capacity = self._scenario.machines.network * STEP
        scale = np.minimum(
            1.0, np.minimum(STEP / np.maximum(seconds, 1e-12), capacity / np.maximum(through, 1e-12))
        )  # fmt: skip
        scale = scale * up
        state.stored += adding * scale
        state.read += reading * scale
        state.server_busy += seconds * scale
        state.network += float((through * scale).max() / capacity * STEP)
        state.core_seconds += float((reading * scale).sum()) * (self._server + self._task)

    def _advance(self, query: _Query, step: int) -> None:
        """Begin a trigger, spend the driver's time, or commit."""
        state, now, mine = self._state, (step + 1) * STEP, query.mine
        if not query.active:
            # The driver asks every shard: it waits for one that is away.
            if now < query.next_start or state.away[mine].any() or not (state.stored - state.reserved)[mine].any():
                return
            count = float((state.stored - state.reserved)[mine].sum())
            state.reserved[mine] = state.stored[mine]
            state.read[mine] = 0.0
            query.fixed_left, query.driver_left = self._fixed(query), count * self._driver
            query.fixed_seconds += query.fixed_left
            query.active, query.began = True, now
            return
        spent = min(STEP, query.driver_left)
        query.driver_left -= spent
        query.driver_seconds += spent
        if query.fixed_left > 0:
            query.fixed_left -= STEP
        elif query.driver_left <= 0 and bool(
            np.all(state.read[mine] >= (state.reserved - state.committed)[mine] - 1e-6)
        ):
            self._commit(query, step)

    def _fixed(self, query: _Query) -> float:
        costs, shards = self._costs, query.mine.stop - query.mine.start
        sink = costs.sink_trigger_ms if self._scenario.workload.sink == "exactly-once" else 0.0
        streams = max(shards, query.streams)
        total = costs.trigger_ms + sink + costs.stream_ms * streams + costs.task_ms
        return float(total / 1000)

    def _commit(self, query: _Query, step: int) -> None:
        state, mine = self._state, query.mine
        low, high = state.committed[mine].copy(), state.reserved[mine].copy()
        first = step
        while first > 0 and (self._history[first, mine] > low).any():
            first -= 1
        window = np.clip(self._history[first : step + 2, mine], low, high)
        for offset, count in enumerate(np.diff(window, axis=0).sum(axis=1)):
            if count > 0:
                age = step - first - offset
                state.lags[age] = state.lags.get(age, 0.0) + float(count)
        state.committed[mine] = high
        state.read[mine] = 0.0
        query.active = False
        query.triggers += 1
        query.trigger_seconds += (step + 1) * STEP - query.began
        query.next_start = query.began + self._scenario.interval

    def _outcome(self) -> Outcome:
        state, seconds = self._state, self._scenario.seconds
        triggers = sum(query.triggers for query in self._queries)
        driver = [query.driver_seconds / seconds for query in self._queries]
        p50, p99 = (_quantile(state.lags, share) for share in (0.5, 0.99))
        quarter = self._steps // 4
        early, late = self._backlogs[quarter : 2 * quarter], self._backlogs[-quarter:]
        return Outcome(
            produced=float(state.produced.sum()),
            committed=float(state.committed.sum()),
            backlog=float((state.produced - state.committed).sum()),
            read_twice=state.read_twice,
            triggers=triggers,
            trigger_seconds=sum(query.trigger_seconds for query in self._queries) / max(1, triggers),
            fixed_seconds=sum(query.fixed_seconds for query in self._queries) / max(1, triggers),
            use={
                "server thread": float(state.server_busy.max()) / seconds,
                "network": state.network / seconds,
                "driver": max(driver),
                "executor cores": state.core_seconds / seconds / self._scenario.machines.cores,
            },
            peak_backlog=float(self._backlogs.max()),
            peak_memory=state.peak_memory,
            lag_p50=p50,
            lag_p99=p99,
            recoveries=tuple(self._recovery(failover) for failover in self._scenario.failovers),
            stable=bool(np.median(late) <= 1.5 * np.median(early)),
        )

    def _recovery(self, failover: Failover) -> Recovery:
        """Compare the backlog after a failover with its maximum in the ten seconds before."""
        start, end = round(failover.start / STEP), round((failover.start + failover.seconds) / STEP)
        before = self._backlogs[max(0, start - round(10 / STEP)) : start]
        normal = float(before.max()) * 1.1 if before.size else 0.0
        after = self._backlogs[end:]
        calm = [int(index) for index in np.flatnonzero(after <= normal)]
        catch_up = calm[0] * STEP if calm else float("inf")
        stop = end + (calm[0] if calm else len(after))
        during = self._backlogs[start : max(stop, start + 1)]
        return Recovery(failover, float(during.max(initial=0.0)), catch_up)


def _quantile(lags: dict[int, float], share: float) -> float:
    """Return seconds: the lag that this share of the entries does not exceed."""
    total, seen = sum(lags.values()), 0.0
    for age in sorted(lags):
        seen += lags[age]
        if seen >= share * total:
            return age * STEP
    return float("nan")


def scenarios(
    options: Workload, cores: int | None, queries: Sequence[int], interval: float, seconds: float, seed: int
) -> list[Scenario]:
    """Return a scenario for each of RATES, `queries` and SERVERS, with three failovers.

    `options.streams` are the streams of a shard; `options.rate` is replaced. `cores`: None is a core for each
    100,000 entries per second.
    """
    results = []
    for rate, count, servers in itertools.product(RATES, queries, SERVERS):
        workload = replace(options, rate=rate, streams=servers * options.streams)
        results.append(
            Scenario(
                workload=workload,
                machines=Machines(servers, cores or round(rate / 100_000)),
                queries=count,
                interval=interval,
                seconds=seconds,
                failovers=random_failovers(servers, 3, seconds, seed),
                seed=seed,
            )
        )
    return results
