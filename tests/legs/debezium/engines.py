"""Debezium's engine for a form of its events, in a process that can be killed."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.legs.debezium.postgres import Postgres
from tests.legs.debezium.table import NAME


@dataclass(frozen=True)
class Form:
    """settings: of Debezium; options: of spark_streams.debezium."""

    name: str
    is_extended: bool
    has_schema: bool
    settings: Mapping[str, str]
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def stream(self) -> str:
        return f"{self.name}.{NAME}"


_OPTIONS = ["-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
_HEADER = {
    "transforms": "header",
    "transforms.header.type": "org.apache.kafka.connect.transforms.InsertHeader",
    "transforms.header.header": "kind",
    "transforms.header.value.literal": "a header",
}
FORMS = [
    Form("compact_with_schema", False, True, {}),
    Form(
        "compact", False, False,
        {"time.precision.mode": "microseconds", "hstore.handling.mode": "map"},
        {"timestamps": "us", "decimals": "base64"},
    ),
    Form(
        "extended_with_schema", True, True,
        {"decimal.handling.mode": "string", "time.precision.mode": "isostring", **_HEADER},
    ),
    Form(
        "extended", True, False, {"decimal.handling.mode": "string", "time.precision.mode": "nanoseconds"},
        {"timestamps": "ns", "decimals": "text"},
    ),
]  # fmt: skip


def started(
    classes: Sequence[Path], folder: Path, postgres: Postgres, url: str, form: Form, log: Path
) -> subprocess.Popen[bytes]:
    """Start the engine, which goes on from the position in this folder. classes: of Java's class path."""
    properties = {**_properties(form, postgres, url), "offset.storage.file.filename": f"{folder}/offsets"}
    file = folder / "engine.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    with log.open("ab") as said:
        command = ["java", *_OPTIONS, "-cp", ":".join(map(str, classes)), "RedisSink", str(file)]
        return subprocess.Popen(command, stdout=said, stderr=said)


def _properties(form: Form, postgres: Postgres, url: str) -> dict[str, str]:
    redis = urlsplit(url)
    schemas = str(form.has_schema).lower()
    return {
        "name": form.name,
        "topic.prefix": form.name,
        "slot.name": form.name,
        "publication.name": form.name,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": str(postgres.port),
        "database.user": "postgres",
        "database.password": "none",
        "database.dbname": "postgres",
        "table.include.list": NAME,
        "publication.autocreate.mode": "filtered",
        "skipped.operations": "none",  # truncations are skipped otherwise
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.flush.interval.ms": "1000",
        "key.converter.schemas.enable": schemas,
        "value.converter.schemas.enable": schemas,
        "redis.host": str(redis.hostname),
        "redis.port": str(redis.port),
        "redis.format": "extended" if form.is_extended else "compact",
        **form.settings,
    }
