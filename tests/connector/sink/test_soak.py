"""A query over many batches, and everything happens to it that can: each row is there once.

A seed says what happens, and on which server; how threads take turns is the machine's. tests/seeds.py says which seeds.
"""

from __future__ import annotations

import random
import re
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pytest

from spark_streams.connector.errors import LedgerError
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.batch_commit import begin_run
from spark_streams.connector.sink.chunk_writer import TaskResult
from spark_streams.connector.wire.address import Address
from tests.connector.sink.keeping import Copy
from tests.connector.sink.paused_task import PausedTask, watched
from tests.connector.sink.writing import KilledError, close, dying, frame, ledger_keys, numbers, options, write
from tests.proxy import Proxy
from tests.seeds import seeds
from tools.once import once
from tools.servers.server import KINDS, Server

BATCHES = 6
STREAMS = ("a", "b", "{b}c", "d}")
Row = tuple[int, str]


class Driver:
    """One query on one server: batches that are killed at any step, tasks that die, race and stand still."""

    def __init__(self, server: Server, proxy: Proxy, seed: int) -> None:
        self.server, self.proxy = server, proxy
        self.chance = random.Random(seed)
        self.zombies: list[PausedTask] = []
        self.wrong: list[BaseException] = []

    def run(self) -> Counter[Row]:
        """All batches; the rows that they had."""
        written: Counter[Row] = Counter()
        for number in range(BATCHES):
            rows = self._rows()
            while not self._run(number, rows):
                pass
            written.update(rows)
            self._wake(0.3)
        self._wake(1)
        assert not self.wrong, self.wrong
        return written

    def _look_away(self) -> None:
        """Called between tasks."""

    def _rows(self) -> list[Row]:
        streams = self.chance.sample(STREAMS, self.chance.randint(1, 3))
        count = self.chance.choice([0, 1, 30, 120])
        few = self.chance.random() < 0.3  # many equal rows
        return [
            (self.chance.randrange(5) if few else self.chance.randrange(10**9), self.chance.choice(streams))
            for _ in range(count)
        ]

    def _run(self, number: int, rows: Sequence[Row]) -> bool:
        """One execution of a batch; whether Spark has it in its commit log."""
        batch = Batch("q", number, begin_run(self._address()), expires=False)
        parts = self.chance.randint(1, 4)
        mixed = self.chance.sample(rows, len(rows))
        dies_after = self.chance.choice([None, None, None, *range(parts + 2)])  # so many tasks; then while it closes it
        results: list[TaskResult] = []
        for part in range(parts):
            if part == dies_after:
                return False
            self._wake(0.05)
            self._look_away()
            results.append(self._task(batch, part, mixed[part::parts]))
        if dies_after == parts:
            return False
        if dies_after == parts + 1:
            self._stand_still(lambda: close(self._options(), batch, *results, together=2), 8)
            return False
        close(self._options(), batch, *results, together=2)
        return self.chance.random() < 0.8  # or it is killed before the commit log

    def _task(self, batch: Batch, part: int, rows: Sequence[Row]) -> TaskResult:
        """Attempts of one partition, until one has ended well."""
        checked = self._options()
        for _ in range(self.chance.choice([0, 0, 1, 2])):
            some = self._frames(rows)
            if self.chance.random() < 0.5:
                cut = some[: self.chance.randint(0, len(some))]
                with pytest.raises(KilledError):
                    write(dying(cut), checked, batch, part)
            else:
                self._stand_still(lambda some=some: write(some, checked, batch, part), 14)  # type: ignore[misc]
        if self.chance.random() < 0.7:
            return write(self._frames(rows), checked, batch, part)
        results: list[TaskResult] = []

        def twin(some: list[pa.RecordBatch]) -> None:
            try:
                results.append(write(some, checked, batch, part))
            except BaseException as error:  # noqa: BLE001 - told at the end
                self.wrong.append(error)

        twins = [threading.Thread(target=twin, args=(self._frames(rows),)) for _ in range(2)]
        for one in twins:
            one.start()
        for one in twins:
            one.join()
        assert not self.wrong, self.wrong
        return results[0]

    def _frames(self, rows: Sequence[Row]) -> list[pa.RecordBatch]:
        """The rows in some order, in some batches."""
        mixed = self.chance.sample(rows, len(rows))
        size = self.chance.choice([7, 40, 1000])
        cut = [mixed[start : start + size] for start in range(0, len(mixed), size)]
        return [frame([n for n, _ in some], [stream for _, stream in some]) for some in cut]

    def _options(self):  # type: ignore[no-untyped-def]
        """Through the proxy, whose next connections may be cut."""
        if self.chance.random() < 0.1:
            self.proxy.cut(self.chance.choice(["up", "down"]), self.chance.randrange(1, 6000))
        return options(self.proxy.url, streamColumn="to", chunkSize=str(self.chance.choice([5, 20, 1000])))

    def _address(self) -> Address:
        return options(self.server.url).address

    # -- who stands still ---------------------------------------------------------------------------------------

    def _stand_still(self, work: Callable[[], object], requests: int) -> None:
        zombie = PausedTask(work, self.chance.randrange(requests))
        zombie.start()
        zombie.until_it_stands()
        self.zombies.append(zombie)

    def _wake(self, share: float) -> None:
        for zombie in [one for one in self.zombies if self.chance.random() < share]:
            zombie.go_on()
            self.zombies.remove(zombie)
            if zombie.error is not None and not isinstance(zombie.error, LedgerError):
                self.wrong.append(zombie.error)


