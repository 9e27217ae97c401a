"""PostgreSQL's table and the Delta table that is made of its changes are equal, also after kills on both sides."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.legs.debezium import changes, engines, table
from tests.legs.debezium.engines import FORMS, Form
from tests.legs.debezium.postgres import Postgres, programs, running_postgres
from tests.legs.java import class_path
from tests.legs.killed import Program
from tools.day_seed import first_seed
from tools.machine_time import wait_for_end
from tools.servers.jars import NotThereError
from tools.servers.server import running_redis, skip_without_redis
from tools.waiting import until

PATIENCE = 900.0  # machine seconds
SESSIONS = 3  # at once
SECONDS = 10.0  # of sessions that a kill interrupts: longer than some batches
STATEMENTS = int(os.environ.get("RSTREAM_CHANGES") or 20_000)
END = "the end of it"
Row = dict[str, object]

pytestmark = [pytest.mark.spark, pytest.mark.debezium]


@pytest.fixture
def classes() -> list[Path]:
    pytest.importorskip("deltalake", reason="deltalake is missing: scripts/test --debezium brings it")
    skip_without_redis()
    if programs() is None:
        pytest.skip("PostgreSQL is missing (Debian, Ubuntu: sudo apt-get install postgresql)")
    try:
        return class_path(Path(__file__).parent)
    except NotThereError as error:
        pytest.skip(f"Debezium is not to be had: {error}")


class Job:
    """The query, in a process that is killed again and again."""

    def __init__(self, url: str, folder: Path, form: Form) -> None:
        self.program = Program("tests.legs.debezium.job", url, folder, [form.name])
        self._name = form.name
        self.kills = self.kills_in_batches = 0

    def start(self) -> None:
        """Start it, and wait until it has committed a batch of what is there."""
        commits = self.program.commits(self._name)
        self.program.start()
        self._wait_until(lambda: self.program.commits(self._name) > commits, "the query has committed no batch")

    def kill(self, chance: random.Random) -> None:
        """Kill it at a moment of a batch, while entries come."""
        for pause in (chance.random() * 3, 0):
            self._wait_until(self._is_in_batch, "the query has begun no batch")
            time.sleep(pause)
        self.program.kill()
        self.kills += 1
        self.kills_in_batches += self._is_in_batch()

    def _is_in_batch(self) -> bool:
        return self.program.batches(self._name) > self.program.commits(self._name)

    def _wait_until(self, condition: Callable[[], bool], message: str) -> None:
        until(condition, message, PATIENCE, self.program.is_alive, self.program.said, interval=0.1)


class Debezium:
    """The engine, in a process that is killed."""

    def __init__(self, classes: list[Path], folder: Path, postgres: Postgres, url: str, form: Form) -> None:
        self._log, self._stream = folder / "debezium.log", form.stream
        self._start = lambda: engines.started(classes, folder, postgres, url, form, self._log)
        self._process = self._start()

    def kill(self) -> None:
        self.end()
        self._process = self._start()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait_for(self, client: redis.Redis, text: str) -> None:
        """Wait until an entry with this text is among the last of the stream, as many as a snapshot has: it is in the
        order of the table's pages, and a row that came last may be in any of them."""
        until(
            lambda: text in str(client.xrevrange(self._stream, count=table.KEYS + 1)), f"the stream has no {text!r}",
            PATIENCE, interval=0.5, alive=lambda: self._process.poll() is None, log=self._log.read_text,
        )  # fmt: skip


class Database:
    """The table, and the random transactions on it."""

    def __init__(self, postgres: Postgres, folder: Path, chance: random.Random) -> None:
        self.postgres, self._folder, self._chance = postgres, folder, chance
        self.columns = [name for name in table.COLUMNS if name != table.ADDED]
        self.kinds: Counter[str] = Counter()
        postgres.run(table.creation())

    @contextlib.contextmanager
    def sessions(self, number: int, statements: int, seconds: float = 0) -> Iterator[None]:
        """Run so many statements in so many sessions at once, for at least so long, and wait for their end."""
        running = {}
        for one in range(number):
            made = changes.session(statements // number, seconds, self.columns, self._chance)
            self.kinds += made.kinds
            file = self._folder / f"session{one}.sql"
            file.write_text(made.sql)
            log = file.with_suffix(".log")
            running[log] = self.postgres.session(file, log)
        yield
        for log, process in running.items():
            assert wait_for_end(process, PATIENCE) == 0, log.read_text()[-2000:]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_delta_table_is_equal_to_the_database(classes: list[Path], form: Form, tmp_path: Path) -> None:
    """With transactions at once, a snapshot, a column that is added and one that is dropped; the job is killed three
    times, Debezium once."""
    chance = random.Random(f"{first_seed()} {form.name}")
    with running_postgres() as postgres, running_redis() as server, server.client() as client:
        database = Database(postgres, tmp_path, chance)
        with database.sessions(1, STATEMENTS // 10):
            pass
        postgres.run(f"INSERT INTO {table.NAME} (id, name) VALUES (-2, 'the beginning')")
        job, debezium = Job(server.url, tmp_path, form), Debezium(classes, tmp_path, postgres, server.url, form)
        part = STATEMENTS * 9 // 10 // 5
        try:
            debezium.wait_for(client, "the beginning")
            job.start()
            with database.sessions(SESSIONS, part, SECONDS):
                job.kill(chance)
            job.start()
            with database.sessions(SESSIONS, part, SECONDS):
                time.sleep(chance.random())
                postgres.run(f"ALTER TABLE {table.NAME} ADD COLUMN {table.ADDED} TEXT")
                time.sleep(chance.random() * 2)
                debezium.kill()
            database.columns.append(table.ADDED)
            with database.sessions(SESSIONS, part, SECONDS):
                job.kill(chance)
            job.start()
            database.columns.remove(table.DROPPED)
            with database.sessions(SESSIONS, part, SECONDS):
                time.sleep(chance.random())
                postgres.run(f"ALTER TABLE {table.NAME} DROP COLUMN {table.DROPPED}")
                job.kill(chance)
            with database.sessions(SESSIONS, part):
                pass
            postgres.run(f"INSERT INTO {table.NAME} (id, name) VALUES (-1, '{END}')")
            debezium.wait_for(client, END)
            job.program.drain(PATIENCE)
        finally:
            job.program.kill()
            debezium.end()
        expected = table.rows_of(postgres.run(table.reading()))
        found = table.rows_of_delta(str(tmp_path / f"{form.name}.table"))
        kinds = ", ".join(f"{count} {kind}" for kind, count in database.kinds.most_common())
        print(f"\n{form.name}: {kinds}; {client.xlen(form.stream)} entries; Debezium killed once")
        print(f"the job killed {job.kills} times, {job.kills_in_batches} of them in a batch")
        print(f"{len(expected)} rows in PostgreSQL, {len(found)} in Delta, {job.program.commits(form.name)} batches")
        assert client.xlen(f"dead.{form.name}") == 0, client.xrange(f"dead.{form.name}", count=3)
        assert differences(expected, found) == []
        assert job.kills == job.kills_in_batches == 3
        print("equal")


def differences(expected: dict[int, Row], found: dict[int, Row]) -> list[tuple[object, ...]]:
    """Return the first values that differ: the key, the column, what the database has and what the table has."""
    missing, more = expected.keys() - found.keys(), found.keys() - expected.keys()
    unequal = [
        (key, name, value, found[key][name])
        for key, row in expected.items()
        if key in found
        for name, value in row.items()
        if found[key][name] != value
    ]
    return [*[("missing", key) for key in sorted(missing)], *[("more", key) for key in sorted(more)], *unequal][:20]
