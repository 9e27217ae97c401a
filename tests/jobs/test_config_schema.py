"""conf/JOB.schema.json, by which editors complete a configuration: it says what the job accepts."""

from __future__ import annotations

import json
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from spark_streams.connector.errors import ConfigError
from spark_streams.jobs.arguments import JOBS
from spark_streams.jobs.job import ACCESS_SHAPE
from spark_streams.jobs.job_config import FREE, check_keys
from spark_streams.jobs.sample_config import sample_config
from tools import reference

CONF = Path(reference.ROOT) / "conf"
ALL = pytest.mark.parametrize("job", JOBS)


def schema(job: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CONF / f"{job}.schema.json").read_text(encoding="utf-8"))
    return found


def is_accepted(job: str, config: dict[str, Any]) -> bool:
    """By the job itself."""
    program = import_module(f"spark_streams.jobs.programs.{job}").PROGRAM
    try:
        check_keys(config, {**ACCESS_SHAPE, "spark": FREE, **program.shape}, "", "a file")
    except ConfigError:
        return False
    return True


def is_valid(job: str, config: dict[str, Any]) -> bool:
    return bool(jsonschema.Draft7Validator(schema(job)).is_valid(config))


@ALL
def test_the_file_is_printed_from_the_code(job: str) -> None:
    assert (CONF / f"{job}.schema.json").read_text(encoding="utf-8") == reference.job_schema(job), (
        "print it: python -m tools.reference"
    )


@ALL
def test_the_sample_names_its_schema_and_keeps_it(job: str) -> None:
    first, _, text = sample_config(job).partition("\n")
    assert first.startswith("#:schema https://")
    assert first.endswith(f"/conf/{job}.schema.json")
    assert is_valid(job, tomllib.loads(text))


@ALL
def test_the_schema_refuses_what_the_job_refuses(job: str) -> None:
    """A key of another name, and a value of another type, in each table."""
    config = tomllib.loads(sample_config(job))
    assert is_accepted(job, config)
    properties = schema(job)["properties"]
    changed = [{**config, "nonsense": 1}, *({**config, table: 1} for table in config)]
    for table, shape in properties.items():
        if shape["type"] == "object" and "additionalProperties" in shape:
            changed.append({**config, table: {"nonsense": 1}})
            changed += [{**config, table: {key: {"a": 1.5}}} for key, one in shape["properties"].items()
                        if one["type"] != "object"]  # fmt: skip
    for one in changed:
        assert is_valid(job, one) == is_accepted(job, one), one
    assert not any(is_valid(job, one) for one in changed)


@ALL
def test_the_login_has_the_names_of_the_options(job: str) -> None:
    config = {"url": "redis://h", "username": "u", "passwordFile": "/p", "replyTimeout": "5s"}
    assert is_accepted(job, config)
    assert is_valid(job, config)


def test_options_of_a_source_are_proposed_with_what_they_mean() -> None:
    source = schema("etl")["properties"]["source"]["properties"]
    assert "pending" in source["claimIdle"]["description"]
    assert "startingOffsets" in source
