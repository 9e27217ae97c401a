"""A first configuration: the sample of conf/, unchanged or adapted to an existing stream.

The samples are about flights. For another stream, its name and the fields of its entries replace them. Settings of
single columns of the flights (rules, partitions, further outputs) become comments about a column of the stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spark_streams import monitor
from spark_streams.jobs.arguments import MONITORING
from spark_streams.jobs.settings.spark_settings import CONF
from spark_streams.wire.connection.server import Server

if TYPE_CHECKING:
    from spark_streams.source.batch.infer_schema import InferredColumn  # needs Arrow, which a sample does not

MONITORING_CONF = Path(monitor.__file__).parent / "conf"

_ENTRIES = 500  # how many of the oldest and of the newest entries are read

# SQL names of types that infer_schema returns. The other names are the same in SQL.
_SQL = {"long": "BIGINT"}
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_RULE = "                           # rows for which `when` (SQL over the typed columns) holds become dead letters\n"
_RESERVED = re.compile(r"_.*|dl\..*|batch", re.IGNORECASE)  # names that the jobs use themselves


def sample_config(name: str) -> str:
    """Return the sample of a job, or of the alerts or the dashboard."""
    folder = MONITORING_CONF if name in MONITORING else CONF
    return (folder / file_name(name)).read_text(encoding="utf-8")


def file_name(name: str) -> str:
    """Return the name of a sample's file."""
    return MONITORING.get(name, f"{name}.toml")


def columns_of(
    server: Server, stream: str, null_values: Collection[bytes] = (), share: float | None = None
) -> list[InferredColumn]:
    """Return the columns of a stream, from its oldest and newest entries. share: None: that of infer_schema."""
    from spark_streams.source.batch.infer_schema import SHARE, infer

    ends = [("XRANGE", stream, "-", "+"), ("XREVRANGE", stream, "+", "-")]
    replies = server.pipeline([(*end, "COUNT", _ENTRIES) for end in ends])
    entries = {entry_id: fields for reply in replies for entry_id, fields in reply}
    return infer(entries.values(), (), null_values, SHARE if share is None else share)


def adapt_sample(
    sample: str, stream: str, columns: Sequence[InferredColumn], url: str | None = None, null_value: str | None = None
) -> str:
    """Adapt a sample to a stream. columns: of the stream; url: of the server, if the file is to name it; null_value:
    option nullValue, if the file is to set it."""
    from spark_streams.source.batch.infer_schema import InferredColumn

    usable = [column for column in columns if not _RESERVED.fullmatch(column.name)]
    usable = usable or [InferredColumn("field", "string")]
    tables = re.split(r"(?m)^(?=#? ?\[)", sample)
    text = "".join(_table(table, stream, columns, usable) for table in tables)
    if null_value is not None:
        text = re.sub(
            r"(?m)^(\[source\].*\n)", lambda head: f"{head[1]}nullValue = {_toml(null_value)}\n", text, count=1
        )
    return text if url is None else re.sub(r"(?m)^# url = \S+ *", lambda _: f"url = {_toml(url)}   ", text, count=1)


def _table(table: str, stream: str, columns: Sequence[InferredColumn], usable: Sequence[InferredColumn]) -> str:
    """Adapt a table of the sample, with its head, or the text above the first table."""
    head = table.partition("\n")[0]
    if head.startswith("[columns]"):
        return "\n".join([head, *map(_column, columns), "\n"])
    if head.startswith("[aggregate.values]"):
        return f'{head}\nentries = "count(*)"\n\n'
    for sample, neutral in _replacements(stream, usable):
        table = re.sub(sample, neutral.replace("\\", r"\\"), table, flags=re.MULTILINE | re.DOTALL)
    return table


def _replacements(stream: str, columns: Sequence[InferredColumn]) -> list[tuple[str, str]]:
    """Return patterns of texts about flights, each with its replacement. columns: usable columns of the stream."""
    key = next((column.name for column in columns if column.kind == "string"), columns[0].name)
    moment = next((column.name for column in columns if column.kind == "timestamp"), "at")
    file = re.sub(r"[^A-Za-z0-9_.-]", "-", stream)
    table = re.sub("[^A-Za-z0-9_]+", "_", stream).strip("_")
    table = table if re.match("[A-Za-z]", table) else f"t_{table}"  # a name that SQL takes without quotes
    absent = _toml(f"{_sql(key)} IS NULL")
    ddl = [f"{_sql(column.name)} {_type(column.kind)}" for column in columns]
    return [
        (r'^\[\[rule\]\](.*?)^reason = "[^"]*"$', f"# [[rule]]{_RULE}# reason = {_toml(f'no {key}')}"),
        (r'^when = "dep_time IS NULL"$', f"# when = {absent}"),
        (r'^# query = "[^"]*"', f"# query = {_toml(f'SELECT *, {_sql(key)} IS NULL AS incomplete FROM rows')}"),
        (r'^# name = "late"', '# name = "incomplete"'),
        (r'"flights:late"', _toml(f"{stream}:incomplete")),
        (r'^# where = "dep_delay > 15"', f"# where = {absent}"),
        (r'^where = "dep_delay IS NOT NULL"', f"# where = {_toml(f'{_sql(key)} IS NOT NULL')}"),
        (r'^# select = \["carrier"[^]]*\]', f"# select = [{_toml(_sql(key))}]"),
        (r"^partition_by = \[[^]]*\]", f"# partition_by = [{_toml(key)}]"),
        (r"^keys = \[[^]]*\]", f"keys = [{_toml(key)}]"),
        (r'^# event_time = "time_hour"', f"# event_time = {_toml(moment)}"),
        (r'^stream = "delays"', f"stream = {_toml(f'{stream}:totals')}"),
        (r'^schema = """.*?"""', f"schema = {_toml(', '.join(ddl))}"),
        (r'ddl = "[^"]*"', f"ddl = {_toml(', '.join(ddl[:2]))}"),
        (r'^# carrier = "UA"', f'# {_toml_key(key)} = "…"'),
        (r'"repairs:departure"', '"repairs:repaired"'),
        (r"; scripts/run writes the flights of 2013 to it", ""),
        (r'"flights\.avsc"', f'"{file}.avsc"'),
        (r'"flights\.json"', f'"{file}.json"'),
        (r'"out/flights\.csv"', f'"out/{file}.csv"'),
        (r'"out/flights"', f'"out/{file}"'),
        (r'(?<=^group = ")(?=\w)', _toml(f"{stream}-")[1:-1]),  # two configurations share no group
        (r'(?<="out/checkpoints/)', f"{file}-"),  # and no checkpoint
        (r'(?<=name = )"flights"(?=, a table)', _toml(table)),
        (r'(?<=")flights(?=[":])', _toml(stream)[1:-1]),
    ]


def _column(column: InferredColumn) -> str:
    line = f'{_toml_key(column.name)} = "{_type(column.kind)}"'
    if _RESERVED.fullmatch(column.name):
        return f"# {line}   # this name is reserved for the job"
    return line if column.comment is None else f"{line}   # {column.comment}"


def _type(kind: str) -> str:
    return _SQL.get(kind, kind.upper())


def _sql(name: str) -> str:
    """Return a column's name in SQL."""
    return name if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name.replace('`', '``')}`"


def _toml_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _toml(name)


def _toml(text: str) -> str:
    """Return a text as a TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
