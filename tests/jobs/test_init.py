"""`rstream init` and `rstream run` up to where Spark begins."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from spark_streams.cli import main
from spark_streams.connector.source.infer_schema import InferredColumn
from spark_streams.jobs.arguments import JOBS
from spark_streams.jobs.command import program
from spark_streams.jobs.job import Job
from spark_streams.jobs.job_config import check_keys
from spark_streams.jobs.parts.outputs import outputs_of
from spark_streams.jobs.parts.rules import Rules
from spark_streams.jobs.parts.source_and_sink import Source
from spark_streams.jobs.sample_config import config_for, sample_config
from spark_streams.jobs.spark_start import SHAPE as SPARK
from tools.servers.server import Server

ROOT = Path(__file__).resolve().parents[2]


def rstream(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.fixture(autouse=True)
def in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("job", JOBS)
def test_without_a_stream_it_writes_what_this_clone_runs(job: str, tmp_path: Path) -> None:
    assert rstream("init", job).exit_code == 0
    assert (tmp_path / f"{job}.toml").read_bytes() == (ROOT / "conf" / f"{job}.toml").read_bytes()


@pytest.mark.parametrize("job", JOBS)
def test_a_sample_has_keys_that_its_job_knows_also_where_they_are_comments(job: str) -> None:
    """A line that is a key in a comment is one when the comment's mark goes."""
    lines = sample_config(job).splitlines()
    shape = {"url": str, "spark": SPARK, **program(job).shape}
    check_keys(tomllib.loads("\n".join(lines)), shape, "", job)
    plain = [re.sub(r'^# (?=\[|"?[\w.]+"? = )', "", line) for line in lines]
    # Of these a configuration has one.
    plain = [line for line in plain if not line.startswith(("json = ", "[schema]"))]
    check_keys(tomllib.loads("\n".join(plain)), shape, "", job)


def test_it_says_the_next_command_and_overwrites_nothing(tmp_path: Path) -> None:
    made = rstream("init", "reprocess-dead-letters")
    assert made.exit_code == 0
    assert "rstream run reprocess_dead_letters --config reprocess_dead_letters.toml --check" in made.output
    assert (tmp_path / "reprocess_dead_letters.toml").read_text() == sample_config("reprocess_dead_letters")
    again = rstream("init", "reprocess_dead_letters")
    assert (again.exit_code, "is not overwritten; name another file with --output" in again.output) == (2, True)
    assert rstream("init", "etl", "-o", "my etl.toml").output.endswith("--config 'my etl.toml' --check\n")
    away = rstream("init", "etl", "--output", "none/etl.toml")
    assert (away.exit_code, "none/etl.toml cannot be written: No such file" in away.output) == (1, True)


def test_a_stream_gives_its_name_and_its_fields(server: Server, tmp_path: Path) -> None:
    with server.client() as client:
        client.xadd("my orders", {"customer": "ann", "amount": "12.50", "n": "3", "first name": "x", "_id": "1"})
        client.xadd("my orders", {"customer": "7", "amount": "1", "n": "4", "at": "2026-11-20T10:00:00"})
        client.set("text", "no stream")
    assert rstream("init", "etl", "--stream", "my orders", "--url", server.url).exit_code == 0
    config = tomllib.loads((tmp_path / "etl.toml").read_text())
    assert config["columns"] == {
        "customer": "STRING", "amount": "DOUBLE", "n": "BIGINT", "first name": "STRING", "at": "TIMESTAMP",
    }  # fmt: skip
    assert (config["source"]["streams"], config["dead_letters"]["stream"]) == ("my orders", "my orders:dead")
    assert (config["table"]["path"], "rule" in config) == ("out/my-orders", False)
    assert (config["source"]["group"], config["job"]["checkpoint"]) == (
        "etl",
        "out/checkpoints/my-orders-636a9d37-etl",
    )
    missing = rstream("init", "etl", "--stream", "my order", "--url", server.url, "--output", "x.toml")
    assert (missing.exit_code, "did you mean 'my orders'?" in missing.output) == (1, True)
    assert not (tmp_path / "x.toml").exists()


