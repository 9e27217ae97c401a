"""The job etl reads a field that holds an encoded record. What cannot be decoded is a dead letter, byte for byte."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_streams.connector.errors import ConfigError
from spark_streams.jobs.job_columns import Payload
from spark_streams.jobs.job_config import check_keys
from spark_streams.jobs.programs import etl
from tests.connector.schemas.avro_values import FIRST, READER, VERSIONS, encoded
from tests.connector.schemas.conftest import registry
from tests.connector.schemas.registry_server import RegistryServer
from tests.connector.schemas.test_schema_registry import VALUES
from tests.connector.spark.jobs.test_etl import run
from tests.connector.spark.test_routing import dead_letters_in
from tools.servers.server import Server

pytestmark = pytest.mark.in_turn

__all__ = ["registry"]

CONFIG = """
url = "{url}"
source = {{streams = "s", group = "etl", startingOffsets = "earliest"}}
dead_letters.stream = "dead"
job.checkpoint = "{folder}/checkpoint"
rule = [{{reason = "cheap", when = "amount < 8"}}]
table = {{format = "json", path = "{folder}/all"}}

[decode]
field = "payload"
registry = "{registry}"
schema = "{folder}/order.avsc"
login = ["reader", "{folder}/password"]
"""


@pytest.mark.spark
def test_records_become_columns_and_the_rest_dead_letters(
    spark: SparkSession, server: Server, registry: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for schema_id, schema in VERSIONS.items():
        registry.add(schema_id, schema)
    registry.login = "reader:s3cret"
    (tmp_path / "password").write_text("s3cret\n")
    (tmp_path / "order.avsc").write_text(json.dumps(READER))
    payloads = [encoded(VERSIONS[n], VALUES[n], n) for n in (1, 2, 3)]
    payloads += [encoded(FIRST, VALUES[1], 9), payloads[0][:-1], b"no framing"]
    entries: list[dict[bytes, bytes]] = [{b"payload": one, b"\xff": b"\0\r\n"} for one in payloads] + [{b"n": b"1"}]
    with server.client() as client:
        ids = [client.xadd("s", one).decode() for one in entries]  # type: ignore[arg-type]
    config = tomllib.loads(CONFIG.format(url=server.url, registry=registry.url, folder=tmp_path))
    check_keys(config, {**etl.PROGRAM.shape, "url": str}, "", "test")
    told = run(spark, config, monkeypatch).summary
    assert told["reasons"] == {
        "cheap": 1, "decode: unknown-schema": 1, "decode: bad-value": 1, "decode: bad-framing": 1, "decode: missing": 1,
    }  # fmt: skip
    rows = spark.read.json(str(tmp_path / "all")).select("customer", "amount", "currency").collect()
    assert sorted(map(tuple, rows)) == [("bob", 2**40, "USD"), ("cyd", 9, "CHF")]
    letters = {letter["id"]: (fields, letter) for fields, letter in dead_letters_in(server)}
    assert letters.keys() == {ids[0], *ids[3:]}
    assert [letters[one][0] for one in (ids[0], *ids[3:])] == [entries[0], *entries[3:]]
    letter = letters[ids[3]][1]
    assert (letter["error"], letter["message"]) == (
        "RSTREAM_DECODE", "field 'payload' cannot be decoded: unknown-schema",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"registry": "http://h"}, "decode.field is missing"),
        ({"field": "_id", "registry": "http://h"}, "decode.field is '_id': _… is reserved"),
        ({"field": "p"}, "[decode]: decode needs registry or schema"),
        ({"field": "p", "registry": "http://h"}, "[decode]: decode needs schema or into"),
        ({"field": "p", "schema": "none.avsc"}, "[decode]: schema 'none.avsc' cannot be read"),
        ({"field": "p", "registry": "http://h", "login": ["a"]}, "[decode]: login must be"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as told:
        Payload.parse({"decode": options})
    assert text in told.value.message


def test_columns_name_the_fields_and_a_schema_of_entries_contradicts() -> None:
    decode = {"field": "p", "registry": "http://h", "login": ["a", "b"]}
    payload = Payload.parse({"decode": decode, "columns": {"n": "INT"}})
    assert payload is not None
    assert (payload.columns, payload.options["login"]) == ({"n": "INT"}, ("a", "b"))
    assert Payload.parse({"columns": {"n": "INT"}}) is None
    with pytest.raises(ConfigError, match="contradict each other"):
        Payload.parse({"decode": decode, "schema": {"ddl": "n INT"}})
    with pytest.raises(ConfigError, match="decode.login must be a string or a list"):
        check_keys({"decode": {"login": 1}}, etl.PROGRAM.shape, "", "test")
