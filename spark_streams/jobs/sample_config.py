"""A first file: the configuration of a job or a program, for an example or an existing stream.

The example of the jobs is the flights of conf/. Its files are also the templates: for another stream, each of their
texts about the flights is replaced. A rule, a partition and aggregates become comments, or count its entries.
"""

from __future__ import annotations

import re
import tomllib
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, NamedTuple

from spark_streams.base.printable import quoted
from spark_streams.connector.wire.connection import Server
from spark_streams.jobs.arguments import MONITORING, PROGRAMS

if TYPE_CHECKING:
    from spark_streams.connector.source.infer_schema import InferredColumn  # it needs Arrow

TEMPLATES = Path(__file__).parent / "templates"
CONF = Path(__file__).parent / "conf"

_ENTRIES = 500  # how many of the oldest and of the newest entries are read

# SQL names of types that infer_schema returns. The other names are the same in SQL.
_SQL = {"long": "BIGINT"}
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_RESERVED = re.compile(r"_.*|dl\..*|batch", re.IGNORECASE)  # names that the jobs use themselves
_DDL_IN_A_LINE = 6


class Example(NamedTuple):
    """A stream that a file is written for."""

    stream: str
    types: Mapping[str, str]  # SQL types of its columns by name
    key: str  # a column that groups its entries
    notes: Mapping[str, str] = {}  # comments beside columns
    reserved: Collection[str] = ()  # columns whose names the jobs use themselves
    moment: str = "at"  # a column with a time

    @property
    def ddl(self) -> list[str]:
        """The columns in SQL."""
        return [f"{_sql(name)} {kind}" for name, kind in self.types.items() if name not in self.reserved]


_ORDERS = Example("orders", {"customer": "STRING", "amount": "DECIMAL(10,2)"}, "customer")  # of a program


def sample_config(name: str) -> str:
    """Return the configuration of a job for the flights, a program for orders, or the alerts or the dashboard."""
    if name in PROGRAMS:
        return _program(name, _ORDERS, {"where": '"amount > 100"'})
    folder = TEMPLATES if name in MONITORING else CONF
    return (folder / file_name(name)).read_text(encoding="utf-8")


def config_for(
    job: str, stream: str, columns: Sequence[InferredColumn], url: str | None = None, null_value: str | None = None
) -> str:
    """Return the configuration of a job, or a program, for a stream. columns: of the stream; url: of the server, if the
    file is to name it; null_value: option nullValue, if the file is to set it."""
    example = _example(stream, columns)
    if job in PROGRAMS:
        values = {} if url is None else {"url": quoted(url)}
        values |= {} if null_value is None else {"null_value": f'    .option("nullValue", {quoted(null_value)})\n'}
        return _program(job, example, values)
    changes = _changes(job, example)
    if url is not None:
        changes['# url = "redis://127.0.0.1:6379/0"'] = f"url = {quoted(url)}"
    if null_value is not None:
        changes['streams = "flights"'] = f"nullValue = {quoted(null_value)}\n" + changes['streams = "flights"']
    texts = sorted(changes, key=len, reverse=True)
    # All at once: a stream may have the name of another text.
    return re.sub("|".join(map(re.escape, texts)), lambda found: changes[found[0]], sample_config(job))


def file_name(name: str) -> str:
    """Return the name of a sample's file."""
    return {**MONITORING, **PROGRAMS}.get(name, f"{name}.toml")


def columns_of(
    server: Server, stream: str, null_values: Collection[bytes] = (), share: float | None = None
) -> list[InferredColumn]:
    """Return the columns of a stream, from its oldest and newest entries. share: None: that of infer_schema."""
    from spark_streams.connector.source.infer_schema import SHARE, infer

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
        {column.name: column.comment for column in columns if column.comment is not None},
        [column.name for column in columns if column not in usable],
        next((column.name for column in usable if column.kind == "timestamp"), "at"),
    )


