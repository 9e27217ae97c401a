"""The program that `rstream init query` writes reads the stream that it was written for, and continues."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import spark_streams
from spark_streams.cli import main
from tools.servers.server import Server

pytestmark = pytest.mark.spark


def test_the_program_writes_each_row_once_and_its_next_start_continues(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = spark_streams.run
    monkeypatch.setattr(spark_streams, "run", lambda writer: run(writer.trigger(availableNow=True)))
    monkeypatch.delenv("RSTREAM_URL", raising=False)
    program = tmp_path / "query.py"
    with server.client(decode_responses=True) as client:
        client.xadd("orders", {"first name": "ann", "amount": "12.50"})
        client.xadd("orders", {"amount": "7"})  # does not pass
        words = ["init", "query", "--stream", "orders", "--url", server.url, "-o", str(program)]
        made = CliRunner().invoke(main, words)
        assert made.exit_code == 0, made.output
        text = program.read_text()
        assert '"out/checkpoints' in text
        program.write_text(text.replace('"out/checkpoints', f'"{tmp_path}/checkpoints'))
        runpy.run_path(str(program))
        client.xadd("orders", {"first name": "bob", "amount": "1"})
        runpy.run_path(str(program))
        rows: Any = client.xrange("orders:chosen")
        assert [fields for _, fields in rows] == [
            {"first name": "ann", "amount": "12.5"},
            {"first name": "bob", "amount": "1"},
        ]
