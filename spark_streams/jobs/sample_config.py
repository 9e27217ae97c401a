"""A configuration to begin with: the sample of conf/, as it is or for a stream that there is.

The samples are about flights. For another stream its own name and the fields of its entries stand in their place, and
what is said of single columns of the flights (rules, keys, partitions) is left to whoever knows the columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from spark_streams.jobs.arguments import MONITORING
from spark_streams.jobs.spark_settings import CONF
from spark_streams.wire.server import Server

_ENTRIES = 500  # that are looked at, oldest ones and newest ones

# What infer_schema finds, as SQL has it; a value that is no UTF-8 stays as it is.
_SQL = {"long": "BIGINT"}
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_TAKEN = re.compile(r"_.*|dl\..*|batch", re.IGNORECASE)  # names that the jobs use themselves


def sample_config(name: str) -> str:
    """The sample of a job, or of what else there is one of."""
    return (CONF / file_of(name)).read_text(encoding="utf-8")


def file_of(name: str) -> str:
    """What it is called in conf/."""
    return MONITORING.get(name, f"{name}.toml")


def columns_of(server: Server, stream: str) -> list[tuple[str, str]]:
    """Names and types of the fields of a stream's entries. Raises SchemaError."""
    from spark_streams.source.batch.infer_schema import infer

    ends = [("XRANGE", stream, "-", "+"), ("XREVRANGE", stream, "+", "-")]
    replies = server.pipeline([(*end, "COUNT", _ENTRIES) for end in ends])
    return infer(fields for reply in replies for _id, fields in reply)


def about(sample: str, stream: str, columns: Sequence[tuple[str, str]]) -> str:
    """The sample, about this stream. columns: names and types, as infer_schema gives them."""
    tables = re.split(r"(?m)^(?=#? ?\[)", sample)
    return "".join(_table(table, stream, columns) for table in tables)


def _table(table: str, stream: str, columns: Sequence[tuple[str, str]]) -> str:
    """A table of the sample, with its head, or what stands above the first one."""
    head = table.partition("\n")[0]
    if head.startswith("[columns]"):
        return "\n".join([head, *(_column(name, kind) for name, kind in columns), "\n"])
    if head.startswith("[[rule]]"):
        return "".join(f"# {line}\n" if line else "\n" for line in table.splitlines())
    if head.startswith("[aggregate.values]"):
        return f'{head}\nentries = "count(*)"\n\n'
    table = re.sub(r'(?<=")flights(?=[":])', lambda _: json.dumps(stream)[1:-1], table)
    table = re.sub(r'(?<="out/)flights(?=")', lambda _: re.sub(r"[^A-Za-z0-9_.-]", "-", stream), table)
    table = re.sub(r"(?m)^(?=(partition_by|where) = )", "# ", table)
    return re.sub(r"(?m)^keys = \[.*?\]", f"keys = [{json.dumps(_key(columns))}]", table) if columns else table


def _key(columns: Sequence[tuple[str, str]]) -> str:
    """What to group by, until somebody says it: the first text, else the first column."""
    return next((name for name, kind in columns if kind == "string"), columns[0][0])


def _column(name: str, kind: str) -> str:
    key = name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)
    line = f'{key} = "{_SQL.get(kind, kind.upper())}"'
    return f"# {line}   # a name that the job itself uses" if _TAKEN.fullmatch(name) else line