def _changes(job: str, example: Example) -> dict[str, str]:
    """Return what is written in place of each text about the flights. Rules and aggregates are about the key."""
    flights = tomllib.loads(sample_config(job))
    stream, key, ddl = example.stream, _sql(example.key), example.ddl
    file, table = _file(stream), re.sub("[^A-Za-z0-9_]+", "_", stream).strip("_")
    table = table if re.match("[A-Za-z]", table) else f"t_{table}"  # a name that SQL takes without quotes
    lines = [", ".join(ddl[first : first + _DDL_IN_A_LINE]) for first in range(0, len(ddl), _DDL_IN_A_LINE)]
    changes = {
        'streams = "flights"': f"streams = {quoted(stream)}",
        'stream = "flights"': f"stream = {quoted(stream)}",
        '# name = "flights"': f"# name = {quoted(stream)}",
        '["flights"]': f"[{quoted(stream)}]",
        f'"out/checkpoints/{job}"': _checkpoint(stream, job),
        **{f'"flights:{end}"': quoted(f"{stream}:{end}") for end in ("dead", "dead:parked", "retry", "incomplete")},
        'stream = "delays"': f"stream = {quoted(f'{stream}:totals')}",
        "flights.avsc": f"{file}.avsc",
        "flights.json": f"{file}.json",
        "out/flights": f"out/{file}",
        'or name = "flights"': f'or name = "{table}"',
        '"year INT, month INT"': quoted(", ".join(ddl[:2])),
        "[[rule]]   ": "# [[rule]]   ",
        'reason = "no departure time"': f"# reason = {quoted(f'no {example.key}')}",
        'when = "dep_time IS NULL"': f"# when = {quoted(f'{key} IS NULL')}",
        '"SELECT *, carrier IS NULL AS incomplete FROM rows"': quoted(
            f"SELECT *, {key} IS NULL AS incomplete FROM rows"
        ),
        'partition_by = ["month"]': f"# partition_by = [{quoted(example.key)}]",
        '"carrier IS NULL"': quoted(f"{key} IS NULL"),
        '["carrier"]': f"[{quoted(key)}]",
        'where = "dep_delay IS NOT NULL"': f"# where = {quoted(f'{key} IS NOT NULL')}",
        '["carrier", "month"]': f"[{quoted(example.key)}]",
        '"time_hour" ': f"{quoted(example.moment)} ",
        'mean_dep_delay = "avg(dep_delay)"\nflights = "count(*)"': 'entries = "count(*)"',
        "# carrier = ": f"# {_toml_key(example.key)} = ",
    }
    if "columns" in flights:
        columns = [_column(name, kind, example) for name, kind in example.types.items()]
        changes["\n".join(f'{name} = "{kind}"' for name, kind in flights["columns"].items())] = "\n".join(columns)
    elif "input" in flights:
        changes[flights["input"]["schema"].strip("\n")] = ",\n".join(f"  {quoted(line)[1:-1]}" for line in lines)
    return changes


def _program(name: str, example: Example, values: Mapping[str, str]) -> str:
    """Return a program. values: those of its template that the example does not tell. They are texts with their quotes,
    or whole lines, or nothing."""
    stream = example.stream
    reserved = quoted(", ".join(example.reserved))
    of_example = {
        "stream": quoted(stream),
        "group": quoted(f"{stream}-{name}"),
        "chosen": quoted(f"{stream}:chosen"),
        "checkpoint": _checkpoint(stream, name),
        "ddl": quoted(", ".join(example.ddl) or "field STRING"),
        "where": quoted(f"{_sql(example.key)} IS NOT NULL"),
        "reserved": f"    # Not read, because jobs reserve these names: {reserved}\n" if example.reserved else "",
        "url": quoted("embedded:"),
        "null_value": "",
    }
    # Its template is no Python, so tools for Python should not find it.
    text = (TEMPLATES / f"{file_name(name)}.txt").read_text(encoding="utf-8")
    return Template(text).substitute({**of_example, **values})


def _file(stream: str) -> str:
    """Return the name of a stream as that of a file."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", stream)


def _checkpoint(stream: str, name: str) -> str:
    """Return a folder of its own for each stream, also if two have one name as files."""
    file = _file(stream)
    mark = "" if file == stream else f"-{zlib.crc32(stream.encode()):08x}"
    return quoted(f"out/checkpoints/{file}{mark}-{name}")


def _column(name: str, kind: str, example: Example) -> str:
    line = f'{_toml_key(name)} = "{kind}"'
    if name in example.reserved:
        return f"# {line}   # this name is reserved for the job"
    return f"{line}   # {example.notes[name]}" if name in example.notes else line


def _sql(name: str) -> str:
    """Return a column's name in SQL."""
    return name if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name.replace('`', '``')}`"


def _toml_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else quoted(name)
