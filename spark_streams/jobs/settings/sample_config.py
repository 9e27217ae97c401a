"""A first file: the template of a job's configuration or of a program, filled for an example or an existing stream.

The example of the jobs is the flights of conf/. They have a rule, a partition and aggregates. For another stream, these
lines are comments about one of its columns, or count its entries.

The values of a template (`$stream`) are texts as the file has them, with their quotes. `$null_value` and `$reserved`
are whole lines, or nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, NamedTuple

from spark_streams.connector.wire.connection.server import Server
from spark_streams.jobs.arguments import MONITORING, PROGRAMS

if TYPE_CHECKING:
    from spark_streams.connector.source.batch.infer_schema import (
        InferredColumn,  # needs Arrow, which the flights do not
    )

TEMPLATES = Path(__file__).parents[1] / "templates"

_ENTRIES = 500  # how many of the oldest and of the newest entries are read

# SQL names of types that infer_schema returns. The other names are the same in SQL.
_SQL = {"long": "BIGINT"}
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_RESERVED = re.compile(r"_.*|dl\..*|batch", re.IGNORECASE)  # names that the jobs use themselves
_DDL_IN_A_LINE = 6
_EMBEDDED = "embedded:"
_SERVER = '# url = "redis://127.0.0.1:6379/0"'


class Example(NamedTuple):
    """A stream that a template is filled for.

    types: SQL types of its columns by name; key: a column that groups its entries; moment: a column with a time;
    notes: comments beside columns; reserved: columns whose names the jobs use themselves.
    """

    stream: str
    types: Mapping[str, str]
    key: str
    moment: str
    notes: Mapping[str, str] = {}
    reserved: Collection[str] = ()


_FLIGHTS = Example(
    "flights",
    {
        **dict.fromkeys(("year", "month", "day"), "INT"),
        **dict.fromkeys(("dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"), "INT"),
        **{"carrier": "STRING", "flight": "INT"},
        **dict.fromkeys(("tailnum", "origin", "dest"), "STRING"),
        **dict.fromkeys(("air_time", "distance", "hour", "minute"), "INT"),
        "time_hour": "TIMESTAMP",
    },
    "carrier",
    "time_hour",
)
_ORDERS = Example("orders", {"customer": "STRING", "amount": "DECIMAL(10,2)"}, "customer", "at")  # of a program
# What the templates have of the flights alone. An aggregate reads only the columns that it needs.
_OF_THE_FLIGHTS = {
    "off": "",
    "reason": '"no departure time"',
    "when": '"dep_time IS NULL"',
    "partition": '"month"',
    "where": '"dep_delay IS NOT NULL"',
    "keys": '"carrier", "month"',
    "values": 'mean_dep_delay = "avg(dep_delay)"\nflights = "count(*)"',
    "totals": '"delays"',
}
_AGGREGATED = ("month", "dep_delay", "carrier")


def sample_config(name: str) -> str:
    """Return the configuration of a job for the flights, a program for orders, or the alerts or the dashboard."""
    if name in MONITORING:
        return (TEMPLATES / file_name(name)).read_text(encoding="utf-8")
    if name in PROGRAMS:
        return _fill(name, {**_values(name, _ORDERS), "where": '"amount > 100"'})
    example = _FLIGHTS
    if name == "aggregate":
        example = example._replace(types={column: example.types[column] for column in _AGGREGATED})
    # This clone's own names: the job's, without the stream's.
    names = {"group": _quoted(name), "checkpoint": _quoted(f"out/checkpoints/{name}")}
    return _fill(name, {**_values(name, example), **names, **_OF_THE_FLIGHTS})


def config_for(
    job: str, stream: str, columns: Sequence[InferredColumn], url: str | None = None, null_value: str | None = None
) -> str:
    """Return the configuration of a job, or a program, for a stream. columns: of the stream; url: of the server, if the
    file is to name it; null_value: option nullValue, if the file is to set it."""
    values = _values(job, _example(stream, columns))
    if url is not None:
        values |= {"server": f"url = {_quoted(url)}", "url": _quoted(url)}
    if null_value is not None:
        text = _quoted(null_value)
        values["null_value"] = f'    .option("nullValue", {text})\n' if job in PROGRAMS else f"nullValue = {text}\n"
    return _fill(job, values)


def file_name(name: str) -> str:
    """Return the name of a sample's file."""
    return {**MONITORING, **PROGRAMS}.get(name, f"{name}.toml")


