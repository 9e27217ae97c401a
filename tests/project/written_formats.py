"""All that the product writes beside streams, as commands, and their form: what an older version must be able to read.

`python -m tests.project.written_formats` writes the samples of this version into tests/data/formats.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner

from spark_streams.base.version import __version__
from spark_streams.cli import main
from spark_streams.connector.shards.shard_sets import ensure_shards
from spark_streams.connector.sink.batch_commit import begin_job
from spark_streams.connector.sink.chunk_writer import SinkTask, append
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tests.connector.deadletter.making import fill, redrive
from tests.connector.sink.writing import batch_of, close, frame, killed_before_chunk, options, write
from tests.connector.source.limited_user import read_in_all_ways
from tests.connector.source.supervised import Supervised
from tools.driving import ALL, add, forget_all, read, reader
from tools.sending import commands_in
from tools.servers.server import Server, running_engine

MINOR = __version__.rpartition(".")[0]
FOLDER = Path(__file__).resolve().parents[1] / "data" / "formats"
_WRITING = (b"SET", b"HSET", b"HSETNX", b"SADD", b"APPEND", b"INCRBY", b"DECRBY", b"XADD")
_HIDDEN = ("host", "space", "born", "message")  # of the machine, and for people
Form = tuple[str, ...]  # kind of key, command, forms of its arguments


@contextlib.contextmanager
def recording() -> Iterator[dict[Form, list[str]]]:
    """Record a sample of each form of what this process writes beside streams, and of dead letters."""
    found: dict[Form, list[str]] = {}
    send = Connection.send

    def recorded(self: Connection, data: bytes | memoryview) -> None:
        for words in commands_in(bytes(data)):
            if words[0] in _WRITING and (form := form_of(words)):
                found.setdefault(form, [text(word) for word in words])
        send(self, data)

    to_json = Offset.to_json

    def recorded_offset(self: Offset) -> dict[str, object]:
        value = to_json(self)
        found.setdefault(
            ("offset", "JSON", json.dumps(_fields(value), sort_keys=True)), ["JSON", "", json.dumps(value)]
        )
        return value

    with mock.patch.object(Connection, "send", recorded), mock.patch.object(Offset, "to_json", recorded_offset):
        yield found


def text(word: bytes) -> str:
    """As a JSON string: Latin-1, so that all bytes come back."""
    return word.decode("latin-1")


def form_of(words: Sequence[bytes]) -> Form | None:
    """Return the form of a command; None for an entry that is no dead letter, and for other programs' keys."""
    command, key = words[0].decode(), words[1]
    if command == "XADD":
        names = [name.decode("utf-8", "replace") for name in words[words.index(b"*") + 1 :: 2]]
        kind = "letter" if not key.startswith(b"rstream:") else key.split(b":")[1].decode()
        return (kind, command, *(name for name in names if name.startswith("dl."))) if "dl.id" in names else None
    if not key.startswith(b"rstream:"):
        return None
    kind = re.sub(r"^rstream:(\w+).*?(:parts|:carried|:written|:claims)?$", r"\1\2", key.decode("utf-8", "replace"))
    forms = list(map(_form, words[2:]))
    if command == "HSET":  # any number of fields
        return (kind, command, *sorted({" ".join(pair) for pair in zip(forms[0::2], forms[1::2], strict=True)}))
    return (kind, command, *forms)


def _form(word: bytes) -> str:
    try:
        value = word.decode()
        parsed = json.loads(value) if value[:1] == "{" else None
    except ValueError:
        return "bytes"
    if "\0" in value:
        return "bytes"
    if parsed is not None:
        return json.dumps(_fields(parsed), sort_keys=True)
    if value.startswith("*"):  # a note on an entry: words of a request
        [words] = commands_in(word)
        return f"query, batch, time, reason, {len(words[4:]) // 2} fields"
    return _numbers(value)


def _numbers(value: str) -> str:
    """Tokens and numbers of any length are alike."""
    return re.sub(r"(?<![a-z])[0-9a-f]{8,}(?![a-z])|\d+", "0", value)


def _fields(value: object) -> object:
    if isinstance(value, dict):
        return {_numbers(name): "" if name in _HIDDEN else _fields(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_fields(one) for one in value[:1]]
    return _numbers(value) if isinstance(value, str) else type(value).__name__


def live(server: Server) -> None:
    """Use most of what the product can do, on an empty server."""
    with server.client(decode_responses=True) as client:
        read_in_all_ways(server, server)
        forget_all()
        # Batches that kill their query are cut into pieces. Entries that are missing are counted.
        add(client, 20, "p")
        dying = Supervised(server, {3}, streams="p", group="p")
        for _ in range(6):
            dying.start()
        add(client, 8, "m")
        query = reader(server, streams="m", group="m", failOnDataLoss="false")
        at = query.initialOffset()
        end = query.latestOffset(at, ALL)
        client.xdel("m", client.xrange("m")[3][0])
        read(query, at, end)
        query.latestOffset(end, ALL)
        forget_all()
        sinks: Sequence[dict[str, Any]] = ({}, {"shards": "2", "shardBy": "n"}, {"rowsPerSecond": "100000"})
        for n, given in enumerate(sinks):
            checked, batch = options(server.url, stream=f"out{n}", chunkSize="20", **given), batch_of(n)
            killed_before_chunk(2, [frame(range(60))], checked, batch)
            again = batch_of(n, query_run="again")
            close(checked, again, write([frame(range(60))], checked, again))
        checked = options(server.url, stream="job")
        job = begin_job(checked.address)
        close(checked, job, append([frame(range(9))], checked, SinkTask(job)))
        fill(server, 30)
        redrive(server)
        with Connection(Address.parse(server.url)) as connection:
            ensure_shards(connection, "parts", 2, "key")
        seek = "groups seek s --group g --to 0 --even-active --yes --url"
        ran = CliRunner().invoke(main, [*seek.split(), server.url])
        assert ran.exit_code == 0, ran.output
        forget_all()


def as_json(found: dict[Form, list[str]]) -> str:
    """One line for each form: its sample."""
    return "[\n" + ",\n".join(json.dumps(found[form]) for form in sorted(found)) + "\n]\n"


if __name__ == "__main__":
    with running_engine() as engine, recording() as all_written:
        live(engine)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{MINOR}.json").write_text(as_json(all_written), encoding="utf-8")
    print(*sorted(all_written), sep="\n")
