"""What a server has of a stream in shards: its key, its shards, a plain stream of its name. It only looks.

one round trip       HGETALL key   TYPE stream   XLEN stream
with a key           TYPE of each shard
without one          EXISTS of all names that a shard of the stream can have, unless a plain stream has been used:
                     the key may be lost, and any shards with it. 32,896 names, 8 ms (R124).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_streams.errors import ShardsError
from spark_streams.model.ids import MIN_ID
from spark_streams.model.keys import shards_key
from spark_streams.shards.names import every_name, shards_of
from spark_streams.shards.registry import ShardSet
from spark_streams.wire.connection.connection import Reply, ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.reply_errors import is_not_permitted, is_wrong_type
from spark_streams.wire.replies.xinfo import stream_in

_SHOWN = 8  # names in a message
_log = logging.getLogger("spark_streams.shards")


@dataclass(frozen=True)
class Survey:
    """Findings for one stream. registered: what its key says; plain: the length of a plain stream of that name, None:
    there is none; there: the shards that exist, by their number; refusal: the user may not look."""

    stream: str
    registered: ShardSet | None = None
    plain: int | None = None
    there: Mapping[int, Sequence[str]] = field(default_factory=dict)
    refusal: ReplyError | None = None

    @property
    def known(self) -> ShardSet | None:
        """The set that the key or, without a key, the names of the shards tell. None: no shards, or shards of several
        numbers."""
        if self.registered is not None or len(self.there) != 1:
            return self.registered
        [count] = self.there
        return ShardSet(self.stream, count, is_made=True)

    @property
    def is_whole(self) -> bool:
        """Whether there are a key and all shards."""
        return self.registered is not None and self.registered.is_made and not self.lost

    @property
    def lost(self) -> tuple[str, ...]:
        """Shards that had been created and do not exist."""
        known = self.known
        if known is None or not known.is_made:
            return ()
        there = set(self.there.get(known.count, ()))
        return tuple(name for name in known.names if name not in there)


def look(server: Server, streams: Sequence[str]) -> dict[str, Survey]:
    """Survey streams whose names can be in shards. Raises ShardsError for a key that cannot be read, and the named
    error of what the server refuses, except for want of rights."""
    per_stream = 3
    commands = [
        command
        for stream in streams
        for command in (("HGETALL", shards_key(stream)), ("TYPE", stream), ("XLEN", stream))
    ]
    replies = server.pipeline(commands)
    found: dict[str, Survey] = {}
    for at, stream in enumerate(streams):
        flat, kind, length = replies[per_stream * at : per_stream * (at + 1)]
        found[stream] = _of_replies(server, stream, flat, kind, length)
    registered = {stream: one.registered for stream, one in found.items() if one.registered is not None}
    for stream, one in registered.items():
        found[stream] = replace(found[stream], there={one.count: _there(server, one.names, unknown_is_there=True)})
    for stream in _may_have_lost_its_key(server, found.values()):
        found[stream] = replace(found[stream], there=_search(server, stream))
    return found


def require_whole(server: Server, survey: Survey, accepts_loss: bool = False) -> None:
    """Raise ShardsError if there are shards and a plain stream, or shards of several numbers without a key, or, unless
    accepts_loss, if shards are lost."""
    if survey.plain is not None and (survey.registered is not None or survey.there):
        raise both(server, survey)
    if survey.known is None and survey.there:
        numbers = sorted(survey.there)
        raise ShardsError(
            f"key {shards_key(survey.stream).decode()!r} at {server.address} is lost, and there are shards of stream "
            f"{survey.stream!r} for the numbers {', '.join(map(str, numbers))}. Rows of one key may be in several of "
            f"them. Read the shards of the number that is not wanted, as streamsPattern='{survey.stream}:*/"
            f"{numbers[0]}:*'. Then delete them: `rstream shards {survey.stream} --delete --count {numbers[0]}`, which "
            "refuses while entries are unread"
        )
    if survey.lost and not accepts_loss:
        raise _lost(server, survey)


def both(server: Server, survey: Survey) -> ShardsError:
    """The error for a stream that is in shards and also a plain one."""
    known = survey.known or ShardSet(survey.stream, min(survey.there))
    length = survey.plain or 0
    return ShardsError(
        f"stream {survey.stream!r} at {server.address} is in {known.count} shards, and there is a plain stream of that "
        f"name, too, with {length:,} entries: see who writes to it; delete it when that is settled "
        f"(`redis-cli DEL {survey.stream}`)"
    )


def _lost(server: Server, survey: Survey) -> ShardsError:
    stream, known = survey.stream, survey.known
    assert known is not None
    key = "" if survey.registered is not None else f", and so is key {shards_key(stream).decode()!r}"
    more = len(survey.lost) - _SHOWN
    names = ", ".join(map(repr, survey.lost[:_SHOWN])) + (f" and {more} more" if more > 0 else "")
    return ShardsError(
        f"{len(survey.lost)} of the {known.count} shards of stream {stream!r} at {server.address} are lost{key}: "
        f"{names}. Their entries and groups are not on the server any more. Restore them from a replica or a backup. "
        f"If that is not possible, run `rstream shards {stream} --recreate`: it creates the lost shards empty, and a "
        "query with a checkpoint then names or counts the lost entries (failOnDataLoss)"
    )


# -- replies ------------------------------------------------------------------------------------------------------


def _of_replies(server: Server, stream: str, flat: Reply, kind: Reply, length: Reply) -> Survey:
    for reply, command in ((flat, ("HGETALL", shards_key(stream))), (kind, ("TYPE", stream))):
        if is_not_permitted(reply):
            return Survey(stream, refusal=reply)
        if isinstance(reply, ReplyError) and not (is_wrong_type(reply) and reply is flat):
            raise server.error_of(reply, command)
    is_plain = kind == b"stream"
    if is_plain and is_not_permitted(length):
        return Survey(stream, refusal=length)
    if is_plain and isinstance(length, ReplyError):
        raise server.error_of(length, ("XLEN", stream))
    plain = length if is_plain else None
    try:
        return Survey(stream, ShardSet.read(stream, flat), plain)
    except ShardsError as error:
        if not is_plain:
            raise
        # No version writes the key beside a plain stream (both are watched): another client did.
        _log.warning("stream %r at %s is read as a plain stream: %s", stream, server.address, error.message)
        return Survey(stream, plain=plain)


def _may_have_lost_its_key(server: Server, surveys: Iterable[Survey]) -> list[str]:
    """Streams without a key that do not exist, or that nothing was ever appended to: a query may have made such a
    stream while the key was lost."""
    unsure = [one for one in surveys if one.registered is None and one.refusal is None and not one.plain]
    made = [one.stream for one in unsure if one.plain is not None]
    replies = server.pipeline([("XINFO", "STREAM", stream) for stream in made])
    used = {
        stream
        for stream, reply in zip(made, replies, strict=True)
        if isinstance(reply, ReplyError) or stream_in(reply).last != MIN_ID
    }
    return [one.stream for one in unsure if one.stream not in used]


def _there(server: Server, names: Sequence[str], unknown_is_there: bool) -> list[str]:
    """Those of these keys that exist. unknown_is_there: and those that the user may not look at."""
    found = []
    for name, kind in zip(names, server.pipeline([("TYPE", name) for name in names]), strict=True):
        is_hidden = is_not_permitted(kind)
        if isinstance(kind, ReplyError) and not is_hidden:
            raise server.error_of(kind, ("TYPE", name))
        if unknown_is_there if is_hidden else kind != b"none":
            found.append(name)
    return found


def _search(server: Server, stream: str) -> dict[int, list[str]]:
    """All shards that exist, of any number. A user who may not look finds none."""
    groups = [
        (count, group) for count, names in enumerate(every_name(stream), 1) for group in server.together(names, key=str)
    ]
    replies = server.pipeline([("EXISTS", *group) for _, group in groups])
    counts = set()
    for (count, group), reply in zip(groups, replies, strict=True):
        if isinstance(reply, ReplyError) and not is_not_permitted(reply):
            raise server.error_of(reply, ("EXISTS", group[0]))
        if reply and not isinstance(reply, ReplyError):
            counts.add(count)
    return {count: _there(server, shards_of(stream, count), unknown_is_there=False) for count in sorted(counts)}