class Unlucky(Driver):
    """Besides, the server comes back from an older file, or a replica that lagged becomes the master: within a batch,
    for what is lost of a batch that Spark has done with can only be told."""

    copy: Copy | None = None

    def _run(self, number: int, rows: Sequence[Row]) -> bool:
        try:
            return super()._run(number, rows)
        except LedgerError as error:  # the operator runs its command if there is one, and starts the query again
            if command := re.search(r'(HSET rstream:sink:\w+ "" \d+) and start the query again', str(error)):
                with self.server.client() as client:
                    client.execute_command(*shlex.split(command[1]))
            return False

    def run(self) -> Counter[Row]:
        honest = self._rows

        def rows() -> list[Row]:
            self.copy = Copy(self.server)
            return honest()

        self._rows = rows  # type: ignore[method-assign]
        return super().run()

    def _look_away(self) -> None:
        luck = self.chance.random()
        if luck < 0.2 and self.copy is not None:
            self.copy.bring_back()
        elif luck < 0.4:
            self.copy = Copy(self.server)


@pytest.fixture(autouse=True)
def no_clock_counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every driver's clock tells another time."""
    monkeypatch.setattr(time, "time_ns", lambda: random.randrange(2**62))
    with watched():
        yield


@pytest.mark.random
@pytest.mark.parametrize("kind", [Driver, Unlucky])
@pytest.mark.parametrize(
    ("seed", "server"),
    [(seed, KINDS[seed % len(KINDS)]) for seed in seeds(4)],
    indirect=["server"],
)
def test_each_row_is_there_once_whatever_happens(server: Server, seed: int, kind: type[Driver]) -> None:
    with Proxy(server.url) as proxy:
        driver = kind(server, proxy, seed)
        rows = driver.run()
    judgement = once(rows.elements(), [(n, stream) for stream in STREAMS for n in numbers(server, stream).elements()])
    assert not judgement, f"RSTREAM_SEED={seed}: {judgement}"
    batch = Batch("q", BATCHES, begin_run(options(server.url).address), expires=False)
    close(options(server.url), batch)
    left = ledger_keys(server) - {"rstream:sink:q", "rstream:runs"}
    if kind is Unlucky:  # whoever closes a batch while the server goes back forgets a head that is there again
        left = {key for key in left if ":q:" in key}
    assert not left
