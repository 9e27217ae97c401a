"""What `rstream quicken` makes, and how it is found again. (scripts/test itself lives on Sparks that start with it.)"""

from __future__ import annotations

import importlib.util
import os
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.errors import UnsupportedError
from spark_streams.spark.compiled_zips import compile_within, drop_compiled, is_compiled, zips
from spark_streams.spark.quick_start import class_archive, make_class_archive, use_class_archive


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark and a Java of which there is no more than is asked for, and an empty cache."""
    for folder in ("spark/jars", "spark/python/lib", "java/bin"):
        (tmp_path / folder).mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "spark/python/lib/pyspark.zip", "w") as made:
        made.writestr("quick/__init__.py", "")
        made.writestr("quick/part.py", "NUMBER = 7\n")
        made.writestr("quick/tests/old.py", "this is no Python\n")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_modules_are_compiled_beside_their_sources_and_dropped_again(home: Path) -> None:
    [archive] = zips(home / "spark")
    before = {name: zipfile.ZipFile(archive).read(name) for name in zipfile.ZipFile(archive).namelist()}
    compile_within(archive)
    assert is_compiled(archive)
    names = set(zipfile.ZipFile(archive).namelist())
    assert names == {*before, "quick/__init__.pyc", "quick/part.pyc"}
    sys.path.insert(0, str(archive))
    try:
        importlib.invalidate_caches()
        spec = importlib.util.find_spec("quick.part")
        assert spec is not None
        assert str(spec.origin).endswith("quick/part.pyc")
        assert importlib.import_module("quick.part").NUMBER == 7
    finally:
        sys.path.remove(str(archive))
        for name in ("quick", "quick.part"):
            sys.modules.pop(name, None)
    drop_compiled(archive)
    assert {name: zipfile.ZipFile(archive).read(name) for name in zipfile.ZipFile(archive).namelist()} == before
    assert [path.name for path in archive.parent.iterdir()] == ["pyspark.zip"]


def test_an_archive_is_found_by_spark_and_java(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = class_archive()
    assert archive is not None
    assert archive.parent == home / "cache" / "rstream"
    environment = {"SPARK_SUBMIT_OPTS": "-Da=b"}
    assert not use_class_archive(environment)  # it is not made
    assert environment == {"SPARK_SUBMIT_OPTS": "-Da=b"}
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert use_class_archive(environment)
    assert environment["SPARK_SUBMIT_OPTS"].startswith(f"-Da=b -XX:SharedArchiveFile={archive} ")
    assert not use_class_archive(environment)  # it has one
    os.utime(home / "spark/jars", (1, 1))  # other jars
    assert class_archive() not in (None, archive)
    monkeypatch.setenv("JAVA_HOME", str(home / "another"))
    assert class_archive() not in (None, archive)
    (home / "spark/jars").rmdir()
    assert class_archive() is None


def test_a_folder_with_a_blank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="XDG_CACHE_HOME"):
        make_class_archive(tmp_path / "my cache" / "spark.jsa")


def test_the_command_says_what_it_does_and_prints_what_others_need(home: Path) -> None:
    archive = class_archive()
    assert archive is not None
    archive.parent.mkdir(parents=True)
    archive.touch()
    told = CliRunner().invoke(main, ["quicken"])
    assert (told.exit_code, told.stdout.startswith(f"-XX:SharedArchiveFile={archive}")) == (0, True), told.output
    assert told.stderr == f"compiled {home / 'spark/python/lib/pyspark.zip'}\n"
    assert CliRunner().invoke(main, ["quicken"]).stderr == ""
    undone = CliRunner().invoke(main, ["quicken", "--undo"])
    assert (undone.exit_code, archive.exists(), is_compiled(zips(home / "spark")[0])) == (0, False, False)


def test_what_cannot_be_changed_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied", str(target))

    monkeypatch.setattr(Path, "replace", refused)
    told = CliRunner().invoke(main, ["quicken"])
    assert told.exit_code == 1
    assert "pyspark.zip cannot be changed: Permission denied" in told.stderr
    assert [path.name for path in (home / "spark/python/lib").iterdir()] == ["pyspark.zip"]


def test_without_java_it_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", "")
    told = CliRunner().invoke(main, ["quicken"])
    assert (told.exit_code, "no Java found" in told.stderr) == (1, True)