def columns_of(
    server: Server, stream: str, null_values: Collection[bytes] = (), share: float | None = None
) -> list[InferredColumn]:
    """Return the columns of a stream, from its oldest and newest entries. share: None: that of infer_schema."""
    from spark_streams.connector.source.batch.infer_schema import SHARE, infer

    ends = [("XRANGE", stream, "-", "+"), ("XREVRANGE", stream, "+", "-")]
    replies = server.pipeline([(*end, "COUNT", _ENTRIES) for end in ends])
    entries = {entry_id: fields for reply in replies for entry_id, fields in reply}
    return infer(entries.values(), (), null_values, SHARE if share is None else share)


def _example(stream: str, columns: Sequence[InferredColumn]) -> Example:
    """Return a stream as an example: its key is its first text, its moment its first time."""
    usable = [column for column in columns if not _RESERVED.fullmatch(column.name)]
    names = [column.name for column in usable] or ["field"]
    return Example(
        stream,
        {column.name: _SQL.get(column.kind, column.kind.upper()) for column in columns},
        next((column.name for column in usable if column.kind == "string"), names[0]),
        next((column.name for column in usable if column.kind == "timestamp"), "at"),
        {column.name: column.comment for column in columns if column.comment is not None},
        [column.name for column in columns if column not in usable],
    )


def _values(job: str, example: Example) -> dict[str, str]:
    """Return the values of a template. Those of a rule and of aggregates are about the key."""
    stream = example.stream
    file = re.sub(r"[^A-Za-z0-9_.-]", "-", stream)
    table = re.sub("[^A-Za-z0-9_]+", "_", stream).strip("_")
    ddl = [f"{_sql(name)} {kind}" for name, kind in example.types.items() if name not in example.reserved]
    lines = [", ".join(ddl[first : first + _DDL_IN_A_LINE]) for first in range(0, len(ddl), _DDL_IN_A_LINE)]
    reserved = _quoted(", ".join(example.reserved))
    key = _sql(example.key)
    return {
        "stream": _quoted(stream),
        "group": _quoted(f"{stream}-{job}"),  # two configurations share no group …
        "checkpoint": _quoted(f"out/checkpoints/{file}-{job}"),  # … and no checkpoint
        "dead_letters": _quoted(f"{stream}:dead"),
        "parked": _quoted(f"{stream}:dead:parked"),
        "retried": _quoted(f"{stream}:retry"),
        "incomplete": _quoted(f"{stream}:incomplete"),
        "chosen": _quoted(f"{stream}:chosen"),
        "totals": _quoted(f"{stream}:totals"),
        "server": _SERVER,
        "url": _quoted(_EMBEDDED),
        "reserved": f"    # Not read, because jobs reserve these names: {reserved}\n" if example.reserved else "",
        "null_value": "",
        "file": file,
        "table": table if re.match("[A-Za-z]", table) else f"t_{table}",  # a name that SQL takes without quotes
        "columns": "\n".join(_column(name, kind, example) for name, kind in example.types.items()),
        "ddl": _quoted(", ".join(ddl) or "field STRING"),
        "two_columns": _quoted(", ".join(ddl[:2])),
        "schema": ",\n".join(f"  {_quoted(line)[1:-1]}" for line in lines),
        "key": _toml_key(example.key),
        "key_column": _quoted(key),
        "moment": _quoted(example.moment),
        "off": "# ",
        "missing": _quoted(f"{key} IS NULL"),
        "query": _quoted(f"SELECT *, {key} IS NULL AS incomplete FROM rows"),
        "reason": _quoted(f"no {example.key}"),
        "when": _quoted(f"{key} IS NULL"),
        "partition": _quoted(example.key),
        "where": _quoted(f"{key} IS NOT NULL"),
        "keys": _quoted(example.key),
        "values": 'entries = "count(*)"',
    }


def _fill(job: str, values: Mapping[str, str]) -> str:
    # A program's template is no Python, so tools for Python should not find it.
    name = f"{file_name(job)}.txt" if job in PROGRAMS else file_name(job)
    return Template((TEMPLATES / name).read_text(encoding="utf-8")).substitute(values)


def _column(name: str, kind: str, example: Example) -> str:
    line = f'{_toml_key(name)} = "{kind}"'
    if name in example.reserved:
        return f"# {line}   # this name is reserved for the job"
    return f"{line}   # {example.notes[name]}" if name in example.notes else line


def _sql(name: str) -> str:
    """Return a column's name in SQL."""
    return name if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name.replace('`', '``')}`"


def _toml_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    """Return a text as a string of TOML and of Python."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
