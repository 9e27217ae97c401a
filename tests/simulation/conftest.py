"""The third kind of server beside engine and redis, for the fixture `server`. Readers end with their test."""

from __future__ import annotations

import pytest

from tests.connector.source.conftest import no_reader_is_left
from tools.simulation.in_process.server import ProcessServer

__all__ = ["no_reader_is_left"]


@pytest.fixture(scope="session")
def process_server() -> ProcessServer:
    return ProcessServer()
