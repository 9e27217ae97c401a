"""The margin of a group: it is near the truth, in time before the loss, and silent where nothing can be lost."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.lag.margin import (
    GroupPoint,
    Margin,
    MarginWindow,
    StreamPoint,
    memory_margin,
    rule_of,
)
from spark_streams.connector.lag.survey import StreamSummary, Survey, survey
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.named_errors import Memory
from tests.operations.monitor.dashboard import CONF
from tests.operations.monitor.streams_over_time import BEGAN_MS, Life, acked, maxlen, never, older_than
from tests.operations.monitor.test_exporter import read, samples_of
from tools.servers.server import Server

KEY = ("s", "g")
SEEDS = range(100)


def alert() -> tuple[float, float]:
    """The limit and the time of RStreamTrimmedSoon, in seconds."""
    rules = (CONF / "alerts.yml").read_text(encoding="utf-8")
    found = re.search(r"expr: rstream_margin_seconds < (\d+)\n +for: (\d+)m", rules)
    assert found
    return float(found[1]), float(found[2]) * 60


def watched(life: Life, until_s: float, every_s: float = 30.0) -> list[tuple[float, Margin]]:
    """The margin at each look, until the loss."""
    window, answers = MarginWindow(), []
    for seen in life.surveys(until_s, every_s):
        if life.lost_s is not None:
            break
        window.add(seen)
        answers.append((life.now_s, window.margins([KEY])[KEY]))
    return answers


def fired_s(answers: Sequence[tuple[float, Margin]]) -> float | None:
    """When Prometheus would have told: the same series was below the limit for the whole time."""
    limit, lasts = alert()
    since: tuple[float, str] | None = None
    for now, margin in answers:
        if margin.seconds is None or margin.seconds >= limit:
            since = None
        elif since is None or since[1] != margin.rule:
            since = now, margin.rule
        elif now - since[0] >= lasts:
            return now
    return None


def test_the_predicted_moment_is_near_and_the_alert_comes_before_it() -> None:
    """A producer of 1,000/s, MAXLEN ~, a group that stops: within 10 % once the window has only the stop, and told
    before the loss, for each of 100 seeds."""
    for seed in SEEDS:
        keeps = 420_000 + 6_000 * (seed % 31)  # 7 to 10 minutes
        life = Life(seed, maxlen(keeps), stalls_s=keeps / 1000 + 200)
        answers = watched(life, 3_000)
        assert life.lost_s is not None
        stalled = life.stalls_s + 330  # type: ignore[operator]
        late = [(now, margin) for now, margin in answers if now >= stalled]
        assert len(late) >= 2, seed
        for now, margin in late:
            left = life.lost_s - now
            assert margin.seconds == pytest.approx(left, rel=0.1, abs=2), (seed, now, left, margin)
        told = fired_s(answers)
        assert told is not None, seed
        assert told < life.lost_s, seed


@pytest.mark.parametrize(
    ("make", "until_s"),
    [
        pytest.param(lambda seed: Life(seed, maxlen(300_000)), 900, id="it keeps up with a length"),
        pytest.param(lambda seed: Life(seed, maxlen(300_000), batch_s=40), 900, id="large batches"),
        pytest.param(lambda seed: Life(seed, older_than(240)), 900, id="it keeps up with an age"),
        pytest.param(lambda seed: Life(seed, acked()), 900, id="acked"),
        pytest.param(lambda seed: Life(seed, acked(2), nodes=1), 900, id="acked, each entry"),
        pytest.param(lambda seed: Life(seed, acked(60)), 900, id="acked, once a minute"),
        pytest.param(lambda seed: Life(seed, acked(), stalls_s=400), 900, id="acked, and the group stops"),
        pytest.param(lambda seed: Life(seed, never, stalls_s=200), 900, id="no trimming"),
    ],
)
def test_no_alert_without_danger(make: Callable[[int], Life], until_s: float) -> None:
    for seed in range(15):
        life = make(seed)
        answers = watched(life, until_s)
        assert life.lost_s is None
        assert fired_s(answers) is None, (seed, answers)


@pytest.mark.parametrize("nodes", [1, 100])
@pytest.mark.parametrize(("keeps", "rate"), [(500, 50.0), (900, 60.0), (20, 10.0)])
def test_a_small_length_is_never_called_unlimited(keeps: int, rate: float, nodes: int) -> None:
    """A group that reads more slowly than the stream is trimmed loses entries: before it and during it, the margin is
    a time, or not known."""
    for seed in range(10):
        life = Life(seed, maxlen(keeps), rate=rate, reads=rate * 0.97, nodes=nodes)
        window, answers = MarginWindow(), []
        for seen in life.surveys(900, 5):
            window.add(seen)
            answers.append(window.margins([KEY])[KEY])
        assert life.lost_s is not None
        waiting = [one for one in answers if "has acknowledged all" not in one.why]
        unlimited = [one for one in waiting if one.seconds == math.inf]
        assert all("reads as fast" in one.why for one in unlimited), seed
        lost = [one for one in answers[round(life.lost_s / 5) :] if one in waiting]
        assert math.inf not in {one.seconds for one in lost}, (seed, "entries are lost")
        if nodes == 1:
            assert {one.rule for one in waiting[20:]} == {"length"}, seed
            assert min(one.seconds for one in waiting if one.seconds is not None) == 0.0


@pytest.mark.parametrize("backlog", [0, 300, 20_000])
@pytest.mark.parametrize("rate", [20.0, 1_000.0])
def test_a_backlog_that_a_query_trims_itself_has_no_margin(backlog: int, rate: float) -> None:
    """onCommit=delete: the removal stops exactly at the group, though the length stays."""
    for seed in range(10):
        life = Life(seed, lambda life: life.read, rate=rate, nodes=1)
        life.added, life.times = backlog, [BEGAN_MS] * backlog
        window, answers = MarginWindow(), []
        for seen in life.surveys(300, 2.5):
            life.reads = rate * (1.1 if life.added - life.read > backlog + 3 * rate else 0.9)
            window.add(seen)
            answers.append(window.margins([KEY])[KEY])
        known = answers[10:]
        assert {one.rule for one in known} == {"groups"}, (seed, known)
        assert {one.seconds for one in known} == {math.inf}


def test_an_age_is_told_from_a_length_where_the_rate_changes() -> None:
    life = Life(1, older_than(400), stalls_s=900)
    window = MarginWindow()
    for seen in life.surveys(1_290, 30):
        life.rate = 1_000 if life.now_s < 900 else 3_000
        window.add(seen)
    margin = window.margins([KEY])[KEY]
    assert margin.rule == "age"
    assert margin.seconds == pytest.approx(1_300 - life.now_s, abs=15)


def points(lengths: Sequence[int], added: Sequence[int], sizes: Sequence[int | None] = ()) -> list[StreamPoint]:
    padded = [*sizes, *[None] * (len(lengths) - len(sizes))]
    return [
        StreamPoint(60_000 * at, length, total, None, size)
        for at, (length, total, size) in enumerate(zip(lengths, added, padded, strict=True))
    ]


def test_memory_is_the_rule_where_only_it_stays() -> None:
    """Entries become larger: fewer of them stay."""
    seen = points((90_000, 80_000, 70_000, 60_000, 50_000), range(100_000, 600_000, 100_000), (5_000_000,) * 5)
    rule = rule_of(seen, [])
    assert rule.kind == "bytes"
    assert "5 MB" in rule.why


def test_what_does_not_show_a_rule_is_not_known_and_says_why() -> None:
    assert rule_of(points((5,), (5,)), []).why == "one snapshot shows no rate"
    assert "a limit that the stream has not reached" in rule_of(points((5, 9), (5, 9)), []).why
    few = rule_of(points((50_000,) * 3, (100_000, 200_000, 300_000)), [])
    assert (few.kind, "4 snapshots are needed" in few.why) == ("", True)
    odd = rule_of(points((90_000, 20_000, 70_000, 40_000, 90_000), range(100_000, 600_000, 100_000)), [])
    assert (odd.kind, "by no length" in odd.why) == ("", True)
    still = rule_of(points((5, 5), (5, 5)), [])
    assert (still.kind, "nothing was added or trimmed" in still.why) == ("", True)


def test_a_full_server_counts_if_it_evicts() -> None:
    def at(policy: str, limit: int = 2_000) -> Margin:
        return memory_margin([(0, Memory(1_000, limit, policy)), (10_000, Memory(1_500, limit, policy))])

    assert (at("allkeys-lru").seconds, at("allkeys-lru").rule) == (10.0, "memory")
    assert at("noeviction").seconds == math.inf
    assert "full in 10.0 s" in at("noeviction").why
    assert "refuses entries" in at("noeviction").why
    assert (at("allkeys-lru", 0).seconds, at("allkeys-lru", 0).why) == (math.inf, "no maxmemory")


def test_a_pending_entry_stands_where_its_time_says() -> None:
    life = Life(3, maxlen(300_000))
    list(life.surveys(400, 100))
    seen = life.survey()
    [stream], [group] = seen.streams, seen.groups
    point = StreamPoint.of(stream, seen.at_ms, None)
    assert point is not None
    middle = life.removed + 100_000
    age = seen.at_ms - life.times[middle]
    held = replace(group, pending=10, oldest_pending=life.id_of(middle), lag_ms=age)
    assert GroupPoint.of(held, point).needed == pytest.approx(middle, rel=0.02)
    assert GroupPoint.of(replace(held, lag_ms=None), point).needed is None


def test_a_stream_that_is_created_again_begins_anew() -> None:
    window = MarginWindow()
    for at, (length, added) in enumerate([(50, 900), (50, 950), (5, 5)]):
        window.add(Survey(10_000 * at + 1, (StreamSummary("s", length, added, "1-0", "1-0"),), ()))
    assert window.margins([]) == {}
    life = Life(1, never, stalls_s=0)
    life.step()
    window.add(Survey(40_000, (StreamSummary("s", 9, 9, "1-0", "1-0"),), life.survey().groups))
    assert window.margins([KEY])[KEY].seconds is None
    assert "nothing was trimmed" in window.margins([KEY])[KEY].why


def number_of(entry: str | bytes) -> int:
    """The first part of an ID."""
    return int((entry.decode() if isinstance(entry, bytes) else entry).partition("-")[0])


def add(client: redis.Redis, entries: int, at_ms: int | None = None) -> None:
    """Add entries with MAXLEN ~ 8000. at_ms: of the first one's ID; the next ones follow each millisecond."""
    pipe = client.pipeline(transaction=False)
    for number in range(entries):
        pipe.xadd("s", {"n": number}, "*" if at_ms is None else f"{at_ms + number}-0", maxlen=8_000, approximate=True)
    pipe.execute()


