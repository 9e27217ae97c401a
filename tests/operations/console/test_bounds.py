"""What one request can ask for: long names, many fields, large forms, patterns, and dead letters of any size."""

from __future__ import annotations

import re
import time
from urllib.parse import quote, unquote_plus

import pytest
import redis

from spark_streams.connector.deadletter.envelope import dead_letter_fields
from spark_streams.connector.errors import OptionError
from spark_streams.connector.shards.names import MAX_NAME, possible_names
from spark_streams.connector.shards.shard_sets import _PORTION, _portions
from spark_streams.operations.console.actions import ACTIONS
from spark_streams.operations.console.changes import require_short
from spark_streams.operations.console.dead_letter_pages import FILTERS, RANGES
from spark_streams.operations.console.incoming import (
    COMMAND_BYTES,
    FIELDS,
    FORM_BYTES,
    NAME_BYTES,
    PARAMETERS,
    Parameters,
    _unquoted,
    fixed,
    is_known,
)
from tests.operations.console.browser import form_to, replaced, wait_for_change
from tests.operations.console.process import ROOT, running_console
from tools.servers.server import Server

pytestmark = pytest.mark.in_turn

LONG = "n" * (NAME_BYTES + 1)


def write_dead_letter(client: redis.Redis, stream: str, fields: list[tuple[str, str]]) -> str:
    words = dead_letter_fields(
        [word.encode() for pair in fields for word in pair], {"stream": "s", "id": "1-0", "group": "g"}
    )
    return client.execute_command("XADD", stream, "*", *words).decode()


def test_each_parameter_has_a_bound() -> None:
    used = set()
    for path in (ROOT / "spark_streams/operations/console").rglob("*.*"):
        if path.suffix in (".html", ".py"):
            text = path.read_text(encoding="utf-8")
            used |= set(re.findall(r"""parameters\.(?:get|all)\(f?["']([a-z.-]+)""", text))
            used |= set(re.findall(r"""<(?:input|textarea|button)[^>]* name="([a-z.-]+)""", text))
    used |= {name for action in ACTIONS.values() for name in (*action.options, *action.flags)} | {*FILTERS, *RANGES}
    assert len(used) > 30
    assert not [name for name in used if not is_known(name) and name not in ("fixed", "file")]  # file: IMPORT_BYTES
    assert (
        not PARAMETERS.keys()
        - used
        - {"names", "stream", "group", "own", "page", "letter", "back", "token", "arguments"}
    )
    with pytest.raises(KeyError, match="no-such-parameter"):
        Parameters(()).get("no-such-parameter")


def test_a_parameter_over_its_bound_is_refused() -> None:
    for name, bound in PARAMETERS.items():
        key = f"{name}7" if name.endswith(".") else name
        assert Parameters.parse(f"{key}={'x' * bound.size}").get(key) == "x" * bound.size
        for text in (
            f"{key}={'x' * (bound.size + 1)}",
            f"{key}={'%C3%A9' * (bound.size // 2 + 1)}",
            f"fixed={quote(f'{key}=')}{'x' * (bound.size + 1)}",
        ):
            with pytest.raises(OptionError, match="is too long"):
                Parameters.parse(text)
        with pytest.raises(OptionError, match="occurs"):
            Parameters.parse("&".join([f"{key}=x"] * (bound.times + 1)))
    for text in ("&" * FIELDS, "a=b&" * FIELDS, "fixed=" + "a%26" * FIELDS, "&".join(["fixed=" + "a%26" * 99] * 21)):
        with pytest.raises(OptionError, match="at most 2,000 parameters"):
            Parameters.parse(text)


def test_parameters_of_any_text_arrive_unchanged() -> None:
    pairs = [("name", "a;b&c=d+%41 ř日\n\r\n\udcff"), ("names", ""), ("names", "é" * 500)]
    assert Parameters.parse(fixed(pairs)).pairs == tuple(pairs)
    assert Parameters.parse("name=ř;x&names=%C5%99%FF\udcfe", is_form=True).pairs == (
        ("name", "ř;x"),
        ("names", "ř\udcff\udcfe"),
    )
    assert Parameters.parse("name=a&utm=b").pairs == (("name", "a"),)


