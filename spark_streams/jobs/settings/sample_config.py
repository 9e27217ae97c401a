"""A first configuration: the sample of conf/, unchanged or adapted to an existing stream.

The samples are about flights. For another stream, its name and the fields of its entries replace them. Settings of
single columns of the flights (rules, partitions, further outputs) become comments about a column of the stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from spark_streams.jobs.arguments import MONITORING
from spark_streams.jobs.settings.spark_settings import CONF
from spark_streams.wire.connection.server import Server

Columns = Sequence[tuple[str, str]]  # names and types, as infer_schema gives them
_ENTRIES = 500  # how many of the oldest and of the newest entries are read

# SQL names of types that infer_schema returns. The other names are the same in SQL.
_SQL = {"long": "BIGINT"}
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_RULE = "                           # rows for which `when` (SQL over the typed columns) holds become dead letters\n"
_RESERVED = re.compile(r"_.*|dl\..*|batch", re.IGNORECASE)  # names that the jobs use themselves


def sample_config(name: str) -> str:
    """Return the sample of a job, or of the alerts or the dashboard."""
    return (CONF / file_name(name)).read_text(encoding="utf-8")


def file_name(name: str) -> str:
    """Return the name of a sample's file in conf/."""
    return MONITORING.get(name, f"{name}.toml")


def columns_of(server: Server, stream: str) -> list[tuple[str, str]]:
    """Return names and types of the fields of a stream's entries. Raises SchemaError."""
    from spark_streams.source.batch.infer_schema import infer

    ends = [("XRANGE", stream, "-", "+"), ("XREVRANGE", stream, "+", "-")]
    replies = server.pipeline([(*end, "COUNT", _ENTRIES) for end in ends])
    return infer(fields for reply in replies for _id, fields in reply)


def adapt_sample(sample: str, stream: str, columns: Columns, url: str | None = None) -> str:
    """Adapt a sample to a stream. columns: of the stream; url: of the server, if the file is to name it."""
    usable = [(name, kind) for name, kind in columns if not _RESERVED.fullmatch(name)] or [("field", "string")]
    tables = re.split(r"(?m)^(?=#? ?\[)", sample)
    text = "".join(_table(table, stream, columns, usable) for table in tables)
    return text if url is None else re.sub(r"(?m)^# url = \S+ *", lambda _: f"url = {_toml(url)}   ", text, count=1)


def _table(table: str, stream: str, columns: Columns, usable: Columns) -> str:
    """Adapt a table of the sample, with its head, or the text above the first table."""
    head = table.partition("\n")[0]
    if head.startswith("[columns]"):
        return "\n".join([head, *(_column(name, kind) for name, kind in columns), "\n"])
    if head.startswith("[aggregate.values]"):
        return f'{head}\nentries = "count(*)"\n\n'
    for sample, neutral in _replacements(stream, usable):
        table = re.sub(sample, neutral.replace("\\", r"\\"), table, flags=re.MULTILINE | re.DOTALL)
    return table


def _replacements(stream: str, columns: Columns) -> list[tuple[str, str]]:
    """Return patterns of texts about flights, each with its replacement. columns: usable columns of the stream."""
    key = next((name for name, kind in columns if kind == "string"), columns[0][0])
    moment = next((name for name, kind in columns if kind == "timestamp"), "at")
    file = re.sub(r"[^A-Za-z0-9_.-]", "-", stream)
    absent = _toml(f"{_sql(key)} IS NULL")
    ddl = [f"{_sql(name)} {_type(kind)}" for name, kind in columns]
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
        (r'(?<=")flights(?=[":])', _toml(stream)[1:-1]),
    ]


def _column(name: str, kind: str) -> str:
    line = f'{_toml_key(name)} = "{_type(kind)}"'
    return f"# {line}   # this name is reserved for the job" if _RESERVED.fullmatch(name) else line


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
