"""Back up, restore, go back: the drills of docs/guide/backup.md. A server, a checkpoint and a table are saved at two
stops of a query, and restored in each order. Rows are counted."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, StructField, StructType

from spark_streams.jobs.output.deltalake_table import DeltalakeTable
from spark_streams.jobs.output.owned_table import TableSettings
from spark_streams.jobs.output.table_columns import TableFit
from spark_streams.operations.cli import main
from tests.connector.spark.streams import read_stream, run_to_the_end
from tools.servers.server import Server, running_redis, skip_without_redis
from tools.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]
PARTS = ("server", "checkpoint", "table")


class Site:
    """A server with stream `orders`, and a query that appends its entries to a plain table in a folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self._running = ExitStack()
        self._start()

    def _start(self) -> None:
        """The server, with what is in its folder."""
        (self._folder / "server").mkdir(exist_ok=True)
        self.server: Server = self._running.enter_context(running_redis("--dir", str(self._folder / "server")))

    def close(self) -> None:
        self._running.close()

    def add(self, *numbers: int) -> None:
        with self.server.client() as client:
            for number in numbers:
                client.xadd("orders", {"n": number})

    def run(self, **options: str) -> None:
        """The query, to the end of what is there."""
        table = str(self._folder / "table")

        def append(rows: DataFrame, _: int) -> None:
            rows.write.mode("append").parquet(table)

        self.run_into(append, self._folder / "checkpoint", **options)

    def run_into(self, append: Callable[[DataFrame, int], None], checkpoint: Path, **options: str) -> None:
        rows = read_stream(self._spark, self.server, "n INT", streams="orders", **options)
        writer = rows.writeStream.foreachBatch(append).option("checkpointLocation", str(checkpoint))
        run_to_the_end(lambda: writer.trigger(availableNow=True).start())

    def first_of(self, day: range) -> str:
        """The ID of the first entry with such a number."""
        return self._ids(day)[0]

    def last_of(self, day: range) -> str:
        return self._ids(day)[-1]

    def _ids(self, day: range) -> list[str]:
        with self.server.client() as client:
            return [entry.decode() for entry, fields in client.xrange("orders") if int(fields[b"n"]) in day]

    def rows(self) -> Counter[int]:
        return Counter(row["n"] for row in self._spark.read.parquet(str(self._folder / "table")).collect())

    def save(self, name: str) -> None:
        """All three, while the query does not run. The server writes its file at once."""
        with self.server.client() as client:
            client.save()
        for part in PARTS:
            shutil.copytree(self._folder / part, self._folder / "saved" / name / part)

    def restore(self, name: str, *parts: str) -> None:
        """Replace these parts by those of a saved stop."""
        if "server" in parts:
            self._running.close()
        for part in parts:
            shutil.rmtree(self._folder / part)
            shutil.copytree(self._folder / "saved" / name / part, self._folder / part)
        if "server" in parts:
            self._start()

    def rstream(self, *words: str) -> str:
        # Spark may kill the source's process of a query that has ended: then its session expires by itself (keys.md).
        with self.server.client() as client:
            until(lambda: not client.keys("rstream:session:*"), "the session of the query does not end")
        done = CliRunner().invoke(main, [*words, "--url", self.server.url])
        assert done.exit_code == 0, done.output
        return done.output


