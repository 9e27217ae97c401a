"""docs/guide/recipes*.md: their programs exist, and their blocks run as printed, with the jars if Spark has them."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tests.recipes.conftest import RECIPES

pytestmark = pytest.mark.spark

GUIDE = RECIPES.parents[1] / "docs" / "guide"
PAGES = [*sorted(GUIDE.glob("recipes*.md")), GUIDE / "cdc.md"]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
Recipe = Callable[[str], ModuleType]


def block(word: str) -> str:
    """Return the only Python block of the pages that contains this word."""
    (found,) = [one for one in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if word in one]
    return str(found)


def skip_without(spark: SparkSession, name: str, jar: str) -> None:
    """A class of a jar that Spark itself does not bring."""
    loader: Any = spark.sparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(name)
    except Py4JJavaError:
        # The jar is no package of PyPI, so the set-up cannot install it. With --packages or its jar the leg runs.
        pytest.skip(f"this Spark has no {jar}, which comes from Maven Central (--packages): its leg did not run")


def test_each_program_is_named() -> None:
    assert set(re.findall(r"examples/recipes/(\w+)\.py", TEXT)) == {path.stem for path in RECIPES.glob("*.py")}


def test_spark_s_own_reader_of_avro(spark: SparkSession, recipe: Recipe) -> None:
    skip_without(spark, "org.apache.spark.sql.avro.AvroDataToCatalyst", "spark-avro")
    import fastavro

    into = io.BytesIO()
    schema = {"type": "record", "name": "Order", "fields": [{"name": "customer", "type": "string"}]}
    fastavro.schemaless_writer(into, fastavro.parse_schema(schema), {"customer": "ann"})
    rows = [("1-0", into.getvalue()), ("2-0", b"\xff")]
    given: dict[str, Any] = {
        "entries": spark.createDataFrame(rows, "_id STRING, payload BINARY"),
        "schema": '{"type": "record", "name": "Order", "fields": [{"name": "customer", "type": "string"}]}',
    }
    exec(block("from_avro"), given)
    assert [tuple(row) for row in given["good"].collect()] == [("1-0", "ann")]


def test_spark_s_own_reader_of_protobuf(
    spark: SparkSession, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without(spark, "org.apache.spark.sql.protobuf.ProtobufDataToCatalyst", "spark-protobuf")
    descriptors = recipe("protobuf_columns").descriptor_set()
    message = recipe("protobuf_columns").message_class(descriptors)(customer="ann", cents=5)
    (tmp_path / "orders.desc").write_bytes(descriptors)
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"entries": spark.createDataFrame([(message.SerializeToString(),)], "payload BINARY")}
    exec(block("from_protobuf"), given)
    assert given["decoded"].select("record.customer", "record.cents").first() == ("ann", 5)
