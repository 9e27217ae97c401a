"""The pages of an entry and of a dead letter show decoded values, escaped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_streams.operations.console.incoming import link
from tests.connector.schemas.avro_values import FIRST, encoded, record
from tests.connector.schemas.test_decode_process import add_dead_letter
from tests.operations.console.process import running_console
from tools.servers.server import Server


@pytest.mark.in_turn
def test_an_entry_and_a_dead_letter_show_the_decoded_value(server: Server, tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(FIRST))
    payload = encoded(FIRST, {"customer": "<script>ann</script>\u202e", "amount": 7})
    with server.client() as client:
        good = client.xadd("s", {"payload": payload, "n": "1"}).decode()
        bad = client.xadd("s", {"payload": b"<b>\xff"}).decode()
        letter = add_dead_letter(client, payload)
    shown = "{&#34;customer&#34;:&#34;&lt;script&gt;ann&lt;/script&gt;\\u202e&#34;,&#34;amount&#34;:7}"
    with running_console(server.url, "--schema", f"payload={tmp_path}/order.avsc") as console:
        browser = console.browser()
        page = browser.get(link("/entry", name="s", id=good)).text
        assert shown in page
        assert page.count("decoded:") == 1
        assert "<script>ann" not in page
        assert "not decoded: bad-value" in browser.get(link("/entry", name="s", id=bad)).text
        assert shown in browser.get(link("/dead/letter", name="dead", id=letter)).text


@pytest.mark.in_turn
def test_a_value_that_ends_a_process_ends_no_console(server: Server, tmp_path: Path) -> None:
    """fastavro calls itself as deep as this value says."""
    node = record({"name": "next", "type": ["null", "Node"]}, name="Node")
    (tmp_path / "node.avsc").write_text(json.dumps(node))
    with server.client() as client:
        deep, good = (client.xadd("s", {"payload": b"\x02" * depth + b"\0"}).decode() for depth in (20_000, 1))
    with running_console(server.url, "--schema", f"payload={tmp_path}/node.avsc") as console:
        browser = console.browser()
        for _ in range(2):
            assert "not decoded: " in browser.get(link("/entry", name="s", id=deep)).text
            assert "{&#34;next&#34;:{&#34;next&#34;:null}}" in browser.get(link("/entry", name="s", id=good)).text
