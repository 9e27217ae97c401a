"""Spark's settings reach it, and no process shows their values in its arguments."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from spark_streams.jobs.settings.sample_config import sample_config
from spark_streams.jobs.settings.spark_start import properties_text, write_properties
from tools.servers.server import Server

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
