"""Fixtures for tests that drive a reader: small steps, a plain client, and no reader left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from spark_streams.source import pending, reserve
from tests.servers import Server
from tests.source.driving import forget_all


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small steps and pages, so that a few hundred entries cross every boundary."""
    monkeypatch.setattr(pending, "PAGE", 70)
    monkeypatch.setattr("spark_streams.source.micro_batches.STEP", 30)
    monkeypatch.setattr(reserve, "_STEPS_A_ROUND", 4)
    monkeypatch.setattr("spark_streams.source.fetch._FIRST_PAGE", 7)


@pytest.fixture(autouse=True)
def no_reader_is_left() -> Iterator[None]:
    """Readers end with their test."""
    yield
    forget_all()


@pytest.fixture
def client(server: Server) -> redis.Redis:
    """A plain client of the server."""
    return server.client(decode_responses=True)