OF_THE_SAMPLE = re.compile(
    r"\b(flights|delays|AS late|(sched_)?(dep|arr)_\w+|departure|carrier|tailnum|origin|dest|air_time|time_hour)\b"
    r"|\b(2013|UA)\b|\"late\""
)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(
    "columns",
    [
        [("n", "long"), ("who", "string")],
        [("first name", "string"), ('a`b"', "double"), ("at", "timestamp")],
        [("n", "long")],
    ],
    ids=["two", "odd names", "one"],
)
def test_what_it_writes_about_a_stream_is_a_configuration_of_its_job(job: str, columns: list[tuple[str, str]]) -> None:
    """With nothing of the sample's own data set, in comments neither."""
    inferred = [InferredColumn(name, kind, 9, ((b"\x1b\n]", 1),)) for name, kind in columns]
    text = config_for(job, "a\"b'c\\", inferred)
    assert OF_THE_SAMPLE.findall(text) == []
    shape = {"url": str, "spark": SPARK, **program(job).shape}
    config = tomllib.loads(text)
    check_keys(config, shape, "", job)
    plain = [re.sub(r'^# (?=\[|"?[\w.]+"? = )', "", line) for line in text.splitlines()]
    plain = [line for line in plain if not line.startswith(("json = ", "[schema]"))]
    whole = tomllib.loads("\n".join(plain))
    check_keys(whole, shape, "", job)
    names = [name for name, _ in columns]
    if job == "etl":
        job_of_stream = Job(job, config, Console(quiet=True))
        assert Rules(job_of_stream, Source(job_of_stream)).names == names
        assert [output.name for output in outputs_of(config, {"url": "redis://h"})] == ["table"]
        assert whole["table"]["partition_by"][0] in names
    if job == "aggregate":
        assert ("where" in config["aggregate"], len(config["aggregate"]["keys"])) == (False, 1)
    if job == "load":
        assert whole["input"]["path"] == "out/a-b-c-.csv"


@pytest.mark.parametrize("job", ["etl", "aggregate", "archive"])
def test_what_it_writes_about_a_stream_passes_its_check(server: Server, tmp_path: Path, job: str) -> None:
    """The file names the server that the command was told."""
    with server.client() as client:
        client.xadd("orders", {"customer": "ann", "amount": "12.50", "first name": "x"})
    assert rstream("init", job, "--stream", "orders", "--url", server.url).exit_code == 0
    checked = rstream("run", job, "--config", f"{job}.toml", "--check")
    assert checked.exit_code == 0, checked.output
    assert "orders" in checked.output


def test_the_type_that_most_values_fit_is_written_with_those_that_do_not(server: Server, tmp_path: Path) -> None:
    """A value that does not fit in ten makes no STRING, unless the share is to be higher; NA is no value."""
    with server.client() as client:
        for number in range(10):
            client.xadd("orders", {"amount": "1,5" if number == 7 else f"{number}.25", "delay": "NA", "late": "yes"})
        client.xadd("orders", {"amount": "NA", "delay": "7", "late": ""})
    command = ["init", "etl", "--stream", "orders", "--url", server.url]
    assert rstream(*command, "--null-value", "NA,-").exit_code == 0
    text = (tmp_path / "etl.toml").read_text()
    config = tomllib.loads(text)
    assert config["columns"] == {"amount": "DOUBLE", "delay": "BIGINT", "late": "STRING"}
    assert config["source"]["nullValue"] == "NA,-"
    (line,) = [line for line in text.splitlines() if line.startswith("amount = ")]
    assert re.fullmatch(r"amount = \"DOUBLE\" +# 90 % of 10 values fit; not: '1,5'", line)
    assert rstream(*command, "--null-value", "NA", "--share", "0.95", "-o", "strict.toml").exit_code == 0
    assert tomllib.loads((tmp_path / "strict.toml").read_text())["columns"]["amount"] == "STRING"
    refused = rstream("init", "etl", "--share", "0.9")
    assert (refused.exit_code, "name it with --stream" in refused.output) == (2, True)


