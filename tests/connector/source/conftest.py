"""A fixture for tests that drive a reader: no reader is left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.driving import forget_all


@pytest.fixture(autouse=True)
def no_reader_is_left() -> Iterator[None]:
    """Readers end with their test."""
    yield
    forget_all()
