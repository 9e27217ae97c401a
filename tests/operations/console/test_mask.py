"""Values of masked fields: pure, and a walk over all routes, whose answers must not have them."""

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
from spark_streams.operations.console.login.users import add_user

from spark_streams import dead_letters
from spark_streams.base.ids import StreamId
from spark_streams.cli import main
from spark_streams.connector.deadletter.envelope import FIELDS, NAMES
from spark_streams.connector.deadletter.transform import DeadLetter
from spark_streams.connector.errors import NotPermittedError
from spark_streams.connector.keys import retry_stream
from spark_streams.operations.console.bounds import MASK
from spark_streams.operations.console.change import Change, Outcome
from spark_streams.operations.console.mask import Mask
from spark_streams.operations.console.request.parameters import link
from spark_streams.operations.console.routes import ENTRIES
from spark_streams.operations.monitor.last_entries import Seen
from tests.connector.schemas.avro_values import encoded, record
from tests.operations.console.browser import Browser, form_to, replaced, wait_for_change
from tests.operations.console.process import Console, running_console
from tools.servers.server import Server

CARD = Mask(frozenset({"card", "straße"}), frozenset({"payload"}))
SECRET = "sekret-4111"
SCHEMA = record({"name": "card", "type": "string"}, {"name": "shop", "type": "string"})


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("card", "4111", MASK),
        ("card", "", MASK),
        ("payload", "\x084111", MASK),
        ("note", "paid", "paid"),
        ("method", "card", "card"),
        ("method", " card\n", " card\n"),
        ("note", "card 4111 was refused", MASK),
        ("note", "discarded: 4111", "discarded: 4111"),
        ("note", "card_type: visa", "card_type: visa"),
        ("xml", "<card>4111</card>", MASK),
        ("url", "?card=4111&n=1", MASK),
        ("order", '{"n": 12.50, "card": "4111"}', f'{{"n": 12.50, "card": "{MASK}"}}'),
        ("order", '{"card": {"number": [1, 2]}, "n": null}', f'{{"card": "{MASK}", "n": null}}'),
        ("order", '{"c\\u0061rd": 4111}', f'{{"card": "{MASK}"}}'),
        ("order", '{"stra\\u00dfe": "x"}', f'{{"straße": "{MASK}"}}'),
        ("order", '{"stra\\u00dfe": "cut off', MASK),
        ("order", '{"x": {"card": 1}, "x": 2}', f'{{"x": {{"card": "{MASK}"}}, "x": 2}}'),
        ("order", '{"before": {"a": [{"card": 1}]}}', f'{{"before": {{"a": [{{"card": "{MASK}"}}]}}}}'),
        ("order", '{"inner": "{\\"card\\": 4111}"}', f'{{"inner": "{{\\"card\\": \\"{MASK}\\"}}"}}'),
        ("order", '"{\\"card\\": 4111}"', f'"{{\\"card\\": \\"{MASK}\\"}}"'),
        ("order", '{"note": "card 4111", "n": 1}', f'{{"note": "{MASK}", "n": 1}}'),
        ("order", '{"method": "card", "n": NaN}', '{"method": "card", "n": NaN}'),
        ("headers", '[{"key": "card", "value": "4111"}]', f'[{{"key": "card", "value": "{MASK}"}}]'),
        ("headers", '[["card", "4111"], ["n", 1]]', f'[["card", "{MASK}"], ["n", 1]]'),
        ("order", '{"card": "4111"', MASK),
        ("order", '{"card": "' + "4" * (1 << 20) + '"}', MASK),
        ("order", '{"card": ' + "[" * 100_000, MASK),
        ("order", '{"a":' * 50_000 + '{"card": 1}' + "}" * 50_000, MASK),
        ("order", '{"card": "\\ud800", "n": "\\ud800"}', f'{{"card": "{MASK}", "n": "\\ud800"}}'),
        ("binary", "\udcffcard\udcff\udc80", MASK),
        ("binary", "\udcff\udc80", "\udcff\udc80"),
    ],
)
def test_a_value(name: str, value: str, shown: str) -> None:
    assert CARD.value(name, value) == shown
    assert Mask().value(name, value) == value
    assert CARD.entry(Seen(StreamId(1, 0), "s", ((name.encode(), value.encode("utf-8", "surrogatepass")),)))