@pytest.mark.in_turn
def test_it_needs_no_spark(server: Server, tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError('there is no pyspark')\n")
    with server.client() as client:
        client.xadd("orders", {"amount": "1.25"})
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [
        sys.executable,
        "-m",
        "spark_streams.cli",
        "init",
        "etl",
        "--stream",
        "orders",
        "--url",
        server.url,
    ]
    made = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    assert tomllib.loads((tmp_path / "etl.toml").read_text())["columns"] == {"amount": "DOUBLE"}


@pytest.mark.parametrize(("name", "file"), [("alerts", "alerts.yml"), ("grafana", "grafana.json")])
def test_what_goes_with_the_exporter_is_written_too(tmp_path: Path, name: str, file: str) -> None:
    made = rstream("init", name)
    assert made.exit_code == 0, made.output
    assert (tmp_path / file).read_bytes() == (ROOT / "spark_streams" / "jobs" / "templates" / file).read_bytes()
    assert "rstream run" not in made.output
    refused = rstream("init", name, "--stream", "orders", "--output", "other")
    assert (refused.exit_code, "--stream applies only to jobs" in refused.output) == (2, True)


def test_a_program_is_written_with_the_next_command(tmp_path: Path) -> None:
    made = rstream("init", "query", "-o", "my query.py")
    assert (made.exit_code, made.output) == (0, "wrote my query.py: check it, then\n  python 'my query.py'\n")
    text = (tmp_path / "my query.py").read_text()
    compile(text, "query.py", "exec")
    assert ('.option("streams", "orders")' in text, '"RSTREAM_URL", "embedded:"' in text) == (True, True)


@pytest.mark.parametrize(
    "columns",
    [
        [("n", "long"), ("who", "string"), ("_id", "string")],
        [("first name", "string"), ('a`b"', "double"), ("at", "timestamp")],
        [("_id", "string")],
    ],
    ids=["reserved", "odd names", "only reserved"],
)
def test_a_program_for_a_stream_has_its_names_as_python_and_sql(columns: list[tuple[str, str]]) -> None:
    """With the server and the missing values that the command was told."""
    inferred = [InferredColumn(name, kind, 9, ((b"\x1b\n]", 1),)) for name, kind in columns]
    text = config_for("query", "a\"b'c\\", inferred, "redis://h", "NA")
    literals = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    assert {"a\"b'c\\", "a\"b'c\\-query", "redis://h", "NA", "out/checkpoints/a-b-c--494b4b6e-query"} <= literals
    assert len([one for one in literals if str(one).endswith(("STRING", "TIMESTAMP"))]) == 1


@pytest.mark.parametrize("words", [["init", "etl"], ["dead", "export", "d"]])
def test_the_file_to_write_has_one_name_everywhere(words: list[str]) -> None:
    told = rstream(*words, "--help").output
    assert ("-o, --output FILE" in told, "--out " in told) == (True, False)


@pytest.mark.parametrize("command", ["init", "run"])
def test_a_job_that_there_is_not(command: str) -> None:
    ended = rstream(command, "reprocess-dead-leters")
    assert (ended.exit_code, "did you mean reprocess_dead_letters?" in ended.output) == (2, True)
    assert "the names are load, etl" in rstream(command, "x").output


def test_errors_are_reported_before_spark_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("pyspark.sql.SparkSession.builder", None)
    (tmp_path / "etl.toml").write_text(sample_config("etl"))
    for words, message in (
        (["--set", "soruce.x=1"], "etl: [RSTREAM_CONFIG] etl.toml: unknown key soruce; did you mean source?"),
        (["--set", "spark.mastr=x"], "etl: [RSTREAM_CONFIG] [spark]: unknown key mastr; did you mean master?"),
        (["--set", "spark.mastr=x", "--submit"], "etl: [RSTREAM_CONFIG] [spark]: unknown key mastr"),
        (["--config", "none.toml"], "etl: [RSTREAM_CONFIG] there is no config file 'none.toml'"),
    ):
        ended = rstream("run", "etl", "--config", "etl.toml", *words)
        assert (ended.exit_code, ended.output.count("\n")) == (2, 1)
        assert ended.output.startswith(message)


def test_a_machine_without_java_is_reported_in_both_ways(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "etl.toml").write_text(sample_config("etl"))
    monkeypatch.setattr("spark_streams.jobs.command.has_java", lambda: False)
    ended = rstream("run", "etl", "--config", "etl.toml", "--submit")
    assert (ended.exit_code, "no Java found: install a JDK 17 or newer" in ended.output) == (1, True)


@pytest.mark.in_turn
def test_by_spark_submit_the_command_becomes_it(tmp_path: Path) -> None:
    """With [spark] as its own words; its exit code is the command's."""
    program = tmp_path / "spark home" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\ncat "$3"\nexit 7\n')
    program.chmod(0o755)
    (tmp_path / "etl.toml").write_text(sample_config("etl") + '[spark]\nsubmit = true\n"spark.a" = "b c"\n')
    words = ["run", "etl", "--config", "etl.toml", "--set", "spark.master=yarn", "--summary", "my sum.json"]
    environment = {**os.environ, "SPARK_HOME": str(program.parent.parent), "JAVA_HOME": "/java"}
    environment.pop("SPARK_CONF_DIR", None)
    command = [sys.executable, "-m", "spark_streams.cli", *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    told = ended.stdout.splitlines()
    assert (ended.returncode, ended.stderr) == (7, "")
    assert {"spark.master=yarn", "spark.a=b\\ c", "spark.sql.session.timeZone=UTC"} <= set(told)
    entry = next(at for at, word in enumerate(told) if word.endswith("spark_streams/jobs/__main__.py"))
    again = told[entry + 1 : entry + 5]
    assert again == ["etl", "--config=etl.toml", "--set=spark.master=yarn", "--summary=my sum.json"]


@pytest.mark.parametrize("stream", ["shop:1:flat", "9 lives", "'; --", "ü", "{a}b", "$stream"])
@pytest.mark.parametrize("job", ["etl", "aggregate", "archive"])
def test_files_of_two_streams_share_no_checkpoint(job: str, stream: str) -> None:
    """A group is of one stream: both have the name of the job, which the pages have."""
    columns = [InferredColumn("a", "string")]
    mine, other = (tomllib.loads(config_for(job, name, columns)) for name in (stream, "orders"))
    assert mine["source"]["group"] == other["source"]["group"] == job
    assert mine["job"]["checkpoint"] != other["job"]["checkpoint"]
    assert re.fullmatch(r"out/checkpoints/[\w.-]+", mine["job"]["checkpoint"], re.ASCII)


def test_streams_whose_names_differ_in_characters_of_no_file_share_no_checkpoint() -> None:
    columns = [InferredColumn("a", "string")]
    folders = {
        tomllib.loads(config_for("etl", name, columns))["job"]["checkpoint"] for name in ("a:b", "a-b", "a b", "a/b")
    }
    assert len(folders) == 4


@pytest.mark.parametrize(
    ("stream", "table"), [("shop:1:flat", "shop_1_flat"), ("9 lives", "t_9_lives"), ("ü", "t_"), ("orders", "orders")]
)
def test_the_proposed_table_is_a_name_that_sql_takes(stream: str, table: str) -> None:
    text = config_for("etl", stream, [InferredColumn("a", "string")])
    assert f'or name = "{table}", a table of Spark' in text
