"""connector/cdc/order.py: which of two changes of a row is the later one, whatever their order in the stream."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

import spark_streams
from examples.pipelines.changes import rows_of
from tests.connector.spark.streams import collected
from tests.connector.spark.test_cdc import CUSTOMERS, ENTRIES, event, fields_of

pytestmark = pytest.mark.spark

SNAPSHOTS = ["true", "first", "first_in_data_collection", "last_in_data_collection", "last", "incremental", True]
READ, STREAMED = 1_744_620_287_000, 1_744_613_916_000  # a change during a long snapshot is earlier than the reading
Source = dict[str, Any]


def of_name(op: str, called: str, /, **source: object) -> dict[str, object]:
    image = {"id": 1, "name": called}
    return event(op, image if op == "d" else None, None if op == "d" else image, **source)


def changes_of(spark: SparkSession, *streams: list[dict[str, object]]) -> Any:
    """The changes of streams, which are numbers. The events of one follow each other."""
    rows = [
        (str(place), f"{READ + 1000 * (n + 1)}-0", fields_of({"id": 1}, each))
        for place, events in enumerate(streams)
        for n, each in enumerate(events)
    ]
    return spark_streams.debezium(spark.createDataFrame(rows, ENTRIES), CUSTOMERS)


def by_stream(rows: list[Row]) -> list[str]:
    return [row["name"] for row in sorted(rows, key=lambda row: int(row["_stream"]))]


def latest(spark: SparkSession, *streams: list[dict[str, object]]) -> list[str]:
    """The names of the latest events of streams, by their texts."""
    changes = changes_of(spark, *streams)
    return by_stream(changes.groupBy("_stream").agg(F.max_by("name", "_order").alias("name")).collect())


def latest_of_servers(spark: SparkSession, *streams: list[dict[str, object]]) -> list[str]:
    """The names of those events of streams that are later than each other one."""
    changes = changes_of(spark, *streams).select("_stream", "name", "_order")
    others = changes.alias("o").join(changes.alias("s"), "_stream")
    beaten = others.where(spark_streams.is_later("o._order", "s._order")).select("_stream", "s.name")
    return by_stream(changes.join(beaten, ["_stream", "name"], "left_anti").collect())


A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4f22fa47-71ca-11e1-9e33-c80aa9429562"
MYSQL = {"connector": "mysql", "name": "shop", "server_id": 1, "file": "b.000009", "pos": 500, "row": 0}
GTID = {**MYSQL, "gtid": f"{A}:9"}
MARIADB = {**MYSQL, "connector": "mariadb"}
POSTGRESQL = {"connector": "postgresql", "name": "shop", "lsn": 999, "txId": 7, "sequence": '["900", "999"]'}
SQLSERVER = {
    "connector": "sqlserver", "name": "shop", "event_serial_no": 1,
    "commit_lsn": "0000002a:00000fff:0003", "change_lsn": "0000002a:00000ffe:0002",
}  # fmt: skip
DB2 = {
    "connector": "db2", "name": "shop",
    "commit_lsn": "00000000:00000000:00000000048a3fff", "change_lsn": "00000000:00000000:00000000048a3ffe",
}  # fmt: skip
ORACLE = {
    "connector": "oracle", "name": "shop", "scn": "999", "commit_scn": "990", "redo_thread": 1,
    "rs_id": " 0x00000d.00001e5d.0010 ", "ssn": 9,
}  # fmt: skip
MONGODB = {"connector": "mongodb", "name": "shop", "ord": 9}

# Of one server: the connector, what differs, the earlier position, and parts of the later one.
POSITIONS: list[tuple[str, str, Source, Source]] = [
    ("mysql", "file", MYSQL, {"file": "b.000010", "pos": 4}),
    ("mysql", "file with more digits", {**MYSQL, "file": "b.999999"}, {"file": "b.1000000", "pos": 4}),
    ("mysql", "pos with more digits", {**MYSQL, "pos": 999}, {"pos": 1000}),
    ("mysql", "row of a statement", {**MYSQL, "row": 9}, {"row": 10}),
    ("mysql", "file before pos before row", {**MYSQL, "row": 7}, {"pos": 501, "row": 0}),
    ("mysql with GTIDs", "number with more digits", GTID, {"gtid": f"{A}:10", "pos": 900}),
    ("mysql with GTIDs", "another replica is read", GTID, {"gtid": f"{A}:10", "file": "b.000001", "pos": 4}),
    ("mysql with GTIDs", "pos within a transaction", GTID, {"pos": 1000}),
    ("mysql with GTIDs", "row within a transaction", GTID, {"row": 1}),
    ("mysql with GTIDs", "a tag", {**GTID, "gtid": f"{A}:blue:9"}, {"gtid": f"{A}:blue:10"}),
    ("mariadb", "file", MARIADB, {"file": "b.000010", "pos": 4}),
    ("mariadb", "pos", MARIADB, {"pos": 1000}),
    ("mariadb", "row of a statement", MARIADB, {"row": 1}),
    ("mariadb with GTIDs", "number", {**MARIADB, "gtid": "0-1-9"}, {"gtid": "0-1-10", "file": "b.000001"}),
    ("mariadb with GTIDs", "row of a statement", {**MARIADB, "gtid": "0-1-9"}, {"row": 1}),
    ("postgresql", "lsn with more digits", POSTGRESQL, {"lsn": 1000, "txId": 3, "sequence": '["900", "1000"]'}),
    ("postgresql", "lsn of 64 bits", {**POSTGRESQL, "lsn": 2**63 - 1}, {"lsn": 2**63}),
    ("sqlserver", "commit_lsn", SQLSERVER, {"commit_lsn": "0000002a:00001000:0001", "change_lsn": "0000002a:1:1"}),
    ("sqlserver", "parts without zeros", {**SQLSERVER, "commit_lsn": "2a:fff:3"}, {"commit_lsn": "2A:1000:1"}),
    ("sqlserver", "change_lsn", SQLSERVER, {"change_lsn": "0000002a:00000ffe:000a"}),
    ("sqlserver", "event_serial_no", {**SQLSERVER, "event_serial_no": 9}, {"event_serial_no": 10}),
    ("db2", "commit_lsn", DB2, {"commit_lsn": "00000000:00000000:00000000048A4000"}),
    ("db2", "change_lsn", DB2, {"change_lsn": "00000000:00000000:00000000048a3fff"}),
    ("oracle", "scn with more digits", ORACLE, {"scn": "1000", "commit_scn": "999"}),
    ("oracle", "another redo thread has its own commit_scn", ORACLE, {"scn": "1000", "commit_scn": "5", "ssn": 0}),
    ("oracle", "commit_scn", ORACLE, {"commit_scn": "1000"}),
    ("oracle", "rs_id", ORACLE, {"rs_id": " 0x00000d.00001e5e.0001 ", "ssn": 0}),
    ("oracle", "ssn", ORACLE, {"ssn": 10}),
    ("mongodb", "ord within a second", MONGODB, {"ord": 10}),
]  # fmt: skip
# MongoDB's time is its position. All others: the clock stands, a statement began an hour earlier, the clock went back.
BACK = [0, 1, 3_600_000]


@pytest.mark.parametrize("find", [latest, latest_of_servers])
def test_within_one_server_the_position_in_the_log_decides(spark: SparkSession, find: Any) -> None:
    """For each connector and each part of its position, as numbers, in both orders of arrival, whatever the times."""
    streams: list[list[dict[str, object]]] = []
    cases: list[tuple[str, str, int, str]] = []
    for connector, what, earlier, change in POSITIONS:
        for back, op in itertools.product(BACK if connector != "mongodb" else [0], "ud"):
            first = of_name("c", "earlier", **{**earlier, "ts_ms": STREAMED})
            second = of_name(op, "later", **{**earlier, **change, "ts_ms": STREAMED - back})
            streams += [[first, second], [second, first]]
            cases += [(connector, what, back, op)] * 2
    found = zip(cases, find(spark, *streams), strict=True)
    assert [case for case, name in found if name != "later"] == []


def test_mongodbs_time_is_a_part_of_its_position(spark: SparkSession) -> None:
    """The next second begins with a lower number."""
    first = of_name("c", "earlier", **{**MONGODB, "ts_ms": STREAMED})
    second = of_name("u", "later", **{**MONGODB, "ord": 1, "ts_ms": STREAMED + 1000})
    assert latest(spark, [first, second], [second, first]) == ["later"] * 2


FAILOVERS: list[tuple[str, Source, Source]] = [
    ("mysql: lower file", MYSQL, {"server_id": 2, "file": "b.000001", "pos": 4}),
    ("mysql: higher file", MYSQL, {"server_id": 2, "file": "b.000100"}),
    ("mysql: lower number of the server", {**MYSQL, "server_id": 2}, {"server_id": 1, "file": "b.000001"}),
    ("mysql: files have another name", MYSQL, {"file": "c.000001", "pos": 4}),
    ("mysql: another source of GTIDs", {**GTID, "gtid": f"{B}:900"}, {"gtid": f"{A}:1", "file": "b.000001"}),
    ("mysql: GTIDs are switched on", MYSQL, {"gtid": f"{A}:1"}),
    ("mysql: GTIDs are switched off", GTID, {"gtid": None, "pos": 4}),
    ("mariadb: lower file", {**MARIADB, "server_id": 2}, {"server_id": 1, "file": "b.000001"}),
    ("mariadb: another server of the domain", {**MARIADB, "gtid": "0-2-900"}, {"gtid": "0-1-901", "server_id": 9}),
    ("postgresql: another connector", {**POSTGRESQL, "name": "shop/b"}, {"name": "shop", "lsn": 1}),
    ("oracle: another connector", {**ORACLE, "name": "b"}, {"name": "a", "scn": "1"}),
]


def test_between_servers_the_time_decides(spark: SparkSession) -> None:
    """After a failover, also to a server with lower numbers, and back, in each order of arrival."""
    streams: list[list[dict[str, object]]] = []
    cases: list[tuple[str, str]] = []
    for what, before, change in FAILOVERS:
        old = of_name("c", "old", **{**before, "ts_ms": STREAMED})
        new = of_name("u", "new", **{**before, **change, "ts_ms": STREAMED + 1000})
        back = of_name("u", "back", **{**before, "pos": 901, "row": 3, "ts_ms": STREAMED + 2000})
        streams += [[old, new], [new, old]]
        cases += [(what, "new")] * 2
        if "pos" in before and "gtid" not in before:
            streams += [list(events) for events in itertools.permutations([old, new, back])]
            cases += [(what, "back")] * 6
    assert [*zip(cases, latest_of_servers(spark, *streams), strict=True)] == [(case, case[1]) for case in cases]


def test_the_order_of_three_events_is_the_same_whatever_comes_first(spark: SparkSession) -> None:
    """A long statement of the old server that began early, then a failover: each is later than those before it."""
    short = of_name("c", "short", **{**MYSQL, "ts_ms": STREAMED})
    long = of_name("u", "long", **{**MYSQL, "pos": 900, "ts_ms": STREAMED - 3_600_000})
    new = of_name("u", "new", **{**MYSQL, "server_id": 2, "file": "b.000001", "ts_ms": STREAMED + 1000})
    streams = [list(events) for events in itertools.permutations([short, long, new])]
    assert latest_of_servers(spark, *streams) == ["new"] * 6


def test_an_event_that_comes_again_is_not_later_than_one_that_followed_it(spark: SparkSession) -> None:
    """Nor is it later than itself: of equal positions the entry's ID decides."""
    first, second = (of_name("u", name, **MYSQL, ts_ms=STREAMED) for name in ("first", "second"))
    follower = of_name("u", "follower", **{**MYSQL, "pos": 900}, ts_ms=STREAMED)
    assert latest(spark, [first, second], [first, follower, second]) == ["second", "follower"]


