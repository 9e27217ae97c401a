"""A job's configuration: what is wrong is said in one line that names the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_streams.errors import ConfigError
from spark_streams.jobs.settings.config import FREE, load

PARQUET = {"path": str, "files": int, "partition_by": list}
SHAPE: dict[str, Any] = {"source": FREE, "parquet": PARQUET, "dry": bool}


def write(folder: Path, text: str) -> str:
    path = folder / "job.toml"
    path.write_text(text)
    return str(path)


def test_set_goes_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, '[parquet]\npath = "a"\nfiles = 1\n[source]\nanything = 1\n')
    overrides = ["parquet.files=2", "parquet.path=b c", "source.group=1_000", "dry=true", 'parquet.partition_by=["a"]']
    assert load(path, overrides, SHAPE, []) == {
        "parquet": {"path": "b c", "files": 2, "partition_by": ["a"]},
        "source": {"anything": 1, "group": "1_000"},
        "dry": True,
    }


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ('source.group="etl"', "etl"),
        ("source.group='etl'", "etl"),
        ('source.group= "etl" ', "etl"),
        ('source.group="a \\"b\\""', 'a "b"'),
        ("source.group=it's", "it's"),
        ("source.group=5", "5"),
        ("source.group=", ""),
        ('source.group=""', ""),
    ],
)
def test_quotes_around_a_text_are_toml_s(override: str, value: str) -> None:
    """A shell takes one pair away; who types a second one means TOML's."""
    assert load(None, [override], SHAPE, [])["source"]["group"] == value


def test_a_variable_of_the_environment_is_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSTREAM_TEST_SECRET", "s3")
    path = write(tmp_path, '[source]\nurl = "redis://:${RSTREAM_TEST_SECRET}@h"\n')
    assert load(path, [], SHAPE, [])["source"]["url"] == "redis://:s3@h"
    monkeypatch.delenv("RSTREAM_TEST_SECRET")
    with pytest.raises(ConfigError, match="RSTREAM_TEST_SECRET is not set"):
        load(path, [], SHAPE, [])


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("[parquett]\n", [], "unknown key parquett; did you mean parquet"),
        ("[parquet]\npaht = 1\n", [], "unknown key parquet.paht; did you mean parquet.path"),
        ("[parquet]\npath = 1\n", [], "parquet.path must be a string, not 1"),
        ("[parquet]\nfiles = true\n", [], "parquet.files must be a whole number, not True"),
        ("parquet = 1\n", [], "parquet must be a table"),
        ("[parquet\n", [], "is not TOML"),
        ("", [], "parquet.path is missing"),
        ("", ["parquet.path="], "parquet.path is missing"),
        ("", ["parquet.path"], "is not KEY=VALUE"),
        ("", ['parquet.path="a'], '--set parquet.path: "a begins with a quote and is no TOML string; leave the quotes'),
        ("", ["parquet.path='a' = 'b'"], "begins with a quote and is no TOML string"),
        ("", ['parquet.files="2"'], "parquet.files must be a whole number, not '2'"),
        ("dry = true\n", ["dry.deeper=1"], "'dry' is a value, not a table"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(write(tmp_path, text), overrides, SHAPE, ["parquet.path"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no config file"):
        load(str(tmp_path / "none.toml"), [], SHAPE, [])
