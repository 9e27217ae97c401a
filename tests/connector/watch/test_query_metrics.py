"""How watched groups stand: asked for when somebody wants to know, a second ago at most, and never a reason to stop."""

from __future__ import annotations

import logging

import pytest
import redis

from spark_streams.connector.keys import delays_key, retry_stream, returned_stream
from spark_streams.connector.lag.survey import GroupLag
from spark_streams.connector.watch.query_metrics import LagCache
from spark_streams.connector.wire.address import Address
from tools.servers.server import Server, free_port


class Clock:
    """Seconds that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def lag(found: dict[tuple[str, str], GroupLag]) -> int | None:
    """Of group g of stream s."""
    return found["s", "g"].lag if ("s", "g") in found else None


def test_an_answer_serves_for_a_second_and_can_be_forgotten(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"n": 1})
    client.xgroup_create("s", "g", id="0")
    clock = Clock()
    lags = LagCache(Address.parse(server.url), clock)
    wanted = [("s", "g"), ("s", "other"), ("nowhere", "g")]
    assert lag(lags.fetch(wanted)) == 1
    client.xadd("s", {"n": 2})
    clock.now += 0.9
    assert lag(lags.fetch(wanted)) == 1
    clock.now += 0.2
    assert lag(lags.fetch(wanted)) == 2
    client.xadd("s", {"n": 3})
    lags.forget()
    assert lag(lags.fetch(wanted)) == 3
    client.xgroup_destroy("s", "g")
    lags.forget()
    assert lags.fetch(wanted) == {}
    assert lags.answers
    lags.close()


def test_a_connection_that_was_cut_is_made_again(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"n": 1})
    client.xgroup_create("s", "g", id="0")
    lags = LagCache(Address.parse(server.url))
    assert lag(lags.fetch([("s", "g")])) == 1
    for one in client.client_list():
        if int(one["id"]) != client.client_id():
            client.client_kill_filter(_id=one["id"])
    lags.forget()
    assert lag(lags.fetch([("s", "g")])) == 1
    assert lags.use(lambda connection: connection.execute("SET", "k", "v"))
    assert client.get("k") == "v"
    lags.close()


def test_an_outage_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    lags = LagCache(Address.parse(f"redis://user:secret@127.0.0.1:{free_port()}/0"))
    for _ in range(3):
        lags.forget()
        assert lags.fetch([("s", "g")]) == {}
    assert not lags.answers
    assert not lags.use(lambda connection: connection.execute("PING"))
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING
    assert "secret" not in caplog.text


def test_entries_waiting_for_retry_are_fetched_on_request(server: Server, client: redis.Redis) -> None:
    lags = LagCache(Address.parse(server.url))
    watched = [("s", "g"), ("t", "g"), (returned_stream("s", "g"), "g")]
    assert lags.waiting(watched) == []
    client.set(delays_key("s", "g"), "1000 86400000")
    client.xadd(retry_stream("s", "g", 1), {"n": 1}, id="1-0")
    client.xadd(retry_stream("s", "g", 2), {"n": 2})
    client.xadd(retry_stream("t", "g", 1), {"n": 3})  # of a group whose queries have no retryDelay
    found = lags.waiting(watched)
    assert [(one.stream, one.group, one.attempt, one.entries) for one in found] == [("s", "g", 2, 1), ("s", "g", 3, 1)]
    assert found[0].due_in == 0
    assert 86_000_000 < (found[1].due_in or 0) <= 86_400_000
    lags.close()
    assert LagCache(Address.parse(f"redis://127.0.0.1:{free_port()}/0")).waiting(watched) == []
