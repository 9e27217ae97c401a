"""PostgreSQL's table and the Delta tables that are made of its changes are equal, also after kills on both sides."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.legs.debezium import changes, engines, table
from tests.legs.debezium.engines import FORMS
from tests.legs.debezium.postgres import Postgres, programs, running_postgres
from tests.legs.java import class_path
from tools.day_seed import first_seed
from tools.machine_time import wait_for_end
from tools.servers.jars import NotThereError
from tools.servers.server import running_redis, skip_without_redis
from tools.waiting import until

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 900.0  # machine seconds
SESSIONS, PHASES = 3, 5
STATEMENTS = int(os.environ.get("RSTREAM_CHANGES") or 20_000)
END = "the end of it"

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
    """The queries, in a process that is killed again and again."""

    def __init__(self, url: str, folder: Path) -> None:
        self._words = [sys.executable, "-m", "tests.legs.debezium.job", url, str(folder)]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._commits = 0
        self.kills = 0

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": path,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._commits = self._committed()
        with (self._folder / "job.log").open("ab") as said:
            self._process = subprocess.Popen(
                [*self._words, *words], env=environment, stdout=said, stderr=said, start_new_session=True
            )
        return self._process

    def kill(self, chance: random.Random) -> None:
        """Wait until a query has committed a batch since they started, and kill them in the midst of others."""
        process = self._process
        assert process is not None
        until(
            lambda: self._committed() > self._commits, "no query has committed a batch", PATIENCE, interval=0.1,
            alive=lambda: process.poll() is None, log=self.log,
        )  # fmt: skip
        time.sleep(chance.random() * 3)
        self.end()
        self.kills += 1

    def end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def drain(self) -> None:
        assert wait_for_end(self.start("drain"), PATIENCE) == 0, self.log()

    def log(self) -> str:
        return (self._folder / "job.log").read_text()

    def _committed(self) -> int:
        """Batches of all queries."""
        files = [file for form in FORMS for file in (self._folder / form.name / "commits").glob("*")]
        return sum(file.name.isdigit() for file in files)


class Debezium:
    """The engines, in a process that is killed."""

    def __init__(self, classes: list[Path], folder: Path, postgres: Postgres, url: str) -> None:
        self._log = folder / "debezium.log"
        self._start = lambda: engines.started(classes, folder, postgres, url, self._log)
        self._process = self._start()

    def kill(self) -> None:
        self.end()
        self._process = self._start()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait_for(self, client: redis.Redis, text: str) -> None:
        """Wait until each stream has an entry with this text among its last."""

        def has_all() -> bool:
            return all(text in str(client.xrevrange(form.stream, count=20)) for form in FORMS)

        until(
            has_all, f"not all streams have {text!r}", PATIENCE, interval=0.5,
            alive=lambda: self._process.poll() is None, log=self._log.read_text,
        )  # fmt: skip


@contextlib.contextmanager
def sessions(postgres: Postgres, folder: Path, columns: list[str], chance: random.Random) -> Iterator[None]:
    """Run random transactions, and wait for their end."""
    files = [folder / f"session{number}.sql" for number in range(SESSIONS)]
    for file in files:
        file.write_text(changes.session(STATEMENTS // SESSIONS // PHASES, columns, chance))
    running = [postgres.session(file, file.with_suffix(".log")) for file in files]
    yield
    for process, file in zip(running, files, strict=True):
        assert wait_for_end(process, PATIENCE) == 0, file.with_suffix(".log").read_text()[-2000:]


def test_the_delta_tables_are_equal_to_the_database(classes: list[Path], tmp_path: Path) -> None:
    """Compact and extended entries, with and without a schema; with transactions at once, a snapshot, a column that is
    added and one that is dropped; the job is killed three times, Debezium once."""
    chance = random.Random(first_seed())
    with running_postgres() as postgres, running_redis() as server, server.client() as client:
        postgres.run(table.creation())
        columns = [name for name in table.COLUMNS if name != table.ADDED]
        first = tmp_path / "first.sql"
        first.write_text(changes.session(STATEMENTS // 10, columns, chance))
        assert postgres.session(first, tmp_path / "first.log").wait() == 0
        postgres.run(f"INSERT INTO {table.NAME} (id, name) VALUES (-2, 'the beginning')")
        job, debezium = Job(server.url, tmp_path), Debezium(classes, tmp_path, postgres, server.url)
        try:
            debezium.wait_for(client, "the beginning")
            job.start()
            with sessions(postgres, tmp_path, columns, chance):
                job.kill(chance)
            job.start()
            with sessions(postgres, tmp_path, columns, chance):
                time.sleep(chance.random())
                postgres.run(f"ALTER TABLE {table.NAME} ADD COLUMN {table.ADDED} TEXT")
                time.sleep(chance.random() * 2)
                debezium.kill()
            columns.append(table.ADDED)
            with sessions(postgres, tmp_path, columns, chance):
                job.kill(chance)
            job.start()
            columns.remove(table.DROPPED)
            with sessions(postgres, tmp_path, columns, chance):
                time.sleep(chance.random())
                postgres.run(f"ALTER TABLE {table.NAME} DROP COLUMN {table.DROPPED}")
                job.kill(chance)
            with sessions(postgres, tmp_path, columns, chance):
                pass
            postgres.run(f"INSERT INTO {table.NAME} (id, name) VALUES (-1, '{END}')")
            debezium.wait_for(client, END)
            job.drain()
        finally:
            job.end()
            debezium.end()
        expected = table.rows_of(postgres.run(table.reading()))
        for form in FORMS:
            print(f"{form.name}: {client.xlen(form.stream)} entries, {len(expected)} rows")
            assert client.xlen(f"dead.{form.name}") == 0, client.xrange(f"dead.{form.name}", count=3)
            assert differences(expected, table.rows_of_delta(str(tmp_path / f"{form.name}.table"))) == [], form.name
        assert job.kills == 3


def differences(expected: dict[int, dict[str, object]], found: dict[int, dict[str, object]]) -> list[object]:
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
