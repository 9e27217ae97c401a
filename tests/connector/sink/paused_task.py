"""A task that stands still at one of its requests, for as long as the test likes: a zombie in the making."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from spark_streams.connector.errors import RStreamError
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.session import Pipe


class PausedTask(threading.Thread):
    """Does `work`, and stands still before its request number `at` (from 0), until `go_on`. It may end before that."""

    def __init__(self, work: Callable[[], object], at: int) -> None:
        super().__init__(daemon=True)
        self._work, self._at = work, at
        self._sent = 0
        self._stands = threading.Event()  # or has ended
        self._may_go = threading.Event()
        self.error: RStreamError | None = None
        self.stood = False

    def run(self) -> None:
        try:
            self._work()
        except RStreamError as error:
            self.error = error
        finally:
            self._stands.set()

    def sends(self) -> None:
        """Called before each of its requests."""
        if self._sent == self._at:
            self.stood = True
            self._stands.set()
            assert self._may_go.wait(60)
        self._sent += 1

    def until_it_stands(self) -> None:
        assert self._stands.wait(30)

    def go_on(self) -> None:
        """To its end."""
        self._may_go.set()
        self.join(30)
        assert not self.is_alive()


@contextmanager
def watched() -> Iterator[None]:
    """While the block runs, such tasks stand still where they are to."""

    def stopping(honest: Callable[..., Any]) -> Callable[..., Any]:
        def send(self: Any, *data: Any) -> Any:
            current = threading.current_thread()
            if isinstance(current, PausedTask):
                current.sends()
            return honest(self, *data)

        return send

    with (
        mock.patch.object(Connection, "send", stopping(Connection.send)),
        mock.patch.object(Pipe, "send", stopping(Pipe.send)),
    ):
        yield


@contextmanager
def paused_task(work: Callable[[], object], at: int) -> Iterator[PausedTask]:
    """A task that has come to its request number `at`, and goes on at the end of the block at the latest."""
    with watched():
        task = PausedTask(work, at)
        task.start()
        task.until_it_stands()
        try:
            yield task
        finally:
            task.go_on()
