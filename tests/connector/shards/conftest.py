"""Readers end with their test."""

from __future__ import annotations

from tests.connector.source.conftest import no_reader_is_left

__all__ = ["no_reader_is_left"]