WRONG: list[tuple[str, object]] = [
    ("lsn", "x"), ("lsn", -1), ("lsn", 1.5), ("lsn", 10**20), ("lsn", {"a": 1}), ("lsn", ""), ("pos", "0x1"),
    ("row", True), ("scn", "1:2"), ("server_id", "a/b"), ("ord", -1), ("commit_lsn", "g"), ("commit_lsn", "1:2:3:4:5"),
    ("change_lsn", "1" * 17), ("rs_id", "a-b"),
]  # fmt: skip


def test_a_position_that_cannot_be_compared_is_malformed(spark: SparkSession) -> None:
    """It has no order, so it overwrites nothing. A row of a snapshot needs none."""
    streams = [[of_name(op, "odd", ts_ms=STREAMED, **{name: value})] for name, value in WRONG for op in "ur"]
    rows = sorted(collected(changes_of(spark, *streams)), key=lambda row: int(row["_stream"]))
    expected = [reason for name, _ in WRONG for reason in (f"source.{name} is no position in a log", None)]
    assert [row["_malformed"] for row in rows] == expected
    assert [row["_order"] is None for row in rows] == [reason is not None for reason in expected]


def test_names_of_anyone_do_not_change_the_parts_of_an_order(spark: SparkSession) -> None:
    """A server, file or GTID may be any text."""
    odd = ["/", "a/b/c", "~", "-", "é\n", "x" * 1000]
    streams = [
        [of_name("u", "low", **{**source, name: value}), of_name("u", "high", **{**source, name: value, "pos": 501})]
        for name, value in itertools.product(("name", "file", "gtid"), odd)
        for source in [{**MYSQL, "ts_ms": STREAMED}]
    ]
    turned = [stream[::-1] for stream in streams]
    assert latest_of_servers(spark, *streams, *turned) == ["high"] * len(streams) * 2
    orders = [row["_order"] for row in collected(changes_of(spark, *streams))]
    assert {order.count("/") for order in orders} == {3}


