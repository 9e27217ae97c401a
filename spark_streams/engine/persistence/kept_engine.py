"""The engine as persistence knows it: whose changes are written down, and into which they are read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from spark_streams.engine.journal import Journal
from spark_streams.engine.settings.config import Config
from spark_streams.engine.store.keyspace import Database


class KeptEngine(Protocol):
    """What core.Engine has for persistence. The core imports persistence, and not the other way round."""

    config: Config
    databases: list[Database]
    journal: Journal | None  # persistence sets it while changes are written down
    loading: bool  # while the file is read back
    now: int  # Unix milliseconds
    stopping: bool  # it is to end
    wake: Callable[[], None]  # ends the server's waiting; safe in any thread
    serve_meanwhile: Callable[[], None]  # serves who asks while the file is read back: with LOADING, mostly

    def set_loading(self, loading: bool) -> None:
        """The file is being read back, or is so no more."""
