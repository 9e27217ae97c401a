"""`rstream shards`: streams in shards, the names of one's, and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_streams.commands.shared import connect, json_option, print_json, print_table, say, url_option
from spark_streams.errors import StreamStateError

if TYPE_CHECKING:
    from spark_streams.shards.registry import ShardSet
    from spark_streams.wire.server import Server


@click.command(short_help="Streams in shards: which there are, and one's names.")
@click.argument("stream", required=False)
@click.option("--delete", is_flag=True, help="Delete STREAM with all its shards, if every group has read them.")
@click.option("--force", is_flag=True, help="With --delete: whoever has not read them.")
@url_option
@json_option
def shards(stream: str | None, delete: bool, force: bool, url: str, as_json: bool) -> None:
    """Streams in shards, how many and by which column; of one STREAM the names of its shards, one to a line.

    \b
    Examples:
      rstream shards
      rstream shards orders | xargs -n 1 redis-cli -c XLEN
      rstream shards orders --delete     to begin anew with another number (docs/shards.md)
    """
    if delete and stream is None:
        raise click.UsageError("--delete goes with a STREAM")
    if force and not delete:
        raise click.UsageError("--force goes with --delete")
    with connect(url) as server:
        if stream is None:
            _list(server, as_json)
            return
        known = _known(server, stream)
        if delete:
            _delete(server, known, force)
    if as_json:
        print_json({"stream": known.stream, "shards": known.count, "by": known.by, "names": known.names})
    elif delete:
        say(f"deleted {known.stream}: {known.count} shards")
    else:
        say("\n".join(known.names))


def _known(server: Server, stream: str) -> ShardSet:
    from spark_streams.shards.registry import known_shards

    known = known_shards(server, [stream]).get(stream)
    if known is None:
        raise StreamStateError(f"stream {stream!r} at {server.address} is not in shards; rstream shards lists what is")
    return known


def _list(server: Server, as_json: bool) -> None:
    from spark_streams.shards.names import Shard
    from spark_streams.shards.registry import known_shards
    from spark_streams.wire.scan import list_streams

    # A shard is made with the key that tells of it: no other keys are to be looked through.
    named = [Shard.named(name.decode("utf-8", "replace")) for name in list_streams(server)]
    sets = known_shards(server, sorted({shard.stream for shard in named if shard is not None}))
    if as_json:
        print_json([{"stream": one.stream, "shards": one.count, "by": one.by} for one in sets.values()])
    else:
        print_table(("stream", "shards", "by"), [(one.stream, one.count, one.by or "-") for one in sets.values()])


def _delete(server: Server, known: ShardSet, force: bool) -> None:
    """Raises StreamStateError where somebody has not read all, or nobody has."""
    from spark_streams.ids import StreamId
    from spark_streams.monitor.groups import view_streams
    from spark_streams.shards.registry import delete

    for view in [] if force else view_streams(server, known.names):
        late = [
            g.group for g in view.groups if g.pending or StreamId.parse(g.last_delivered) < StreamId.parse(view.last)
        ]
        if late or (view.length and not view.groups):
            who = f"group {late[0]!r} has not" if late else "no group has"
            raise StreamStateError(
                f"{who} read all of {view.stream!r} at {server.address}, and nothing is deleted: rstream lag "
                f"{known.stream} tells who is behind; --force deletes it all the same"
            )
    delete(server, known)
