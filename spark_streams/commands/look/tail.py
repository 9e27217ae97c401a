"""`rstream tail`: the last entries of streams, and those that come; or what a group would see."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from spark_streams.commands.entry import entry_as_json, print_entry
from spark_streams.commands.groups.group_change import streams_meant
from spark_streams.commands.shared import address_of, json_option, named_streams, say, url_option
from spark_streams.errors import RetriesExhaustedError
from spark_streams.model.pattern import is_pattern
from spark_streams.model.printable import json_text

if TYPE_CHECKING:
    from spark_streams.model.ids import StreamId
    from spark_streams.monitor.group_preview import Pending
    from spark_streams.monitor.last_entries import Follower, Name, Seen
    from spark_streams.wire.connection.server import Server
    from spark_streams.wire.session import Session

T = TypeVar("T")
_FIND = 2.0  # seconds between two looks for streams that are new
_WAIT_MS = 1_000  # for an entry, with one question
_PAUSE = 0.1  # seconds between two questions where the server cannot wait: streams in several slots of a cluster


@click.command(short_help="The last entries, and those that come.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option(
    "-n", "--last", "most", type=click.IntRange(0), metavar="N", default=10, show_default=True, help="So many."
)
@click.option("--group", help="What this group would see: pending entries, then those that it has yet to be given.")
@url_option
@json_option
def tail(names: tuple[str, ...], follow: bool, most: int, group: str | None, url: str, as_json: bool) -> None:
    """The last N entries of some streams together (default: all streams), in the order of their ids; with -f also those
    that come. STREAM may be a pattern (`orders:*`); with -f streams that match it later are followed, too.

    With --group: of each stream the N oldest entries that are pending, with their consumer, and the N next ones that
    the group has yet to be given; with -f all of those, and what comes. Nothing is delivered, and the group stays where
    it is.

    A long value is cut with a mark, and bytes that are no text are shown as \\xff; --json has all of it, an entry a
    line (as rstream show). With -f a server that is away is waited for: no entry is left out, none comes twice.
    Ctrl-C ends it, with exit code 0.

    \b
    Examples:
      rstream tail orders
      rstream tail orders payments -f -n 0
      rstream tail 'orders:*' -f --json | jq .fields.amount
      rstream tail orders --group etl
    """
    from spark_streams.wire.connect import connect
    from spark_streams.wire.session import Session

    show = _line if as_json else _Screen(by_name=len(names) != 1 or is_pattern(names[0]))
    address = address_of(url)
    ends = contextlib.suppress(KeyboardInterrupt)
    with ends, _until_nobody_reads(), Session(address, "rstream tail", is_known=True) as session:
        run = Tail(names, most, group, session)
        # A server that is away before anything was printed is an error, as for the other commands.
        with connect(address) as server:
            run.begin(server, follow, show)
        if follow:
            run.go_on(show)


class Tail:
    """One run. names: of streams, and patterns; most: entries that are printed first; session: to follow over."""

    def __init__(self, names: Sequence[str], most: int, group: str | None, session: Session) -> None:
        from spark_streams.monitor.last_entries import Follower

        self._names, self._most, self._group, self._session = names, most, group, session
        self._follower = Follower({})

    def begin(self, server: Server, follow: bool, show: Callable[[Seen | Pending], None]) -> None:
        """Print what there is. follow: that goes on. Raises StreamStateError, ServerError."""
        for one in self._first(server, self._follower, follow):
            show(one)

    def go_on(self, show: Callable[[Seen | Pending], None]) -> None:
        """Print what comes, for ever. Raises WrongKeyTypeError, ServerReplyError."""
        follower, found = self._follower, time.monotonic()
        while True:
            for one in self._step(follower):
                show(one)
            if time.monotonic() - found > _FIND:
                self._patiently(lambda server: follower.add(self._new(server, follower)))
                found = time.monotonic()

    def _first(self, server: Server, follower: Follower, follow: bool) -> Iterator[Seen | Pending]:
        from spark_streams.monitor.last_entries import last_entries

        streams = self._streams(server, follow)
        if self._group is None:
            entries, ends = last_entries(server, streams, self._most)
            follower.positions.update(ends)
            yield from entries
        else:
            yield from self._of_group(server, streams, self._group, follower, follow)

    def _of_group(
        self, server: Server, streams: Sequence[Name], group: str, follower: Follower, follow: bool
    ) -> Iterator[Seen | Pending]:
        from spark_streams.monitor.group_preview import entries_to_come, pending_entries, positions_of

        positions = positions_of(server, streams, group)
        follower.positions.update(positions)
        for stream, position in positions.items():
            yield from pending_entries(server, stream, group, self._most) if self._most else ()
            if not follow and self._most:
                yield from entries_to_come(server, stream, position, self._most)

    def _streams(self, server: Server, follow: bool) -> Sequence[Name]:
        if self._names and (plain := [name for name in self._names if not is_pattern(name)]):
            named_streams(server, plain)
        if follow or not self._names:
            return self._matching(server)
        return [*streams_meant(server, self._names, self._group)]

    def _matching(self, server: Server) -> list[Name]:
        """The streams that are there now."""
        from spark_streams.monitor.last_entries import existing
        from spark_streams.wire.replies.scan import list_streams, matching_streams

        if not self._names:
            return self._with_group(server, list_streams(server))
        plain = streams_meant(server, [name for name in self._names if not is_pattern(name)], None)
        patterns = [name for name in self._names if is_pattern(name)]
        matching = [one for pattern in patterns for one in matching_streams(server, pattern, plain)]
        return [*existing(server, plain), *self._with_group(server, matching)]

    def _with_group(self, server: Server, streams: Sequence[Name]) -> list[Name]:
        from spark_streams.wire.replies.xinfo import group_named

        if self._group is None:
            return list(dict.fromkeys(streams))
        replies = server.pipeline([("XINFO", "GROUPS", stream) for stream in streams])
        return [one for one, reply in zip(streams, replies, strict=True) if group_named(self._group, reply) is not None]

    def _new(self, server: Server, follower: Follower) -> Mapping[Name, StreamId]:
        """Streams that match since the last look: from their first entry on, or from where the group stands."""
        from spark_streams.model.ids import MIN_ID
        from spark_streams.monitor.group_preview import positions_of

        if self._names and not any(map(is_pattern, self._names)):
            return {}
        new = [one for one in self._matching(server) if one not in follower.positions]
        return dict.fromkeys(new, MIN_ID) if self._group is None else positions_of(server, new, self._group)

    def _step(self, follower: Follower) -> Iterable[Seen]:
        """What has come; a server that is away is waited for. Entries are handed out one by one: where the server goes
        amid them, `follower` knows which."""
        if not follower.positions:
            time.sleep(_PAUSE)
            return []
        reply = self._session.address.patience.reply
        wait = min(_WAIT_MS, int(reply * 500))
        found: list[Seen] = self._patiently(lambda server: list(follower.step(server, wait)))
        if not found and self._session.address.is_cluster:
            time.sleep(_PAUSE)
        return found

    def _patiently(self, step: Callable[[Server], T]) -> T:
        """A step, over a connection that breaks, however long the server is away (the log says so)."""
        while True:
            try:
                return self._session.run(step)
            except RetriesExhaustedError:
                continue


class _Screen:
    """Entries for people. by_name: the stream of each is told."""

    def __init__(self, by_name: bool) -> None:
        self._by_name, self._first = by_name, True

    def __call__(self, one: Seen | Pending) -> None:
        from spark_streams.monitor.group_preview import Pending
        from spark_streams.monitor.groups import shown
        from spark_streams.monitor.terminal.units import duration
        from spark_streams.wire.replies.released import FATAL

        click.echo("", nl=not self._first)
        self._first = False
        what, note = shown(one.stream) if self._by_name else "entry", ""
        if isinstance(one, Pending):
            given = f"given {one.deliveries:,} times" if one.deliveries != 1 else "given once"
            note = f"pending for {one.consumer} since {duration(one.idle_ms)}, {given}"
            if one.consumer is None:
                note = f"released, for the next reader, {given}"
                note = "released, not to be read again (fatal)" if one.deliveries == FATAL else note
            note += ", gone from the stream" if one.entry is None else ""
            print_entry(what, str(one.id), () if one.entry is None else one.entry.pairs, note)
        else:
            print_entry(what, str(one.id), one.pairs)


def _line(one: Seen | Pending) -> None:
    """An entry as a line of JSON."""
    from spark_streams.monitor.group_preview import Pending
    from spark_streams.monitor.groups import shown

    if isinstance(one, Pending):
        held = {"consumer": one.consumer, "idle_ms": one.idle_ms, "deliveries": one.deliveries}
        told = {"stream": shown(one.stream), "pending": held}
        entry = entry_as_json(str(one.id), () if one.entry is None else one.entry.pairs, **told)
        if one.entry is None:
            entry["fields"] = None
    else:
        entry = entry_as_json(str(one.id), one.pairs, stream=shown(one.stream))
    say(json_text(entry))


@contextlib.contextmanager
def _until_nobody_reads() -> Iterator[None]:
    """Whoever reads what is printed has left (`| head`): that is an end like any other."""
    try:
        yield
    except BrokenPipeError:
        # What Python would flush at its end has no reader, either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
