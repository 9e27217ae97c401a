"""`rstream exporter`: what its page says beside what a plain client did, what it costs the server, and what it does
where the server is away, refuses, or holds more than it was told to show."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from spark_streams.cli import main
from spark_streams.connector.deadletter.post import DEAD_LETTER_LIMITS
from spark_streams.connector.keys import delays_key, retry_stream, returned_stream
from spark_streams.connector.watch.metrics_page import MetricsPage
from spark_streams.connector.wire.address import Address, Patience
from spark_streams.operations.monitor.exported_metrics import ExportedMetrics
from spark_streams.operations.monitor.snapshots import SnapshotCache, StreamFilter
from tests.connector.deadletter.making import DEAD, fill
from tests.runner import separate_runner
from tools.machine_time import machine_seconds
from tools.servers.server import Server, free_port, running_redis, serving, skip_without_redis

Page = dict[str, float]  # `name{label="value"}`, labels by name


def once(url: str, *words: str) -> Result:
    return separate_runner().invoke(main, ["exporter", *words, "--once", "--url", url])


def read(text: str) -> Page:
    """The samples of a page."""
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def samples_of(page: Page, name: str) -> Page:
    """The samples of one metric, by its labels."""
    return {key[len(name) :]: value for key, value in page.items() if re.fullmatch(rf"{name}(\{{.*\}})?", key)}


class Exporter:
    """Its parts without HTTP, a clock that is moved by hand, and what it has told."""

    def __init__(self, url: str, *names: str, most: int = 10_000, limit: float = 60.0, reply: float = 5.0) -> None:
        self.told: list[str] = []
        self.time = 0.0
        address = replace(Address.parse(url), patience=Patience(reply=reply))
        self.snapshots = SnapshotCache(
            address, StreamFilter(names, most, self.now), 3.0, limit, self.told.append, now=self.now
        )
        self.page_of = MetricsPage(ExportedMetrics(self.snapshots))

    def now(self) -> float:
        return self.time

    def page(self, later: float = 60.0) -> Page:
        """The page, when so many seconds have passed."""
        self.time += later
        return read(self.page_of.text())


@pytest.fixture
def exporter(server: Server) -> Iterator[Exporter]:
    made = Exporter(server.url)
    yield made
    made.snapshots.close()


def test_the_page_is_what_a_client_did(server: Server, client: redis.Redis) -> None:
    for n in range(10):
        client.xadd("orders", {"n": n})
    client.xgroup_create("orders", "billing", id="0")
    client.xgroup_create("orders", "audit", id="0")
    client.xreadgroup("billing", "ann", {"orders": ">"}, count=4)
    time.sleep(0.03)
    client.xreadgroup("billing", "bob", {"orders": ">"}, count=2)
    fill(server, 6, has_group=False)
    ran = once(server.url)
    assert (ran.exit_code, ran.stderr) == (0, "")
    page = read(ran.stdout)
    billing, audit = '{group="billing",stream="orders"}', '{group="audit",stream="orders"}'
    assert page["rstream_server_up"] == 1
    assert samples_of(page, "rstream_lag_entries") == {audit: 10, billing: 4}
    assert samples_of(page, "rstream_pending_entries") == {audit: 0, billing: 6}
    assert samples_of(page, "rstream_consumers") == {audit: 0, billing: 2}
    assert 0.03 <= page[f"rstream_oldest_pending_seconds{billing}"] < 60
    assert 0.03 <= page[f"rstream_lag_seconds{billing}"] < 60
    assert list(samples_of(page, "rstream_group_idle_seconds")) == [billing]
    assert page[f"rstream_group_idle_seconds{billing}"] < page[f"rstream_oldest_pending_seconds{billing}"]
    assert samples_of(page, "rstream_stream_entries") == {'{stream="dead"}': 6, '{stream="orders"}': 10}
    sizes = samples_of(page, "rstream_stream_memory_bytes")
    assert sizes == {'{stream="dead"}': client.memory_usage("dead"), '{stream="orders"}': client.memory_usage("orders")}
    assert samples_of(page, "rstream_added_entries_total") == {'{stream="dead"}': 6, '{stream="orders"}': 10}
    assert samples_of(page, "rstream_delivered_entries_total")[billing] == 6
    assert samples_of(page, "rstream_dead_letters_waiting") == {
        '{reason="decode",stream="dead"}': 2, '{reason="odd",stream="dead"}': 4
    }  # fmt: skip
    newest = page['rstream_dead_letters_newest_timestamp_seconds{reason="odd",stream="dead"}']
    assert abs(newest - time.time()) < 60
    assert samples_of(page, "rstream_dead_letters_uncounted") == {'{stream="dead"}': 0}
    assert [value > 0 for value in samples_of(page, "rstream_server_memory_bytes").values()] == [True]
    assert samples_of(page, "rstream_server_memory_limit_bytes") == {}
    assert (page["rstream_streams"], page["rstream_streams_left_out"]) == (2, 0)
    assert 0 < page["rstream_scrape_seconds"] < 30


def test_looking_changes_nothing(server: Server, client: redis.Redis) -> None:
    client.xadd("orders", {"n": 1})
    client.xgroup_create("orders", "g", id="0")
    client.xreadgroup("g", "ann", {"orders": ">"})

    def state() -> Any:
        told = client.xinfo_stream("orders", full=True)
        for consumer in told["groups"][0]["consumers"]:
            consumer.pop("seen-time")
        return told, client.keys("*")

    before = state()
    assert once(server.url).exit_code == 0
    assert state() == before


def test_dead_letters_are_right_whatever_way_they_go(
    server: Server, client: redis.Redis, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server, 300)

    def waiting(name: str = DEAD) -> dict[str, int]:
        found = samples_of(exporter.page(), "rstream_dead_letters_waiting")
        return {re.findall('reason="(.*?)"', key)[0]: int(n) for key, n in found.items() if f'stream="{name}"' in key}

    def rstream(*words: str) -> None:
        ran = CliRunner().invoke(main, ["dead", *words, "--url", server.url])
        assert ran.exit_code == 0, ran.output

    assert waiting() == {"odd": 200, "decode": 100}
    rstream("redrive", DEAD, "--limit", "30", "--yes")
    assert waiting() == {"odd": 180, "decode": 90}
    rstream("purge", DEAD, "--reason", "decode", "--limit", "50", "--yes")
    assert waiting() == {"odd": 180, "decode": 40}
    fill(server, 3, first=300)
    assert waiting() == {"odd": 182, "decode": 41}
    client.xtrim(DEAD, maxlen=3, approximate=False)
    assert waiting() == {"odd": 2, "decode": 1}
    rstream("redrive", DEAD, "--yes")
    assert waiting() == {}
    fill(server, 1, into="others", reason="of its own")
    assert waiting("others") == {"of its own": 1}
    client.delete(DEAD, "others")
    assert waiting("others") == {}


def calls(client: redis.Redis, command: str) -> int:
    told = client.info("commandstats").get(f"cmdstat_{command}")
    return 0 if told is None else int(told["calls"])


def test_dead_letters_that_are_known_are_not_read_again(
    server: Server, client: redis.Redis, exporter: Exporter
) -> None:
    fill(server, has_group=False, count=50)
    exporter.page()
    before = calls(client, "xrange")
    assert before > 0
    for _ in range(3):
        exporter.page()
    assert calls(client, "xrange") == before
    fill(server, has_group=False, count=1, first=50)
    exporter.page()
    assert calls(client, "xrange") == before + 1


def test_many_dead_letters_are_counted_over_several_looks(server: Server, exporter: Exporter) -> None:
    """A page takes half a second by this clock, and a look gives them a second in all."""
    fill(server, 4 * DEAD_LETTER_LIMITS.first_page)
    letters = exporter.snapshots._dead_letters
    letters._now = (n / 2 for n in range(10_000)).__next__
    left = [samples_of(exporter.page(), "rstream_dead_letters_uncounted")['{stream="dead"}'] for _ in range(3)]
    assert left == [600, 0, 0]
    assert sum(samples_of(exporter.page(), "rstream_dead_letters_waiting").values()) == 800


def test_dead_letters_too_large_for_a_page_are_read_in_smaller_ones(server: Server, exporter: Exporter) -> None:
    fill(server, 20, message="x" * 200_000)
    exporter.snapshots._dead_letters._limits = replace(DEAD_LETTER_LIMITS, max_bytes=1_000_000, page_bytes=1_000_000)
    assert exporter.page()["rstream_server_up"] == 0, "this connection was given up"
    assert sum(samples_of(exporter.page(), "rstream_dead_letters_waiting").values()) == 20
    assert len(exporter.told) == 2


def test_a_reason_that_is_no_utf_8_or_very_long_is_shown(server: Server, exporter: Exporter) -> None:
    fill(server, 1, reason="\udcff\n" + "x" * 1000)
    [labels] = samples_of(exporter.page(), "rstream_dead_letters_waiting")
    assert '"\\\\xff\\nxxx' in labels
    assert len(labels) < 150


def test_a_long_reason_makes_no_long_line_in_a_terminal(engine_server: Server) -> None:
    fill(engine_server, 1, reason="x" * 5_000)
    result = separate_runner().invoke(main, ["dead", "list", DEAD, "--url", engine_server.url])
    assert result.exit_code == 0
    assert "x" * 167 + "…" in result.output
    assert "x" * 168 not in result.output


def test_scrapes_beside_each_other_and_soon_after_share_a_look(
    server: Server, client: redis.Redis, exporter: Exporter
) -> None:
    client.xadd("s", {"n": 1})
    before = calls(client, "time")  # one in a look
    found: list[Page] = []
    threads = [threading.Thread(target=lambda: found.append(exporter.page(0))) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    exporter.page(2.9)
    assert calls(client, "time") == before + 1
    assert [page["rstream_streams"] for page in found] == [1] * 8
    exporter.page(0.2)
    assert calls(client, "time") == before + 2


def test_names_and_patterns_choose_and_new_streams_are_found(server: Server, client: redis.Redis) -> None:
    for name in ("orders", "orders-1", "payments"):
        client.xadd(name, {"n": 1})
    exporter = Exporter(server.url, "orders-*", "payments", "refunds")

    def shown(later: float) -> list[str]:
        return re.findall('stream="(.*?)"', " ".join(samples_of(exporter.page(later), "rstream_stream_entries")))

    assert shown(0) == ["orders-1", "payments"]
    assert exporter.told == [f"stream 'refunds' does not exist yet at {server.url}"]
    client.xadd("orders-2", {"n": 1})
    client.xadd("refunds", {"n": 1})
    assert shown(9) == ["orders-1", "payments", "refunds"], "names are looked for every ten seconds"
    assert shown(9) == ["orders-1", "orders-2", "payments", "refunds"]
    client.delete("orders-1")
    assert shown(5) == ["orders-2", "payments", "refunds"]
    assert len(exporter.told) == 1
    exporter.snapshots.close()


def test_more_streams_than_it_may_show_are_counted(server: Server, client: redis.Redis) -> None:
    for n in range(5):
        client.xadd(f"s{n}", {"n": 1})
    exporter = Exporter(server.url, most=3)
    page = exporter.page()
    assert list(samples_of(page, "rstream_stream_entries")) == [f'{{stream="s{n}"}}' for n in range(3)]
    assert page["rstream_streams_left_out"] == 2
    assert exporter.told == [f"2 more streams at {server.url} are left out; use --max-streams"]
    exporter.snapshots.close()


def test_a_key_that_is_no_stream_is_reported_and_the_others_are_shown(server: Server, client: redis.Redis) -> None:
    client.set("text", "x")
    client.xadd("orders", {"n": 1})
    exporter = Exporter(server.url, "text", "orders")
    assert list(samples_of(exporter.page(), "rstream_stream_entries")) == ['{stream="orders"}']
    assert "[RSTREAM_WRONG_KEY_TYPE] key 'text'" in exporter.told[0]
    exporter.snapshots.close()


def test_a_look_that_takes_too_long_ends(server: Server, client: redis.Redis) -> None:
    for n in range(300):
        client.xadd(f"s{n}", {"n": 1})
    exporter = Exporter(server.url, limit=1.5)
    clock = iter(range(10_000))
    exporter.snapshots._now = lambda: float(next(clock))
    page = exporter.page(0)
    assert page == {"rstream_server_up": 0.0, 'rstream_exporter_info{version="0.1.0"}': 1.0}
    assert "20 of 300 streams" in exporter.told[0]
    assert "--time-limit" in exporter.told[0]
    exporter.snapshots.close()


def test_a_server_that_is_killed_and_started_again() -> None:
    """As a redis-server does that keeps nothing: its streams are others then."""
    skip_without_redis()
    with running_redis() as first:
        port = first.url.rsplit(":", 1)[1].split("/")[0]
        exporter = Exporter(first.url)
        fill(first, 30)
        before = exporter.page()
        with first.client() as client:
            client.shutdown(nosave=True)
    away = exporter.page()
    assert away == {"rstream_server_up": 0.0, 'rstream_exporter_info{version="0.1.0"}': 1.0}
    assert exporter.page() == away
    assert len(exporter.told) == 1
    assert "[RSTREAM_SERVER_UNREACHABLE]" in exporter.told[0]
    with serving("--port", port):
        fill(Server("engine", first.url), 3)
        after = exporter.page()
        assert sum(samples_of(before, "rstream_dead_letters_waiting").values()) == 30
        assert sum(samples_of(after, "rstream_dead_letters_waiting").values()) == 3
        assert after["rstream_server_up"] == 1
    assert exporter.told[1:] == [f"{first.url} answers again"]
    exporter.snapshots.close()


def test_a_silent_server_costs_one_patience_and_is_read_again_afterwards() -> None:
    """So the page is there before Prometheus has given up, and says which of the two is down."""
    with serving() as server:
        exporter = Exporter(server.url, reply=1.2)
        assert exporter.page()["rstream_server_up"] == 1
        server.process.send_signal(signal.SIGSTOP)
        began = machine_seconds()
        assert exporter.page()["rstream_server_up"] == 0
        assert machine_seconds() - began < 2.2
        server.process.send_signal(signal.SIGCONT)
        assert exporter.page()["rstream_server_up"] == 1
        exporter.snapshots.close()


def test_streams_with_large_entries_are_looked_at_a_few_at_a_time(
    server: Server, client: redis.Redis, exporter: Exporter
) -> None:
    for n in range(30):
        client.xadd(f"s{n:02}", {"x": "y" * 500_000})
    before = calls(client, "time")
    assert len(samples_of(exporter.page(), "rstream_stream_entries")) == 30
    assert calls(client, "time") == before + 4, "20 at first, then 4 MB of their ends at a time"


def test_a_password_is_in_nothing_that_is_printed() -> None:
    url = f"redis://someone:hidden-word@127.0.0.1:{free_port()}/0"
    ran = once(url)
    assert ran.exit_code == 1
    assert read(ran.stdout)["rstream_server_up"] == 0
    assert "no stream server answers at redis://***@127.0.0.1" in ran.stderr
    assert "hidden-word" not in ran.output


def test_no_engine_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSTREAM_EMBEDDED_DIR", str(tmp_path / "meet"))
    ran = once("embedded:")
    assert (ran.exit_code, "no bundled engine is running" in ran.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []


NEEDED = ("+@read", "+@connection", "+time", "-@dangerous", "+info")  # docs/reference/access.md


@pytest.fixture
def user(redis_server: Server) -> Iterator[Callable[..., str]]:
    """Makes a user with these rights; its url."""
    with redis_server.client() as client:
        client.flushall()

        def make(*rights: str) -> str:
            client.execute_command("ACL", "SETUSER", "scraper", "reset", "on", ">hidden-word", *rights)
            return redis_server.url.replace("://", "://scraper:hidden-word@")

        yield make
        client.execute_command("ACL", "DELUSER", "scraper")


def test_the_documented_rights_are_enough(redis_server: Server, user: Callable[..., str]) -> None:
    fill(redis_server, 3, has_group=False)
    with redis_server.client() as client:
        client.xgroup_create(DEAD, "g", id="0")
        client.xreadgroup("g", "ann", {DEAD: ">"}, count=2)
    ran = once(user("%R~*", *NEEDED))
    assert (ran.exit_code, ran.stderr) == (0, ""), ran.output
    page = read(ran.stdout)
    assert samples_of(page, "rstream_missing_right") == {}
    assert (
        len(samples_of(page, "rstream_stream_memory_bytes"))
        == len(samples_of(page, "rstream_server_memory_bytes"))
        == 1
    )


@pytest.mark.parametrize(
    ("without", "right", "gone"),
    [
        ("-info", "+info", "rstream_server_memory_bytes"),
        ("-memory", "+memory", "rstream_stream_memory_bytes"),
        ("-time", "+time", ""),
        ("-xpending", "+xpending", "rstream_pending_entries"),
        ("-xinfo", "+xinfo", "rstream_stream_entries"),
    ],
)
def test_a_right_that_is_missing_is_named_and_costs_what_takes_it(
    redis_server: Server, user: Callable[..., str], without: str, right: str, gone: str
) -> None:
    with redis_server.client() as client:
        client.xadd("orders", {"n": 1})
        client.xgroup_create("orders", "g", id="0")
    ran = once(user("~*", *NEEDED, without))
    page = read(ran.stdout)
    assert page["rstream_server_up"] == 1
    [labels] = samples_of(page, "rstream_missing_right")
    assert labels.startswith(f'{{right="{right}')  # of a subcommand, where the server says which
    assert ran.stderr.count("\n") == 1
    [remedy] = re.findall(r"ACL SETUSER USER (.+) \(rstream help", ran.stderr)
    [given] = shlex.split(remedy)  # it is quoted if it names a subcommand
    assert given.startswith(right)
    assert "hidden-word" not in ran.output
    shown = {key.split("{")[0] for key in page}
    everything = {"rstream_stream_entries", "rstream_stream_memory_bytes", "rstream_server_memory_bytes"}
    if gone != "rstream_stream_entries":
        assert everything - {gone} <= shown
    assert gone not in shown


def test_streams_that_the_user_may_not_use_are_named_and_left_out(
    redis_server: Server, user: Callable[..., str]
) -> None:
    with redis_server.client() as client:
        for name in ("orders", "payments"):
            client.xadd(name, {"n": 1})
    ran = once(user("~orders", *NEEDED))
    page = read(ran.stdout)
    assert samples_of(page, "rstream_stream_entries") == {'{stream="orders"}': 1}
    assert samples_of(page, "rstream_missing_right") == {'{right="~payments"}': 1}
    assert "~payments" in ran.stderr


def test_a_user_who_may_not_search_for_streams_gets_an_error_and_may_name_them(
    redis_server: Server, user: Callable[..., str]
) -> None:
    with redis_server.client() as client:
        client.xadd("orders", {"n": 1})
    url = user("~*", *NEEDED, "-scan")
    refused = once(url)
    assert (refused.exit_code, "ACL SETUSER USER +scan" in refused.stderr) == (1, True)
    assert samples_of(read(once(url, "orders").stdout), "rstream_stream_entries") == {'{stream="orders"}': 1}


@pytest.mark.in_turn
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_process_serves_until_it_is_stopped(engine_server: Server, number: int) -> None:
    command = [
        sys.executable,
        "-m",
        "spark_streams.cli",
        "exporter",
        "--port",
        "0",
        "--url",
        engine_server.url,
    ]
    root = str(Path(__file__).parents[3])
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root}
    )
    try:
        assert process.stderr is not None
        where = process.stderr.readline().split()[-1]
        assert re.fullmatch(r"http://127.0.0.1:\d+/metrics", where)
        with urllib.request.urlopen(where, timeout=30) as reply:
            assert reply.headers["Content-Type"].startswith("text/plain")
            assert read(reply.read().decode())["rstream_server_up"] == 1
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (0, "", "")
    finally:
        process.kill()


def test_a_port_that_is_in_use_is_an_error(engine_server: Server) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        words = ["exporter", "--port", str(other.getsockname()[1]), "--url", engine_server.url]
        ran = CliRunner().invoke(main, words)
    assert (ran.exit_code, "metrics cannot be served at 127.0.0.1:" in ran.output) == (2, True)


def test_an_entry_waiting_for_retry_is_no_dead_letter_yet(
    server: Server, client: redis.Redis, exporter: Exporter
) -> None:
    fill(server, 3)
    fill(server, 5, into=retry_stream("s", "g", 1))
    client.set(delays_key("s", "g"), "3600000")
    page = exporter.page()
    assert sum(samples_of(page, "rstream_dead_letters_waiting").values()) == 3
    [(labels, waiting)] = samples_of(page, "rstream_waiting_entries").items()
    assert (labels, waiting) == ('{attempt="2",group="g",stream="s"}', 5)
    assert 3_500 < samples_of(page, "rstream_waiting_seconds")[labels] <= 3_600
    assert not any("rstream:retry" in labels for labels in samples_of(exporter.page(), "rstream_dead_letters_waiting"))


@pytest.mark.parametrize("names", [(), ("s",)], ids=["all", "named"])
def test_returned_entries_that_are_not_acknowledged_are_reported(
    server: Server, client: redis.Redis, names: tuple[str, ...]
) -> None:
    """Also if only the stream that it comes from is named, and if no query has retryDelay any more."""
    back = returned_stream("s", "g")
    fill(server, 5, into=back)  # and makes group g of s
    client.xgroup_create(back, "g", "0")
    server.client().xreadgroup("g", "bob", {back: ">"}, count=2)
    exporter = Exporter(server.url, *names)
    page = exporter.page()
    exporter.snapshots.close()
    assert samples_of(page, "rstream_waiting_entries") == {'{attempt="returned",group="g",stream="s"}': 5}
    assert samples_of(page, "rstream_waiting_seconds") == {}