def test_an_entry_keeps_its_other_bytes() -> None:
    entry = Seen(StreamId(1, 0), "s", ((b"card", b"4111"), (b"\xff", b"\x00\xfe"), (b"card", b"\xff"), (b"n", b"1")))
    shown = ((b"card", MASK.encode()), (b"\xff", b"\x00\xfe"), (b"card", MASK.encode()), (b"n", b"1"))
    assert CARD.entry(entry).pairs == shown
    assert Mask().entry(entry) is entry


@pytest.mark.parametrize(
    "pair", [("card", "4111"), ("order", '{"card": 4111}'), ("order", '{"card": {"number": ["4111"]}}')]
)
def test_a_dead_letter_that_quotes_a_value(pair: tuple[str, str]) -> None:
    """A message may quote a value without its name."""
    envelope = dict.fromkeys(NAMES, "") | {"message": "4111: refused", "reason": "n is 14111", "id": "4111-0"}
    shown = CARD.letter(DeadLetter("1-0", [pair, ("n", "4111")], envelope))
    assert shown.envelope == envelope | {"message": MASK}
    assert shown.pairs[1] == ("n", "4111")
    assert "4111" not in shown.pairs[0][1]
    whole = [*pair, "n", "1", *(word for name, field in zip(NAMES, FIELDS, strict=True)
                                for word in (field.decode(), envelope[name]))]  # fmt: skip
    words = [word.encode() for word in whole]
    entry = CARD.entry(Seen(StreamId(1, 0), "s", tuple(zip(words[::2], words[1::2], strict=True))))
    assert dict(entry.pairs)[b"dl.message"] == MASK.encode()
    assert dict(entry.pairs)[b"dl.id"] == b"4111-0"


def test_a_change_and_its_outcome() -> None:
    words = [
        "dead",
        "redrive",
        "card-events",
        "--set",
        "card=4111",
        '--set=order={"card": 1}',
        "--set",
        "n=1",
        "--",
        "-card=1",
    ]
    output = {
        "stream": "card-events", "bounds": ["--allow", "card-events"], "moved": 3,
        "fields": [{"dead letter": "1-0", "field": "card", "now": "4111", "then": None},
                   {"dead letter": "1-0", "field": "n", "now": "1", "then": "2"}],
        "by": [{"reason": "card 4111", "count": 2}], "refused": ["card 4111 is bad", "other"],
        "entry": [{"field": "card", "value": "4111"}, {"field": "order", "value": '{"card": 41…'}],
    }  # fmt: skip
    change = CARD.change(Change(1, "ann", words, datetime.now(UTC), outcome=Outcome(1, output, "card is '4111'")))
    assert change.arguments == [
        "dead", "redrive", "card-events", "--set", f"card={MASK}", f"--set={MASK}", "--set", "n=1",
        "--", "-card=1",
    ]  # fmt: skip
    assert change.outcome is not None
    assert change.outcome.error == MASK
    assert change.outcome.output == output | {
        "fields": [{"dead letter": "1-0", "field": "card", "now": MASK, "then": None}, output["fields"][1]],  # type: ignore[index]
        "by": [{"reason": MASK, "count": 2}], "refused": [MASK, "other"],
        "entry": [{"field": "card", "value": MASK}, {"field": "order", "value": MASK}],
    }  # fmt: skip