def test_the_loss_on_a_server_comes_when_it_was_predicted(client: redis.Redis, connection: Connection) -> None:
    """1,000 entries a second by a clock of its own, MAXLEN ~, a group that stands still."""
    window, now_ms, began_ms = MarginWindow(apart_ms=0), BEGAN_MS, BEGAN_MS + 20_000
    predicted: list[tuple[int, float]] = []
    while True:
        add(client, 500, now_ms)
        now_ms += 500
        if now_ms == began_ms:
            client.xgroup_create("s", "g", "$")
        seen = survey(connection, ["s"])
        groups = [replace(one, lag_ms=now_ms - (seen.at_ms - (one.lag_ms or 0))) for one in seen.groups]
        window.add(replace(seen, at_ms=now_ms, groups=tuple(groups)))
        if now_ms <= began_ms:
            continue
        if number_of(client.xrange("s", count=1)[0][0]) > began_ms:
            break
        margin = window.margins([KEY])[KEY]
        if margin.seconds is not None and now_ms > began_ms + 1_000:
            predicted.append((now_ms, margin.seconds))
    assert len(predicted) > 10
    for at_ms, seconds in predicted:
        assert seconds == pytest.approx((now_ms - at_ms) / 1000, rel=0.1, abs=0.6)  # a look is 0.5 s apart