@pytest.fixture(scope="module")
def saved(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Saved after ten entries (`monday`), and after ten more (`tuesday`)."""
    skip_without_redis()
    site = Site(spark, tmp_path_factory.mktemp("site"))
    site.add(*MONDAY)
    site.run()
    site.save("monday")
    site.add(*TUESDAY)
    site.run()
    site.save("tuesday")
    yield site
    site.close()


@pytest.fixture
def site(saved: Site) -> Site:
    """On Wednesday, before the query has run."""
    saved.restore("tuesday", *PARTS)
    saved.add(*WEDNESDAY)
    return saved


MONDAY, TUESDAY, WEDNESDAY = range(10), range(10, 20), range(20, 25)


def once(*days: range) -> Counter[int]:
    return Counter(number for day in days for number in day)


OLDER_COPY = r"RSTREAM_DATA_LOSS\].*older copy of the checkpoint.*--to (\S+)"
OLDER_SERVER = r"RSTREAM_DATA_LOSS\].*the server has lost at least 5 entries.*returned to an older state"
# Of Monday are: the error, or the rows. The server of Monday has no entries of Tuesday.
CASES: list[tuple[tuple[str, ...], str | Counter[int]]] = [
    ((), once(MONDAY, TUESDAY, WEDNESDAY)),
    (PARTS, once(MONDAY, WEDNESDAY)),
    (("server",), OLDER_SERVER),
    (("server", "table"), OLDER_SERVER),
    (("checkpoint",), OLDER_COPY),
    (("checkpoint", "table"), OLDER_COPY),
    (("table",), once(MONDAY, WEDNESDAY)),  # no error: ten rows are missing
    (("server", "checkpoint"), once(MONDAY, TUESDAY, WEDNESDAY)),  # rows of entries that the stream does not have
]


@pytest.mark.parametrize(("older", "expected"), CASES, ids=["-".join(older) or "none" for older, _ in CASES])
def test_what_is_not_of_one_stop_is_an_error_unless_it_is_the_table(
    older: tuple[str, ...], expected: str | Counter[int], site: Site
) -> None:
    site.restore("monday", *older)
    if "server" in older:
        site.add(*WEDNESDAY)
    before = site.rows()
    if isinstance(expected, Counter):
        site.run()
        assert site.rows() == expected
    else:
        with pytest.raises(StreamingQueryException, match=expected):
            site.run()
        assert site.rows() == before


def test_a_checkpoint_and_a_table_of_one_stop_go_on_after_a_seek(site: Site) -> None:
    """The server is the newest one: nothing is lost, and nothing twice."""
    site.restore("monday", "checkpoint", "table")
    site.rstream("groups", "seek", "orders", "--group", "g", "--to", site.last_of(MONDAY), "--yes")
    site.run()
    assert site.rows() == once(MONDAY, TUESDAY, WEDNESDAY)


def test_back_on_purpose_the_table_is_set_back_and_the_group_is_moved(site: Site) -> None:
    """The newest checkpoint stays: the next batch goes on from the new position."""
    site.run()
    site.restore("monday", "table")
    site.rstream("groups", "seek", "orders", "--group", "g", "--to", site.last_of(MONDAY), "--yes")
    site.run()
    assert site.rows() == once(MONDAY, TUESDAY, WEDNESDAY)


def test_the_rows_that_an_older_table_lacks_come_by_a_replay(site: Site) -> None:
    site.restore("monday", "table")
    site.run()
    words = ("--from", site.first_of(TUESDAY), "--to", site.last_of(TUESDAY), "--yes")
    site.rstream("replay", "orders", "--group", "g", *words)
    site.run()
    assert site.rows() == once(MONDAY, TUESDAY, WEDNESDAY)


def test_a_loss_that_is_accepted_is_counted_and_named_once(site: Site) -> None:
    """The server of Monday, and all else of Tuesday: what was read stays in the table."""
    site.restore("monday", "server")
    site.add(*WEDNESDAY)
    site.run(failOnDataLoss="false")
    assert site.rows() == once(MONDAY, TUESDAY, WEDNESDAY)
    site.run()
    assert site.rows() == once(MONDAY, TUESDAY, WEDNESDAY)


def test_back_to_a_version_of_a_delta_table(site: Site, tmp_path: Path) -> None:
    """RESTORE of the version at a stop, and a seek to its end: the checkpoint stays."""
    deltalake = pytest.importorskip("deltalake")
    table = str(tmp_path / "delta")

    def append(rows: DataFrame, _: int) -> None:
        deltalake.write_deltalake(table, rows.toArrow(), mode="append")

    site.run_into(append, tmp_path / "checkpoint", group="delta")
    version, read = deltalake.DeltaTable(table).version(), site.last_of(WEDNESDAY)
    site.add(*TUESDAY)
    site.run_into(append, tmp_path / "checkpoint", group="delta")
    deltalake.DeltaTable(table).restore(version)
    site.rstream("groups", "seek", "orders", "--group", "delta", "--to", read, "--yes")
    site.run_into(append, tmp_path / "checkpoint", group="delta")
    found = Counter(deltalake.DeltaTable(table).to_pyarrow_table()["n"].to_pylist())
    assert found == once(MONDAY, TUESDAY, WEDNESDAY, TUESDAY)


@pytest.mark.parametrize("kept", ["newest", "older", "new"])
def test_a_jobs_delta_table_that_is_set_back_skips_the_batches_of_an_older_checkpoint(
    kept: str, site: Site, spark: SparkSession, tmp_path: Path
) -> None:
    """RESTORE keeps the number of the last batch, and an older checkpoint uses the numbers again. With the newest one,
    and with a new one, which is another query, nothing is missing."""
    deltalake = pytest.importorskip("deltalake")
    table, checkpoint = str(tmp_path / "delta"), tmp_path / "newest"
    written = DeltalakeTable(spark, TableSettings("table", "deltalake", path=table), "table")
    columns = StructType([StructField("n", IntegerType())])
    written.prepare(TableFit(columns, StructType([]), ()), None)
    site.run_into(written.write, checkpoint, group="job")
    shutil.copytree(checkpoint, tmp_path / "older")
    version, read = deltalake.DeltaTable(table).version(), site.last_of(WEDNESDAY)
    site.add(*TUESDAY)
    site.run_into(written.write, checkpoint, group="job")

    deltalake.DeltaTable(table).restore(version)
    site.rstream("groups", "seek", "orders", "--group", "job", "--to", read, "--yes")
    site.run_into(written.write, tmp_path / kept, group="job")
    found = Counter(deltalake.DeltaTable(table).to_pyarrow_table()["n"].to_pylist())
    assert found == once(MONDAY, TUESDAY, WEDNESDAY, *([] if kept == "older" else [TUESDAY]))