def test_long_texts_are_decoded_in_pieces() -> None:
    for text in ("%41" * 30_000, "é%+&" * 20_000, "x%" * 40_000, "%C5%99" * 20_000, "%" * 100_000, "a+%2B" * 20_000):
        assert _unquoted(text) == unquote_plus(text, errors="surrogateescape")


def test_a_long_name_costs_nothing(server: Server) -> None:
    with running_console(server.url) as console:
        browser = console.browser()
        browser.get("/")
        before, began = console.peak(), time.monotonic()
        for path in (
            "/group?group=g&stream=",
            "/stream?name=",
            "/entry?id=1-1&name=",
            "/dead/stream?name=",
            "/dead/letter?id=1-1&name=",
        ):
            assert browser.get(path + LONG).status == 400
            assert browser.get(path + quote("é") * (NAME_BYTES // 2 + 1)).status == 400
            assert browser.get(path + "x" * 60_000).status in (400, 431)
            assert browser.get(path + "x" * NAME_BYTES).status in (200, 404, 502)
        for _ in range(20):  # names that the snapshot has not are asked for by themselves
            assert browser.get("/group?group=g&stream=" + "y" * NAME_BYTES).status == 404
        assert time.monotonic() - began < 10
        assert console.peak() - before < 30


def test_streams_and_shards_outside_the_snapshot_are_found(server: Server) -> None:
    with server.client() as client:
        client.execute_command("XADD", "a", "1-1", "n", "1")
        client.execute_command("XADD", "z", "1-1", "n", "1")
        client.set("text", "x")
    with running_console(server.url, "--max-streams", "1") as console:
        browser = console.browser()
        assert browser.get("/stream?name=z").status == browser.get("/entry?name=z&id=1-1").status == 200
        assert browser.get("/stream?name=none").status == 404
        assert browser.get("/stream?name=text").status in (400, 404, 502)


def test_shards_are_searched_in_portions() -> None:
    for length in (6, MAX_NAME):
        portions = list(_portions(enumerate(possible_names("s" * length), 1)))
        assert [count for portion in portions for count, _ in portion] == list(range(1, 257))
        assert max(sum(len(name) for _, names in portion for name in names) for portion in portions) < 2 * _PORTION


def test_names_that_are_too_long_are_counted_and_not_shown(server: Server) -> None:
    with server.client() as client:
        for stream in ("orders", LONG * 20):
            client.xadd(stream, {"n": 1})
            for group in ("g", LONG):
                client.xgroup_create(stream, group, id="0")
        client.xreadgroup("g", LONG, {"orders": ">"})
        client.xadd("orders", {"n": 2})
        client.xreadgroup("g", "ann", {"orders": ">"})
        letter = write_dead_letter(client, "d", [("a", "1")])
        client.xadd(
            "d", {"n": 1, "dl.stream": LONG * 20, "dl.id": "1-1", "dl.previous": f"{LONG}/1-1"}, id="9999999999999-1"
        )
    with running_console(server.url) as console:
        browser = console.browser()
        for path in (
            "/",
            "/streams",
            "/stream?name=orders",
            "/group?stream=orders&group=g",
            f"/dead/letter?name=d&id={letter}",
        ):
            page = browser.get(path)
            assert page.status == 200
            # The stream, the group of orders, and the consumer.
            assert "3 streams, groups or consumers not shown" in page.text
            assert LONG not in page.text
        page = browser.get("/dead/letter?name=d&id=9999999999999-1")
        assert page.status == 200
        assert len(page.text) < 30_000


def test_large_forms_are_refused(server: Server) -> None:
    with running_console(server.url) as console:
        before = console.peak()
        for body, status in (
            ("a=b&" * 1_000_000, 413),
            ("fixed=" + "a%26" * 250_000, 400),
            ("value=" + "%41" * 340_000, 400),
            ("fixed=" + "%41" * 340_000, 400),
            ("x" * (FORM_BYTES + 1), 413),
        ):
            assert console.browser()._send("POST", "/plan", body, {"origin": console.url}).status == status
        chunked = f"POST /plan HTTP/1.1\r\nHost: {console.host}\r\nTransfer-Encoding: chunked\r\n\r\n"
        with console.connect(chunked.encode()) as connection:
            part = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
            for _ in range(33):
                connection.sendall(part)
            assert b" 413 " in connection.recv(4096).split(b"\r\n")[0]
        assert console.peak() - before < 40


def test_patterns_are_bounded(server: Server) -> None:
    with server.client() as client:
        client.xadd("d", {"n": 1, "dl.stream": "s", "dl.id": "1-0", "dl.reason": "a" * 20_000, "dl.group": "g"})
    with running_console(server.url) as console:
        browser = console.browser()
        browser.get("/")
        for pattern in ("[", "*a", "?*", "[a-b", "[!"):
            for name in ("reason", "stream", "stage", "error"):
                assert browser.get(f"/dead/stream?name=d&{name}=" + quote(pattern) * 20_000).status in (400, 431)
            began = time.monotonic()
            full = quote((pattern * 2_048)[:2_048])
            assert browser.get("/dead/stream?name=d&" + "&".join([f"reason={full}"] * 4)).status == 200
            assert time.monotonic() - began < 5


def test_a_dead_letter_with_very_many_or_large_fields_has_a_page_and_a_form(server: Server) -> None:
    with server.client() as client:
        many = write_dead_letter(client, "d", [(f"field{n}", "v" * 20) for n in range(100_000)])
        large = write_dead_letter(client, "d", [(f"field{n}", "é" * 19_999) for n in range(600)])
    with running_console(server.url, "--write") as console:
        browser = console.browser()
        browser.get("/")
        for letter in (many, large):
            began = time.monotonic()
            page = browser.get(f"/dead/letter?name=d&id={letter}")
            assert (page.status, len(page.text) < 2 << 20) == (200, True)
            assert time.monotonic() - began < 20
            fields = replaced(form_to(page.text, "/plan", action="redrive"), **{"value.1": "changed", "allow": "s"})
            planned = browser.post("/plan", fields)
            assert planned.status == 200, planned.text
            assert "field1=changed" in planned.text
        assert browser.post("/changes", form_to(planned.text, "/changes")).status == 303
        assert "Done" in wait_for_change(browser, 1)
        [(_, moved)] = client.xrange("s")
        assert moved[b"field1"] == b"changed"
        assert moved[b"field2"].decode() == "é" * 19_999


def test_a_change_that_is_too_long_for_a_command_is_named(server: Server) -> None:
    with server.client() as client:
        letter = write_dead_letter(client, "d", [(f"f{n}", "v") for n in range(40)])
    with running_console(server.url, "--write") as console:
        browser = console.browser()
        page = browser.get(f"/dead/letter?name=d&id={letter}")
        fields = form_to(page.text, "/plan", action="redrive")
        for changed in ({f"value.{n}": "é" * 19_999 for n in range(4)}, {"new.name": "x", "new.value": "y" * 140_000}):
            answer = browser.post("/plan", replaced(fields, **changed))
            assert answer.status == 400
            assert re.search("too long for a command|is too long", answer.text)
        assert browser.post("/plan", replaced(fields, **{"new.name": "x", "new.value": "é" * 19_999})).status == 200


def test_the_bounds_of_a_command() -> None:
    require_short(["x" * (COMMAND_BYTES - 1)])
    with pytest.raises(OptionError, match="NUL character"):
        require_short(["where", "before\0after", "1-0"])
    for arguments in (["x" * COMMAND_BYTES], ["é" * (COMMAND_BYTES // 2)], ["x" * 1_000] * 99):
        with pytest.raises(OptionError, match="too long for a command"):
            require_short(arguments)
