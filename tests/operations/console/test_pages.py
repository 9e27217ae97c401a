"""The pages with usual and with hostile data, as HTTP requests get them; tests/legs/console_browser looks at them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlencode

import pytest
import redis

from spark_streams.connector.shards.names import shards_of
from spark_streams.operations.console.incoming import link
from tests.connector.deadletter.making import fill
from tests.holding import hold
from tests.operations.console.browser import Browser, form_to, replaced, wait_for_change
from tests.operations.console.hostile import HOST, HOSTILE_DEAD, MARKER, NAMES, TARGET, write_hostile
from tests.operations.console.normal import DEAD, ENTRIES, GROUP, LETTERS, SOON, STREAM, write_normal
from tests.operations.console.process import running_console
from tools.servers.server import Server

pytestmark = pytest.mark.in_turn

_EVERY = 16  # of the hostile entries: a process tells the journey of each
LARGE_PAGE = 2 << 20  # bytes: a page of hostile data is not larger


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client


class _Links(HTMLParser):
    """Addresses in a page, and elements that could run a script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src", "action"):
                self.links.append(value or "")
            if name.startswith("on") or name in ("style", "srcdoc"):
                self.scripts.append(f"{tag} {name}")
        if tag in ("script", "iframe", "img", "object", "style", "base", "meta"):
            self.scripts += [tag] if dict(attributes).get("src") != "/static/console.js" and tag != "meta" else []


def entry_ids(page: str) -> list[str]:
    """Return the IDs in the list of entries of a stream's page."""
    return re.findall(r'class="id"><a [^>]*>([0-9-]+)</a></td><td class="n">', page)


