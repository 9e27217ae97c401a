"""The shape that all jobs share: arguments, session, progress, a summary at the end, one line for an error.

    spark-submit --properties-file conf/spark-defaults.conf jobs/NAME.py --config conf/NAME.toml [--set key=value …]

Exit codes: 0 done; 1 the job failed; 2 the arguments or the configuration are wrong. `--traceback` shows where.
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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

try:
    import _config
    import click  # noqa: F401 - looked for here so that a wrong Python is one line, not a traceback
    import pyarrow  # noqa: F401
    import redis  # noqa: F401
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType
    from rich.console import Console

    from spark_streams import register
    from spark_streams.errors import ConfigError, OptionError, RStreamError, find_in_text
    from spark_streams.monitor.bar import Bar
    from spark_streams.monitor.groups import view_streams
    from spark_streams.options import Option, Options, parse_options
    from spark_streams.wire.address import default_url, redacted
    from spark_streams.wire.connection import Connection
except ImportError as error:
    sys.exit(
        f"{Path(sys.argv[0]).name}: {sys.executable} lacks {error.name}: activate the environment that "
        "spark-streams is installed in (. .venv/bin/activate), or set PYSPARK_PYTHON to its python"
    )


@dataclass
class Job:
    """One run of a job: its name, its checked configuration, the session, and what it will say at the end."""

    name: str
    config: _config.Config
    console: Console
    summary: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def get(self, key: str, default: Any = None) -> Any:
        return _config.get(self.config, key, default)

    @property
    def url(self) -> str:
        """The stream server of this job."""
        return str(self.get("url") or default_url())

    def session(self) -> SparkSession:
        """The Spark session, with format("rstream") known. Raises JobError where no JDK is found."""
        under_submit = "PYSPARK_GATEWAY_PORT" in os.environ
        if not under_submit and not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
            raise JobError("no Java found: install a JDK 17 or newer, or set JAVA_HOME")
        spark = SparkSession.builder.appName(f"rstream {self.name}").getOrCreate()
        register(spark)
        return spark

    def options(self, table: str) -> dict[str, str]:
        """A config table as options of format("rstream"); the job's url is the default one."""
        return {"url": self.url, **self.plain_options(table)}

    def schema(self, key: str, ddl: str) -> StructType:
        """A schema of the configuration. Raises ConfigError that names its key."""
        try:
            return StructType.fromDDL(ddl)
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


class JobError(RStreamError):
    """A job cannot go on."""

    condition = "RSTREAM_JOB"


def main(name: str, doc: str, shape: _config.Shape, required: Iterable[str], body: Callable[[Job], None]) -> None:
    """Run a job from the command line; does not return."""
    parser = _Arguments(prog=f"{name}.py", description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", metavar="FILE", help=f"TOML, see conf/{name}.toml")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="override one key of it")
    parser.add_argument("--summary", metavar="FILE", help="write the summary there too, as JSON")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    arguments = parser.parse_args()
    if not arguments.traceback:
        # Spark's Python side logs an error that it raises, with the whole Java stack.
        for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            logging.getLogger(logger).setLevel(logging.CRITICAL + 1)
    console = Console(highlight=False, soft_wrap=True)
    try:
        config = _config.load(arguments.config, arguments.set, {"url": str, **shape}, required)
        job = Job(name, config, console)
        body(job)
        _finish(job, arguments.summary)
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


def _finish(job: Job, path: str | None) -> None:
    seconds = time.monotonic() - job.started
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
    """Our own line if the error carries one, however deep; else the first line of what Spark says."""
    text = str(error)
    causes = _CAUSE.findall(text)
    return find_in_text(text) or (causes[-1] if causes else f"{type(error).__name__}: {first_line(error)}")[:500]


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


def run_query(query: Any, bar: Bar) -> None:
    """Wait for a streaming query, showing how many entries its batches have read. Raises what ended it."""
    seen = -1
    total = 0

    def look() -> None:
        nonlocal seen, total
        for progress in query.recentProgress:
            if progress.batchId > seen and progress.numInputRows:
                seen, total = progress.batchId, total + progress.numInputRows
        bar.at(total)

    while not query.awaitTermination(0.3):
        look()
    look()


def waiting(source: Options) -> int | None:
    """Entries that the source's group has yet to settle; None where the server cannot count them, or there are none."""
    with Connection(source.address) as server:
        views = view_streams(server, source["streams"])
    entries = 0
    for view in views:
        group = next((g for g in view.groups if g.group == source["group"]), None)
        if group is not None and group.lag is None:
            return None
        entries += view.length if group is None else group.pending + (group.lag or 0)
    return entries or None


_INTERVAL = re.compile(r"^\s*\d+\s+(millisecond|second|minute|hour)s?\s*$", re.IGNORECASE)


def trigger(job: Job) -> Mapping[str, Any]:
    """`job.trigger`: "available-now" (the default), "once", or an interval such as "10 seconds". Raises ConfigError."""
    wanted = str(job.get("job.trigger", "available-now"))
    if wanted not in ("available-now", "once") and not _INTERVAL.match(wanted):
        raise ConfigError(f'job.trigger must be "available-now", "once" or like "10 seconds", not {wanted!r}')
    if wanted == "available-now":
        return {"availableNow": True}
    if wanted == "once":
        return {"once": True}
    return {"processingTime": wanted}
