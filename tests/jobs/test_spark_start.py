"""How a job starts Spark: its settings, the file that passes them, the JVM, and spark-submit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyspark
import pytest
from pyspark import SparkContext

from spark_streams.connector.errors import ConfigError
from spark_streams.jobs import spark_start
from spark_streams.jobs.sample_config import sample_config
from spark_streams.jobs.spark_start import (
    CONF,
    prepare,
    properties_text,
    settings_of,
    start_jvm,
    write_properties,
)
from tests.jobs.work import ROOT
from tools.servers.server import Server


@pytest.fixture(autouse=True)
def nobody_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_SUBMIT_OPTS"):
        monkeypatch.setenv(name, "")  # noted, so that what `prepare` sets is undone
        monkeypatch.delenv(name)


def confs(spark: dict[str, Any] | None = None) -> dict[str, str]:
    return settings_of({} if spark is None else {"spark": spark}).confs


def test_without_a_word_spark_is_local_and_quiet() -> None:
    told = confs()
    assert (told["spark.master"], told["spark.sql.session.timeZone"]) == ("local[*]", "UTC")
    (option,) = [word for word in told["spark.driver.extraJavaOptions"].split() if "log4j2" in word]
    assert Path(unquote(urlsplit(option.partition("=")[2]).path)).samefile(CONF / "log4j2.properties")


def test_spark_submit_from_a_clone_finds_the_settings_of_the_log() -> None:
    lines = (CONF / "spark-defaults.conf").read_text().splitlines()
    (options,) = [line for line in lines if line.startswith("spark.driver.extraJavaOptions")]
    # From there scripts/run and docs/reference/jobs.md call spark-submit.
    file = ROOT / options.partition("log4j2.configurationFile=")[2]
    assert file.read_text() == (CONF / "log4j2.properties").read_text()


def test_spark_has_the_last_word() -> None:
    told = confs({"master": "spark://host:7077", "spark": {"sql": {"shuffle": {"partitions": 8}}, "ui.enabled": False}})
    assert (told["spark.master"], told["spark.sql.shuffle.partitions"]) == ("spark://host:7077", "8")
    assert told["spark.ui.enabled"] == "false"


def test_java_options_go_beside_those_that_keep_it_quiet() -> None:
    quiet = confs()["spark.driver.extraJavaOptions"]
    assert confs({"spark.driver.extraJavaOptions": "-Xss4m"})["spark.driver.extraJavaOptions"] == f"{quiet} -Xss4m"
    own = "-Dlog4j2.configurationFile=mine"
    assert confs({"spark.driver.extraJavaOptions": own})["spark.driver.extraJavaOptions"] == own


def test_a_jvm_for_seconds_compiles_quickly_beside_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(settings_of({}))
    assert "SPARK_SUBMIT_OPTS" not in os.environ
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xss4m")
    for _ in range(2):
        prepare(settings_of({}), short_lived=True)
        assert os.environ["SPARK_SUBMIT_OPTS"] == "-Xss4m -XX:TieredStopAtLevel=1"


@pytest.mark.parametrize(
    ("spark", "message"),
    [
        ({"mastre": "local"}, r"\[spark\]: unknown key mastre; did you mean master\?"),
        ({"sql.shuffle.partitions": 3}, r"did you mean spark.sql.shuffle.partitions\?"),
        ({"submit": "perhaps"}, "spark.submit must be true or false, not 'perhaps'"),
    ],
)
def test_other_keys_are_refused(spark: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of({"spark": spark})


def test_settings_that_the_user_made_for_spark_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.master spark://host:7077\n")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert confs({"spark.ui.enabled": "false"}) == {"spark.ui.enabled": "false"}
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    assert confs() == {}
    prepare(settings_of({}))
    assert os.environ["SPARK_CONF_DIR"] == str(tmp_path / "conf")


def test_a_clone_s_conf_is_the_package_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "conf").symlink_to(CONF)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    assert confs()["spark.master"] == "local[*]"


def test_a_cluster_s_pythons_are_not_this_one() -> None:
    prepare(settings_of({"spark": {"master": "spark://host:7077"}}))
    assert "PYSPARK_PYTHON" not in os.environ
    prepare(settings_of({}))
    assert Path(os.environ["PYSPARK_PYTHON"]).name.startswith("python")
    assert Path(os.environ["SPARK_CONF_DIR"]).samefile(CONF)


@pytest.mark.parametrize(
    "option", ["-XX:ArchiveClassesAtExit=/cache/spark.jsa", "-XX:SharedArchiveFile=/cache/spark.jsa"]
)
def test_no_folder_is_on_the_class_path_beside_a_class_archive(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"-Xmx2g {option}")
    prepare(settings_of({}), short_lived=True)
    assert "SPARK_CONF_DIR" not in os.environ


def test_the_first_spark_submit_is_that_of_spark_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert spark_start.find_spark_submit() == str(program)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "none"))
    assert spark_start.find_spark_submit() is None


def test_a_command_line_that_is_too_long_is_named(tmp_path: Path) -> None:
    """In a process of its own, which the program would replace."""
    program = (
        "import sys; from spark_streams.jobs.spark_start import exec_spark_submit\n"
        "from spark_streams.jobs.spark_start import SparkSettings\n"
        "from spark_streams.connector.errors import ConfigError\n"
        "try: exec_spark_submit('/bin/echo', SparkSettings(True, {}), ['etl', '--set', 'note=' + 'x' * 200_000])\n"
        "except ConfigError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert (
        "/bin/echo cannot be started: Argument list too long; its longest argument has 200,005 characters: note=xx"
        in (ran.stdout)
    )
    assert "Put long values into the job's TOML file" in ran.stdout


# Spark's settings reach it, and no process shows their values in its arguments.


SECRET = "s3cret-of-the-job-7b1f"
PATIENCE = 200.0
VALUES = [
    "", "a b", "=:#!", "\\", "C:\\temp\\u0041", "two\nlines", "tab\there",
    " blanks ", "ü €", "𝄞", "'\"$(id)${HOME}", "x" * 100_000,
]  # fmt: skip


# As Spark and its launcher read it; each value goes out as the hexadecimal digits of its characters.
READER = """
class Reader {
    public static void main(String[] names) throws Exception {
        var settings = new java.util.Properties();
        settings.load(new java.io.InputStreamReader(System.in, "UTF-8"));
        for (int at = 0; at < settings.size(); at++) {
            var line = new StringBuilder();
            for (char one : settings.getProperty("spark.key " + at + "=:ü").toCharArray())
                line.append(String.format("%04x", (int) one));
            System.out.println(line);
        }
    }
}
"""


@pytest.mark.in_turn
def test_java_reads_each_value_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "Reader.java").write_text(READER, encoding="utf-8")
    text = properties_text({f"spark.key {at}=:ü": value for at, value in enumerate(VALUES)})
    command = ["java", "-Dfile.encoding=UTF-8", str(tmp_path / "Reader.java")]
    ended = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert [bytes.fromhex(line).decode("utf-16-be") for line in ended.stdout.split("\n")[:-1]] == VALUES


def test_a_file_has_a_mode_for_its_owner_alone_and_no_name_on_linux(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = write_properties({"spark.a": SECRET})
    assert Path(file.path).stat().st_mode & 0o777 == 0o600
    for _ in range(2):  # spark-submit's launcher, and Spark
        assert Path(file.path).read_text() == f"spark.a={SECRET}\n"
    assert list(tmp_path.iterdir()) == []
    os.close(file.descriptor)


def test_elsewhere_a_file_is_removed_after_the_last_process_that_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also if that was killed."""
    monkeypatch.delattr("os.memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = write_properties({"spark.a": SECRET})
    reader = subprocess.Popen(["sleep", "60"], pass_fds=(file.descriptor,))
    os.close(file.descriptor)
    time.sleep(0.2)
    assert (Path(file.path).stat().st_mode & 0o777, Path(file.path).read_text()) == (0o600, f"spark.a={SECRET}\n")
    reader.kill()
    reader.wait()
    end = time.monotonic() + 30
    while list(tmp_path.iterdir()) and time.monotonic() < end:
        time.sleep(0.02)
    assert list(tmp_path.iterdir()) == []


def shown_arguments() -> Iterator[str]:
    """Yield the arguments of all processes of this machine."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended


CLUSTER = 'master = "k8s://https://127.0.0.1:1"\n"spark.submit.deployMode" = "cluster"\n'


@pytest.mark.spark
@pytest.mark.parametrize(
    ("how", "words", "extra", "named"),
    [
        pytest.param("in this Python", ["--check"], "", False, id="in this Python", marks=pytest.mark.in_turn(0)),
        pytest.param("client", ["--submit"], "", False, id="client"),
        pytest.param("client", ["--submit"], "", True, id="a named file", marks=pytest.mark.in_turn(2)),
        pytest.param("cluster", ["--submit"], CLUSTER, False, id="cluster", marks=pytest.mark.in_turn(4)),
    ],
)
def test_no_process_shows_a_value_of_the_configuration(
    how: str, words: list[str], extra: str, named: bool, engine_server: Server, tmp_path: Path
) -> None:
    """A setting that Spark refuses names its value: it has arrived. No start leaves a file."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    config = sample_config("etl") + (
        f'[spark]\n{extra}"spark.hadoop.fs.s3a.secret.key" = "${{RSTREAM_TEST_SECRET}}"\n"spark.ui.enabled" = false\n'
        '"spark.driver.maxResultSize" = "not-${RSTREAM_TEST_SECRET}"\n'
    )
    (tmp_path / "etl.toml").write_text(config)
    environment = {
        **os.environ,
        "RSTREAM_URL": engine_server.url,
        "RSTREAM_TEST_SECRET": SECRET,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "TMPDIR": str(temporary),
    }
    start = "import os, sys; from spark_streams.cli import main\n" + "del os.memfd_create\n" * named + "main()"
    command = [sys.executable, "-c", start, "run", "etl", "--config", "etl.toml", *words]
    with engine_server.client() as client:
        client.flushall()
        client.xadd("flights", {"carrier": "UA"})
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    seen, java = [], False
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        for arguments in shown_arguments():
            java |= "org.apache.spark.deploy.SparkSubmit" in arguments
            seen += [arguments] * (SECRET in arguments)
        time.sleep(0.1)
    process.kill()
    output = process.communicate()[0]
    assert java, output
    assert seen == []
    assert process.returncode == 1, (process.returncode, output)
    if how != "cluster":  # where Spark has no driver that would read it
        assert f"not-{SECRET}" in output
    while list(temporary.glob("rstream-*")) and time.monotonic() < end:
        time.sleep(0.05)
    assert list(temporary.glob("rstream-*")) == []


# The JVM of a job in this Python: whose settings it gets.


@pytest.mark.parametrize("words", ["--properties-file mine.conf", "--properties-file=mine.conf"])
def test_a_file_of_settings_that_spark_would_not_read_is_refused(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark reads the last of two files; the other one's settings would be lost in silence."""
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--name mine {words} pyspark-shell")
    with pytest.raises(ConfigError, match=r"Spark reads only one such file: move its settings into \[spark\]"):
        start_jvm({"spark.a": "b"})
