"""`rstream shards`: list sharded streams and their shards, delete them, create lost shards again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.operator_commands import command_on, redrive_command
from spark_streams.operations.commands.dry_run import change_line, yes_option
from spark_streams.operations.commands.exit_codes import only_reads
from spark_streams.operations.commands.shared import connect, json_option, print_json, print_table, say, url_option
from spark_streams.operations.commands.stream_names import require_existing

if TYPE_CHECKING:
    from spark_streams.connector.admin.streams import ShardSet, ShardsSnapshot
    from spark_streams.connector.wire.connection import Server


@click.command(short_help="List sharded streams, or the shards of one.")
@click.argument("stream", required=False)
@click.option("--delete", is_flag=True, help="Delete STREAM with all its shards, if every group has read them.")
@click.option(
    "--force", is_flag=True, help="With --delete: even if entries are unread, pending or waiting for a retry."
)
@click.option(
    "--count", type=click.IntRange(1), help="With --delete: only the set of shards with this number of shards."
)
@click.option(
    "--recreate", is_flag=True, help="Create the lost shards of STREAM again, empty. Their entries stay lost."
)
@yes_option
@url_option
@json_option
def shards(
    stream: str | None,
    delete: bool,
    force: bool,
    count: int | None,
    recreate: bool,
    yes: bool,
    url: str,
    as_json: bool,
) -> None:
    """List sharded streams with their number of shards and their column, or the names of STREAM's shards, one per line.

    --delete and --recreate are dry runs without --yes.

    \b
    Examples:
      rstream shards
      rstream shards orders | xargs -n 1 redis-cli -c XLEN
      rstream shards orders --delete           preview: before a change of the number of shards
                                               (rstream help order-by-key)
      rstream shards orders --recreate --yes   after shards were lost and cannot be restored
    """
    if (delete or recreate) and stream is None:
        raise click.UsageError("--delete and --recreate need a STREAM; name one")
    if delete and recreate:
        raise click.UsageError("--delete and --recreate exclude each other; leave out one of them")
    if (force or count is not None) and not delete:
        raise click.UsageError("--force and --count apply only with --delete")
    if yes and not (delete or recreate):
        raise click.UsageError("--yes applies only with --delete or --recreate")
    if not (delete or recreate):
        only_reads()
    with connect(url) as server:
        if stream is None:
            _list(server, as_json)
        elif delete:
            _delete(server, _survey(server, stream), count, force, yes, as_json)
        elif recreate:
            _recreate(server, _survey(server, stream), yes, as_json)
        else:
            _show(server, stream, as_json)


def _show(server: Server, stream: str, as_json: bool) -> None:
    from spark_streams.connector.admin.streams import fetch_shard_sets

    shard_set = fetch_shard_sets(server, [stream]).get(stream)
    if shard_set is None:
        raise _not_in_shards(server, stream)
    _print(shard_set, "\n".join(shard_set.names), as_json)


def _survey(server: Server, stream: str) -> ShardsSnapshot:
    """Return what the server stores about a sharded stream. Raises StreamStateError if it stores nothing."""
    from spark_streams.connector.admin.streams import fetch_shards_snapshots

    snapshot = fetch_shards_snapshots(server, [stream])[stream]
    if snapshot.refusal is not None:
        raise server.error_of(snapshot.refusal, ("TYPE", stream))
    if snapshot.registered is None and not snapshot.existing:
        raise _not_in_shards(server, stream)
    return snapshot


def _not_in_shards(server: Server, stream: str) -> StreamStateError:
    """Return the error for a stream that exists. Raises StreamMissingError for one that does not."""
    require_existing(server, [stream])
    return StreamStateError(
        f"stream {stream!r} at {server.address} is not sharded. To list sharded streams run rstream shards"
    )


def _print(shard_set: ShardSet, line: str, as_json: bool, **more: object) -> None:
    if as_json:
        print_json(
            {
                "stream": shard_set.stream,
                "shards": shard_set.count,
                "by": shard_set.key_column,
                "names": shard_set.names,
                **more,
            }
        )
    else:
        say(line)


def _list(server: Server, as_json: bool) -> None:
    from spark_streams.connector.admin.streams import Shard, fetch_shards_snapshots
    from spark_streams.connector.wire.scan import list_streams

    # The registry key of a sharded stream is created together with its shards, so a scan of the streams finds all.
    counts: dict[str, set[int]] = {}
    for shard in [Shard.parse(name.decode("utf-8", "replace")) for name in list_streams(server)]:
        if shard is not None:
            counts.setdefault(shard.stream, set()).add(shard.count)
    rows = [
        row
        for stream, snapshot in fetch_shards_snapshots(server, sorted(counts)).items()
        for row in _rows(snapshot, counts[stream])
    ]
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        shown = [(row.stream, row.shards, row.by or "-", row.state) for row in rows]
        print_table(("stream", "shards", "by", "state"), shown)


@dataclass(frozen=True)
class _Row:
    """A set of shards."""

    stream: str
    shards: int  # their number
    by: str | None  # the column by which they are chosen
    lost: list[str]
    key: bool  # whether the registry key exists

    @property
    def state(self) -> str:
        """The state as text."""
        lost = [f"{len(self.lost)} lost"] if self.lost else []
        return ", ".join([*lost, *([] if self.key else ["not registered"])]) or "complete"


def _rows(snapshot: ShardsSnapshot, counts: Collection[int]) -> list[_Row]:
    """Return a row for the set in use, and one for each other number of shards that exists."""
    shard_set = snapshot.shard_set
    rows = []
    for count in sorted({*counts, *([] if shard_set is None else [shard_set.count])}):
        is_used = shard_set is not None and shard_set.count == count
        column = shard_set.key_column if shard_set is not None and is_used else None
        lost = list(snapshot.lost) if is_used else []
        rows.append(_Row(snapshot.stream, count, column, lost, snapshot.registered is not None and is_used))
    return rows


def _recreate(server: Server, snapshot: ShardsSnapshot, yes: bool, as_json: bool) -> None:
    """Raises ShardsError if a plain stream or shards of another number exist, too."""
    from spark_streams.connector.admin.streams import ensure_shards, require_complete

    require_complete(server, snapshot, accepts_loss=True)
    shard_set = snapshot.shard_set
    assert shard_set is not None
    if yes:
        shard_set = ensure_shards(server, snapshot.stream, shard_set.count, accepts_loss=True)
    lines = [change_line(yes, f"created {name}, empty") for name in snapshot.lost]
    line = "\n".join(lines) or "no shard is lost; nothing was created"
    _print(shard_set, line, as_json, dry_run=not yes, recreated=snapshot.lost)


def _delete(server: Server, snapshot: ShardsSnapshot, count: int | None, force: bool, yes: bool, as_json: bool) -> None:
    """Raises StreamStateError if a group has not read all entries, no group exists, or entries wait for a retry."""
    from spark_streams.connector.admin.streams import ShardSet, delete_shards, require_complete, retry_streams_of

    if count is None:
        require_complete(server, snapshot, accepts_loss=True)
    shard_set = snapshot.shard_set
    if shard_set is None or count not in (None, shard_set.count):
        shard_set = ShardSet(snapshot.stream, count or 0)
    retry_streams = retry_streams_of(server, shard_set)
    names = [*shard_set.names, *retry_streams]
    if not force:
        _require_unneeded(server, shard_set, names, "nothing was deleted")
    if yes:

        def require_unneeded(node: Server, name: str) -> None:
            done = min(names.index(name), shard_set.count)
            _require_unneeded(node, shard_set, [name], f"{done} of {shard_set.count} shards were deleted")

        delete_shards(server, snapshot, shard_set, retry_streams.items(), None if force else require_unneeded)
    line = change_line(yes, f"deleted {shard_set.stream}: {shard_set.count} shards")
    _print(shard_set, line, as_json, dry_run=not yes)


def _require_unneeded(server: Server, shard_set: ShardSet, names: Sequence[str], done: str) -> None:
    """Raise StreamStateError if entries wait for a retry in one of these streams, if a group has not read all entries
    of one, or if one with entries has no group. done: what was deleted."""
    from spark_streams.base.ids import StreamId
    from spark_streams.connector.admin.groups import waiting_entries
    from spark_streams.connector.lag.survey import view_streams

    waiting_or_returned = waiting_entries(server, [name.encode() for name in names])
    for waiting in (entries for entries in waiting_or_returned if entries.attempt is not None):
        raise StreamStateError(
            f"{done}: {waiting.entries:,} entries of {waiting.stream!r} at {server.address} wait for a "
            f"retry by group {waiting.group!r} (retryDelay); let its query run until rstream dead list shows none, or "
            f"send them back with {redrive_command(waiting.waits_in)}; --force deletes them, and they are lost"
        )
    for view in view_streams(server, names):
        late = [
            g.group for g in view.groups if g.pending or StreamId.parse(g.last_delivered) < StreamId.parse(view.last)
        ]
        if late or (view.length and not view.groups):
            reader = f"group {late[0]!r} has not" if late else "no group has"
            raise StreamStateError(
                f"{done}: {reader} read all entries of {view.stream!r} at {server.address}; "
                f"{command_on(view.stream, 'lag')} shows how far groups are behind; --force deletes unread entries"
            )
