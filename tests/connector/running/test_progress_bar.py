"""The bar that jobs and long commands show."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from spark_streams.connector.running.progress_bar import Bar, showing_progress


def on_screen(bar: Bar, console: Console) -> str:
    """What the bar shows now."""
    assert bar._progress is not None
    with console.capture() as told:
        console.print(bar._progress)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", told.get())


@pytest.fixture
def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100)


@pytest.fixture
def log() -> Console:
    return Console(file=io.StringIO(), width=100)


def test_more_than_there_was_at_the_start_is_a_count_without_a_total(terminal: Console) -> None:
    """Nobody knows how many are left then: a bar that stays full, or 1,500 of 1,000, would say something wrong."""
    bar = Bar(terminal, "etl", 1_000)
    bar.update(1_000)
    assert "1,000 of 1,000" in on_screen(bar, terminal)
    for done in (1_500, 2_500):
        bar.update(done)
        shown = on_screen(bar, terminal)
        assert f"{done:,}" in shown
        assert "of" not in shown
    assert bar._progress is not None
    [task] = bar._progress.tasks
    assert (task.total, task.finished) == (None, False)


def test_lines_say_the_same(log: Console) -> None:
    bar = Bar(log, "etl", 1_000, interval=0.0)
    bar.update(900)
    bar.update(1_500, "moved 3")
    lines = log.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].startswith("etl 900 of 1,000 · ")
    assert lines[1].startswith("etl 1,500 · ")
    assert lines[1].endswith("/s · moved 3")


def test_reported_text_is_shown_unchanged(terminal: Console) -> None:
    with showing_progress(terminal, "list") as tell:
        tell(5, 10)
        tell(15, 10)
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert " 15 " in shown
    assert "10 of 10" not in shown
