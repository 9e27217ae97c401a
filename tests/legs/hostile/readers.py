"""Everything that reads what a stranger may have written, each a function that raises if its reader ended by that."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.deadletter.redrive import DeadLetterRedrive
from spark_streams.connector.deadletter.redrive_plan import RedriveOptions
from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.source.batch_reader import BatchReader, infer_schema
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.wire.address import Address
from tools.servers.server import Server

TIME = pa.timestamp("us", tz="UTC")
WIDE = pa.schema([
    ("n", pa.int64()), ("amount", pa.decimal128(10, 2)), ("at", TIME), ("_stream", pa.string()), ("_id", pa.string()),
    ("_timestamp", TIME), ("_fields", pa.map_(pa.binary(), pa.binary())),
])  # fmt: skip
TRIES = WIDE.append(pa.field("_attempt", pa.int32())).append(pa.field("_first_failed", TIME))

COMMANDS: Sequence[tuple[str, ...]] = (
    ("streams",), ("lag",), ("lag", "--json"), ("pending",), ("pending", "s", "--group", "g", "--entries", "5"),
    ("top", "--once"), ("doctor",), ("show", "s"), ("show", "dead", "--json"), ("shards",), ("tail", "s"), ("tail",),
    ("tail", "--json"), ("exporter", "--once"), ("dead", "list"), ("dead", "list", "--json"),
    ("dead", "list", "dead"), ("dead", "show", "dead"), ("dead", "show", "dead", "--json"), ("dead", "export", "dead"),
    ("dead", "redrive", "dead"), ("dead", "purge", "dead"),
    ("groups", "delete", "s", "--group", "g"), ("groups", "seek", "s", "--group", "g", "--to", "0"),
    ("groups", "claim", "s", "--group", "g", "--from", "c", "--to", "ann"),
)  # fmt: skip
_FINE = {0, 3}  # 3: something is not well, by the command's own judgement
JSON = ("export", "--json")


def command(server: Server, *words: str) -> str:
    """What `rstream` prints. Fails where it ends by an error, or prints what a terminal would obey."""
    result = CliRunner().invoke(main, [*words, "--url", server.url], env={"COLUMNS": "200"})
    if result.exit_code not in _FINE or not isinstance(result.exception, SystemExit | None):
        raise AssertionError(f"rstream {' '.join(words)}: {result.output[-500:]!r}") from result.exception
    obeyed = {c for c in result.output if not c.isprintable() and c != "\n"}
    if obeyed:
        raise AssertionError(f"rstream {' '.join(words)} prints {sorted(obeyed)}")
    return result.stdout


def batch(server: Server, **options: str) -> list[dict[str, Any]]:
    """The rows of spark.read, and that a schema can be inferred."""
    checked = BatchSourceOptions.parse({"url": server.url, **options})
    if "inferSchema" in options:
        infer_schema(checked)
    one = BatchReader(checked, Columns(WIDE, True, checked.mode, checked.column_name_of_corrupt_record))
    return [row for part in one.partitions() for found in one.read(part) for row in found.to_pylist()]


def all_commands(server: Server) -> None:
    """Each command that looks, or is a dry run."""
    for words in COMMANDS:
        printed = command(server, *words)
        if words[-1] == "--json" and words[0] != "tail":
            json.loads(printed)
        if "export" in words:
            [json.loads(line) for line in printed.splitlines()]


def redrive(server: Server) -> None:
    """Dead letters go back from a stream that no query reads,
    and none of them to a key of the product, whatever it says."""
    with server.client() as client:
        if not client.exists("letters"):
            return
    report = DeadLetterRedrive(Address.parse(server.url), RedriveOptions("letters", limit=20)).run()
    wrong = [to for action, to, _ in report.destinations() if action == "move" and to.startswith("rstream:")]
    if wrong:
        raise AssertionError(f"dead letters were sent to {wrong}")


READERS: dict[str, Callable[[Server], object]] = {
    "rstream": all_commands,
    "spark.read of a stream": lambda server: batch(server, streams="s", inferSchema="true"),
    "spark.read of a pattern": lambda server: batch(server, streamsPattern="*"),
    "redrive": redrive,
    "spark.read of dead letters": lambda server: batch(server, streams="dead"),
}
