"""Values that --show does not name: pure, and a walk over all routes, whose answers must not have them."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote_plus, urlsplit

import pytest
import redis
from click.testing import CliRunner

from spark_streams import dead_letters
from spark_streams.base.ids import StreamId
from spark_streams.cli import main
from spark_streams.connector.deadletter.envelope import NAMES
from spark_streams.connector.deadletter.transform import DeadLetter
from spark_streams.connector.errors import NotPermittedError
from spark_streams.connector.keys import retry_stream
from spark_streams.operations.console.actions import ACTIONS
from spark_streams.operations.console.allow_list import AllowList, hidden
from spark_streams.operations.console.app import ROUTES
from spark_streams.operations.console.changes import Change, CommandOutcome
from spark_streams.operations.console.incoming import link
from spark_streams.operations.monitor.last_entries import Seen
from tests.connector.schemas.avro_values import encoded, record
from tests.operations.console.browser import Browser, form_to, replaced, wait_for_change
from tests.operations.console.process import Console, running_console
from tools.servers.server import Server

SHOWN = AllowList(frozenset({"n", "straße"}))
SECRET = "sekret-4111"
ESCAPED = "".join(f"\\u{ord(one):04x}" for one in SECRET)
SCHEMA = record({"name": "card", "type": "string"}, {"name": "shop", "type": "string"})


def test_only_named_fields_have_values() -> None:
    pairs = (
        (b"n", b"1"),
        (b"card", b"4111"),
        (b"\xff", b"\x00\xfe"),
        ("straße".encode(), b"x"),
        (b"n", b""),
        (b"", b""),
    )
    entry = Seen(StreamId(1, 0), "s", pairs)
    assert [value for _, value in SHOWN.entry(entry).pairs] == [
        *(b"1", b"hidden (4 bytes)", b"hidden (2 bytes)", b"x", b"", b"hidden (0 bytes)")
    ]
    assert AllowList().entry(entry) is entry
    assert [hidden(value) for value in ("", "a", "ä", "\udcff", "cut…")] == [
        *("hidden (0 bytes)", "hidden (1 byte)", "hidden (2 bytes)", "hidden (1 byte)", "hidden")
    ]


def test_an_envelope_has_no_texts_that_may_quote_a_value() -> None:
    envelope = {name: f"of {name}" for name in NAMES} | {"error": ""}
    letter = DeadLetter("1-0", [("n", "1"), ("card", "4111")], envelope)
    shown = SHOWN.letter(letter)
    assert shown.pairs == [("n", "1"), ("card", "hidden (4 bytes)")]
    assert shown.envelope == envelope | {"reason": "hidden (9 bytes)", "message": "hidden (10 bytes)"}
    named = AllowList(frozenset({"dl.reason"})).letter(letter)
    assert named.envelope == envelope | {"message": "hidden (10 bytes)"}
    assert AllowList().letter(letter) == letter


def test_a_change_and_its_outcome() -> None:
    words = [
        "dead",
        "redrive",
        "events",
        "--set",
        "card=4111",
        "--set=-x=1",
        "--set",
        "n=1",
        "--id",
        "1-0",
        "--unset",
        "a",
    ]
    output = {
        "stream": "card-events", "bounds": ["--allow", "card-events"], "moved": 3,
        "command": "rstream … --set card=4111",
        "fields": [{"dead letter": "1-0", "field": "card", "now": "4111", "then": None},
                   {"dead letter": "1-0", "field": "n", "now": "1", "then": "2"}],
        "by": [{"action": "move", "to": "s", "stage": "read", "reason": "card 4111", "count": 2}],
        "entry": [{"field": "card", "value": "4111"}, {"field": "order", "value": '{"card": 41…'}],
        "new": "what a later version may print", "deeper": {"still": ["4111"]},
    }  # fmt: skip
    change = Change(1, "ann", words, datetime.now(UTC), outcome=CommandOutcome(1, output, "card is '4111'"))
    shown = change.shown(SHOWN)
    assert shown.arguments == [
        *("dead", "redrive", "events", "--set", "card=hidden (4 bytes)", "--set=hidden (4 bytes)", "--set", "n=1"),
        *("--id", "1-0", "--unset", "a"),
    ]
    assert shown.outcome is not None
    assert shown.outcome.error == "hidden (14 bytes)"
    assert shown.outcome.output == output | {
        "command": "hidden", "fields": [{**output["fields"][0], "now": "hidden (4 bytes)"}, output["fields"][1]],  # type: ignore[index]
        "by": [{**output["by"][0], "reason": "hidden (9 bytes)"}],  # type: ignore[index]
        "entry": [{"field": "card", "value": "hidden (4 bytes)"}, {"field": "order", "value": "hidden"}],
        "new": "hidden (30 bytes)", "deeper": {"still": ["hidden (4 bytes)"]},
    } | {"command": hidden(output["command"])}  # type: ignore[arg-type]  # fmt: skip
    assert change.shown(AllowList()) == change


def test_what_commands_of_groups_say_is_shown() -> None:
    """They read no entry. A new action has its place in one of the two."""
    reading = {
        name for name, one in ACTIONS.items() if CommandOutcome(1, None, "why").shown(SHOWN, one.command).error != "why"
    }
    assert reading == {"add", "redrive", "purge"}
    assert ACTIONS.keys() - reading == {"seek", "replay", "claim", "ack", "prune"}


def test_what_is_hidden_cannot_be_asked_for() -> None:
    everything = {"reason": ["r"], "error": ["e"], "field": ["card=1"], "set": ["card=1"]}
    AllowList().require_shown(everything)
    SHOWN.require_shown({"stream": ["s"], "stage": ["read"], "field": ["n=1"], "set": ["straße=x"], "reason": [""]})
    for name, values in everything.items():
        with pytest.raises(NotPermittedError, match="hidden in this console") as refused:
            SHOWN.require_shown({name: values})
        assert "n, straße" in refused.value.message
    for name in ("card", "", "N"):
        with pytest.raises(NotPermittedError, match="hidden in this console"):
            SHOWN.require_field(name)


def test_a_wrong_option() -> None:
    ran = CliRunner().invoke(main, ["console", "--show", "card,,email"])
    assert (ran.exit_code, "a name is empty" in ran.output) == (2, True)


class _Walk:
    """Follows all links of a console, and keeps each answer."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.answers: dict[str, str] = {}

    def visit(self, path: str, **headers: str) -> str:
        answer = self.browser.get(path, **headers)
        self.answers[f"{path} {headers}"] = answer.text
        return answer.text

    def follow(self, *paths: str) -> None:
        waiting = list(paths)
        while waiting:
            path = waiting.pop()
            if f"{path} {{}}" not in self.answers and len(self.answers) < 400:
                page = self.visit(path)
                self.visit(path, x_live="1")
                found = re.findall(r'(?:href|action)="(/[^"]*)"', page)
                waiting += [html.unescape(one) for one in found]

    def post(self, form: list[tuple[str, str]]) -> tuple[int, str]:
        answer = self.browser.post("/plan", form)
        self.answers[f"/plan {form}"] = answer.text
        return answer.status, answer.text

    def make(self, planned: str, number: int) -> None:
        """Make the change of a dry run."""
        answer = self.browser.post("/changes", form_to(planned, "/changes"))
        assert answer.status == 303
        self.answers[f"/changes made {number}"] = answer.text + str(answer.headers)
        self.answers[f"/changes/{number} ended"] = wait_for_change(self.browser, number)

    def found(self) -> list[str]:
        """Return the answers that have the value, in any form."""
        raw = SECRET.encode()
        forms = {
            SECRET,
            base64.b64encode(raw).decode()[:-4],
            raw.hex(),
            SECRET[:8],
            SECRET[-6:],
            ESCAPED,
            ESCAPED[-24:],
        }
        return [
            name for name, text in self.answers.items()
            if any(form in one for form in forms for one in (text, unquote_plus(html.unescape(text))))
        ]  # fmt: skip