@pytest.mark.parametrize("text", ["card=1", "card=", 'order={"card": 1}', "payload=x", f"card={MASK}x"])
def test_what_is_masked_cannot_be_asked_for(text: str) -> None:
    CARD.require_open(["n=1", "no assignment", "method=card"])
    Mask().require_open([text])
    with pytest.raises(NotPermittedError, match="are masked for you") as refused:
        CARD.require_open(["n=1", text])
    assert "1" not in refused.value.message


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--mask-all",), "does nothing without --mask"), (("--mask", "card,,email"), "a name is empty")],
)
def test_wrong_options(words: tuple[str, ...], said: str) -> None:
    ran = CliRunner().invoke(main, ["console", *words])
    assert (ran.exit_code, said in ran.output) == (2, True)


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
                waiting += [html.unescape(one) for one in found if one not in ("/logout", "/changes")]

    def post(self, form: list[tuple[str, str]]) -> tuple[int, str]:
        answer = self.browser.post("/plan", form)
        self.answers[f"plan {form}"] = answer.text
        return answer.status, answer.text

    def found(self) -> list[str]:
        """Return the answers that have the value, in any form."""
        raw = SECRET.encode()
        forms = {SECRET, base64.b64encode(raw).decode()[:-4], raw.hex(), SECRET[:8], SECRET[-6:]}
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
        "n": "1", "card": SECRET, "payload": payload, "note": f"card {SECRET} was refused",
        "order": json.dumps({"n": 2, "card": SECRET, "inner": json.dumps({"card": SECRET})}),
        "headers": json.dumps([{"key": "card", "value": SECRET}, ["card", SECRET]]),
    }  # fmt: skip
    entry = client.xadd("orders", fields).decode()
    client.xadd("orders", {"n": "2", "card": "other"})
    client.xgroup_create("orders", "g", id="0")
    client.xreadgroup("g", "c", {"orders": ">"})
    broken = {name.encode(): value for name, value in fields.items()}
    letter = dead_letters.write(
        client, "orders", "g", entry, broken, to="orders:dead", reason=f"card {SECRET} is odd",
        error=ValueError(f"{SECRET} is no number"),
    )  # fmt: skip
    assert isinstance(letter, bytes)
    client.xreadgroup("g", "c", {"orders": ">"})
    retry = client.xadd(retry_stream("orders", "g", 1), fields).decode()
    line = {"at": "2026-11-28T10:00:00.000Z", "query": "q", "id": "b", "run": "r"}
    lines = [{**line, "event": "started"}, {**line, "event": "terminated", "error": "E", "message": f"card = {SECRET}"}]
    (folder / "q.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return {"entry": entry, "letter": letter.decode(), "retry": retry}


@contextmanager
def masking(server: Server, folder: Path, *words: str) -> Iterator[Console]:
    options = ["--mask", "email,card", "--schema", f"payload={folder}/order.avsc", "--log", str(folder / "q.jsonl")]
    with running_console(server.url, "--write", "--audit", str(folder / "audit"), *options, *words) as console:
        yield console


def walk(browser: Browser, shop: dict[str, str]) -> _Walk:
    """Ask for every page, and for dry runs that would show the value."""
    walk = _Walk(browser)
    entry, letter, retry = shop["entry"], shop["letter"], shop["retry"]
    walk.follow(
        "/", "/streams?own=1", "/changes", "/changes/1", "/changes/2", "/doctor", "/queries", "/login",
        link("/stream", name="orders", value="sek"), link("/stream", name="orders", value="ekre"),
        link("/stream", name="orders", where='$[*] ~ "sek"'),
        link("/stream", name="orders", field="order", where="$.n = 2"),
        link("/stream", name=retry_stream("orders", "g", 1)), link("/add", name="orders", again=entry),
        link("/entry", name=retry_stream("orders", "g", 1), id=retry), link("/entry", name="orders:dead", id=letter),
        link("/dead/letter", name="orders:dead", id=letter), link("/dead/stream", name="orders:dead", reason="*"),
        link("/export", name="orders:dead", at=letter, to=letter), link("/oidc"), link("/oidc/login"),
    )  # fmt: skip
    form = form_to(walk.visit(link("/dead/letter", name="orders:dead", id=letter)), "/plan", action="redrive")
    walk.post(replaced(form, **{"value.0": "3"}))
    walk.post(form_to(walk.visit(link("/dead/letter", name="orders:dead", id=letter)), "/plan", action="purge"))
    walk.post([*form, ("new.name", "note"), ("new.value", "fine")])
    walk.post(form_to(walk.visit(link("/add", name="orders", again=entry)), "/plan", action="add"))
    walk.post([("action", "redrive"), ("names", "orders:dead"), ("unset", "card"), ("set", "order=1")])
    return walk


def routes_of(walk: _Walk) -> set[str]:
    """Return the routes with GET that the walk has not reached."""
    patterns = {entry.path: re.sub(r"\{\w+\}", "[^/]+", entry.path) for entry in ENTRIES if entry.method == "GET"}
    paths = {urlsplit(name.split(" ")[0]).path for name in walk.answers}
    return {path for path, pattern in patterns.items() if not any(re.fullmatch(pattern, one) for one in paths)}


def log_in(console: Console, name: str) -> Browser:
    browser = console.browser()
    assert browser.post("/login", {"name": name, "password": name}).status == 303
    return browser


@pytest.mark.in_turn
def test_no_answer_to_a_viewer_has_the_value(server: Server, shop: dict[str, str], tmp_path: Path) -> None:
    users = tmp_path / "users"
    add_user(users, "ann", "ann")
    add_user(users, "vera", "vera", "view")
    with masking(server, tmp_path, "--users", str(users)) as console:
        ann, vera = log_in(console, "ann"), log_in(console, "vera")
        letter = ann.get(link("/dead/letter", name="orders:dead", id=shop["letter"])).text
        assert SECRET in letter
        form = form_to(letter, "/plan", action="redrive")
        planned = ann.post("/plan", replaced(form, **{"value.1": f"new-{SECRET}"})).text  # value.1: card
        assert f"--set card=new-{SECRET}" in html.unescape(planned).replace("'", "")
        # The correction is made, and its dead letter is written again, so that the walk finds one.
        ann.post("/changes", form_to(planned, "/changes"))
        assert SECRET in html.unescape(wait_for_change(ann, 1))
        ann.post("/plan", [("action", "redrive"), ("names", "orders:dead")])
        with server.client() as client:
            assert client.xlen("orders:dead") == 0
            shop = write_shop(client, tmp_path) if client.delete("orders", "orders:dead") else shop
        found = walk(vera, shop)
        assert found.found() == []
        assert routes_of(found) == {"/events"}
        events = console.connect(
            f"GET /events HTTP/1.1\r\nHost: {console.host}\r\n".encode()
            + f"Cookie: {'; '.join('='.join(one) for one in vera.cookies.items())}\r\n\r\n".encode()
        )
        with events:
            events.settimeout(10)
            assert b" 200 OK" in events.recv(1 << 16)
            assert SECRET.encode() not in events.recv(1 << 16)
        assert MASK in found.answers[f"{link('/entry', name='orders', id=shop['entry'])} {{}}"]
        assert "bakery" in found.answers[f"{link('/entry', name='orders', id=shop['entry'])} {{}}"]
        assert SECRET in "".join(walk(ann, shop).answers.values())
        audit = (tmp_path / "audit").read_text()
        begun = json.loads(next(line for line in audit.splitlines() if "change begins" in line))
        assert f"card={MASK}" in begun["command"]
        assert SECRET not in audit


@pytest.mark.in_turn
@pytest.mark.parametrize("words", [(), ("--mask-all",)], ids=["no logins", "--mask-all"])
def test_a_writer_who_is_masked(server: Server, shop: dict[str, str], tmp_path: Path, words: tuple[str, ...]) -> None:
    """A masked form leaves the value as it is."""
    if words:
        add_user(tmp_path / "users", "ann", "ann")
        words = (*words, "--users", str(tmp_path / "users"))
    with masking(server, tmp_path, *words) as console, server.client() as client:
        browser = log_in(console, "ann") if words else console.browser()
        assert walk(browser, shop).found() == []
        before = dict(client.xrange("orders:dead", shop["letter"], shop["letter"])[0][1])
        form = form_to(
            browser.get(link("/dead/letter", name="orders:dead", id=shop["letter"])).text, "/plan", action="redrive"
        )
        assert {name for name, _ in form} >= {"value.0"}
        assert not {name for name, _ in form} & {f"value.{number}" for number in range(1, 6)}
        planned = browser.post(
            "/plan", [*replaced(form, **{"value.0": "7"}), ("value.1", MASK), ("remove.1", "1")]
        ).text
        assert MASK not in dict(form_to(planned, "/changes"))["fixed"]
        browser.post("/changes", form_to(planned, "/changes"))
        assert "Done" in wait_for_change(browser, 1)
        sent_back = dict(client.xrevrange("orders", count=1)[0][1])
        own = {name: value for name, value in before.items() if not name.startswith(b"dl.")}
        assert {name: sent_back[name] for name in own} == own | {b"n": b"7"}
        added = browser.post(
            "/plan", [("action", "add"), ("names", "orders"), ("new.name", "card"), ("new.value", "5")]
        )
        browser.post("/changes", form_to(added.text, "/changes"))
        assert "Done" in wait_for_change(browser, 2)
        assert client.xrevrange("orders", count=1)[0][1] == {b"card": b"5"}


@pytest.mark.in_turn
def test_a_search_says_nothing_of_the_value(server: Server, shop: dict[str, str], tmp_path: Path) -> None:
    """What names a masked field is refused; a search of all fields looks at masks."""
    guess = json.dumps({"n": 2, "card": SECRET, "inner": json.dumps({"card": SECRET})})
    with masking(server, tmp_path) as console:
        browser = console.browser()
        for path in (
            link("/stream", name="orders", field="card", value="s"),
            link("/stream", name="orders", field="payload", value="s"),
            link("/stream", name="orders", field="order", where=f'$.card ~ "{SECRET[0]}"'),
            link("/stream", name="orders", field="order", where='$.x["card"] != 1'),
            link("/export", name="orders", at=shop["entry"], to=shop["entry"], field="card"),
            link("/dead/stream", name="orders:dead", field=f"card={SECRET}"),
            link("/dead/stream", name="orders:dead", field=f"order={guess}"),
        ):  # fmt: skip
            answer = browser.get(path)
            assert (answer.status, "are masked for you" in answer.text) == (403, True), path
        for action in ("redrive", "purge"):
            for asked in (f"card={SECRET}", f"order={guess}", "payload=x"):
                status, text = _Walk(browser).post([("action", action), ("names", "orders:dead"), ("field", asked)])
                assert (status, "are masked for you" in text) == (403, True)
        form = [("action", "redrive"), ("names", "orders:dead"), ("letter", shop["letter"])]
        for asked in (("card", SECRET), ("order", guess)):
            status, _ = _Walk(browser).post([*form, ("new.name", asked[0]), ("new.value", asked[1])])
            assert status == 403
            assert _Walk(browser).post([*form[:2], ("set", "=".join(asked))])[0] == 403
        for right, wrong in (("sek", "xek"), (SECRET[-3:], "999")):
            answers = [browser.get(link("/stream", name="orders", value=value)).text for value in (right, wrong)]
            assert all("no entry matches" in text for text in answers)
        assert "no entry matches" in browser.get(link("/stream", name="orders", where='$[*] ~ "sek"')).text
        assert (
            "no entry matches" not in browser.get(link("/stream", name="orders", field="order", where="$.n = 2")).text
        )
