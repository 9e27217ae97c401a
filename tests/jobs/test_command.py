"""What a job prints of an error: one line, which a terminal does not obey."""

from __future__ import annotations

import tomllib

import pytest

from spark_streams.connector.running import error_output
from spark_streams.connector.source.infer_schema import InferredColumn
from spark_streams.jobs.arguments import JobArguments
from spark_streams.jobs.command import Program, run_job
from spark_streams.jobs.job import Job
from spark_streams.jobs.sample_config import config_for

HOSTILE = "a\x1b]0;owned\x07\x9b31m\u202e\u2028\x7f\U000e0001b"


@pytest.mark.parametrize("traceback", [False, True])
def test_an_error_that_quotes_a_value_is_printable(traceback: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(job: Job) -> None:
        raise ValueError(f"cannot cast {HOSTILE}")

    arguments = JobArguments(config=None, settings=(), check=True, summary=None, traceback=traceback, take_over=False)
    with pytest.raises(SystemExit) as ended:
        run_job(Program("etl", "", fail, ()), **arguments)
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert said.replace("\n", "").isprintable()
    assert r"etl: ValueError: cannot cast a\x1b]0;owned\x07\x9b31m\u202e \x7f\U000e0001b" in said


def test_an_error_of_a_program_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    error_output.say(f"cannot cast {HOSTILE}")
    assert capsys.readouterr().err.removesuffix("\n").isprintable()


@pytest.mark.parametrize("name", ["load", "etl", "aggregate", "archive", "query"])
def test_what_init_writes_of_names_is_printable_and_means_the_same(name: str) -> None:
    """Names of the stream and of fields, which any producer may choose."""
    text = config_for(name, HOSTILE, [InferredColumn(HOSTILE, "string", 1)], None, HOSTILE)
    assert text.replace("\n", "").isprintable()
    if name == "query":
        compile(text, "query.py", "exec")
    else:
        assert HOSTILE in values_of(tomllib.loads(text))


def values_of(value: object) -> set[object]:
    if isinstance(value, dict):
        return {*value, *(one for member in value.values() for one in values_of(member))}
    if isinstance(value, list):
        return {one for member in value for one in values_of(member)}
    return {value}
