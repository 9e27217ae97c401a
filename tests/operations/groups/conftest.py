"""Fixtures for tests of hands on groups."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark_streams.cli import main
from tests.connector.source.conftest import no_reader_is_left
from tools.servers.server import Server

__all__ = ["no_reader_is_left"]

# click before 8.2 has errors among the output, or nowhere else.
APART = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}

Rstream = Callable[..., Result]
RstreamJson = Callable[..., Any]


@pytest.fixture
def rstream(server: Server) -> Rstream:
    """Run `rstream …` against the server."""

    def run(*words: str) -> Result:
        return CliRunner(**APART).invoke(main, [*words, "--url", server.url], env={"COLUMNS": "300"})

    return run


@pytest.fixture
def rstream_json(rstream: Rstream) -> RstreamJson:
    """Run `rstream … --json`, and return the parsed output. code: expected exit code."""

    def run(*words: str, code: int = 0) -> Any:
        ran = rstream(*words, "--json")
        assert ran.exit_code == code, ran.output + str(ran.stderr)
        return json.loads(ran.stdout)

    return run
