"""A search by a comparison within JSON: which expressions are read, and what they find."""

from __future__ import annotations

import pytest
import redis

from spark_streams.console.json_filter import JsonFilter
from spark_streams.console.site import link
from spark_streams.errors import OptionError
from tests.console.browser import Browser
from tests.console.process import running_console
from tests.console.test_pages import client, entry_ids
from tools.servers.server import Server

__all__ = ["client"]

ORDER = (
    b'{"amount": 100.00000000000000002, "id": 9007199254740993, "name": "ann", "tags": ["a", "b"], "none": null,'
    b' "ok": true, "items": [{"sku": "x-1", "n": 2}, {"sku": "x-2"}], "a b": {"c.d": 1}, "huge": 1e999999999}'
)


@pytest.mark.parametrize(
    "text",
    [
        "$.amount > 100", "$.amount > 100.00000000000000001", "$.amount<100.00000000000000003",
        "$.id = 9007199254740993",
        "$.amount != 100", '$.name = "ann"', '$.name ~ "nn"', '$.name != "bob"', '$.name >= "ann"', "$.none = null",
        "$.ok = true", '$.items[1].sku == "x-2"', '$.items[*].sku = "x-2"', "$.items[*].n >= 2", '$.tags[*] = "b"',
        '$["a b"]["c.d"] = 1', '  $.name="ann"  ', "$.name != 5", "$.huge > 10", '$[*] = "ann"', "$.amount > 1e2",
        '$.name ~ "\\u006e"',
    ],
)  # fmt: skip
def test_it_finds(text: str) -> None:
    assert JsonFilter.parse(text).matches(ORDER)


@pytest.mark.parametrize(
    "text",
    [
        "$.amount > 100.00000000000000002", "$.id = 9007199254740992", "$.amount = 100", '$.amount > "1"', "$.ok = 1",
        "$.missing != 1", "$.missing = null", "$.items[2].sku != 1", '$.items.sku = "x-1"', '$.tags ~ "a"',
        "$.none = false", "$.name[0] != 1", "$.ok > 0",
    ],
)  # fmt: skip
def test_it_does_not_find(text: str) -> None:
    assert not JsonFilter.parse(text).matches(ORDER)


@pytest.mark.parametrize("value", [b"", b"ann", b"\xff", b"NaN", b"[" * 100_000, b"1" * 100_000, b"1e" + b"9" * 99])
def test_a_value_of_any_bytes_is_no_error(value: bytes) -> None:
    assert not JsonFilter.parse("$.amount > 100").matches(value)
    assert JsonFilter.parse("$ > 100").matches(value) == (value == b"1" * 100_000)


@pytest.mark.parametrize(
    "text",
    [
        "amount > 100", "$.amount", "$.amount >", "$.amount > 1,5", "$.name = ann", "$.name ~ 5", "$.ok > true",
        "$..a = 1",
        "$.a = [1]", "$.a = {}", "$[-1] = 1", "$[x] = 1", "$.a = 1 or 1", "$.a[ = 1", "$.a > NaN", '$["a] = 1', "$",
        "$.a = " + "[" * 2_000, "$" + "[0" * 1_000,
    ],
)  # fmt: skip
def test_a_bad_expression_is_named_with_examples(text: str) -> None:
    with pytest.raises(OptionError, match=r"is not a comparison of JSON: .*Examples: \$\.amount > 100") as error:
        JsonFilter.parse(text)
    assert len(error.value.message) < 400


def test_the_page_of_a_stream_searches_values(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"payload": '{"amount": 100.01}', "amount": "99.5"}, id="1-0")
    client.xadd("s", {"payload": '{"amount": 99}', "amount": "100.01"}, id="2-0")
    client.xadd(
        "s", {"payload": '{"amount": 100.02, "x": "%s"}' % ("x" * (1 << 20)), "other": '{"amount": 7}'}, id="3-0"
    )
    client.xadd("s", {"payload": b"\xff", "other": '{"amount": 500}'}, id="4-0")
    with running_console(server.url) as console:
        browser = Browser(console.url)

        def found(**search: str) -> list[str]:
            return entry_ids(browser.get(link("/stream", name="s", **search)).text)

        assert found(where="$.amount > 100") == ["4-0", "1-0"]
        assert found(where="$.amount > 100", field="payload") == ["1-0"]
        assert found(where="$ > 100", field="amount") == ["2-0"]
        assert found(where="$.amount > 1", value="99") == ["2-0"]
        page = browser.get(link("/stream", name="s", where="$.amount > 100")).text
        assert "Searched 4 entries. 1 value is too long to be compared (more than 1.05 MB)." in page
        assert 'value="$.amount &gt; 100"' in page
        wrong = browser.get(link("/stream", name="s", where="amount > 100"))
        assert wrong.status == 400
        assert "is not a comparison of JSON" in wrong.text
