"""However a login is given, nothing of it is shown: in plans, logs, errors, progress, offsets, checkpoints, tables of
results, and in what the commands print."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_streams
from spark_streams.cli import main
from tests.connector.spark.streams import read_stream
from tools.servers.server import Server, running_redis, skip_without_redis

SECRET = "s3cret-of-mine"
SCHEMA = "n LONG, _stream STRING"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server that knows `app`, and nobody else."""
    skip_without_redis()
    with running_redis() as server:
        with server.client() as admin:
            admin.execute_command("ACL", "SETUSER", "app", "on", f">{SECRET}", "~*", "&*", "+@all")
            for n in range(20):
                admin.xadd("s", {"n": n})
            admin.xadd("s", {"n": "bad"})
            admin.execute_command("ACL", "SETUSER", "default", "resetpass", f">other-{SECRET}")
        yield server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "password"
    made.write_text(SECRET)
    return made


def shown_by(frame: DataFrame) -> str:
    """Its plans."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        frame.explain("extended")
        frame.explain("formatted")
    return said.getvalue()


def everything_in(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


def access(way: str, server: Server, file: Path) -> dict[str, str]:
    if way == "url":
        return {"url": server.url.replace("://", f"://app:{SECRET}@")}
    if way == "password":
        return {"url": server.url, "username": "app", "password": SECRET}
    return {"url": server.url, "username": "app", "passwordFile": str(file)}


@pytest.mark.parametrize("way", ["url", "password", "passwordFile"])
def test_a_query_shows_nothing_of_its_login(
    way: str, spark: SparkSession, guarded: Server, file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    spark_streams.register(spark)
    given = access(way, guarded, file)
    log, checkpoint = tmp_path / "log.jsonl", tmp_path / "checkpoint"
    shown: list[str] = []
    with spark_streams.watch(spark, log=log, options=given):
        rows = read_stream(spark, guarded, SCHEMA, **given, streams="s", group=way)
        shown.append(shown_by(rows))
        query = (
            rows.where("n is not null").select("n").writeStream.format("rstream")
            .options(**given, stream=f"out-{way}").option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        with contextlib.redirect_stdout(io.StringIO()) as said:
            query.explain(True)
        shown += [said.getvalue(), *[one.json for one in query.recentProgress], str(query.status)]
    batch = spark.read.format("rstream").schema(SCHEMA).options(**given, streams=f"out-{way}").load()
    assert batch.count() == 20
    shown += [shown_by(batch), shown_by(batch.groupBy(F.col("n") % 2).count())]
    with pytest.raises(Exception, match="no right|NOGROUP|streams|not") as failed:
        spark.read.format("rstream").schema(SCHEMA).options(**given, streams="missing", strams="x").load().count()
    shown.append(str(failed.value))
    wrong = {**given, "url": given["url"].replace(SECRET, f"{SECRET}x")}
    if way != "url":
        file.write_text(f"{SECRET}x")
        wrong |= {"password": f"{SECRET}x"} if way == "password" else {}
    with pytest.raises(Exception, match="refuses the user and password") as failed:
        spark.read.format("rstream").schema(SCHEMA).options(**wrong, streams="s").load().count()
    shown.append(str(failed.value))
    captured = capfd.readouterr()
    shown += [captured.out, captured.err, caplog.text, everything_in(checkpoint), log.read_text()]
    assert "s" in shown[0]
    assert not [text[max(0, text.index(SECRET) - 200) :][:300] for text in shown if SECRET in text]


PROVIDER = """
class Mine:
    def get_credentials(self):
        return "app", open({path!r}).read()
"""


def test_a_provider_of_ones_own_module_is_asked_on_executors(
    spark: SparkSession, guarded: Server, file: Path, tmp_path: Path
) -> None:
    spark_streams.register(spark)
    module = tmp_path / "login_of_mine.py"
    module.write_text(PROVIDER.format(path=str(file)))
    spark.sparkContext.addPyFile(str(module))
    given = {"url": guarded.url, "credentialProvider": "login_of_mine:Mine"}
    batch = spark.read.format("rstream").schema(SCHEMA).options(**given, streams="s").load()
    assert batch.count() == 21
    file.write_text(f"{SECRET}x")
    with pytest.raises(Exception, match="refuses the user and password of credentialProvider login_of_mine") as failed:
        spark.read.format("rstream").schema(SCHEMA).options(**given, streams="s").load().count()
    assert SECRET not in str(failed.value)


def test_the_commands_show_nothing_of_a_login(guarded: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    around = {"RSTREAM_URL": guarded.url, "RSTREAM_USERNAME": "app", "RSTREAM_PASSWORD": SECRET}
    within = {"RSTREAM_URL": guarded.url.replace("://", f"://app:{SECRET}@")}
    said = ""
    for environment in (around, within):
        for line in (
            "streams",
            "lag",
            "pending s g",
            "lag missing",
            "dead list",
            "show s",
            "lag --help",
            "url",
        ):
            if environment is within and line == "url":
                continue  # which prints it on purpose
            said += CliRunner().invoke(main, line.split(), env=environment).output
    said += everything_in(tmp_path)
    assert SECRET not in said
