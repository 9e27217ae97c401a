"""`rstream shards`: streams in shards, the names of one stream's shards, their deletion, lost shards made again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from spark_streams.commands.shared import connect, json_option, print_json, print_table, say, url_option
from spark_streams.errors import StreamStateError

if TYPE_CHECKING:
    from spark_streams.shards.registry import ShardSet
    from spark_streams.shards.survey import Survey
    from spark_streams.wire.connection.server import Server


@click.command(short_help="Streams in shards: which there are, and one's names.")
@click.argument("stream", required=False)
@click.option("--delete", is_flag=True, help="Delete STREAM with all its shards, if every group has read them.")
@click.option(
    "--force", is_flag=True, help="With --delete: also if entries are unread, pending or waiting for a retry."
)
@click.option("--count", type=click.IntRange(1), help="With --delete: only the shards of this number.")
@click.option(
    "--recreate", is_flag=True, help="Create the lost shards of STREAM again, empty. Their entries stay lost."
)
@url_option
@json_option
def shards(
    stream: str | None, delete: bool, force: bool, count: int | None, recreate: bool, url: str, as_json: bool
) -> None:
    """Streams in shards, how many and by which column; of one STREAM the names of its shards, one to a line.

    \b
    Examples:
      rstream shards
      rstream shards orders | xargs -n 1 redis-cli -c XLEN
      rstream shards orders --delete     to begin anew with another number (docs/guide/order-by-key.md)
      rstream shards orders --recreate   after shards were lost and cannot be restored
    """
    if (delete or recreate) and stream is None:
        raise click.UsageError("--delete and --recreate go with a STREAM")
    if delete and recreate:
        raise click.UsageError("--delete and --recreate contradict")
    if (force or count is not None) and not delete:
        raise click.UsageError("--force and --count go with --delete")
    with connect(url) as server:
        if stream is None:
            _list(server, as_json)
        elif delete:
            _delete(server, _survey(server, stream), count, force, as_json)
        elif recreate:
            _recreate(server, _survey(server, stream), as_json)
        else:
            _show(server, stream, as_json)


def _show(server: Server, stream: str, as_json: bool) -> None:
    from spark_streams.shards.settling import fetch_shard_sets

    known = fetch_shard_sets(server, [stream]).get(stream)
    if known is None:
        raise _not_in_shards(server, stream)
    _print(known, "\n".join(known.names), as_json)


def _survey(server: Server, stream: str) -> Survey:
    """What the server has of it. Raises StreamStateError if that is nothing."""
    from spark_streams.shards.survey import fetch_surveys

    found = fetch_surveys(server, [stream])[stream]
    if found.refusal is not None:
        raise server.error_of(found.refusal, ("TYPE", stream))
    if found.registered is None and not found.existing:
        raise _not_in_shards(server, stream)
    return found


def _not_in_shards(server: Server, stream: str) -> StreamStateError:
    return StreamStateError(f"stream {stream!r} at {server.address} is not in shards; rstream shards lists what is")


def _print(known: ShardSet, line: str, as_json: bool, **more: object) -> None:
    if as_json:
        print_json(
            {"stream": known.stream, "shards": known.count, "by": known.key_column, "names": known.names, **more}
        )
    else:
        say(line)


def _list(server: Server, as_json: bool) -> None:
    from spark_streams.shards.names import Shard
    from spark_streams.shards.survey import fetch_surveys
    from spark_streams.wire.replies.scan import list_streams

    # A shard is created with the key that tells of it: no other keys are to be looked through.
    counts: dict[str, set[int]] = {}
    for shard in [Shard.parse(name.decode("utf-8", "replace")) for name in list_streams(server)]:
        if shard is not None:
            counts.setdefault(shard.stream, set()).add(shard.count)
    rows = [
        row for stream, found in fetch_surveys(server, sorted(counts)).items() for row in _rows(found, counts[stream])
    ]
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        shown = [(one.stream, one.shards, one.by or "-", one.state) for one in rows]
        print_table(("stream", "shards", "by", "state"), shown)


@dataclass(frozen=True)
class _Row:
    """One set of shards. shards: how many; key: whether the key that tells of it exists."""

    stream: str
    shards: int
    by: str | None
    lost: list[str]
    key: bool

    @property
    def state(self) -> str:
        """For people."""
        lost = [f"{len(self.lost)} lost"] if self.lost else []
        return ", ".join([*lost, *([] if self.key else ["no key says so"])]) or "whole"


def _rows(found: Survey, counts: Collection[int]) -> list[_Row]:
    """One for the set in use, and one for each other number of which shards exist."""
    known = found.shard_set
    rows = []
    for count in sorted({*counts, *([] if known is None else [known.count])}):
        is_used = known is not None and known.count == count
        by = known.key_column if known is not None and is_used else None
        lost = list(found.lost) if is_used else []
        rows.append(_Row(found.stream, count, by, lost, found.registered is not None and is_used))
    return rows


def _recreate(server: Server, found: Survey, as_json: bool) -> None:
    """Raises ShardsError if a plain stream or shards of another number are there, too."""
    from spark_streams.shards.settling import ensure_shards
    from spark_streams.shards.survey import require_complete

    require_complete(server, found, accepts_loss=True)
    assert found.shard_set is not None
    known = ensure_shards(server, found.stream, found.shard_set.count, accepts_loss=True)
    line = "\n".join(f"created {name}, empty" for name in found.lost) or "no shard is lost"
    _print(known, line, as_json, recreated=found.lost)


def _delete(server: Server, found: Survey, count: int | None, force: bool, as_json: bool) -> None:
    """Raises StreamStateError if a group has not read all, or there is none, or entries wait for a retry."""
    from spark_streams.shards.deletion import delete_shards, retry_streams_of
    from spark_streams.shards.registry import ShardSet
    from spark_streams.shards.survey import require_complete

    if count is None:
        require_complete(server, found, accepts_loss=True)
    known = found.shard_set
    if known is None or count not in (None, known.count):
        known = ShardSet(found.stream, count or 0)
    beside = retry_streams_of(server, known)
    if not force:
        _require_read(server, known, [name for name, one in beside.items() if one.attempts is None])
        _require_none_waits(server, known, [name for name, one in beside.items() if one.attempts is not None])
    delete_shards(server, found, known, beside.items())
    _print(known, f"deleted {known.stream}: {known.count} shards", as_json)


def _require_none_waits(server: Server, known: ShardSet, names: Sequence[str]) -> None:
    from spark_streams.deadletter.retry.waiting_entries import waiting_entries

    for one in waiting_entries(server, [name.encode() for name in names]):
        raise StreamStateError(
            f"{one.entries:,} entries of {one.stream!r} at {server.address} wait for another try by group "
            f"{one.group!r} (retryDelay), and nothing is deleted: let its query run until none waits (rstream dead "
            f"list), or send them back (rstream dead redrive '{one.waits_in}'); --force deletes them all the same"
        )


def _require_read(server: Server, known: ShardSet, returned: Sequence[str]) -> None:
    from spark_streams.model.ids import StreamId
    from spark_streams.monitor.groups import view_streams

    for view in view_streams(server, [*known.names, *returned]):
        late = [
            g.group for g in view.groups if g.pending or StreamId.parse(g.last_delivered) < StreamId.parse(view.last)
        ]
        if late or (view.length and not view.groups):
            who = f"group {late[0]!r} has not" if late else "no group has"
            raise StreamStateError(
                f"{who} read all of {view.stream!r} at {server.address}, and nothing is deleted: rstream lag "
                f"{known.stream} tells who is behind; --force deletes it all the same"
            )
