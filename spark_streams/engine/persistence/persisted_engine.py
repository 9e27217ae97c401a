"""The part of the engine that persistence uses: it records the engine's changes and loads them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from spark_streams.engine.journal import Journal
from spark_streams.engine.settings.config import Config
from spark_streams.engine.store.keyspace import Database


class PersistedEngine(Protocol):
    """What persistence needs of core.Engine. The core imports persistence, not the reverse."""

    config: Config
    databases: list[Database]
    journal: Journal | None  # persistence sets it while changes are recorded
    loading: bool  # while the file is loaded
    now: int  # Unix milliseconds
    stopping: bool  # the engine is stopping
    wake: Callable[[], None]  # ends the server's waiting; safe in any thread
    serve_meanwhile: Callable[[], None]  # serves clients while the file is loaded

    def set_loading(self, loading: bool) -> None:
        """Set whether the file is being loaded."""
