"""One run of a job: its configuration, its Spark session, what it would do (`--check`), and the summary at its end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from rich.console import Console
from rich.text import Text

from spark_streams import register
from spark_streams.errors import ConfigError, RStreamError
from spark_streams.jobs.settings.config import Config, Shape, value_at
from spark_streams.jobs.settings.spark_settings import SparkSettings, has_java, prepare, settings_of
from spark_streams.model.printable import json_text, printable
from spark_streams.model.untyped import Json
from spark_streams.options.access_options import server_of
from spark_streams.options.table import ACCESS, IDENTITY
from spark_streams.running.error_summary import first_line
from spark_streams.running.stopping import Stop
from spark_streams.spark.connect import is_of_connect
from spark_streams.wire.address.address import Address, default_url

_NEEDS_THE_DRIVER = (
    "a job runs in Spark's driver, and this is a client of Spark Connect: unset SPARK_REMOTE (spark.remote, "
    "spark.api.mode), and start it with spark-submit --master …"
)
# Keys of every job's configuration: its server, and who connects.
ACCESS_SHAPE = {option.name: str for option in ACCESS}
NO_JAVA = "no Java found: install a JDK 17 or newer, or set JAVA_HOME"


class Program(NamedTuple):
    """What a job is. doc: what `--help` says of it; shape: the keys of its configuration; required: those that must be
    given; body: what it does."""

    doc: str
    shape: Shape
    required: Sequence[str]
    body: Callable[[Job], None]


@dataclass
class Job:
    """One run of a job: its name, its checked configuration, the session, and what it will say at the end."""

    name: str
    config: Config
    console: Console
    check: bool = False
    spark_is_told: bool = False  # by whoever called spark-submit, of what [spark] has
    stop: Stop = field(default_factory=Stop)
    summary: dict[str, object] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    spark: SparkSession | None = None

    def get(self, key: str, default: Json = None) -> Json:
        return value_at(self.config, key, default)

    @property
    def url(self) -> str:
        """The stream server of this job."""
        return str(self.get("url") or default_url())

    def spark_settings(self) -> SparkSettings:
        """What [spark] says. Raises ConfigError, also where it comes too late: Spark has been started by another."""
        if self.get("spark") and _under_submit() and not self.spark_is_told:
            raise ConfigError(
                "[spark] is for `rstream run`: to spark-submit say --master and --conf, and leave [spark] out"
            )
        return settings_of(self.config)

    def session(self) -> SparkSession:
        """The Spark session, with format("rstream") known. Raises JobError without a JDK, and over Spark Connect."""
        if os.environ.get("SPARK_REMOTE"):
            raise JobError(_NEEDS_THE_DRIVER)
        builder = SparkSession.builder.appName(f"rstream {self.name}")
        if not _under_submit():
            if not has_java():
                raise JobError(NO_JAVA)
            settings = self.spark_settings()
            prepare(settings)
            builder = builder.config(map={**settings.confs})
        if self.check:
            builder = builder.master("local[1]").config("spark.ui.enabled", "false")
        self.spark = spark = builder.getOrCreate()
        if is_of_connect(spark):
            raise JobError(_NEEDS_THE_DRIVER)
        # Now: Spark has just put its own handler of SIGINT in place.
        self.stop.listen(spark.sparkContext._gateway)
        register(spark)
        return spark

    def stop_with(self, call: Callable[[], None]) -> None:
        """For a job without a session: call this when it is asked to stop."""
        self.stop.then(call)
        self.stop.listen(launch_gateway() if _under_submit() else None)  # type: ignore[no-untyped-call]

    def plan(self, **facts: object) -> None:
        """What the job is about to do, when all is checked. Ends a run with `--check`."""
        if self.check:
            width = max(map(len, facts))
            self.console.print(f"[bold]{self.name}[/] would:")
            for key, value in facts.items():
                self.console.print(f"  {key.replace('_', ' '):<{width}}  {_shown(value)}", markup=False)
            raise CheckedError

    @property
    def access(self) -> dict[str, str]:
        """The stream server of this job, and who connects, as options."""
        given = {name: str(self.get(name)) for name in ACCESS_SHAPE if self.get(name) is not None}
        return {**given, "url": self.url}

    @property
    def address(self) -> Address:
        """The same, checked. Raises OptionError."""
        return server_of(self.access, "job")

    def options(self, table: str) -> dict[str, str]:
        """A config table as options of format("rstream"); the job's url is the default one."""
        return beside(self.access, self.plain_options(table))

    def schema(self, key: str, ddl: str) -> StructType:
        """A schema of the configuration. Raises ConfigError that names its key."""
        try:
            return StructType.fromDDL(ddl)  # type: ignore[return-value]  # of columns, it is a struct
        except Exception as error:
            raise ConfigError(f"{key}: {first_line(error)}") from error

    def plain_options(self, table: str) -> dict[str, str]:
        """A config table as options of any format: Spark takes texts."""
        return as_texts(self.get(table, {}))

    def say(self, **facts: object) -> None:
        """Facts for the summary at the end."""
        self.summary.update(facts)

    def finish(self, path: str | None) -> None:
        """The summary: a line, and a JSON file where a path is given."""
        if self.stop.asked:
            self.say(stopped=True)
        facts = {**self.summary, "seconds": round(time.monotonic() - self.started, 1)}
        told = [f"{key.replace('_per_second', '/s')} {_shown(value)}" for key, value in facts.items()]
        # Text: names and reasons are data, not markup.
        self.console.print(Text.assemble((self.name, "bold"), " ", " · ".join(told)))
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(json_text({"job": self.name, **facts}, indent=2) + "\n", encoding="utf-8")


class CheckedError(Exception):
    """All that `--check` looks at is right."""


class JobError(RStreamError):
    """A job cannot go on."""

    condition = "RSTREAM_JOB"


def access_of(options: Mapping[str, str]) -> dict[str, str]:
    """The server and who connects, of a table's options."""
    known = {name.lower() for name in ACCESS_SHAPE}
    return {name: value for name, value in options.items() if name.lower() in known}


def beside(access: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """A table's options, with the job's server where they name none; who connects is said by one of them alone."""
    given = {name.lower() for name in options}
    if "url" in given:
        return dict(options)
    own = not given.isdisjoint(name.lower() for name in IDENTITY)
    return {**{name: value for name, value in access.items() if not (own and name in IDENTITY)}, **options}


def _under_submit() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def as_texts(table: Mapping[str, object]) -> dict[str, str]:
    """A table of options as Spark takes them."""
    return {key: _as_option(value) for key, value in table.items()}


def _as_option(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def _shown(value: object) -> str:
    if isinstance(value, bool | str):
        return printable(str(value))
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{printable(str(key))}: {_shown(one)}" for key, one in value.items()) or "none"
    return f"{value:,.1f}" if isinstance(value, float) else json_text(value)
