"""A search by a comparison within JSON: which expressions are read, and what they find."""

from __future__ import annotations

import time

import pytest
import redis

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import OptionError
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.operations.console import entry_search
from spark_streams.operations.console.allow_list import AllowList
from spark_streams.operations.console.entry_search import FieldFilter, JsonFilter, read_entries
from spark_streams.operations.console.incoming import link
from tests.operations.console.process import running_console
from tests.operations.console.test_pages import client, entry_ids
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
    is_number = value.startswith(b"1e9") or value == b"1" * 100_000
    assert JsonFilter.parse("$ > 100").matches(value) is (True if is_number else None)


@pytest.mark.parametrize(
    "text",
    [
        "amount > 100", "$.amount", "$.amount >", "$.amount > 1,5", "$.name = ann", "$.name ~ 5", "$.ok > true",
        "$..a = 1",
        "$.a = [1]", "$.a = {}", "$[-1] = 1", "$[x] = 1", "$.a = 1 or 1", "$.a[ = 1", "$.a > NaN", '$["a] = 1', "$",
        "$.a = " + "[" * 2_000, "$" + "[0" * 1_000,
        "$" + ".a" * 101 + " = 1", "$" + "[0]" * 1_010 + " = 1", "$" + "[*]" * 10_000 + " = 1",
    ],
)  # fmt: skip
def test_a_bad_expression_is_named_with_examples(text: str) -> None:
    with pytest.raises(OptionError, match=r"is not a comparison of JSON: .*Examples: \$\.amount > 100") as error:
        JsonFilter.parse(text)
    assert len(error.value.message) < 400


def test_a_hundred_steps_are_a_path() -> None:
    assert JsonFilter.parse("$" + "[0]" * 100 + " = 1").matches(b"[" * 100 + b"1" + b"]" * 100)


WIDE = b"[" * 100 + b",".join([b"[1]"] * 200_000) + b"]" * 100


def test_one_value_is_given_up_at_the_deadline() -> None:
    slow = JsonFilter.parse("$" + "[*]" * 100 + " = 2")
    with pytest.raises(TimeoutError):
        slow.matches(WIDE, until=time.monotonic() - 1)


def test_a_search_ends_within_one_entry(monkeypatch: pytest.MonkeyPatch, server: Server, client: redis.Redis) -> None:
    """The deadline holds within an entry: it begins the next page, and alone it is counted as given up."""
    monkeypatch.setattr(entry_search, "_SEARCH_SECONDS", 0.0)
    client.xadd("s", {f"v{number}": b'{"a": 1}' for number in range(20)}, id="1-0")
    client.xadd("s", {"v": b'{"a": 1}'}, id="2-0")
    fields = FieldFilter(json=JsonFilter.parse("$.a = 1"))
    with connect(Address.parse(server.url)) as connection:
        page = read_entries(connection, ["s"], AllowList(), fields=fields)
        assert (page.entries, page.searched, page.too_slow) == ((), 1, 1)
        assert page.next == StreamId(1, 0)


@pytest.mark.in_turn
def test_a_path_of_many_steps_is_a_wrong_search(server: Server, client: redis.Redis) -> None:
    """The proof of concept: 1,010 steps were a recursion that Python ended, and the answer was 500."""
    client.xadd("s", {"payload": b"[" * 900 + b"1" + b"]" * 900})
    with running_console(server.url) as console:
        browser = console.browser()
        for steps in ("[*]" * 600, "[0]" * 600):
            wrong = browser.get(link("/stream", name="s", where=f"${steps} = 1"))
            assert wrong.status == 400
            assert "its path has more than 100 steps" in wrong.text


@pytest.mark.in_turn
def test_the_page_of_a_stream_searches_values(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"payload": '{"amount": 100.01}', "amount": "99.5"}, id="1-0")
    client.xadd("s", {"payload": '{"amount": 99}', "amount": "100.01"}, id="2-0")
    client.xadd(
        "s", {"payload": '{"amount": 100.02, "x": "%s"}' % ("x" * (1 << 20)), "other": '{"amount": 7}'}, id="3-0"
    )
    client.xadd("s", {"payload": b"\xff", "other": '{"amount": 500}'}, id="4-0")
    with running_console(server.url) as console:
        browser = console.browser()

        def found(**search: str) -> list[str]:
            return entry_ids(browser.get(link("/stream", name="s", **search)).text)

        assert found(where="$.amount > 100") == ["4-0", "1-0"]
        assert found(where="$.amount > 100", field="payload") == ["1-0"]
        assert found(where="$ > 100", field="amount") == ["2-0"]
        assert found(where="$.amount > 1", value="99") == ["2-0"]
        page = browser.get(link("/stream", name="s", where="$.amount > 100")).text
        assert "Searched 4 entries. 1 value is too long to be compared (more than 1.05 MB). 1 value is no JSON." in page
        assert 'value="$.amount &gt; 100"' in page
        page = browser.get(link("/stream", name="s", where="$ = 1", field="payload")).text
        assert "Searched 4 entries. 1 value is too long to be compared (more than 1.05 MB). 1 value is no JSON." in page
        page = browser.get(link("/stream", name="s", where="$ = 1", field="amount")).text
        assert "Searched 4 entries." in page
        assert "no JSON" not in page
        wrong = browser.get(link("/stream", name="s", where="amount > 100"))
        assert wrong.status == 400
        assert "is not a comparison of JSON" in wrong.text


def test_numbers_beyond_the_exponents_of_decimals_are_compared() -> None:
    """Before, such an operand was no JSON, and no part of a value with such a number was found."""
    least, most = "1e-99999999999999999999", "1e99999999999999999999"
    value = f'{{"most": {most}, "least": {least}, "minus": -{most}, "zero": 0{most[1:]}, "id": 7}}'.encode()
    for search in (
        "$.id = 7", f"$.id < {most}", f"$.id > {least}", f"$.id > -{most}", f"$.most = {most}", "$.most > 5",
        "$.least > 0", "$.least < 1", "$.minus < 0", "$.zero = 0",
    ):  # fmt: skip
        assert JsonFilter.parse(search).matches(value), search
    assert not JsonFilter.parse("$.most < 5").matches(value)
