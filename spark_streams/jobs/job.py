"""One run of a job: its configuration and parts, its Spark session, its plan (`--check`), the summary at its end."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from rich.console import Console
from rich.text import Text

from spark_streams import register
from spark_streams.base.given_text import duration
from spark_streams.base.printable import json_text, printable
from spark_streams.base.untyped import Json
from spark_streams.connector.errors import ConfigError, JobError
from spark_streams.connector.options.access_options import SinkOptions, server_of
from spark_streams.connector.options.option import named
from spark_streams.connector.options.table import ACCESS, IDENTITY
from spark_streams.connector.running.ending import Stop, is_under_submit
from spark_streams.connector.spark.installation import JAVA_REMEDY, has_java
from spark_streams.connector.spark.running_pyspark import is_of_connect
from spark_streams.connector.watch.failure import first_line
from spark_streams.connector.watch.lineage.datasets import Dataset
from spark_streams.connector.wire.address import Address, default_url
from spark_streams.jobs.job_config import Config, value_at
from spark_streams.jobs.spark_start import SparkSettings, prepare, settings_of, start_jvm

_NEEDS_THE_DRIVER = (
    "a job runs in Spark's driver, and this process is a client of Spark Connect: unset SPARK_REMOTE (spark.remote, "
    "spark.api.mode), and start the job with spark-submit --master …"
)
# Keys of every job's configuration: its server and its login.
ACCESS_SHAPE = {name: str for option in ACCESS for name in (option.name, *option.deprecated)}
_CHECK = {"spark.master": "local[1]", "spark.ui.enabled": "false"}  # settings of a session that only checks
NO_JAVA = f"no Java found: {JAVA_REMEDY}"
Facts = Mapping[str, object]


class JobPart:
    """Part of a job. KEYS: keys of the configuration; REQUIRED: dotted keys that must be set."""

    KEYS: ClassVar[Mapping[str, object]] = {}
    REQUIRED: ClassVar[Sequence[str]] = ()

    def plan(self) -> Facts:
        """Return the lines of `--check`."""
        return {}

    def summary(self) -> Facts:
        """Return the facts of the job's last line."""
        return {}


class WrittenPart(JobPart):
    """Part to which a query writes."""

    def streams(self) -> Mapping[str, SinkOptions]:
        """Return the streams among it, by the key that names each in messages."""
        return {}

    def datasets(self) -> Iterable[Dataset | None]:
        """Return its tables and streams for the lineage, None for those that rows name."""
        return ()

    def open(self, streams: Sequence[str]) -> None:
        """Get ready for the first micro-batch. streams: what the query reads."""


