"""An entry or dead letter with 100,000 fields: commands for people show some of them, --json shows all."""

from __future__ import annotations

import json
import time

import pytest
import redis

from spark_streams.connector.deadletter.envelope import dead_letter_fields
from tests.operations.monitor.test_cli import rstream
from tools.servers.server import Server

MANY = 100_000
ENVELOPE = {
    "stream": "s", "id": "5-1", "group": "g", "stage": "read", "reason": "too wide",
    "first-failed": "2026-01-01T00:00:00.000000Z", "last-failed": "2026-01-01T00:00:00.000000Z",
}  # fmt: skip


@pytest.fixture
def wide(client: redis.Redis) -> None:
    """Stream dead with one dead letter of many fields."""
    words: list[bytes] = []
    for n in range(MANY):
        words += [b"field%d" % n, b"v"]
    client.execute_command("XADD", "dead", "1-1", *dead_letter_fields(words, ENVELOPE))


SHOWS = ["dead show dead", "dead show dead 1-1", "show dead", "show dead 1-1", "tail dead"]


@pytest.mark.parametrize("words", SHOWS)
def test_some_fields_are_shown_and_all_of_the_envelope(server: Server, wide: None, words: str) -> None:
    shown = rstream(server, *words.split())
    assert shown.exit_code == 0
    assert shown.output.count("\n") < 300
    assert "\n  field199 " in shown.output
    assert "field200 " not in shown.output
    assert "dl.reason        too wide\n" in shown.output
    assert f"… and {MANY - 200:,} more fields (--json has all of them)\n" in shown.output


@pytest.mark.in_turn
def test_json_has_all_of_them(server: Server, wide: None) -> None:
    [letter] = json.loads(rstream(server, "dead", "show", "dead", "--json").output)
    assert len(letter["fields"]) == MANY


@pytest.mark.in_turn
def test_lists_and_boards_are_short_and_soon_there(server: Server, wide: None) -> None:
    begun = time.process_time()
    for words in (["dead", "list"], ["dead", "list", "dead"], ["top", "--once"], ["exporter", "--once"], ["streams"],
                  ["dead", "redrive", "dead"]):  # fmt: skip
        said = rstream(server, *words)
        assert said.exit_code == (3 if "redrive" in words else 0), words  # it names no stream: nothing can be sent back
        assert len(said.output) < 20_000, words
    assert time.process_time() - begun < 20


def test_long_names_are_cut_and_few_fields_are_not(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"n" * 100_000: "v", "dl.x": "1", **{f"f{n}": n for n in range(198)}})
    shown = rstream(server, "show", "s").output
    assert len(shown) < 10_000
    assert "(100,000 bytes; --json has all of them)" in shown
    assert "\n  f197  " in shown
    assert "more field" not in shown


def test_an_envelope_of_many_fields_is_cut_too(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {**{f"dl.{n}": n for n in range(5_000)}, "own": "1"})
    shown = rstream(server, "show", "s").output
    assert shown.count("\n") < 210
    assert "\n  own " in shown
    assert "… and 4,800 more fields" in shown
