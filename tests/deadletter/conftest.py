"""Small pages, so that a few hundred letters cross every boundary."""

from __future__ import annotations

import pytest

from spark_streams.deadletter import reading


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_FIRST_PAGE", 7)
    monkeypatch.setattr(reading, "LARGEST_PAGE", 50)