SNAPSHOTS_AND_CHANGES: list[tuple[Source, Source]] = [
    ({"lsn": 100}, {"lsn": 150}),
    ({"lsn": 100}, {"lsn": 100}),
    ({}, {}),
    ({"lsn": 100}, {}),
    ({"lsn": 100}, {"lsn": None, "snapshot": None}),
    ({"lsn": 100}, {"lsn": 150, "ts_ms": None}),
    ({"file": "bin.000009", "pos": 900, "row": 0}, {"file": "bin.000009", "pos": 950, "row": 0}),
    ({"file": "bin.000009", "pos": 900, "gtid": None}, {"file": "bin.000010", "pos": 4, "gtid": "a:1"}),
    ({"file": "bin.000009", "pos": 900}, {"file": "bin.000001", "pos": 4}),
    ({"file": "", "pos": 0}, {"file": "bin.000001", "pos": 4}),
    ({"change_lsn": None, "commit_lsn": "00:01"}, {"change_lsn": "00:02", "event_serial_no": 1}),
    ({"scn": "100"}, {"scn": "150"}),
]


def test_a_change_is_later_than_a_row_of_a_snapshot_before_it(spark: SparkSession) -> None:
    """Also if the snapshot is taken again: it does not undo the change that follows it."""
    streams = []
    for snapshot, op, (of_snapshot, of_change) in itertools.product(SNAPSHOTS, "rc", SNAPSHOTS_AND_CHANGES):
        read = of_name(op, "read", **{"ts_ms": READ, "snapshot": snapshot, **of_snapshot})
        first = of_name("u", "first", **{"ts_ms": STREAMED - 1000, **of_change})
        for change in "cud":
            streams.append([read, of_name(change, "changed", **{"ts_ms": STREAMED, **of_change})])
        streams.append([read, first, read, of_name("u", "changed", **{"ts_ms": STREAMED, **of_change})])
    assert latest(spark, *streams) == ["changed"] * len(streams)


