"""The shape that all jobs share: arguments, session, a summary at the end, one line for an error.

    spark-submit --properties-file conf/spark-defaults.conf jobs/NAME.py --config conf/NAME.toml [--set key=value …]

`--check` looks at the configuration and asks the server, prints what the job would do, and starts nothing.
Exit codes: 0 done, or stopped by SIGTERM or SIGINT (stopping.py); 1 the job failed; 2 the arguments or the
configuration are wrong; 130 stopped at once by a second SIGINT. `--traceback` shows where an error comes from.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from rich.console import Console

from spark_streams.jobs.config import Config, Shape, load, value_at
from spark_streams import register
from spark_streams.errors import ConfigError, OptionError, RStreamError, find_in_text
from spark_streams.jobs.stopping import Stop
from spark_streams.monitor.watch.failure import failure_of
from spark_streams.options import Option, Options, parse_options
from spark_streams.wire.address import default_url, redacted


@dataclass
class Job:
    """One run of a job: its name, its checked configuration, the session, and what it will say at the end."""

    name: str
    config: Config
    console: Console
    check: bool = False
    stop: Stop = field(default_factory=Stop)
    summary: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    spark: SparkSession | None = None

    def get(self, key: str, default: Any = None) -> Any:
        return value_at(self.config, key, default)

    @property
    def url(self) -> str:
        """The stream server of this job."""
        return str(self.get("url") or default_url())

    def session(self) -> SparkSession:
        """The Spark session, with format("rstream") known. Raises JobError where no JDK is found."""
        if not _under_submit() and not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
            raise JobError("no Java found: install a JDK 17 or newer, or set JAVA_HOME")
        builder = SparkSession.builder.appName(f"rstream {self.name}")
        if self.check:
            builder = builder.master("local[1]").config("spark.ui.enabled", "false")
        self.spark = spark = builder.getOrCreate()
        # Now: Spark has just put its own handler of SIGINT in place.
        self.stop.listen(spark.sparkContext._gateway)
        register(spark)
        return spark

    def stop_with(self, call: Callable[[], None]) -> None:
        """For a job without a session: call this when it is asked to stop."""
        self.stop.then(call)
        self.stop.listen(launch_gateway() if _under_submit() else None)  # type: ignore[no-untyped-call]

    def plan(self, **facts: Any) -> None:
        """What the job is about to do, when all is checked. Ends a run with `--check`."""
        if self.check:
            width = max(map(len, facts))
            self.console.print(f"[bold]{self.name}[/] would:")
            for key, value in facts.items():
                self.console.print(f"  {key.replace('_', ' '):<{width}}  {_shown(value)}", markup=False)
            raise CheckedError

    def options(self, table: str) -> dict[str, str]:
        """A config table as options of format("rstream"); the job's url is the default one."""
        return {"url": self.url, **self.plain_options(table)}

    def schema(self, key: str, ddl: str) -> StructType:
        """A schema of the configuration. Raises ConfigError that names its key."""
        try:
            return StructType.fromDDL(ddl)  # type: ignore[return-value]  # of columns, it is a struct
        except Exception as error:
            raise ConfigError(f"{key}: {first_line(error)}") from error

    def check_options(self, table: str, known: Iterable[Option], side: str) -> Options:
        """A table's options, checked before anything is started. Raises OptionError."""
        return parse_options(self.options(table), known, side)

    def plain_options(self, table: str) -> dict[str, str]:
        """A config table as options of any format: Spark takes texts."""
        return {key: _as_option(value) for key, value in self.get(table, {}).items()}

    def say(self, **facts: Any) -> None:
        """Facts for the summary at the end."""
        self.summary.update(facts)


class CheckedError(Exception):
    """All that `--check` looks at is right."""


class JobError(RStreamError):
    """A job cannot go on."""

    condition = "RSTREAM_JOB"


def main(name: str, doc: str, shape: Shape, required: Iterable[str], body: Callable[[Job], None]) -> None:
    """Run a job from the command line; leaves with the codes above."""
    parser = _Arguments(prog=f"{name}.py", description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", metavar="FILE", help=f"TOML, see conf/{name}.toml")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="override one key of it")
    parser.add_argument("--check", action="store_true", help="check configuration and server, print the plan, and end")
    parser.add_argument("--summary", metavar="FILE", help="write the summary there too, as JSON")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    arguments = parser.parse_args()
    if not arguments.traceback:
        # Spark's Python side logs an error that it raises, with the whole Java stack.
        for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            logging.getLogger(logger).setLevel(logging.CRITICAL + 1)
    console = Console(highlight=False, soft_wrap=True)
    try:
        config = load(arguments.config, arguments.set, {"url": str, **shape}, required)
        job = Job(name, config, console, arguments.check)
        body(job)
        _finish(job, arguments.summary)
    except CheckedError:
        return
    except KeyboardInterrupt:
        _leave(130, f"{name}: stopped; what was read and not settled is read again next time")
    except OptionError as error:
        _leave(2, f"{name}: {error}", arguments.traceback)
    except Exception as error:  # noqa: BLE001 - the one place where errors become a line
        _leave(1, f"{name}: {_one_line(error)}", arguments.traceback)


class _Arguments(argparse.ArgumentParser):
    """Says what is wrong in one line, and shows no password that was typed in the wrong place."""

    def error(self, message: str) -> NoReturn:
        shown = " ".join(redacted(word) if "@" in word or "://" in word else word for word in message.split())
        _leave(2, f"{self.prog.removesuffix('.py')}: {shown}; --help shows how it is called")


def _under_submit() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _finish(job: Job, path: str | None) -> None:
    seconds = time.monotonic() - job.started
    if job.stop.asked:
        job.say(stopped=True)
    facts = {**job.summary, "seconds": round(seconds, 1)}
    job.console.print(
        f"[bold]{job.name}[/] "
        + " · ".join(f"{key.replace('_per_second', '/s')} {_shown(value)}" for key, value in facts.items())
    )
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps({"job": job.name, **facts}, indent=2) + "\n", encoding="utf-8")


def _leave(code: int, line: str, show: bool = False) -> NoReturn:
    if show:
        traceback.print_exc()
    print(line, file=sys.stderr, flush=True)
    sys.exit(code)


def _one_line(error: BaseException) -> str:
    """Our own line if the error carries one, however deep; else the last line of a Python traceback in it, or the first
    line of what Spark says."""
    text = str(error)
    if find_in_text(text) is None and _TRACEBACK in text:
        failure = failure_of(text)
        return f"{failure.error}: {' '.join(failure.message.split())}".removesuffix(": ")[:500]
    causes = _CAUSE.findall(text)
    return find_in_text(text) or (causes[-1] if causes else f"{type(error).__name__}: {first_line(error)}")[:500]


_TRACEBACK = "Traceback (most recent call last):"
# How Java's exceptions name the one below them, and how py4j begins the text of one.
_CAUSE = re.compile(r"^(?:Caused by: |: )(\S.*)$", re.MULTILINE)


def first_line(error: BaseException) -> str:
    """What an exception says first."""
    return next(iter(str(error).strip().splitlines()), "no message")


def _as_option(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def _shown(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_shown(one)}" for key, one in value.items()) or "none"
    return f"{value:,.1f}" if isinstance(value, float) else json.dumps(value)
