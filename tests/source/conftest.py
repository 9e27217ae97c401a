"""Fixtures for tests that drive a reader: small steps, a plain client, and no reader left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from spark_streams.source import pending_list
from spark_streams.source.microbatch import prefetch, reserve
from tests.servers import Server
from tests.source.driving import forget_all


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small steps and pages, so that a few hundred entries cross every boundary."""
    monkeypatch.setattr(pending_list, "PAGE", 70)
    monkeypatch.setattr(prefetch, "STEP", 30)
    monkeypatch.setattr(reserve, "_ROUND", 100)
    monkeypatch.setattr("spark_streams.source.task.fetcher._FIRST_PAGE", 7)


@pytest.fixture(autouse=True)
def always_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little is left, it is reserved ahead of its batch."""
    monkeypatch.setattr(prefetch, "LEAST", 1)


@pytest.fixture
def never_ahead(always_ahead: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is reserved when it is made."""
    monkeypatch.setattr(prefetch, "LEAST", 1 << 62)


@pytest.fixture(autouse=True)
def no_reader_is_left() -> Iterator[None]:
    """Readers end with their test."""
    yield
    forget_all()


@pytest.fixture
def client(server: Server) -> redis.Redis:
    """A plain client of the server."""
    return server.client(decode_responses=True)