def test_pages_of_usual_data(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    data = write_normal(client, tmp_path)
    assert data.log is not None
    with running_console(server.url, "--log", str(data.log)) as console:
        browser = console.browser()
        overview = browser.get("/").text
        for text in ("billing", "sessions", "of 5 streams", f"{LETTERS}", "no amount", "rstream top"):
            assert text in overview, text
        assert "2 rows" not in overview
        streams = browser.get("/streams").text
        assert streams.count('href="/stream?name=clicks"') == 1  # shards are one stream
        assert "clicks:0/4" not in streams
        assert "rstream:" not in re.sub(r"<label>.*?</label>", "", streams)
        stream = browser.get(link("/stream", name=STREAM)).text
        assert len(entry_ids(stream)) == 50
        assert "worker-2" in stream
        assert f"{ENTRIES}" in stream
        clicks = browser.get(link("/stream", name="clicks")).text
        assert len(entry_ids(clicks)) == 50
        assert "<dd>4</dd>" in clicks
        older = next(address for address in _Links(clicks).links if re.match(r"/stream\?.*at=", address))
        assert len(entry_ids(browser.get(older).text)) == 50
        dead = browser.get("/dead").text
        assert DEAD in dead
        for reason, letters in data.letters.items():
            page = browser.get(link("/dead/stream", name=DEAD, reason=reason)).text
            assert page.count('type="checkbox"') == min(25, len(letters))
        queries = browser.get("/queries").text
        assert "RSTREAM_DECODE" in queries
        assert "persistence" in browser.get("/doctor").text or server.kind == "engine"
        for path in ("/stream?name=none", "/entry?name=orders&id=1-1", "/dead/letter?name=orders%3Adead&id=1-1"):
            assert browser.get(path).status == 404
        assert browser.get("/entry?name=orders&id=x").status == 400
        assert browser.get("/where?name=orders&id=x").status == 400
        assert "no stream" in browser.get("/where?name=none&id=1-1").text
        letter = browser.get(link("/dead/letter", name=DEAD, id=data.letters["no amount"][0])).text
        own, of_entry = [target for target in _Links(letter).links if target.startswith("/where?")]
        assert "still a dead letter" in browser.get(own).text
        journey = browser.get(of_entry).text
        assert "with other fields: no amount" in journey
        assert own in _Links(journey).links
        newest = entry_ids(stream)[0]
        [target] = [
            one for one in _Links(browser.get(link("/entry", name=STREAM, id=newest)).text).links if "/where" in one
        ]
        assert "not delivered yet, as the group stands" in browser.get(target).text
        assert browser.get("/group?stream=orders&group=none").status == 404
        assert browser.post("/plan", {"action": "no"}).status == 400


def test_a_group_that_nobody_uses_says_what_it_holds(server: Server, client: redis.Redis) -> None:
    hold(client)
    for name in shards_of("clicks", 2):
        hold(client, name)
    with running_console(server.url, before=SOON) as console:
        browser = console.browser()
        stream, shards = (browser.get(link("/stream", name=name)).text for name in ("s", "clicks"))
        group = browser.get(link("/group", stream="s", group="slow")).text
    said = [re.findall(r"holds (\d+) entries, about ([0-9.]+ k?B), idle ", page) for page in (stream, shards, group)]
    assert [[entries for entries, _ in one] for one in said] == [["8", "9"], ["16", "18"], ["8"]]
    with running_console(server.url) as console:
        assert "holds" not in console.browser().get(link("/stream", name="s")).text, "not before a day has passed"


def test_a_journey_that_was_cut_offers_to_read_more(server: Server, client: redis.Redis) -> None:
    for n in range(1, 6):
        client.xadd("s", {"a": n}, id=f"{n}-1")
    client.xgroup_create("s", "g", "0")
    with running_console(server.url) as console:
        browser = console.browser()
        whole, cut = (browser.get(link("/where", name="s", id="5-1", limit=limit)).text for limit in ("", 2))
    assert ("4 entries before it" in whole, "Read up to" in whole) == (True, False)
    assert "Read up to 20 entries" in cut
    assert link("/where", name="s", id="5-1", limit=20) in _Links(cut).links


def test_the_next_page_begins_at_the_next_entry(server: Server, client: redis.Redis) -> None:
    """(All entries are of one millisecond.)"""
    ids = [f"1795163834542-{number}" for number in range(120)]
    for entry in ids:
        client.xadd("s", {"n": 1}, id=entry)
        client.xadd("d", {"n": 1, "dl.stream": "s", "dl.id": "1-0", "dl.reason": "r", "dl.group": "g"}, id=entry)
    with running_console(server.url) as console:
        browser = console.browser()

        def pages(address: str, pattern: str) -> list[str]:
            seen: list[str] = []
            while address:
                page = browser.get(address).text
                seen += re.findall(pattern, page)
                address = next((a for a in _Links(page).links if re.match(r"/(dead/)?stream\?.*(at|first-id)=", a)), "")
            return seen

        assert pages("/stream?name=s", r'class="id"><a [^>]*>([0-9-]+)</a></td><td class="n">') == ids[::-1]
        assert pages("/dead/stream?name=d", r'name="id" value="([0-9-]+)"') == ids


def test_entries_are_found_by_id_time_and_field(server: Server, client: redis.Redis) -> None:
    write_normal(client)
    with running_console(server.url) as console:
        browser = console.browser()

        def matching(**search: str) -> list[str]:
            page = browser.get(link("/stream", name=STREAM, **search))
            assert page.status == 200, page.text
            return entry_ids(page.text)

        ids = [entry.decode() for entry, _ in client.xrevrange(STREAM, count=ENTRIES)]
        assert matching() == ids[:50]
        assert matching(at=ids[100]) == ids[100:150]
        assert matching(at=ids[590]) == ids[590:]
        assert matching(at=ids[-1].partition("-")[0]) == ids[-1:]  # milliseconds
        assert matching(field="order", value="000007") == [ids[-8]]
        assert len(matching(field="customer", value="dörte")) == 50
        assert matching(value="000007") == [ids[-8]]
        assert matching(field="no such field") == []
        assert matching(at="365d") == []
        assert matching(at="2026-01-01") == []
        assert browser.get(link("/stream", name=STREAM, at="yesterday")).status == 400


def test_a_dead_letter_is_corrected_and_sent_back(server: Server, client: redis.Redis) -> None:
    data = write_normal(client)
    letter = data.letters["no amount"][3]
    with running_console(server.url, "--write") as console:
        browser = console.browser()
        page = browser.get(link("/dead/letter", name=DEAD, id=letter)).text
        assert "ValueError" in page
        fields = form_to(page, "/plan", action="redrive")
        number = next(number for number, value in enumerate(_values(fields)) if value == "")
        planned = browser.post(
            "/plan", replaced(fields, **{f"value.{number}": "12.50\nsecond line", "new.name": "by", "new.value": "ann"})
        )
        assert planned.status == 200
        assert "rstream dead redrive orders:dead --id" in planned.text
        assert "amount=12.50\\x0asecond line" in planned.text  # quoted for a shell
        assert client.xlen(DEAD) == LETTERS
        assert browser.post("/changes", form_to(planned.text, "/changes")).status == 303
        assert "Done" in wait_for_change(browser, 1)
        entry = client.xrevrange(STREAM, count=1)[0][1]
        assert entry[b"amount"] == b"12.50\nsecond line"
        assert entry[b"by"] == b"ann"
        assert b"customer" in entry
        assert entry[b"dl.redriven"].rpartition(b" ")[0].endswith(f"{DEAD}/{letter}".encode())
        assert client.xlen(DEAD) == LETTERS - 1
        assert not client.xrange(DEAD, letter, letter)
        again = browser.post("/changes", form_to(planned.text, "/changes"))
        assert again.status == 403  # a token makes one change
        assert client.xlen(STREAM) == ENTRIES + 1  # not twice
        assert browser.get(link("/dead/letter", name=DEAD, id=letter)).status == 404


@pytest.mark.parametrize("action", ["redrive", "purge"])
def test_a_change_has_the_bounds_of_its_dry_run(server: Server, client: redis.Redis, action: str) -> None:
    """A dead letter and a destination that come between the dry run and the change are not part of it."""
    fill(server, 3, into="late:dead")
    with running_console(server.url, "--write") as console:
        browser = console.browser()
        planned = browser.post("/plan", {"action": action, "names": "late:dead"})
        fill(server, 1, first=9, into="late:dead")
        fill(server, 1, first=9, into="late:dead", stream="elsewhere")
        assert browser.post("/changes", form_to(planned.text, "/changes")).status == 303
        assert "Done" in wait_for_change(browser, 1)
    assert client.xlen("late:dead") == 2
    assert client.xlen("elsewhere") == 0
    assert client.xlen("s") == (3 if action == "redrive" else 0)


def test_a_change_of_two_streams_has_the_last_entry_of_each(server: Server, client: redis.Redis) -> None:
    """What is given to the consumer between the dry run and the change stays with it, whatever the streams' names."""
    streams = ("a", "--group")
    for number, stream in enumerate(streams):
        for n in range(10):
            client.xadd(stream, {"n": n}, id=f"{1000 * number + n + 1}-0")
        client.xgroup_create(stream, "g", "0")
        client.xreadgroup("g", "bob", {stream: ">"}, count=5)
    with running_console(server.url, "--write") as console:
        browser = console.browser()
        words = [("names", stream) for stream in streams]
        planned = browser.post("/plan", [("action", "ack"), *words, ("group", "g"), ("all", "1"), ("even-active", "1")])
        for stream in streams:
            client.xreadgroup("g", "bob", {stream: ">"}, count=3)
        assert browser.post("/changes", form_to(planned.text, "/changes")).status == 303, planned.text
        assert "Done" in wait_for_change(browser, 1)
    assert [client.xpending(stream, "g")["pending"] for stream in streams] == [3, 3]


def _values(fields: list[tuple[str, str]]) -> list[str]:
    return [value for name, value in fields if name.startswith("value.")]


def test_selections_are_sent_back_or_deleted(server: Server, client: redis.Redis) -> None:
    data = write_normal(client)
    with running_console(server.url, "--write") as console:
        browser = console.browser()

        def change(number: int, *chosen: tuple[str, str], **filters: str) -> str:
            page = browser.get(link("/dead/stream", name=DEAD, **filters)).text
            planned = browser.post("/plan", [*form_to(page, "/plan"), *chosen])
            browser.post("/changes", form_to(planned.text, "/changes"))
            return wait_for_change(browser, number)

        two = [("id", letter) for letter in data.letters["timeout"][:2]]
        assert "Done" in change(1, *two, ("action", "purge"))
        assert client.xlen(DEAD) == LETTERS - 2
        assert "Done" in change(2, ("action", "redrive"), reason="timeout")
        assert client.xlen(DEAD) == LETTERS - len(data.letters["timeout"])
        assert client.xlen(STREAM) == ENTRIES + len(data.letters["timeout"]) - 2
        changes = browser.get("/changes").text
        assert changes.count("done") == 2


def test_a_redrive_shows_its_progress_and_goes_on_after_a_restart(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    write_normal(client)
    audit = tmp_path / "audit"

    def begin(browser: Browser, rate: str) -> None:
        page = browser.get(link("/dead/stream", name=DEAD)).text
        fields = replaced(form_to(page, "/plan"), rate=rate)
        planned = browser.post("/plan", [*fields, ("action", "redrive")])
        browser.post("/changes", form_to(planned.text, "/changes"))

    with running_console(server.url, "--write", "--audit", str(audit)) as console:
        browser = console.browser()
        begin(browser, "100")
        seen = set()
        while len(seen) < 3:
            seen.update(re.findall(r"Running: ([0-9]+) of 300", browser.get("/changes/1").text))
        assert "<progress" in browser.get("/changes/1").text
    begun, stopped = map(json.loads, audit.read_text().splitlines())  # the console has stopped it after a page
    assert "exit_code" not in begun
    assert stopped["exit_code"] == 130
    remaining = client.xlen(DEAD)
    assert 0 < remaining < LETTERS
    with running_console(server.url, "--write") as console:
        browser = console.browser()
        begin(browser, "")
        assert "Done" in wait_for_change(browser, 1)
    marks = [fields[b"dl.redriven"] for _, fields in client.xrange(STREAM) if b"dl.redriven" in fields]
    assert (client.xlen(DEAD), len(marks), len(set(marks))) == (0, LETTERS, LETTERS)


def test_every_change_of_a_group(server: Server, client: redis.Redis) -> None:
    """The forms of a group's page, each with what it changes on the server."""
    write_normal(client)
    pending = client.xpending(STREAM, GROUP)["pending"]
    done = 0
    with running_console(server.url, "--write") as console:
        browser = console.browser()
        page = browser.get(link("/group", stream=STREAM, group=GROUP)).text

        def change(action: str, **values: str) -> None:
            nonlocal done
            planned = browser.post("/plan", replaced(form_to(page, "/plan", action=action), **values))
            assert planned.status == 200, planned.text
            assert browser.post("/changes", form_to(planned.text, "/changes")).status == 303
            done += 1
            assert "Done" in wait_for_change(browser, done)

        change("claim", **{"from": "worker-2", "to": "worker-3", "even-active": "1"})
        assert {row["consumer"] for row in client.xpending_range(STREAM, GROUP, "-", "+", 10)} == {b"worker-3"}
        first = client.xpending(STREAM, GROUP)["min"].decode()
        change("ack", id=first, **{"even-active": "1"})
        assert client.xpending(STREAM, GROUP)["pending"] == pending - 1
        change("ack", all="1", **{"even-active": "1"})
        assert client.xpending(STREAM, GROUP)["pending"] == 0
        change("seek", to="latest", **{"even-active": "1"})
        info = next(group for group in client.xinfo_groups(STREAM) if group["name"] == GROUP.encode())
        assert info["last-delivered-id"] == client.xinfo_stream(STREAM)["last-generated-id"]
        kept = browser.post("/plan", replaced(form_to(page, "/plan", action="prune"), idle="1d"))
        assert "rstream groups prune orders --idle 1d --group billing" in kept.text
        assert 'action="/changes"' not in kept.text, "a dry run that finds nothing has no bounds, and no button"
        assert GROUP.encode() in {group["name"] for group in client.xinfo_groups(STREAM)}
        refused = browser.post("/plan", replaced(form_to(page, "/plan", action="replay"), **{"from": "1h"}))
        assert 'action="/changes"' not in refused.text  # no query has read from the group


def test_hostile_data_is_text_on_every_page(server: Server, client: redis.Redis) -> None:
    data = write_hostile(client)
    with running_console(server.url, "--write", seconds=120) as console:
        browser = console.browser()
        paths = ["/", "/streams", "/streams?own=1", "/dead", "/queries", "/doctor", "/changes"]
        for stream in data.streams:
            paths.append("/stream?" + urlencode({"name": stream}))
            paths.append("/dead/stream?" + urlencode({"name": stream}))
            paths.append("/streams?" + urlencode({"find": stream}))
        for group in data.groups:
            paths.append("/group?" + urlencode({"stream": TARGET, "group": group}))
        paths.append("/stream?" + urlencode({"name": TARGET, "field": "field", "value": NAMES["script"]}))
        paths.append("/dead/stream?" + urlencode({"name": HOSTILE_DEAD, "reason": NAMES["script"]}))
        for stream, entry in data.entries.values():
            paths.append("/entry?" + urlencode({"name": stream, "id": entry}))
        for stream, entry in data.letters.values():
            paths.append("/dead/letter?" + urlencode({"name": stream, "id": entry}))
        for stream, entry in [*data.entries.values(), *data.letters.values()][::_EVERY]:
            paths.append("/where?" + urlencode({"name": stream, "id": entry}))
        seen = set()
        while paths:
            path = paths.pop()
            seen.add(path)
            answer = browser.get(path)
            assert answer.status < 500, (path, answer.text[-3000:])
            if path.startswith("/export?"):  # a file, which no browser shows
                assert answer.headers["content-disposition"].startswith("attachment; ")
                assert answer.headers["content-type"] == "application/x-ndjson"
                continue
            assert len(answer.text) < LARGE_PAGE, (path, len(answer.text))
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", answer.text), path
            parsed = _Links(answer.text)
            assert parsed.scripts == [], path
            for address in parsed.links:
                assert address.startswith(("/", "#")), (path, address)
                assert not address.startswith("//"), (path, address)
            if 'rel="next"' in answer.text and len(seen) < 500:  # pages that follow
                following = [address for address in parsed.links if "at=" in address or "first-id=" in address]
                paths += [address for address in following if address not in seen]
        assert len(seen) > 150
        assert (
            MARKER in browser.get("/entry?" + urlencode({"name": TARGET, "id": data.entries["value: script"][1]})).text
        )
        assert HOST not in console.output()
        assert "\x1b" not in console.output()


def test_hostile_names_reach_commands_as_they_are(server: Server, client: redis.Redis) -> None:
    """A name is one argument of a command, whatever characters it has."""
    names = ("--yes", "-x", "$(id) it's", "a\nb\x1b[2J", "é*")
    for name in names:
        client.xadd(name, {"n": 1}, id="1-0")
        client.xgroup_create(name, name, id="$")
    with running_console(server.url, "--write") as console:
        browser = console.browser()
        for number, name in enumerate(names, start=1):
            planned = browser.post("/plan", {"action": "seek", "names": name, "group": name, "to": "earliest"})
            assert planned.status == 200, planned.text
            browser.post("/changes", form_to(planned.text, "/changes"))
            assert "Done" in wait_for_change(browser, number)
            assert client.xinfo_groups(name)[0]["last-delivered-id"] == b"0-0", name
        nul = browser.post("/plan", {"action": "seek", "names": "a\0b", "group": "g", "to": "1h"})
        assert nul.status == 400


def test_a_server_that_is_away_is_shown_and_answers_again(tmp_path: Path) -> None:
    from tools.servers.server import running_engine

    with running_engine() as server:
        url = server.url
        with server.client() as client:
            client.xadd("s", {"n": 1})
    with running_console(url, "--every", "200ms") as console:
        page = console.browser().get("/")
        assert page.status == 200
        assert "has not answered" in page.text


def test_many_streams_are_paged(server: Server, client: redis.Redis) -> None:
    pipe = client.pipeline(transaction=False)
    for number in range(2_000):
        pipe.xadd(f"stream:{number:04d}", {"n": number})
        pipe.xgroup_create(f"stream:{number:04d}", "g", id="0")
    pipe.execute()
    with running_console(server.url) as console:
        browser = console.browser()
        assert "Page 1 of 20, 2,000 rows" in browser.get("/").text
        last = browser.get("/streams?page=20").text
        assert "stream:1999" in last
        assert "Page 20 of 20" in last
        assert "Page 20 of 20" in browser.get("/streams?page=999").text
        assert "stream:0042" in browser.get("/?find=stream:0042").text


def test_margins_are_words_in_all_tables(server: Server, client: redis.Redis) -> None:
    """(One snapshot shows no rate.)"""
    client.xadd("s", {"n": 1})
    client.xadd("free", {"n": 1})
    client.xgroup_create("s", "behind", id="0")
    client.xgroup_create("s", "done", id="$")
    with running_console(server.url, "--every", "1h") as console:
        browser = console.browser()

        def rows(path: str) -> dict[str, list[str]]:
            table = browser.get(path).text.partition("</thead>")[2].partition("</table>")[0]
            cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in table.split("<tr>")[1:]]
            return {re.sub("<[^>]+>", "", row[0]).split()[0]: [one.strip() for one in row] for row in cells}

        overview, stream, streams = rows("/"), rows("/stream?name=s"), rows("/streams")
        assert [overview[name][6] for name in ("behind", "done")] == ["unknown", "unlimited"]
        assert [stream[name][5] for name in ("behind", "done")] == ["unknown", "unlimited"]
        assert [streams[name][4] for name in ("s", "free")] == ["unknown", "–"]
        assert "unknown <" in browser.get(link("/group", stream="s", group="behind")).text
        assert "has acknowledged all entries" in browser.get(link("/group", stream="s", group="done")).text
