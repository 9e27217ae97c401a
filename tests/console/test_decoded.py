"""The pages of an entry and of a dead letter show decoded values, escaped."""

from __future__ import annotations

import json
from pathlib import Path

from spark_streams.console.site import link
from tests.console.browser import Browser
from tests.console.process import running_console
from tests.schemas.avro_values import FIRST, encoded
from tests.schemas.test_shown import add_dead_letter
from tools.servers.server import Server


def test_an_entry_and_a_dead_letter_show_the_decoded_value(server: Server, tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(FIRST))
    payload = encoded(FIRST, {"customer": "<script>ann</script>\u202e", "amount": 7})
    with server.client() as client:
        good = client.xadd("s", {"payload": payload, "n": "1"}).decode()
        bad = client.xadd("s", {"payload": b"<b>\xff"}).decode()
        letter = add_dead_letter(client, payload)
    shown = "{&#34;customer&#34;:&#34;&lt;script&gt;ann&lt;/script&gt;\\u202e&#34;,&#34;amount&#34;:7}"
    with running_console(server.url, "--schema", f"payload={tmp_path}/order.avsc") as console:
        browser = Browser(console.url)
        page = browser.get(link("/entry", name="s", id=good)).text
        assert shown in page
        assert page.count("decoded:") == 1
        assert "<script>ann" not in page
        assert "not decoded: bad-value" in browser.get(link("/entry", name="s", id=bad)).text
        assert shown in browser.get(link("/dead/letter", name="dead", id=letter)).text
