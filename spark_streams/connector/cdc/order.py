"""The order of the changes of a key, as a text of four parts.

    1/shop~00000000000000223344~binlog/-00000000000000000007-00000000000000000150-…/00000001744613916000-…-…
    │ └─ server, and its log ────────┘ └─ position in the log ────────────────────┘ └ source.ts_ms, entry's ID
    └ 0: a row of a snapshot; 1: a change

Within one server the position decides: `ts_ms` of MySQL is the time at which a statement began, and any clock may go
back. Positions of two servers cannot be compared, so between servers the time decides. No text can be greater by both
rules: `is_later` compares by them, and the texts themselves compare within one server.

Each part of a position is a number of a fixed width. An event has the columns of one connector, so each place has the
columns of several (facts.md, D7).

Debezium appends an event again after an error of the server, which may come after a later one: so the entry's ID comes
last. A row of a snapshot has its state at the begin of the snapshot, but the time and the position of the reading. So
each change is later than all rows of snapshots, and of these the time decides.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_streams.connector.cdc.event_values import let, literal, text_of

_DAY_MS = 86_400_000
_LEAST_MS = 1_000_000_000_000  # of an ID that is a time in milliseconds: September 2001. Others are counters.
_NUMBERS = ("server_id", "pos", "row", "lsn", "event_serial_no", "scn", "commit_scn", "ssn", "ord", "tord")
_HEXADECIMALS = ("commit_lsn", "change_lsn", "rs_id")  # parts with `:` or `.` between: 00000027:00000ac0:0002
_NAMES = ("name", "file", "gtid", "ts_ms", "snapshot")
_IS_NUMBER = "^[0-9]{1,20}$"
_IS_HEXADECIMAL = "^(0x)?[0-9a-f]{1,16}([:.][0-9a-f]{1,16}){0,3}$"
_GTID = "^(.+)[:-]([0-9]{1,20})$"  # MySQL: source:number or source:tag:number; MariaDB: domain-server-number
_FILE = "^(.*)[.]([0-9]{1,20})$"
_TIME = "at.ts_ms"


def _number(text: str) -> str:
    return f"lpad({text}, 20, '0')"


def _hexadecimal(text: str) -> str:
    parts = f"split(replace({text}, '0x', ''), '[:.]')"
    return f"array_join(transform({parts}, part -> lpad(part, 16, '0')), '')"


def _group(text: str, pattern: str, number: int) -> str:
    """Return a group of the pattern, null if the text is not like it."""
    return f"CASE WHEN rlike({text}, '{pattern}') THEN regexp_extract({text}, '{pattern}', {number}) END"


_PLACES = (
    (
        _number(_group("at.gtid", _GTID, 2)),
        _hexadecimal("at.commit_lsn"),
        _number("at.scn"),
        _number("at.lsn"),
        f"CASE WHEN at.ord IS NOT NULL THEN {_number(_TIME)} END",  # MongoDB's time is that of its log
    ),
    (
        _number(_group("at.file", _FILE, 2)),
        _hexadecimal("at.change_lsn"),
        _number("at.commit_scn"),
        _number("at.ord"),
    ),
    (_number("at.pos"), _number("at.event_serial_no"), _hexadecimal("at.rs_id"), _number("at.tord")),
    (_number("at.row"), _number("at.ssn")),
)
# After a failover with GTIDs, Debezium reads the transactions of the old server in the log of the new one.
_LOG = f"coalesce({_group('at.gtid', _GTID, 1)}, {_group('at.file', _FILE, 1)}, at.file, '')"
_SERVER = f"concat_ws('~', coalesce(at.name, ''), coalesce({_number('at.server_id')}, ''), {_LOG})"


def place() -> Column:
    """Return the text as `order`, and as `wrong` why the event has none."""
    texts = [f"{_text(name)} AS {name}" for name in (*_NAMES, *_NUMBERS)]
    texts += [f"nullif(lower(trim({_text(name)})), 'null') AS {name}" for name in _HEXADECIMALS]
    is_marked = "lower(coalesce(at.snapshot, 'false')) NOT IN ('false', '')"
    # Old connectors write snapshots as inserts.
    is_of_snapshot = f"coalesce(__op = 'r' OR (__op = 'c' AND {is_marked}), false)"
    position = ", ".join(f"coalesce({', '.join(columns)}, '')" for columns in _PLACES)
    entry = [_number(f"substring_index(_id, '-', {number})") for number in (1, -1)]
    time = f"concat_ws('-', {_number(f'coalesce({_TIME}, 0)')}, {', '.join(entry)})"
    of_change = f"concat_ws('/', '1', translate({_SERVER}, '/', '_'), concat_ws('-', {position}), {time})"
    order = f"CASE WHEN {is_of_snapshot} THEN concat('0///', {time}) ELSE {of_change} END"
    wrong = f"coalesce({_wrong_time()}, CASE WHEN NOT {is_of_snapshot} THEN {_wrong_position()} END)"
    placed = let("wrong", wrong, f"struct(CASE WHEN wrong IS NULL THEN {order} END AS order, wrong AS wrong)")
    return F.expr(let("at", f"struct({', '.join(texts)})", placed))


def is_later(one: str, other: str) -> str:
    """Return the SQL expression for: one `_order` of a key is later than the other.

    Within one server of the database the log's position decides, between servers the time. Two texts of one server are
    also right if they are compared with `>`. The functions in the expression are those of Spark and of DataFusion, with
    which the Python package `deltalake` merges.

    Args:
        one: SQL expression of an `_order`, as `s._order`.
        other: SQL expression of another one, as `t._order`.

    Returns:
        The expression. It is null if one of them is null.
    """

    def part(text: str, number: int) -> str:
        return f"split_part({text}, '/', {number})"

    are_of_two_servers = f"{part(one, 1)} = {part(other, 1)} AND {part(one, 2)} <> {part(other, 2)}"
    by_time = f"{part(one, 4)} > {part(other, 4)}"
    return f"(CASE WHEN {are_of_two_servers} THEN {by_time} ELSE {one} > {other} END)"


def _wrong_time() -> str:
    """Return why the time of the change cannot be right; null if it can."""
    appended = "try_cast(substring_index(_id, '-', 1) AS DECIMAL(20, 0))"
    is_late = f"{appended} >= {_LEAST_MS} AND try_cast({_TIME} AS DECIMAL(20, 0)) > {appended} + {_DAY_MS}"
    return (
        f"CASE WHEN NOT rlike({_TIME}, '^[0-9]{{1,19}}$') THEN 'source.ts_ms is no time in milliseconds since 1970' "
        f"WHEN {is_late} THEN {literal('source.ts_ms is more than a day later than the entry' + chr(39) + 's ID')} END"
    )


def _wrong_position() -> str:
    """Return which part of the position cannot be compared; null if all can."""
    pattern_by_name = {**dict.fromkeys(_NUMBERS, _IS_NUMBER), **dict.fromkeys(_HEXADECIMALS, _IS_HEXADECIMAL)}
    wrong = [
        f"WHEN NOT rlike(at.{name}, '{pattern}') THEN 'source.{name} is no position in a log'"
        for name, pattern in pattern_by_name.items()
    ]
    return f"CASE {' '.join(wrong)} END"


def _text(name: str) -> str:
    return text_of(f"try_element_at(__source, '{name}')")
