"""An archive's column `fields`: every byte of an entry can be read again from it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from spark_streams.jobs.parts.archiving import HEX, exact_binary, exact_text

pytestmark = pytest.mark.spark
Entry = list[tuple[bytes, bytes]]
# First bytes of sequences of each length, bytes that may follow them and that may not, and what is special in the form.
BYTES = [0x00, 0x20, 0x41, 0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xDF, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF]
SPECIAL = [HEX.encode(), HEX.upper().encode(), b"", b" ", b"\xef\xbf\xbd", "🦊".encode(), b"\xed\xa0\x80\xed\xb0\x80"]


def entries() -> list[Entry]:
    words = [bytes(word) for length in (1, 2, 3) for word in itertools.product(BYTES, repeat=length)]
    chance = random.Random(4)
    words += [bytes(chance.choices(BYTES, k=4)) for _ in range(2000)]
    singles: list[Entry] = [[(word, b"")] for word in words] + [[(b"n", word)] for word in words]
    mixed = SPECIAL + words[:20] + [b"n", b"n"]
    word = lambda: chance.choice(mixed)  # noqa: E731
    return singles + [[(word(), word()) for _ in range(chance.randint(1, 4))] for _ in range(2000)]


def fits(entry: Entry, *, text: bool) -> bool:
    """Whether a map holds it as it is."""
    names = [name for name, _ in entry]
    try:
        _ = [word.decode() for field in entry for word in field] if text else []
    except UnicodeDecodeError:
        return False
    return len({*names}) == len(names) and HEX.encode() not in names


@pytest.mark.parametrize(("exact", "text"), [(exact_text, True), (exact_binary, False)])
def test_every_byte_is_read_again(
    spark: SparkSession, tmp_path: Path, exact: Callable[[Column], Column], text: bool
) -> None:
    """From ORC, which keeps one value of a name and sorts fields, and for other formats from the column itself."""
    given = entries()
    table = pa.table({"n": range(len(given)), "fields": pa.array(given, pa.map_(pa.binary(), pa.binary()))})
    rows = spark.createDataFrame(table).select("n", exact(F.col("fields")).alias("fields"))
    rows.write.orc(str(tmp_path / "orc"))
    for found, in_order in ((rows, True), (spark.read.orc(str(tmp_path / "orc")), False)):
        read = found.select("n", F.transform(F.map_entries("fields"), _bytes).alias("pairs")).orderBy("n").collect()
        for entry, row in zip(given, read, strict=True):
            kept: Entry = [(bytes(one["name"]), bytes(one["value"])) for one in row["pairs"]]
            if fits(entry, text=text):
                assert (kept if in_order else sorted(kept)) == (entry if in_order else sorted(entry))
                continue
            ((name, value),) = kept
            words = [bytes.fromhex(word) for word in value.decode().split(" ")]
            assert (name, words) == (HEX.encode(), [word for field in entry for word in field])


def _bytes(one: Column) -> Column:
    return F.struct(one["key"].cast("BINARY").alias("name"), one["value"].cast("BINARY").alias("value"))