@pytest.fixture
def shop(server: Server, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Streams with the value in an entry, a dead letter, a pending entry, a retry, JSON, Avro, and a query's log."""
    with server.client() as client:
        yield write_shop(client, tmp_path)


def write_shop(client: redis.Redis, folder: Path) -> dict[str, str]:
    payload = encoded(SCHEMA, {"card": SECRET, "shop": "bakery"})
    (folder / "order.avsc").write_text(json.dumps(SCHEMA))
    fields = {
        "n": "1", "shop": "bakery", "card": SECRET, "payload": payload, "note": f"card {SECRET} was refused",
        "order": json.dumps({"n": 2, "card": SECRET, "inner": json.dumps({"card": SECRET})}),
        "escaped": f'{{"c\\u0061rd": "{ESCAPED}"}}', "cut": f'{{"card": "{SECRET}"', "long": "x" * 500 + SECRET,
        "headers": json.dumps([{"key": "card", "value": SECRET}, ["card", SECRET]]), "bytes": b"\xff" + SECRET.encode(),
    }  # fmt: skip
    entry = client.xadd("orders", fields).decode()
    client.xadd("orders", {"n": "2", "card": "other"})
    client.xgroup_create("orders", "g", id="0")
    client.xreadgroup("g", "c", {"orders": ">"})
    broken = {name.encode(): value for name, value in fields.items()}
    letter = dead_letters.write(
        client, "orders", "g", entry, broken, to="orders:dead", reason=f"card {SECRET} is odd",
        error=type(SECRET, (ValueError,), {})(f"{SECRET} is no number"),
    )  # fmt: skip
    assert isinstance(letter, bytes)
    client.xreadgroup("g", "c", {"orders": ">"})
    retry = client.xadd(retry_stream("orders", "g", 1), fields).decode()
    line = {"at": "2026-11-28T10:00:00.000Z", "query": "q", "id": "b", "run": "r"}
    ends = [{"error": SECRET, "message": f"card = {SECRET}"}, {"error": "RSTREAM_DECODE", "message": SECRET}]
    lines = [{**line, "event": "started"}, *({**line, "event": "terminated", **end} for end in ends)]
    (folder / "q.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return {"entry": entry, "letter": letter.decode(), "retry": retry}


@contextmanager
def hiding(server: Server, folder: Path, *words: str) -> Iterator[Console]:
    options = ["--schema", f"payload={folder}/order.avsc", "--log", str(folder / "q.jsonl")]
    with running_console(server.url, "--write", "--audit", str(folder / "audit"), *options, *words) as console:
        yield console


def walk(browser: Browser, shop: dict[str, str]) -> _Walk:
    """Ask for every page, and for dry runs that would show the value."""
    walk = _Walk(browser)
    entry, letter, retry = shop["entry"], shop["letter"], shop["retry"]
    walk.follow(
        "/", "/streams?own=1", "/changes", "/changes/1", "/changes/2", "/doctor", "/queries", "/open", "/favicon.ico",
        link("/stream", name="orders", value="sek"), link("/stream", name="orders", where='$[*] ~ "sek"'),
        link("/stream", name="orders", field="shop", value="bak"), link("/stream", name="orders", field="card"),
        link("/stream", name="orders", field="order", where="$.n = 2"),
        link("/stream", name=retry_stream("orders", "g", 1)), link("/add", name="orders", again=entry),
        link("/entry", name=retry_stream("orders", "g", 1), id=retry), link("/entry", name="orders:dead", id=letter),
        link("/dead/letter", name="orders:dead", id=letter), link("/dead/stream", name="orders:dead", reason="*"),
        link("/dead/stream", name="orders:dead", stage="*"), link("/export", name="orders:dead", at=letter, to=letter),
        link("/where", name="orders", id=entry), link("/where", name="orders:dead", id=letter),
    )  # fmt: skip
    form = form_to(walk.visit(link("/dead/letter", name="orders:dead", id=letter)), "/plan", action="redrive")
    walk.post(replaced(form, **{"value.0": "3"}))
    walk.post(form_to(walk.visit(link("/dead/letter", name="orders:dead", id=letter)), "/plan", action="purge"))
    walk.post([*form, ("new.name", "note"), ("new.value", "fine")])
    walk.post(form_to(walk.visit(link("/add", name="orders", again=entry)), "/plan", action="add"))
    walk.post([("action", "redrive"), ("names", "orders:dead"), ("unset", "card"), ("unset", "order")])
    walk.post([("action", "purge"), ("names", "orders:dead"), ("stage", "none")])
    walk.post([("action", "purge"), ("names", "orders:dead"), ("reason", "none")])
    walk.post([("action", "seek"), ("names", "orders"), ("group", "g"), ("to", "earliest")])
    return walk


def routes_of(walk: _Walk) -> set[str]:
    """Return the routes that the walk has not reached."""
    patterns = {entry.path: re.sub(r"\{\w+\}", "[^/]+", entry.path) for entry in ROUTES}
    paths = {urlsplit(name.split(" ")[0]).path for name in walk.answers}
    return {path for path, pattern in patterns.items() if not any(re.fullmatch(pattern, one) for one in paths)}


@pytest.mark.in_turn
def test_no_answer_has_a_hidden_value(server: Server, shop: dict[str, str], tmp_path: Path) -> None:
    with hiding(server, tmp_path, "--show", "n,shop") as console:
        browser = console.browser()
        typed = [("action", "add"), ("names", "orders"), ("new.name", "card"), ("new.value", SECRET)]
        maker = _Walk(browser)  # who types the value has it in the form that makes the change, as any form
        maker.make(maker.post(typed)[1], 1)
        with server.client() as client:
            assert client.xrevrange("orders", count=1)[0][1] == {b"card": SECRET.encode()}
        found = walk(browser, shop)
        found.make(found.post([("action", "purge"), ("names", "orders:dead"), ("unset", "x")])[1], 2)
        found.follow("/changes", "/changes/1", "/changes/2")
        found.answers["audit"] = (tmp_path / "audit").read_text()
        found.answers["output"] = console.output()
        cookies = "; ".join("=".join(one) for one in browser.cookies.items())
        request = f"GET /events HTTP/1.1\r\nHost: {console.host}\r\nCookie: {cookies}\r\n\r\n"
        with console.connect(request.encode()) as events:
            events.settimeout(10)
            found.answers["/events"] = events.recv(1 << 16).decode() + events.recv(1 << 16).decode()
        assert " 200 OK" in found.answers["/events"]
        assert found.found() == []
        assert routes_of(found) == set()
        pages = {name.removesuffix(" {}"): text for name, text in found.answers.items()}
        entry = pages[link("/entry", name="orders", id=shop["entry"])]
        assert f"hidden ({len(SECRET)} bytes)" in entry
        assert "bakery" in entry
        assert "card=hidden (11 bytes)" in html.unescape(pages["/changes/1"])
        assert json.loads(found.answers["audit"].splitlines()[0])["command"][-2:] == [
            "card=hidden (11 bytes)",
            "--no-create",
        ]
        assert "RSTREAM_DECODE" in pages["/queries"]
        assert "bakery" in pages[link("/stream", name="orders", field="shop", value="bak")]
        assert "would read" in pages[next(name for name in pages if "'seek'" in name)]
    with hiding(server, tmp_path) as console:
        write_again(server, tmp_path, shop)
        assert len(walk(console.browser(), shop).found()) > 10, "everything is shown without --show"


def write_again(server: Server, folder: Path, shop: dict[str, str]) -> None:
    with server.client() as client:
        client.delete("orders", "orders:dead")
        shop |= write_shop(client, folder)


@pytest.mark.in_turn
def test_a_form_leaves_hidden_values_as_they_are(server: Server, shop: dict[str, str], tmp_path: Path) -> None:
    with hiding(server, tmp_path, "--show", "n", "--show", "shop") as console, server.client() as client:
        browser = console.browser()
        before = dict(client.xrange("orders:dead", shop["letter"], shop["letter"])[0][1])
        form = form_to(
            browser.get(link("/dead/letter", name="orders:dead", id=shop["letter"])).text, "/plan", action="redrive"
        )
        assert {name for name, _ in form if name.startswith("value.")} == {"value.0", "value.1"}
        planned = browser.post("/plan", [*replaced(form, **{"value.0": "7"}), ("value.2", "x"), ("remove.2", "1")]).text
        assert "hidden" not in dict(form_to(planned, "/changes"))["fixed"]
        browser.post("/changes", form_to(planned, "/changes"))
        assert "Done" in wait_for_change(browser, 1)
        sent_back = dict(client.xrevrange("orders", count=1)[0][1])
        own = {name: value for name, value in before.items() if not name.startswith(b"dl.")}
        assert {name: sent_back[name] for name in own} == own | {b"n": b"7"}
        again = browser.get(link("/add", name="orders", again=shop["entry"])).text
        planned = browser.post("/plan", replaced(form_to(again, "/plan"), **{"value.0": "8"})).text
        browser.post("/changes", form_to(planned, "/changes"))
        assert "Done" in wait_for_change(browser, 2)
        added = client.xrevrange("orders", count=1)[0][1]
        assert added == own | {b"n": b"8"}


@pytest.mark.in_turn
def test_a_search_says_nothing_of_a_hidden_value(server: Server, shop: dict[str, str], tmp_path: Path) -> None:
    with hiding(server, tmp_path, "--show", "n,shop") as console:
        browser, entry = console.browser(), shop["entry"]
        for path in (
            link("/stream", name="orders", field="card", value="s"), link("/stream", name="orders", field="card"),
            link("/stream", name="orders", value="s"), link("/stream", name="orders", where='$[*] ~ "sek"'),
            link("/stream", name="orders", field="order", where=f'$.card ~ "{SECRET[0]}"'),
            link("/export", name="orders", at=entry, to=entry, field="card"),
            link("/export", name="orders", at=entry, to=entry, value="s"),
            link("/dead/stream", name="orders:dead", field=f"card={SECRET}"),
            link("/dead/stream", name="orders:dead", reason="card*"),
            link("/dead/stream", name="orders:dead", error="*"),
        ):  # fmt: skip
            answer = browser.get(path)
            assert (answer.status, "hidden in this console" in answer.text) == (403, True), path
        for action in ("redrive", "purge"):
            for asked in (("field", f"card={SECRET}"), ("reason", "card*"), ("error", "*")):
                status, text = _Walk(browser).post([("action", action), ("names", "orders:dead"), asked])
                assert (status, "hidden in this console" in text) == (403, True)
        form = [("action", "redrive"), ("names", "orders:dead"), ("letter", shop["letter"])]
        assert _Walk(browser).post([*form, ("new.name", "card"), ("new.value", SECRET)])[0] == 403
        assert _Walk(browser).post([*form[:2], ("set", f"card={SECRET}")])[0] == 403
        assert "no entry matches" in browser.get(link("/stream", name="orders", field="shop", value="xek")).text
        for shown in (
            link("/stream", name="orders", field="shop", value="bak"),
            link("/stream", name="orders", field="n", where="$ = 1"),
            link("/dead/stream", name="orders:dead", field="n=1", stage="*"),
        ):
            page = browser.get(shown)
            assert (page.status, "matches" in page.text) == (200, False), shown