@pytest.mark.parametrize("rule", ["length", "groups"])
def test_a_server_that_keeps_few_entries_and_one_whose_query_trims(
    client: redis.Redis, connection: Connection, rule: str
) -> None:
    """MAXLEN = 500 takes entries from a slow group; a query that deletes what it has acknowledged keeps its backlog of
    300, also while a batch is pending."""
    window, now_ms = MarginWindow(apart_ms=0), BEGAN_MS
    client.xgroup_create("s", "g", "0", mkstream=True)
    limit: dict[str, Any] = {"maxlen": 500, "approximate": False} if rule == "length" else {}
    answers: list[Margin] = []
    for look in range(120):
        for n in range(50 if look else 350):
            client.xadd("s", {"n": n}, id=f"{now_ms + n}-0", **limit)
        now_ms += 1_000
        [[_, entries]] = client.xreadgroup("g", "c", {"s": ">"}, count=30 if rule == "length" else 50)
        if look % 2 or rule == "length":
            pending = client.xpending_range("s", "g", "-", "+", 200)
            client.xack("s", "g", *[one["message_id"] for one in pending])
        if rule == "groups":
            left = client.xpending("s", "g")["min"] or f"{number_of(entries[-1][0]) + 1}-0"
            client.xtrim("s", minid=left, approximate=False)
        seen = survey(connection, ["s"])
        groups = [replace(one, lag_ms=now_ms - (seen.at_ms - (one.lag_ms or 0))) for one in seen.groups]
        window.add(replace(seen, at_ms=now_ms, groups=tuple(groups)))
        answers.append(window.margins([KEY])[KEY])
    known = answers[12:]
    assert {one.rule for one in known} == {rule}, known
    if rule == "groups":
        assert {one.seconds for one in known} == {math.inf}
    else:
        assert math.inf not in {one.seconds for one in known}
        assert known[-1].seconds is not None
        assert known[-1].seconds < 60, "entries are lost"


