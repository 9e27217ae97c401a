"""Which streams the exporter and the console show."""

from __future__ import annotations

import pytest
import redis

from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.operations.monitor.exported_metrics import most_frequent
from spark_streams.operations.monitor.snapshots import Reason, StreamFilter
from tools.servers.server import Server


@pytest.mark.parametrize("names", [(), ("s*",)])
def test_streams_with_long_names_are_counted(server: Server, client: redis.Redis, names: tuple[str, ...]) -> None:
    """Each of them would be a label of every family."""
    for name in ("s", "s" * 1024, "s" * 1025, "s" * 100_000):
        client.xadd(name, {"n": 1})
    chosen = StreamFilter(names)
    with connect(Address.parse(server.url)) as connection:
        assert [len(name) for name in chosen.streams(connection)] == [1, 1024]
    assert (chosen.too_long, chosen.too_many, chosen.left_out) == (2, 0, 2)


def test_a_stream_that_is_named_is_shown_before_those_of_a_pattern(server: Server, client: redis.Redis) -> None:
    for name in ("a1", "a2", "a3", "z"):
        client.xadd(name, {"n": 1})
    chosen = StreamFilter(("a*", "z"), max_streams=2)
    with connect(Address.parse(server.url)) as connection:
        assert list(chosen.streams(connection)) == ["a1", "z"]
    assert chosen.too_many == 2


def test_series_of_reasons_are_bounded() -> None:
    """The largest counts are named; the others are one series, also if a stream has its name."""
    reasons = [Reason(f"s{number % 60}", f"r{number}", number, number) for number in range(1, 3_001)]
    reasons.append(Reason("(others)", "(others)", 5_000, None))
    shown = most_frequent(reasons)
    assert len(shown) == 999
    assert len({(one.stream, one.reason) for one in shown}) == len(shown)
    assert sum(one.count for one in shown) == sum(one.count for one in reasons)
    assert shown[:2] == [reasons[2_999], reasons[2_998]]
    assert shown[-1] == Reason("(others)", "(others)", 5_000 + 2_002 * 2_003 // 2, 2_002)
    assert most_frequent(reasons[:1_000]) == reasons[:1_000]
