"""Fixtures for tests that drive a reader: a plain client, and no reader left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tools.driving import forget_all
from tools.servers.server import Server


@pytest.fixture(autouse=True)
def no_reader_is_left() -> Iterator[None]:
    """Readers end with their test."""
    yield
    forget_all()


@pytest.fixture
def client(server: Server) -> redis.Redis:
    """A plain client of the server."""
    return server.client(decode_responses=True)
