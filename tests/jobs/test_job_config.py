"""A job's configuration: what is wrong is said in one line that names the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_streams.connector.errors import ConfigError
from spark_streams.jobs.job_config import FREE, load

PARQUET = {"path": str, "files": int, "partition_by": list}
SHAPE: dict[str, Any] = {"source": FREE, "table": PARQUET, "dry": bool}


def write(folder: Path, text: str) -> str:
    path = folder / "job.toml"
    path.write_text(text)
    return str(path)


def test_set_goes_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, '[table]\npath = "a"\nfiles = 1\n[source]\nanything = 1\n')
    overrides = ["table.files=2", "table.path=b c", "source.group=1_000", "dry=true", 'table.partition_by=["a"]']
    assert load(path, overrides, SHAPE, []) == {
        "table": {"path": "b c", "files": 2, "partition_by": ["a"]},
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
        ("[tablet]\n", [], "unknown key tablet; did you mean table"),
        ("[table]\npaht = 1\n", [], "unknown key table.paht; did you mean table.path"),
        ("[table]\npath = 1\n", [], "table.path must be a string, not 1"),
        ("[table]\nfiles = true\n", [], "table.files must be a whole number, not True"),
        ("table = 1\n", [], "table must be a table"),
        ("[table\n", [], "is not TOML"),
        ("", [], "table.path is missing"),
        ("", ["table.path="], "table.path is missing"),
        ("", ["table.path"], "is not KEY=VALUE"),
        ("", ['table.path="a'], '--set table.path: "a begins with a quote and is not a TOML string; leave the quotes'),
        ("", ["table.path='a' = 'b'"], "begins with a quote and is not a TOML string"),
        ("", ['table.files="2"'], "table.files must be a whole number, not '2'"),
        ("dry = true\n", ["dry.deeper=1"], "'dry' is a value, not a table"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(write(tmp_path, text), overrides, SHAPE, ["table.path"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no config file"):
        load(str(tmp_path / "none.toml"), [], SHAPE, [])
