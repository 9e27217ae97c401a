"""Progress of something with a count, shown to a person."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class Bar:
    """Progress for a person: a moving bar on a terminal, a line every few seconds elsewhere.

    total: how many there were at the start. Where more come than that, nobody knows how many are left: from then on it
    is a count alone.
    """

    def __init__(self, console: Console, title: str, total: int | None, every: float = 5.0) -> None:
        self._console, self._title, self._total, self._every = console, title, total, every
        self._began = self._said = time.monotonic()
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

    def at(self, done: int, note: str = "") -> None:
        """`done` of the total are done now; note: what else there is to say."""
        self._done = done
        now = time.monotonic()
        rate = f"{done / max(now - self._began, 1e-3):,.0f}"
        if self._total is not None and done > self._total:
            self._forget_total()
        count = f"{done:,}" if self._total is None else f"{done:,} of {self._total:,}"
        if self._progress:
            self._progress.update(self._task, completed=done, count=count, rate=rate, note=note)
        elif done and now - self._said >= self._every:
            self._said = now
            self._console.print(f"{self._title} {count} · {rate}/s{note and ' · '}{note}")

    def _forget_total(self) -> None:
        self._total = None
        if self._progress:
            # Progress.update takes None for "as it is".
            task = self._progress.tasks[self._task]
            task.total = task.finished_time = None

    @property
    def done(self) -> int:
        """How many were done when last looked at."""
        return self._done

    @property
    def rate(self) -> float:
        """Per second since the bar was made."""
        return self._done / max(time.monotonic() - self._began, 1e-3)


@contextlib.contextmanager
def telling(console: Console, title: str) -> Iterator[Callable[..., None]]:
    """A function to be told (done, total, note); the bar appears with its first call."""
    with contextlib.ExitStack() as shown:
        bar: Bar | None = None

        def tell(done: int, total: int, note: str = "") -> None:
            nonlocal bar
            if bar is None:
                bar = shown.enter_context(Bar(console, title, total))
            bar.at(done, note)

        yield tell
