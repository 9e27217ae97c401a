"""The third kind of server beside engine and redis, for the fixture `server`."""

from __future__ import annotations

import pytest

from tools.simulation.in_process.server import ProcessServer


@pytest.fixture(scope="session")
def process_server() -> ProcessServer:
    return ProcessServer()
