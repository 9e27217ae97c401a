"""One option: name, default, parser and documentation; the look-up of names, and hints about those of other connectors.

Names are compared without case, also by a deprecated name.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from spark_streams.connector.errors import InvalidOptionError

REQUIRED = object()


@dataclass(frozen=True)
class Option:
    name: str
    parse: Callable[[str], object]  # converts a text to a value; raises ValueError
    doc: str  # its documentation in docs/reference/options.md; empty: only our own code sets it
    default: object = None  # a value, REQUIRED, or a callable
    shown: str = ""  # the default there, if it says more than the value
    only: str = ""  # `stream` or `batch`, if one of the two readers has it
    # names that it had before, which still work and log a warning (`warn_if_deprecated`)
    deprecated: tuple[str, ...] = ()

    @functools.cached_property
    def names(self) -> list[str]:
        """All names that a user may write, in lower case."""
        return [name.lower() for name in (self.name, *self.deprecated)]

    @functools.cached_property
    def field(self) -> str:
        """Name of its field in SourceOptions, BatchSourceOptions and SinkOptions, in snake case."""
        return re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", self.name)


def documented(options: Iterable[Option]) -> list[Option]:
    """Return the options that users set."""
    return [option for option in options if option.doc]


_log = logging.getLogger("spark_streams.options")


def named(name: str, options: Iterable[Option]) -> list[Option]:
    """Return the options that have this name, or had it."""
    lower = name.lower()
    return [option for option in options if lower in option.names]


def text_of(option_name: str, given: Mapping[str, str], options: Iterable[Option]) -> str | None:
    """Return the text that the user has set for the option of this name, whichever of its names the user wrote."""
    names = {name for option in named(option_name, options) for name in option.names}
    return next((text for name, text in given.items() if name.lower() in names), None)


def near(name: str, options: Iterable[Option]) -> str | None:
    """Return the name of a documented option that looks like this one. A deprecated name is never proposed."""
    by_name = {option.name.lower(): option.name for option in documented(options)}
    found = difflib.get_close_matches(name.lower(), by_name, n=1)
    return by_name[found[0]] if found else None


@contextmanager
def linked(options: Iterable[Option]) -> Iterator[None]:
    """Let an InvalidOptionError within end with the command that shows the first option which its message names."""
    try:
        yield
    except InvalidOptionError as error:
        names = {option.name for option in documented(options)}
        first = next((word for word in re.findall(r"\w+", error.message) if word in names), None)
        link = "" if first is None or "rstream help" in error.message else f" (rstream help options#{first})"
        raise InvalidOptionError(f"{error.message}{link}") from error.__cause__


def warn_if_deprecated(name: str, option: Option, side: str) -> None:
    """Log a warning that names the new name, once in a process, if the user wrote an old name of the option."""
    if name.lower() != option.name.lower():
        _warn(f"{side} option {name!r} is deprecated and will be removed: set {option.name!r} to the same value")


@functools.cache
def _warn(warning: str) -> None:
    _log.warning("%s", warning)


# -- options of Spark's Kafka connector and of spark-redis -------------------------------------------------------------

# What replaces an option; empty: it is not needed. `*` stands for any text; the first line that matches counts.
# docs/guide/migrate.md has the same as tables with notes, in this order; a test compares both.
KAFKA: Mapping[str, str] = {
    "kafka.bootstrap.servers": "url",
    "subscribe": "streams",
    "kafka.group.id": "group",
    "groupIdPrefix": "group",
    "subscribePattern": "streamsPattern",
    "assign": "streams",
    "startingOffsetsByTimestamp": "startingTimestamp",
    "startingOffsetsByTimestampStrategy": "startingTimestamp",
    "endingOffsetsByTimestamp": "endingTimestamp",
    "maxOffsetsPerTrigger": "maxEntriesPerTrigger or maxBytesPerTrigger",
    "minOffsetsPerTrigger": "minEntriesPerTrigger",
    "maxRecordsPerPartition": "entriesPerPartition",
    "includeHeaders": "",
    "kafkaConsumer.pollTimeoutMs": "",
    "fetchOffset.numRetries": "",
    "fetchOffset.retryIntervalMs": "",
    "kafka.security.protocol": "url",
    "kafka.sasl.*": "url",
    "kafka.ssl.*": "url",
    "topic": "stream",
    "kafka.partitioner.class": "shards or shardBy",
    "kafka.acks": "waitReplicas",
    "kafka.enable.idempotence": "delivery",
    "kafka.transactional.id": "delivery",
    "kafka.*": "url",  # other settings of Kafka's clients; no line of the tables
}
SPARK_REDIS: Mapping[str, str] = {
    **dict.fromkeys(("spark.redis.*", "host", "port", "auth", "db", "ssl"), "url"),
    "stream.keys": "streams",
    "stream.group.name": "group",
    "stream.consumer.prefix": "consumer",
    "stream.offsets": "startingOffsets",
    "stream.parallelism": "entriesPerPartition or minPartitions",
    **dict.fromkeys(("stream.read.batch.size", "stream.read.block"), ""),
    **dict.fromkeys(("table", "keys.pattern", "key.column", "model", "infer.schema"), ""),
}


def hint_of_other_connector(name: str) -> str | None:
    """Return a sentence on what replaces an option of another connector; None if it is of none."""
    for connector, options in (("Spark's Kafka connector", KAFKA), ("spark-redis", SPARK_REDIS)):
        for pattern, ours in options.items():
            if fnmatch.fnmatchcase(name.lower(), pattern.lower()):
                instead = f"use {ours}" if ours else "it is not needed here"
                return f"it is an option of {connector}: {instead} (rstream help migrate)"
    return None
