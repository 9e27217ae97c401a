"""Small pages, so that a few hundred letters cross every boundary."""

from __future__ import annotations

import pytest

from spark_streams.deadletter import page_reader


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_reader, "_FIRST_PAGE", 7)
    monkeypatch.setattr(page_reader, "LARGEST_PAGE", 50)