def test_of_rows_of_snapshots_the_later_one_counts(spark: SparkSession) -> None:
    first = of_name("r", "first", ts_ms=STREAMED, snapshot="last", lsn=100)
    second = of_name("r", "second", ts_ms=READ, snapshot="true", lsn=120)
    assert latest(spark, [first, second], [second, first]) == ["second"] * 2


def test_a_time_that_cannot_be_right_orders_nothing(spark: SparkSession) -> None:
    """IDs that are not milliseconds tell nothing."""
    cases: list[tuple[object, int, bool]] = [
        (READ + 86_400_000, READ, False), (READ + 86_400_001, READ, True), (2**62, READ, True), (2**70, READ, True),
        (READ, READ * 1000, False), (READ, 7, False), (-1, READ, True), ("x", READ, True), (1.5, READ, True),
        (None, READ, False), (0, READ, False), (str(READ), READ, False),
    ]  # fmt: skip
    rows = [
        (str(place), f"{entry}-0", fields_of({"id": 1}, of_name("u", "odd", ts_ms=time)))
        for place, (time, entry, _) in enumerate(cases)
    ]
    changes = collected(spark_streams.debezium(spark.createDataFrame(rows, ENTRIES), CUSTOMERS))
    for row, (time, entry, is_wrong) in zip(sorted(changes, key=lambda row: int(row["_stream"])), cases, strict=True):
        assert (row["_order"] is None, row["_malformed"] is not None) == (is_wrong, is_wrong), (time, entry)
        assert row["name"] == "odd"
        assert not is_wrong or row["_malformed"].startswith("source.ts_ms is ")
    right, odd = of_name("u", "right", ts_ms=READ), of_name("u", "odd", ts_ms=READ * 2)
    assert latest(spark, [right, odd], [odd, right]) == ["right"] * 2


def test_the_view_of_a_flow_stops_at_what_it_cannot_follow(spark: SparkSession) -> None:
    """Of examples/pipelines/changes.py: a truncation, another server and a malformed event; messages are left out."""
    source = {**MYSQL, "server_id": 223344, "file": "binlog.000009", "ts_ms": STREAMED}
    good = [
        of_name("u", "row", **source),
        of_name("r", "read", ts_ms=READ, snapshot="true"),
        of_name("m", "", **source),
    ]

    def rows(*events: dict[str, object]) -> set[str]:
        return {row["name"] for row in rows_of(changes_of(spark, [*events])).select("name").collect()}

    assert rows(*good) == {"row", "read"}
    cases = {
        "the table was truncated": event("t", None, None, **source),
        "another server wrote it": of_name("u", "new", **{**source, "server_id": 1}),
        "the event has no row": event("u", None, None, **source),
    }
    for why, odd in cases.items():
        with pytest.raises(SparkRuntimeException, match=f"The flow stopped at entry {READ + 4000}-0, because {why}"):
            rows(*good, odd)