def test_lag_over_a_time_shows_the_margin(server: Server, client: redis.Redis) -> None:
    add(client, 9_000)
    client.xgroup_create("s", "g", "$")
    add(client, 100)
    stop = threading.Event()

    def produce() -> None:
        with server.client() as producing:
            while not stop.wait(0.05):
                add(producing, 50)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        words = ["lag", "s", "--group", "g", "--over", "2s", "--json", "--url", server.url]
        ran = CliRunner().invoke(main, words)
    finally:
        stop.set()
        thread.join()
    assert ran.exit_code == 0, ran.output
    [group] = json.loads(ran.output)
    assert (group["margin"]["answer"], group["margin"]["rule"]) == ("limited", "length"), group["margin"]
    assert 1 < group["margin"]["seconds"] < 60
    assert "a length of about 8," in group["margin"]["reason"]


def test_lag_says_unlimited_unknown_and_a_time_in_its_column(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"n": 1})
    client.xgroup_create("s", "waits", 0)
    client.xgroup_create("s", "read", "$")
    ran = CliRunner().invoke(main, ["lag", "--url", server.url], env={"COLUMNS": "200"})
    head, *rows = ran.output.splitlines()
    assert "margin" in head
    assert {row.split()[1]: " ? " in row or "unlimited" for row in rows[:2]} == {"waits": True, "read": "unlimited"}
    told = json.loads(CliRunner().invoke(main, ["lag", "--json", "--url", server.url]).output)
    assert {one["group"]: one["margin"]["answer"] for one in told} == {"waits": "unknown", "read": "unlimited"}
    assert all(one["margin"]["reason"] for one in told)


def test_the_exporter_has_it_and_the_size_of_large_entries(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"n": "x" * 1_200_000})
    client.xgroup_create("s", "waits", 0)
    client.xgroup_create("s", "read", "$")
    page = read(CliRunner().invoke(main, ["exporter", "--once", "--url", server.url]).output)
    margins = samples_of(page, "rstream_margin_seconds")
    assert margins['{group="read",rule="none",stream="s"}'] == math.inf
    assert math.isnan(margins['{group="waits",rule="unknown",stream="s"}'])
    assert samples_of(page, "rstream_end_entry_bytes") == {'{stream="s"}': 1_200_001}


def test_doctor_names_a_stream_with_large_entries(server: Server, client: redis.Redis) -> None:
    client.xadd("large", {"n": "x" * 1_200_000})
    client.xadd("small", {"n": "x" * 900_000})
    words = ["doctor", "--json", "--url", server.url]
    said = [one["said"] for one in json.loads(CliRunner().invoke(main, words).output)["findings"]]
    assert [text for text in said if "above" in text] == ["entries above 1 MB: 'large' (1.2 MB)"]
