"""Readers and writers that come from a driver with another version of the package are refused by name."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from spark_streams.connector.datasource import RStreamDataSource
from spark_streams.connector.errors import VersionError
from spark_streams.connector.sink import writers
from spark_streams.connector.spark import worker
from spark_streams.connector.wire.address import Address

GIVEN = {"url": "redis://127.0.0.1:1/0", "streams": "s", "stream": "s", "group": "g", "delivery": "at-least-once"}
SCHEMA = StructType().add("n", "long")
READ = {"url", "streams", "group"}
WRITE = {"url", "stream", "delivery"}


@pytest.fixture(autouse=True)
def no_server_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer is made on the driver, which is connected once before its tasks are."""
    monkeypatch.setattr(writers, "connect_once", lambda address, is_known, ready: None)


def source_of(names: set[str]) -> RStreamDataSource:
    source = RStreamDataSource({name: text for name, text in GIVEN.items() if name in names})
    source.schema()
    return source


MADE = {
    "streamReader": lambda: source_of(READ).streamReader(SCHEMA),
    "reader": lambda: source_of(READ - {"group"}).reader(SCHEMA),
    "writer": lambda: source_of(WRITE).writer(SCHEMA, False),
    "streamWriter": lambda: source_of(WRITE).streamWriter(SCHEMA, False),
}


@pytest.mark.parametrize("name", MADE)
def test_another_version_is_named_before_anything_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = cloudpickle.dumps(MADE[name]())
    monkeypatch.setattr(worker, "__version__", "0.0.9")
    with pytest.raises(
        VersionError,
        match=r"a task cannot run on .*: it has spark-streams 0\.0\.9, and .* Install the driver's version",
    ):
        pickle.loads(pickled)


@pytest.mark.parametrize("name", MADE)
def test_the_same_version_reads_what_it_has_pickled(name: str) -> None:
    made: Any = MADE[name]()
    copy: Any = pickle.loads(cloudpickle.dumps(made))
    assert type(copy) is type(made)
    assert copy.__getstate__().keys() == made.__getstate__().keys()


def test_what_the_other_version_does_not_have_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names in a pickle of another version may not exist here."""
    pickled = cloudpickle.dumps(MADE["reader"]())
    monkeypatch.setattr(worker, "__version__", "0.0.9")
    monkeypatch.delattr("spark_streams.connector.source.batch_reader.BatchReader")
    monkeypatch.delattr(Address, "parse")
    with pytest.raises(VersionError):
        pickle.loads(pickled)
