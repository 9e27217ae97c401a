"""`rstream top`: a live board."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from spark_streams.commands.shared import connect, json_option, milliseconds, named_streams, say, url_option
from spark_streams.errors import ServerError
from spark_streams.model.printable import json_text

if TYPE_CHECKING:
    from spark_streams.monitor.lag_survey import Survey
    from spark_streams.monitor.rates import History
    from spark_streams.monitor.terminal.board import Title
    from spark_streams.wire.connection.server import Server

# What INFO calls a server's version, and the server's name.
_KINDS = {"rstream": "bundled engine", "valkey": "Valkey", "redis": "Redis"}
_FIND_MS = 10_000  # between two looks for streams that are new


@click.command(short_help="Who keeps up and who does not, live.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@click.option("--group", help="Only this group.")
@click.option(
    "--every", metavar="TIME", default="1s", show_default=True, callback=milliseconds, help="How often to look."
)
@click.option("--for", "lasts", metavar="TIME", callback=milliseconds, help="Stop after this time (5m).")
@click.option("--once", is_flag=True, help="Print one board and stop, as where the output is no terminal.")
@url_option
@json_option
def top(
    names: tuple[str, ...], group: str | None, every: int, lasts: int | None, once: bool, url: str, as_json: bool
) -> None:
    """Who keeps up and who does not, live: rates, lag and its course, consumers. `q` or Ctrl-C ends it.

    \b
    behind    age of the oldest entry that the group has not acknowledged
    oldest    how long the longest waiting entry has been pending
    added/s   entries that producers appended; deliv/s: that the group was given; acked/s: that it acknowledged

    The group that is furthest behind stands first; groups that nobody has read from within a day stand last. With
    --json it prints a line for each look. Nothing on the server changes.

    \b
    Examples:
      rstream top
      rstream top orders payments --every 5s
      rstream top --once
      rstream top --json --for 1m > lag.jsonl
    """
    watched = Watched(url, names, group, every)
    with contextlib.suppress(KeyboardInterrupt):
        if as_json:
            _print_lines(watched, lasts)
        elif once or not sys.stdout.isatty():
            _print_once(watched)
        else:
            _show(watched, lasts)


class Watched:
    """Looks at the server, again and again, also over a connection that breaks."""

    def __init__(self, url: str, names: tuple[str, ...], group: str | None, every_ms: int) -> None:
        from spark_streams.monitor.rates import History
        from spark_streams.monitor.terminal.board import Title
        from spark_streams.wire.replies.replies import info

        self._url, self._names, self._group = url, names, group
        self.every = every_ms / 1000
        self.history: History = History()
        self._server: Server | None = connect(url)
        [said] = self._server.pipeline([("INFO", "server")])
        told = info(said) if isinstance(said, bytes) else {}  # refused to a user who may use streams only
        kind = next((kind for kind in _KINDS if f"{kind}_version" in told), "redis")
        server = f"{_KINDS[kind]} {told.get(f'{kind}_version', '?')}"
        self.title: Title = Title(str(self._server.address), server, every_ms, group=group)
        self._streams = named_streams(self._server, names)
        self._found = time.monotonic()

    def look(self) -> None:
        """One more look; a server that is away is said in the title. Raises ServerError at the first one."""
        try:
            if self._server is None:
                self._server = connect(self._url)
            if not self._names and time.monotonic() - self._found > _FIND_MS / 1000:
                self._streams = named_streams(self._server, ())
                self._found = time.monotonic()
            self.history.add(self._seen(self._server))
        except ServerError as error:
            if not len(self.history):
                raise
            if self._server is not None:
                self._server.close()
            self._server = None
            self.title = replace(self.title, trouble=f"{error.message}; trying again")
        else:
            self.title = replace(self.title, trouble="")

    def _seen(self, server: Server) -> Survey:
        from spark_streams.monitor.lag_survey import survey

        seen = survey(server, self._streams)
        if self._group is None:
            return seen
        return replace(seen, groups=tuple(one for one in seen.groups if one.group == self._group))


def _print_once(watched: Watched) -> None:
    from spark_streams.commands.shared import console
    from spark_streams.monitor.terminal.board import Board

    watched.look()
    time.sleep(watched.every)
    watched.look()
    console().print(Board(watched.title, watched.history, height=10_000))


def _print_lines(watched: Watched, lasts: int | None) -> None:
    from spark_streams.monitor.rates import UNKNOWN

    for _ in _ticks(watched.every, lasts):
        watched.look()
        if watched.title.trouble:
            say(watched.title.trouble, err=True)
            continue
        rates, last = watched.history.rates(), watched.history.last
        groups = []
        for one in last.groups:
            speed = rates.get((one.stream, one.group), UNKNOWN)
            told = {"added_per_s": speed.added, "delivered_per_s": speed.delivered}
            groups.append({**asdict(one), **told, "acknowledged_per_s": speed.acknowledged})
        say(json_text({"at_ms": last.at_ms, "groups": groups}))


def _show(watched: Watched, lasts: int | None) -> None:
    from rich.console import Console
    from rich.live import Live

    from spark_streams.monitor.terminal.board import Board

    watched.look()
    console = Console(highlight=False)
    with (
        _keys() as quits,
        Live(Board(watched.title, watched.history), console=console, screen=True, auto_refresh=False) as live,
    ):
        live.refresh()
        for _ in _ticks(watched.every, lasts, quits):
            watched.look()
            live.update(Board(watched.title, watched.history), refresh=True)


def _ticks(every: float, lasts: int | None, wait: object = None) -> Iterator[None]:
    """Once every so many seconds, until the time is over or `wait` says so."""
    pause = wait if callable(wait) else _sleep
    began = due = time.monotonic()
    while lasts is None or time.monotonic() - began < lasts / 1000:
        yield
        due = max(due + every, time.monotonic())
        if pause(max(0.0, due - time.monotonic())):
            return


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@contextlib.contextmanager
def _keys() -> Iterator[object]:
    """A wait that says whether somebody has pressed q; without a terminal for input it only waits."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    import termios
    import tty

    def wait(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            ready, _, _ = select.select([sys.stdin], [], [], left)
            if ready and sys.stdin.read(1) in ("q", "Q", ""):
                return True

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield wait
    finally:
        with contextlib.suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
