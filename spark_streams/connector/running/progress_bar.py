"""A progress bar with a count."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class Bar:
    """Progress: a moving bar on a terminal, otherwise a line every few seconds.

    total: number of items at the start. If more are done than that, the total is unknown, and only a count is shown.
    interval: seconds between two lines.
    """

    def __init__(self, console: Console, title: str, total: int | None, interval: float = 5.0) -> None:
        self._console, self._title, self._total, self._interval = console, title, total, interval
        self._began = self._printed_at = time.monotonic()
        self._done = 0
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description:<10}"),
                BarColumn(bar_width=36),
                TextColumn("{task.fields[count]:>20}"),
                TextColumn("{task.fields[rate]:>10}/s"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}"),
                console=console,
            )
            self._task = self._progress.add_task(title, total=total, count="", rate="", note="")

    def __enter__(self) -> Bar:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.stop()

    def update(self, done: int, note: str = "") -> None:
        """Show that `done` of the total are done. note: text at the end of the line."""
        self._done = done
        now = time.monotonic()
        rate = f"{done / max(now - self._began, 1e-3):,.0f}"
        if self._total is not None and done > self._total:
            self._total = None
            if self._progress:
                # Progress.update treats None as "unchanged".
                task = self._progress.tasks[self._task]
                task.total = task.finished_time = None
        count = f"{done:,}" if self._total is None else f"{done:,} of {self._total:,}"
        if self._progress:
            self._progress.update(self._task, completed=done, count=count, rate=rate, note=note)
        elif done and now - self._printed_at >= self._interval:
            self._printed_at = now
            self._console.print(f"{self._title} {count} · {rate}/s{note and ' · '}{note}")

    @property
    def rate(self) -> float:
        """Items per second since the bar was created."""
        return self._done / max(time.monotonic() - self._began, 1e-3)


@contextlib.contextmanager
def showing_progress(console: Console, title: str) -> Iterator[Callable[..., None]]:
    """Yield a function of (done, total, note). The bar appears with its first call."""
    with contextlib.ExitStack() as shown:
        bar: Bar | None = None

        def tell(done: int, total: int | None, note: str = "") -> None:
            nonlocal bar
            if bar is None:
                bar = shown.enter_context(Bar(console, title, total))
            bar.update(done, note)

        yield tell
