"""Command line of a job. Every error is printed as one line, with an exit code.

    rstream run NAME --config NAME.toml [--set key=value …]
    spark-submit --properties-file spark-defaults.conf jobs/NAME.py --config NAME.toml [--set key=value …]

Exit codes: 0 done, or stopped by SIGTERM or SIGINT (running/ending.py); 1 the job failed; 2 the arguments or the
configuration are wrong; 130 stopped at once by a second SIGINT.
"""

from __future__ import annotations

import sys
import traceback as tracebacks
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn, Unpack

import click
from rich.console import Console

from spark_streams.connector.errors import JobError, OptionError
from spark_streams.connector.running.error_output import disable_python_loggers, print_error
from spark_streams.connector.spark.installation import has_java
from spark_streams.connector.watch.failure import one_line
from spark_streams.connector.wire.server_url import redacted
from spark_streams.jobs.arguments import JobArguments, job_options
from spark_streams.jobs.job import ACCESS_SHAPE, NO_JAVA, CheckedError, Job, JobPart
from spark_streams.jobs.job_config import Shape, load
from spark_streams.jobs.spark_start import SHAPE as SPARK
from spark_streams.jobs.spark_start import exec_spark_submit, find_spark_submit

# The same options as the command `rstream`.
SETTINGS = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True)
class Program:
    """A job as a program, whose parts define the keys of its configuration.

    Attributes:
        name: Name of the job.
        doc: Its text in `--help`.
        body: The function that runs it.
        parts: The classes of its parts.
    """

    name: str
    doc: str
    body: Callable[[Job], None]
    parts: Sequence[type[JobPart]]

    @property
    def shape(self) -> Shape:
        """The keys of the configuration."""
        return {key: kind for part in self.parts for key, kind in part.KEYS.items()}

    @property
    def required(self) -> Sequence[str]:
        """Dotted keys that must be set."""
        return [key for part in self.parts for key in part.REQUIRED]

    def main(self, settings_passed: bool = False) -> None:
        """Run the job with the arguments of the command line: `--config FILE`, `--check` and others. Exit with a code.

        An error is one line. The code is 0 if the job is done or was stopped, 1 if it failed, and 2 if the arguments or
        the configuration are wrong.

        Args:
            settings_passed: `spark-submit` has received the settings of `[spark]`.
        """

        @click.command(help=self.doc, context_settings=SETTINGS)
        @job_options
        def command(**arguments: Unpack[JobArguments]) -> None:
            run_job(self, **arguments, settings_passed=settings_passed)

        run(command, f"{self.name}.py", self.name)


def program(name: str) -> Program:
    """Return the job of this name."""
    job_program: Program = import_module(f"spark_streams.jobs.programs.{name}").PROGRAM
    return job_program


def run_job(
    job_program: Program, settings_passed: bool = False, submit: bool = False, **arguments: Unpack[JobArguments]
) -> None:
    """Run a job. Return when its work is done; print an error as one line and exit with its code.

    settings_passed: spark-submit has received the settings of [spark]. submit: run the job by spark-submit, even if
    spark.submit is not set; the configuration is checked in this process.
    """
    name, traceback = job_program.name, arguments["traceback"]
    if not traceback:
        disable_python_loggers()
    try:
        shape = {**ACCESS_SHAPE, "spark": SPARK, **job_program.shape}
        configuration = load(arguments["config"], arguments["settings"], shape, job_program.required)
        console = Console(emoji=False, highlight=False, soft_wrap=True)
        check, files = arguments["check"], {"--config": arguments["config"], "--summary": arguments["summary"]}
        job = Job(name, configuration, console, check, settings_passed, files, arguments["take_over"])
        spark = job.spark_settings()
        if (submit or spark.submit) and not check and not settings_passed:
            exec_spark_submit(_require_spark_submit(), spark, [name, *_arguments_again(arguments)])
        job_program.body(job)
        job.finish(arguments["summary"])
    except CheckedError:
        return
    except KeyboardInterrupt:
        _exit_with(130, f"{name}: stopped; the next run reads entries again that were read and not acknowledged")
    except OptionError as error:
        _exit_with(2, f"{name}: {error}", traceback)
    except Exception as error:  # noqa: BLE001 - the one place where errors become a line
        _exit_with(1, f"{name}: {one_line(error)}", traceback)


def _require_spark_submit() -> str:
    """Return the path of spark-submit. Raises JobError if there is no Java or no spark-submit."""
    if not has_java():
        raise JobError(NO_JAVA)
    if (path := find_spark_submit()) is None:
        raise JobError("no spark-submit found: set SPARK_HOME to Spark's folder, or leave out --submit")
    return path


def _arguments_again(arguments: JobArguments) -> list[str]:
    """Return the command line that gives these values, without --check."""
    config, summary = arguments["config"], arguments["summary"]
    words = [f"--config={config}"] if config else []
    words += [f"--set={setting}" for setting in arguments["settings"]] + ([f"--summary={summary}"] if summary else [])
    return [*words, *["--traceback"] * arguments["traceback"], *["--take-over"] * arguments["take_over"]]


def run(command: click.Command, program: str, name: str) -> None:
    """Run a click command. Wrong arguments end it with code 2 and one line that begins with `name`.

    The line shows no password, also if it was typed in the wrong place.
    """
    try:
        command.main(prog_name=program, standalone_mode=False)
    except click.UsageError as error:
        words = error.format_message().rstrip(".").split()
        message = " ".join(redacted(word) if "@" in word or "://" in word else word for word in words)
        _exit_with(2, f"{name}: {message}; --help lists arguments and options")


def _exit_with(code: int, line: str, with_traceback: bool = False) -> NoReturn:
    if with_traceback:
        print_error(tracebacks.format_exc().rstrip())
    print_error(line)
    sys.exit(code)
