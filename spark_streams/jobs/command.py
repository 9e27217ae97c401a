"""A job's command line: every error is one line with an exit code.

    rstream run NAME --config NAME.toml [--set key=value …]
    spark-submit --properties-file conf/spark-defaults.conf jobs/NAME.py --config conf/NAME.toml [--set key=value …]

`--check` checks the configuration, asks the server, prints what the job would do, and starts nothing.
Exit codes: 0 done, or stopped by SIGTERM or SIGINT (running/stopping.py); 1 the job failed; 2 the arguments or the
configuration are wrong; 130 stopped at once by a second SIGINT. `--traceback` shows where an error comes from.
"""

from __future__ import annotations

import sys
import traceback as tracebacks
from collections.abc import Iterator
from importlib import import_module
from typing import NoReturn, Unpack

import click
from rich.console import Console

from spark_streams.errors import OptionError
from spark_streams.jobs.arguments import Given, job_options
from spark_streams.jobs.job import ACCESS_SHAPE, NO_JAVA, CheckedError, Job, JobError, Program
from spark_streams.jobs.settings.config import load
from spark_streams.jobs.settings.spark_settings import SHAPE as SPARK
from spark_streams.jobs.settings.spark_settings import has_java
from spark_streams.jobs.spark_submit import become
from spark_streams.jobs.spark_submit import program as spark_submit
from spark_streams.running.error_summary import one_line
from spark_streams.running.spark_log_filter import quieten_python
from spark_streams.wire.address.server_url import redacted

# As the command `rstream` has it.
SETTINGS = {"help_option_names": ["-h", "--help"]}


def main(name: str, spark_is_told: bool) -> None:
    """Run a job from the command line; leaves with the codes above."""

    @click.command(help=program(name).doc, context_settings=SETTINGS)
    @job_options
    def command(**given: Unpack[Given]) -> None:
        run_job(name, **given, spark_is_told=spark_is_told)

    run(command, f"{name}.py", name)


def program(name: str) -> Program:
    """A job by its name."""
    found: Program = import_module(f"spark_streams.jobs.{name}").PROGRAM
    return found


def run_job(
    name: str,
    config: str | None,
    settings: tuple[str, ...],
    check: bool,
    summary: str | None,
    traceback: bool,
    spark_is_told: bool = False,
    submit: bool = False,
) -> None:
    """Run a job, and say what is wrong in one line; returns when it has done its work, or leaves with a code.

    submit: by spark-submit, even where the configuration does not say so; what is checked is checked here.
    """
    if not traceback:
        quieten_python()
    try:
        wanted = program(name)
        shape = {**ACCESS_SHAPE, "spark": SPARK, **wanted.shape}
        filled = load(config, settings, shape, wanted.required)
        job = Job(name, filled, _console(), check, spark_is_told)
        spark = job.spark_settings()
        if (submit or spark.submit) and not check and not spark_is_told:
            words = [name, *_words(config, settings, summary, traceback)]
            become(_spark_submit(), spark, words)
        wanted.body(job)
        job.finish(summary)
    except CheckedError:
        return
    except KeyboardInterrupt:
        _leave(130, f"{name}: stopped; what was read and not acknowledged is read again next time")
    except OptionError as error:
        _leave(2, f"{name}: {error}", traceback)
    except Exception as error:  # noqa: BLE001 - the one place where errors become a line
        _leave(1, f"{name}: {one_line(error)}", traceback)


def _spark_submit() -> str:
    """Raises JobError."""
    if not has_java():
        raise JobError(NO_JAVA)
    found = spark_submit()
    if found is None:
        raise JobError("no spark-submit found: set SPARK_HOME to Spark's folder, or leave out --submit")
    return found


def _words(config: str | None, settings: tuple[str, ...], summary: str | None, traceback: bool) -> Iterator[str]:
    if config:
        yield f"--config={config}"
    yield from (f"--set={setting}" for setting in settings)
    if summary:
        yield f"--summary={summary}"
    if traceback:
        yield "--traceback"


def run(command: click.Command, program: str, name: str) -> None:
    """Run a command of click's. What is wrong with its arguments is one line that begins with `name`, exit code 2; it
    shows no password that was typed in the wrong place."""
    try:
        command.main(prog_name=program, standalone_mode=False)
    except click.UsageError as error:
        words = error.format_message().rstrip(".").split()
        said = " ".join(redacted(word) if "@" in word or "://" in word else word for word in words)
        _leave(2, f"{name}: {said}; --help shows how it is called")


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _leave(code: int, line: str, show: bool = False) -> NoReturn:
    if show:
        tracebacks.print_exc()
    print(line, file=sys.stderr, flush=True)
    sys.exit(code)
