"""An entry is added, or added again with changes: a dry run first, once, and byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
import redis
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.operations.console.incoming import link
from tests.operations.console.browser import Browser, form_to, replaced, wait_for_change
from tests.operations.console.process import running_console
from tests.operations.console.test_pages import client
from tools.servers.server import Server

pytestmark = pytest.mark.in_turn

__all__ = ["client"]

ODD = {b"n": b"1", b"raw\xff": b"\x00\xff\r\n", b"-x=y\\": b"--yes", b"lines": "a\nä".encode(), b"long": b"z" * 90_000}


def filled(page: str, *new: tuple[str, str], **values: str) -> list[tuple[str, str]]:
    """Return the fields of the form that adds an entry, with other values, and these new fields."""
    fields = replaced(
        [pair for pair in form_to(page, "/plan", action="add") if not pair[0].startswith("new.")], **values
    )
    return fields + [pair for name, value in new for pair in (("new.name", name), ("new.value", value))]


def made(browser: Browser, planned: str, number: int) -> str:
    """Make the change of a dry run, and return its page."""
    form = form_to(planned, "/changes")
    answer = browser.post("/changes", form)
    assert answer.headers["location"] == f"/changes/{number}", answer.text
    assert browser.post("/changes", form).status == 403  # once only
    return wait_for_change(browser, number)


def test_an_entry_is_added_after_its_dry_run(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    client.xadd("orders", {"customer": "ann", "amount": "1"}, id="5-0")
    audit = tmp_path / "audit"
    with running_console(server.url, "--write", "--audit", str(audit)) as console:
        browser = console.browser()
        assert "/add?name=orders" in browser.get(link("/stream", name="orders")).text
        page = browser.get("/add?name=orders").text
        assert [value for name, value in form_to(page, "/plan") if name == "new.name"] == [
            "customer",
            "amount",
            *[""] * 4,
        ]
        planned = browser.post("/plan", filled(page, ("customer", "dörte"), ("-a=b", "- x"), ("", ""))).text
        assert "Would add this entry" in planned
        assert client.xlen("orders") == 1
        assert "Added entry" in made(browser, planned, 1)
        [_, (_, fields)] = client.xrange("orders")
        assert fields == {b"customer": "dörte".encode(), b"-a=b": b"- x"}
        refused = browser.post("/plan", filled(page, ("n", "1"), id="5-0"))
        assert "is not above the last ID of the stream" in refused.text
        assert 'action="/changes"' not in refused.text
        assert browser.post("/plan", filled(page, ("n", "1"), id="6")).text.count('action="/changes"') == 0  # the clock
        assert "not an entry ID" in browser.post("/plan", filled(page, ("n", "1"), id="six")).text
        for fields_of_form in (filled(page), filled(page, ("", "x")), filled(page, ("n", "x\0"))):
            assert browser.post("/plan", fields_of_form).status == 400
        for names in ([], ["orders", "other=1"]):
            form = [("action", "add"), ("new.name", "n"), ("new.value", "1"), *[("names", name) for name in names]]
            assert browser.post("/plan", form).status == 400
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["change begins", "change ends"]
    assert lines[1]["added"] == 1


def test_an_entry_is_added_again_with_changes_and_its_other_bytes(server: Server, client: redis.Redis) -> None:
    client.execute_command("XADD", "s", "5-0", *[word for pair in ODD.items() for word in pair], "twice", 1, "twice", 2)
    with running_console(server.url, "--write") as console:
        browser = console.browser()
        assert "/add?name=s&amp;again=5-0" in browser.get(link("/entry", name="s", id="5-0")).text
        page = browser.get(link("/add", name="s", again="5-0")).text
        assert page.count("cannot be edited here") == 4
        planned = browser.post("/plan", [*filled(page, ("new", "ü"), **{"value.0": "2"}), ("remove.3", "1")]).text
        assert "rstream add s n=2 &#39;new=ü&#39; --again 5-0 --unset lines --no-create" in planned
        assert "\\x00\\xff" in planned
        assert "Added entry" in made(browser, planned, 1)
        with connect(Address.parse(server.url)) as raw:
            [before, [_, added]] = raw.execute("XRANGE", "s", "-", "+")
        kept = {name: value for name, value in ODD.items() if name != b"lines"} | {b"n": b"2"}
        rest = [b"twice", b"1", b"twice", b"2", b"new", "ü".encode()]
        assert added == [*[word for pair in kept.items() for word in pair], *rest]
        words = [word for pair in ODD.items() for word in pair]
        assert before == [b"5-0", [*words, b"twice", b"1", b"twice", b"2"]]
        planned = browser.post("/plan", filled(page, **{"value.0": "3"})).text
        client.delete("s")
        assert "no entry 5-0" in made(browser, planned, 2)
        assert client.exists("s") == 0
        assert browser.get(link("/add", name="s", again="5-0")).status == 404


def test_without_write_an_entry_is_only_checked(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"n": 1}, id="5-0")
    with running_console(server.url) as console:
        browser = console.browser()
        planned = browser.post("/plan", filled(browser.get("/add?name=s").text, ("n", "2"))).text
        assert "Would add this entry" in planned
        assert "this console is read-only" in planned
        assert 'action="/changes"' not in planned
    assert client.xlen("s") == 1


def add(server: Server, *words: str) -> tuple[int, str]:
    ran = CliRunner().invoke(main, ["add", *words, "--url", server.url])
    return ran.exit_code, ran.output


def test_the_command_checks_and_adds_again(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"a": "1", "b": "2"}, id="5-0")
    assert add(server, "s", "a=1", "--check")[0] == 0
    assert "nothing was added" in add(server, "s", "a=1", "--check")[1]
    code, said = add(server, "s", "a=1", "--check", "--id", "5-*", "--json")
    assert (code, json.loads(said)["bounds"]) == (0, ["--no-create"])
    for words, reason in (
        (("--id", "5-0"), "is not above"), (("--id", "4-*"), "is not above"), (("--id", "0-0"), "is not above"),
    ):  # fmt: skip
        code, said = add(server, "s", "a=1", "--check", *words)
        assert (code, reason in said) == (3, True)
    assert add(server, "new", "a=1", "--check", "--no-create")[0] == 3
    assert client.keys("*") == [b"s"]
    assert add(server, "s", "b=3", "c=4", "--again", "5-0", "--unset", "a", "--id", "6-0")[0] == 0
    assert client.xrange("s", "6-0") == [(b"6-0", {b"b": b"3", b"c": b"4"})]
    for words, said in (
        (("s",), "name a field"), (("s", "a=1", "--unset", "a"), "set --again"),
        (("s", "-", "--check"), "single entry"), (("s", "--again", "7-0"), "no entry 7-0"),
        (("s", "--again", "6-0", "--unset", "b", "--unset", "c"), "no field"),
        (("s", "x", "--again", "6-0"), "is not FIELD=VALUE"),
        (("s", "a=1", "--check", "--id", "x"), "not an entry ID"),
    ):  # fmt: skip
        code, output = add(server, *words)
        assert code in (1, 2)
        assert said in output, output
    assert client.xlen("s") == 2


@pytest.mark.parametrize("path", ["/add?name=none", "/add?name=s&again=7-0"])
def test_what_does_not_exist_is_named(server: Server, client: redis.Redis, path: str) -> None:
    client.xadd("s", {"n": 1}, id="5-0")
    with running_console(server.url) as console:
        assert console.browser().get(path).status == 404
        assert console.browser().get("/add?name=s&again=x").status == 400
        [(_, fixed)] = [p for p in form_to(console.browser().get("/add?name=s").text, "/plan") if p[0] == "fixed"]
        assert dict(parse_qsl(fixed))["names"] == "s"
