"""Streams of an application, for the console's pages: groups with lag, pending entries, dead letters of three reasons,
shards, and the log of a query."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from spark_streams import dead_letters
from spark_streams.connector.shards.names import shards_of

STREAM, GROUP, DEAD = "orders", "billing", "orders:dead"
# Before a console: it shows all that hold entries.
SOON = "from spark_streams.operations.monitor import held; held.IDLE_MS = 0; "
ENTRIES = 600
LETTERS = 300
_FAILURES: Sequence[tuple[str, Exception, dict[str, str]]] = (
    ("no amount", ValueError("field amount is empty"), {"amount": ""}),
    ("decode: amount does not fit DOUBLE", TypeError("amount = '12,50' is no DOUBLE"), {"amount": "12,50"}),
    ("timeout", TimeoutError("POST https://ledger.example/book: no answer within 5 s"), {}),
)


@dataclass(frozen=True)
class NormalData:
    """IDs of dead letters, by the reason of their failure, and a log of a query."""

    letters: Mapping[str, Sequence[str]]
    log: Path | None = None


def order(number: int, **fields: str) -> dict[str, str]:
    """Return the fields of an order."""
    customer = ("ann", "bob", "carlos", "dörte", "eve")[number % 5]
    return {"order": f"{number:06d}", "customer": customer, "amount": f"{number % 90 + 0.5:.2f}", **fields}


def write_normal(client: redis.Redis, folder: Path | None = None) -> NormalData:
    """Write streams of an application: groups with lag, pending entries, dead letters of three reasons, shards, and the
    log of a query. The last entry is some seconds old."""
    now = time.time_ns() // 1_000_000
    began = now - 600_000
    _add(client, STREAM, [(began + n * 990, order(n)) for n in range(ENTRIES)])
    _add(client, "payments", [(began + n * 4000, {"payment": str(n), "method": "card"}) for n in range(140)])
    _add(client, "audit:log", [(began + n * 60_000, {"user": "ann", "text": "logged in"}) for n in range(8)])
    client.xgroup_create("payments", "ledger", id="0")
    client.xgroup_create("payments", "abandoned", id="0")
    client.xreadgroup("ledger", "worker-1", {"payments": ">"}, count=120)
    client.xgroup_create(STREAM, "search", id="$")
    client.xgroup_create(STREAM, GROUP, id="0")
    for name in shards_of("clicks", 4):
        _add(client, name, [(began + n * 10_000, {"page": f"/p/{n % 7}", "user": str(n)}) for n in range(50)])
        client.xgroup_create(name, "sessions", id="0")
        client.xreadgroup("sessions", "etl", {name: ">"}, count=40)
    letters = _write_failures(client)
    client.xreadgroup(GROUP, "worker-2", {STREAM: ">"}, count=60)  # of these 12 stay pending
    pending = client.xpending_range(STREAM, GROUP, "-", "+", 60, "worker-2")
    client.xack(STREAM, GROUP, *[entry["message_id"] for entry in pending[:48]])
    return NormalData(letters, None if folder is None else write_log(folder / "billing.jsonl", now))


def _add(client: redis.Redis, stream: str, entries: Iterable[tuple[int, Mapping[str, str]]]) -> None:
    pipe = client.pipeline(transaction=False)
    for at_ms, fields in entries:
        pipe.xadd(stream, dict(fields), id=f"{at_ms}-0")
    pipe.execute()


def _write_failures(client: redis.Redis) -> dict[str, list[str]]:
    """Let a consumer give up entries."""
    letters: dict[str, list[str]] = {reason: [] for reason, _, _ in _FAILURES}
    replies: Any = client.xreadgroup(GROUP, "worker-1", {STREAM: ">"}, count=LETTERS)
    for number, (entry_id, fields) in enumerate(replies[0][1]):
        reason, error, broken = _FAILURES[number % 7 % 3]
        letter = dead_letters.write(
            client, STREAM, GROUP, entry_id, {**fields, **{name.encode(): text for name, text in broken.items()}},
            to=DEAD, reason=reason, error=error,
        )  # fmt: skip
        assert isinstance(letter, bytes)
        letters[reason].append(letter.decode())
    return letters


def write_log(path: Path, now_ms: int) -> Path:
    """Write the log of a query, as spark_streams.watch does: forty batches, of which one has failed."""

    def line(event: str, ago_s: int, **values: object) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_ms / 1000 - ago_s))
        return json.dumps({"at": f"{at}.000Z", "event": event, "query": "billing", "id": "b", "run": "r", **values})

    group = {
        "stream": STREAM, "group": GROUP, "consumer": "etl", "position": "5-0", "pending": 9, "oldest_idle_ms": 11,
        "entries": 20, "lost": 0, "claimed": 0, "dead": 0,
    }  # fmt: skip
    lines = [line("started", 410)]
    for number in range(40):
        lag = {"lag": 50 + 7 * (number % 9), "lag_ms": 900 + 130 * (number % 9)}
        batch = {"batch": number, "batch_ms": 200 + 31 * (number % 5), "rows": 20, "rows_per_second": 80.0}
        lines.append(line("progress", 400 - 10 * number, **batch, groups=[{**group, **lag}]))
    lines.append(line("terminated", 5, error="RSTREAM_DECODE", message="entry 5-0 of 'orders': amount is no DOUBLE"))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