@dataclass
class Job:
    """One run of a job.

    Attributes:
        name: Name of the job.
        config: Its checked configuration.
    """

    name: str
    config: Config
    console: Console
    check: bool = False
    settings_passed: bool = False  # spark-submit has received the settings of [spark]
    files: Mapping[str, str | None] = field(default_factory=dict)  # that the command line names, by option
    take_over: bool = False  # whether it may take tables over from another query
    stop: Stop = field(default_factory=Stop)
    summary: dict[str, object] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    spark: SparkSession | None = None

    def get(self, key: str, default: Json = None) -> Json:
        """Return the value at a dotted key of the configuration."""
        return value_at(self.config, key, default)

    def duration(self, key: str, default: str = "") -> int:
        """Return the duration at a dotted key, in milliseconds. Raises ConfigError."""
        try:
            return duration(self.get(key, default))
        except ValueError as error:
            raise ConfigError(f"{key} {error}") from None

    @property
    def url(self) -> str:
        """The stream server of this job."""
        return str(self.get("url") or default_url())

    def spark_settings(self) -> SparkSettings:
        """Return the settings of [spark]. Raises ConfigError, also if spark-submit has started the JVM without them."""
        if self.get("spark") and is_under_submit() and not self.settings_passed:
            raise ConfigError(
                "[spark] is for `rstream run`: pass --master and --conf to spark-submit, and leave [spark] out"
            )
        return settings_of(self.config)

    def session(self) -> SparkSession:
        """Start the Spark session and register `format("rstream")`.

        Raises:
            JobError: There is no JDK, or this process is a client of Spark Connect.
        """
        if os.environ.get("SPARK_REMOTE"):
            raise JobError(_NEEDS_THE_DRIVER)
        builder = SparkSession.builder.appName(f"rstream {self.name}")
        if not is_under_submit():
            if not has_java():
                raise JobError(NO_JAVA)
            settings = self.spark_settings()
            prepare(settings, short_lived=self.check)
            confs = settings.confs | (_CHECK if self.check else {})
            start_jvm(confs)
            builder = builder.config(map={**confs})
        elif self.check:
            builder = builder.config(map={**_CHECK})
        self.spark = spark = builder.getOrCreate()
        if is_of_connect(spark):
            raise JobError(_NEEDS_THE_DRIVER)
        # After getOrCreate(), which installs Spark's own handler of SIGINT.
        self.stop.listen(spark.sparkContext._gateway)
        register(spark)
        return spark

    def stop_with(self, call: Callable[[], None]) -> None:
        """Call this function when the job is to stop. For a job without a Spark session."""
        self.stop.on_request(call)
        self.stop.listen(launch_gateway() if is_under_submit() else None)  # type: ignore[no-untyped-call]

    def plan(self, *parts: JobPart) -> None:
        """Print the plan of a run with `--check`, which ends here. Otherwise do nothing.

        Raises:
            CheckedError: The plan is printed.
        """
        if self.check:
            facts = {key: value for part in parts for key, value in part.plan().items()}
            width = max(map(len, facts))
            self.console.print(f"[bold]{self.name}[/] would:")
            for key, value in facts.items():
                self.console.print(f"  {key.replace('_', ' '):<{width}}  {_shown(value)}", markup=False)
            raise CheckedError

    @property
    def access(self) -> dict[str, str]:
        """The stream server of this job and its login, as options."""
        access_options = {name: str(self.get(name)) for name in ACCESS_SHAPE if self.get(name) is not None}
        return {**access_options, "url": self.url}

    @property
    def address(self) -> Address:
        """The stream server and its login, checked. Raises OptionError."""
        return server_of(self.access, "job")

    def options(self, table: str) -> dict[str, str]:
        """Return a table of the configuration as options of format("rstream"), with the job's server as default."""
        return inherit_access(self.access, self.plain_options(table))

    def schema(self, key: str, ddl: str) -> StructType:
        """Parse a schema of the configuration. Raises ConfigError that names its key."""
        try:
            return StructType.fromDDL(ddl)  # type: ignore[return-value]  # of columns, it is a struct
        except Exception as error:
            raise ConfigError(f"{key}: {first_line(error)}") from error

    def plain_options(self, table: str) -> dict[str, str]:
        """Return a table of the configuration as options of any format. Spark takes strings."""
        return as_texts(self.get(table, {}))

    def summarize(self, *parts: JobPart) -> None:
        """Add the facts of these parts to the summary: the last line that the job prints."""
        for part in parts:
            self.summary.update(part.summary())

    def finish(self, path: str | None) -> None:
        """Print the summary as one line, and write it to this path as JSON."""
        rates = {key: value for key, value in self.summary.items() if key.endswith("_per_second")}
        counts = {key: value for key, value in self.summary.items() if key not in rates}
        stopped = {"stopped": True} if self.stop.is_requested else {}
        facts = {**counts, **rates, **stopped, "seconds": round(time.monotonic() - self.started, 1)}
        fact_texts = [f"{key.replace('_per_second', '/s')} {_shown(value)}" for key, value in facts.items()]
        # Text: names and reasons are data, not markup.
        self.console.print(Text.assemble((self.name, "bold"), " ", " · ".join(fact_texts)))
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(json_text({"job": self.name, **facts}, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set settings of the session for a block, and restore them at its end."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name in settings:
        spark.conf.set(name, settings[name])
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


class CheckedError(Exception):
    """`--check` found no error, and the plan is printed."""


def access_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a table that name the server and the login."""
    return {name: value for name, value in options.items() if named(name, ACCESS)}


def inherit_access(access: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """Return a table's options, with the job's server if they name none.

    The login comes from the table or from the job, never from both.
    """
    given = {option.name for name in options for option in named(name, ACCESS)}
    if "url" in given:
        return dict(options)
    login = [option for option in ACCESS if option.name in IDENTITY and not given.isdisjoint(IDENTITY)]
    return {**{name: value for name, value in access.items() if not named(name, login)}, **options}


def as_texts(table: Mapping[str, object]) -> dict[str, str]:
    """Return a table of options as the strings that Spark takes."""
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
        return ", ".join(f"{printable(str(key))}: {_shown(member)}" for key, member in value.items()) or "none"
    return f"{value:,.1f}" if isinstance(value, float) else json_text(value)
