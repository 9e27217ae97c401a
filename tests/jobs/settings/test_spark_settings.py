"""What a job's Spark is told: the defaults that come with the package, [spark] on top; or what somebody has chosen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from spark_streams.connector.errors import ConfigError
from spark_streams.jobs.settings import spark_start
from spark_streams.jobs.settings.spark_start import CONF, prepare, settings_of
from tests.jobs.work import ROOT


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
        "import sys; from spark_streams.jobs.settings.spark_start import exec_spark_submit\n"
        "from spark_streams.jobs.settings.spark_start import SparkSettings\n"
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
