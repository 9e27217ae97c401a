"""Modules of transactions that watch streams (`watches_streams`) run under both rules of WATCH."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.servers.server import Server

_FOLDER = Path(__file__).parent


@pytest.fixture
def server(watched_server: Server) -> Server:
    """An empty server; `newer`: an engine with the rule of Valkey 9.0.7."""
    return watched_server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the newer rule out of other modules."""
    items[:] = [item for item in items if not _is_spare(item)]


def _is_spare(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or item.path.parent != _FOLDER or not hasattr(item, "callspec"):
        return False
    return item.callspec.params.get("watched_server") == "newer" and not getattr(item.module, "watches_streams", False)
