"""Lineage without Spark: the names of datasets, and how events reach a collector or a file."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path

import jsonschema
import pytest
from openlineage.client.event_v2 import RunEvent

from spark_streams.connector.errors import InvalidOptionError, UnsupportedError
from spark_streams.connector.shards.names import shards_of
from spark_streams.connector.source.pending.poison_record import QueryFailure
from spark_streams.connector.watch.lineage import lineage as outbox_module
from spark_streams.connector.watch.lineage.datasets import Dataset, path_dataset, stream_dataset
from spark_streams.connector.watch.lineage.lineage import KEY_FILE, Outbox, sender, without_values
from spark_streams.connector.watch.lineage.openlineage_events import SCHEMA_URL, run_event
from spark_streams.connector.wire.address import Address
from tests.connector.watch.collector import OURS, Collector, check, check_ours
from tools.machine_time import machine_seconds
from tools.servers.server import free_port
from tools.waiting import until

RUN = "0196f6f5-6b0f-7b3e-8f0a-1c2d3e4f5a6b"
HOST = socket.gethostname()


def event(number: int = 0, kind: str = "RUNNING") -> RunEvent:
    read = Dataset("redis://h:6379", "orders", (("n", "int"),), "billing", "spark")
    at = f"2026-11-27T00:00:{number:02}Z"
    return run_event(kind, at, RUN, ("default", "q"), [read], [Dataset("file", "/out")], "4.1.0", None)


def seconds(collector: Collector) -> list[int]:
    """The number of each event."""
    return [int(one["eventTime"][17:19]) for one in collector.events]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "_FIRST_WAIT", 0.05)
    monkeypatch.setattr(outbox_module, "_LONGEST_WAIT", 0.1)


@pytest.mark.parametrize(
    ("url", "namespace"),
    [
        ("redis://user:secret@h:6380", "redis://h:6380"),
        ("rediss://h/0", "redis://h:6379"),
        ("redis://h/2", "redis://h:6379/2"),
        ("redis://h?db=2", "redis://h:6379/2"),
        ("redis://[::1]:6379/10", "redis://[::1]:6379/10"),
        ("redis+cluster://a:7000,b:7000", "redis://a:7000"),
        ("redis+sentinel://:secret@s1,s2/m/0", "redis://s1:26379/m"),
        ("redis+sentinel://s1,s2/m/3", "redis://s1:26379/m/3"),
        ("redis+sentinel://s1,s2/m?db=3", "redis://s1:26379/m/3"),
        ("unix:///run/r.sock?db=2", f"unix://{HOST}/run/r.sock/2"),
        ("unix://:secret@/run/r.sock", f"unix://{HOST}/run/r.sock"),
        ("embedded:", f"embedded://{HOST}"),
        ("embedded:///data", f"embedded://{HOST}/data"),
    ],
)
def test_the_namespace_of_a_stream_is_its_server_and_database(url: str, namespace: str) -> None:
    assert stream_dataset(Address.parse(url), "orders") == Dataset(namespace, "orders")


def test_a_shard_is_part_of_its_stream() -> None:
    address = Address.parse("redis://h")
    assert {stream_dataset(address, name).name for name in shards_of("orders", 2)} == {"orders"}
    assert stream_dataset(address, "orders:1/2").name == "orders:1/2"


@pytest.mark.parametrize(
    ("path", "namespace", "name"),
    [
        ("/out/rows", "file", "/out/rows"),
        ("file:/out/rows", "file", "/out/rows"),
        ("file:///out/a#b?c", "file", "/out/a#b?c"),
        ("out", "file", str(Path("out").absolute())),
        ("s3a://bucket/a/b/", "s3://bucket", "a/b"),
        ("s3a://key:secret@bucket/a", "s3://bucket", "a"),
        ("hdfs://n:8020/a", "hdfs://n:8020", "a"),
        ("abfss://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net", "a"),
        ("gs://bucket", "gs://bucket", "/"),
    ],
)
def test_the_dataset_of_a_path(path: str, namespace: str, name: str) -> None:
    assert path_dataset(path) == Dataset(namespace, name)


def test_an_event_keeps_the_rules_of_openlineage(tmp_path: Path) -> None:
    sender(str(tmp_path / "events"))(event())
    [written] = map(json.loads, (tmp_path / "events").read_text().splitlines())
    check(written)
    [read] = written["inputs"]
    assert (read["inputFacets"]["rstream_consumerGroup"]["group"], read["facets"]["schema"]["fields"][0]["name"]) == (
        *("billing", "n"),
    )


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (QueryFailure("NumberFormatException", "[CAST_INVALID_INPUT] The value 'Ann Smith' cannot be cast"),
         "NumberFormatException [CAST_INVALID_INPUT]"),
        (QueryFailure("SchemaError", "[RSTREAM_SCHEMA] stream 'orders': b'4111 1111' in entry 1-0"),
         "SchemaError [RSTREAM_SCHEMA]"),
        (QueryFailure("ValueError", "could not read Ann Smith (main.py:7)"), "ValueError"),
        (QueryFailure("ValueError", "could not read [ANN_SMITH] (main.py:7)"), "ValueError"),
        (QueryFailure("KeyError", "[Ann] Smith"), "KeyError"),
        (QueryFailure("E" * 5_000, ""), "E" * 200),
    ],
)  # fmt: skip
def test_an_error_has_no_values_of_rows(failure: QueryFailure, said: str) -> None:
    """A catalog has more readers than the log of a query."""
    assert without_values(failure) == f"{said}. The message is in the log of the query: it may quote values of rows"


def test_the_schema_of_our_facet_is_where_events_say() -> None:
    """In the release's tag, under the name that its own file gives."""
    file, _, pointer = SCHEMA_URL.partition("#/$defs/")
    schema = json.loads(OURS.read_text())
    assert schema["$id"] == file
    assert pointer in schema["$defs"]
    assert file.endswith(f"/spark_streams/connector/watch/lineage/{OURS.name}")
    facet = {"_producer": "p", "_schemaURL": "u", "group": "g", "consumer": "c"}
    check_ours({"rstream_consumerGroup": facet})
    for name in facet:
        with pytest.raises(jsonschema.ValidationError):
            check_ours({"rstream_consumerGroup": {key: value for key, value in facet.items() if key != name}})


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_file_is_appended_to(prefix: str, tmp_path: Path) -> None:
    for number in range(2):
        sender(f"{prefix}{tmp_path}/events")(event(number))
    assert len((tmp_path / "events").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "to", ["http://user:secret@h", "http://h?key=secret", "http://", "s3://bucket/secret", "https://h#secret"]
)
def test_what_is_no_collector_is_refused_without_its_login(to: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"without a login.*{KEY_FILE}") as refused:
        sender(to)
    assert "secret" not in str(refused.value)


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="nowhere/events: No such file"):
        sender(str(tmp_path / "nowhere" / "events"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client.transport.file", None)
    with pytest.raises(UnsupportedError, match=r"needs openlineage-python.*pip install 'spark-streams\[lineage\]'"):
        sender("events")


def test_the_key_is_read_for_each_event_and_sent_as_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = tmp_path / "key"
    monkeypatch.setenv(KEY_FILE, str(key))
    with Collector() as collector, caplog.at_level(logging.DEBUG):
        send = sender(collector.url)
        for text in ("first", "second"):
            key.write_text(f"{text}\n")
            send(event())
    assert collector.logins == ["Bearer first", "Bearer second"]
    assert "first" not in caplog.text
    assert "second" not in caplog.text


def test_events_wait_for_a_collector_that_is_away_in_their_order(quick: None, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    outbox = Outbox("c", sender(f"http://127.0.0.1:{port}"))
    with caplog.at_level(logging.WARNING):
        began = machine_seconds()
        for number in range(20):
            outbox.put(lambda number=number: [event(number)])  # type: ignore[misc]
        assert machine_seconds() - began < 1
        until(lambda: caplog.records, "no warning", 30)
        time.sleep(0.5)  # several attempts
        assert len(caplog.records) == 1
        with Collector(port) as collector:
            until(lambda: len(collector.events) == 20, "not all events arrive", 30)
            outbox.close()
    assert seconds(collector) == [*range(20)]
    assert [record.message.partition(":")[0] for record in caplog.records] == ["lineage", "lineage"]
    assert "takes no events" in caplog.records[0].message
    assert "takes events again; 0 were dropped" in caplog.records[1].message


def test_too_many_events_are_dropped_and_counted(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "MOST", 5)
    free, sent = threading.Event(), []

    def send(one: RunEvent) -> None:
        free.wait(30)
        sent.append(one)

    outbox = Outbox("c", send)
    for number in range(20):
        outbox.put(lambda number=number: [event(number)])  # type: ignore[misc]
    dropped = outbox.dropped
    assert 14 <= dropped <= 15  # the thread may have taken one
    free.set()
    outbox.close()
    assert len(sent) + dropped == 20


def test_closing_does_not_wait_for_a_collector_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    outbox = Outbox("c", sender(f"http://127.0.0.1:{free_port()}"))
    for number in range(30):
        outbox.put(lambda number=number: [event(number)])  # type: ignore[misc]
    began = machine_seconds()
    outbox.close()
    assert machine_seconds() - began < 15
    assert outbox.dropped == 30
    assert caplog.records[-1].message == "lineage: 30 events for c were dropped"


def test_a_collector_that_never_answers_does_not_hold_the_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox_module, "_AT_LAST", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        outbox = Outbox("c", sender(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        for number in range(3):
            outbox.put(lambda number=number: [event(number)])  # type: ignore[misc]
        began = machine_seconds()
        outbox.close()
        assert machine_seconds() - began < 4
    assert any("events for c were dropped" in record.message for record in caplog.records)


@pytest.mark.parametrize(("code", "arrives"), [(400, [1]), (404, [1]), (503, [0, 1]), (401, [0, 1]), (429, [0, 1])])
def test_a_refused_event_is_dropped_and_another_answer_is_tried_again(
    code: int, arrives: list[int], quick: None
) -> None:
    with Collector() as collector:
        collector.faults = [code]
        outbox = Outbox("c", sender(collector.url))
        for number in range(2):
            outbox.put(lambda number=number: [event(number)])  # type: ignore[misc]
        until(lambda: seconds(collector) == arrives, f"not {arrives}", 30, log=lambda: str(seconds(collector)))
        outbox.close()
    assert outbox.dropped == 2 - len(arrives)


def test_openlineages_own_configuration_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a file, and by variables: here two transports at once."""
    monkeypatch.chdir(tmp_path)
    config = {"transport": {"type": "file", "log_file_path": str(tmp_path / "events"), "append": True}}
    (tmp_path / "own.yml").write_text(json.dumps(config))
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(tmp_path / "own.yml"))
    sender("env")(event())
    assert len((tmp_path / "events").read_text().splitlines()) == 1
    monkeypatch.delenv("OPENLINEAGE_CONFIG")
    with Collector() as one, Collector() as other:
        for name, collector in (("ONE", one), ("OTHER", other)):
            monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__TRANSPORTS__{name}__TYPE", "http")
            monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__TRANSPORTS__{name}__URL", collector.url)
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "composite")
        outbox = Outbox("env", sender("env"))
        outbox.put(lambda: [event(1), event(2)])
        outbox.close()
        assert seconds(one) == seconds(other) == [1, 2]
    assert not (tmp_path / "env").exists()


def test_without_a_configuration_env_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenLineage's client would print the events."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE_")]:
        monkeypatch.delenv(name)
    with pytest.raises(InvalidOptionError, match="set OPENLINEAGE_CONFIG, OPENLINEAGE_URL or"):
        sender("env")
