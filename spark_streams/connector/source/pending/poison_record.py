"""Records of failed batches on the server, in keys beside one stream of the query, which the offset names
(poison_state)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from spark_streams.base.numbers import parse_number
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.keys import CLOSED, DONE, head_key, is_returned, key_beside, record_key
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.source.pending.poison_state import PoisonState
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import is_not_permitted


@dataclass(frozen=True)
class QueryFailure:
    """Class and message of the error that ended the query last, if it is known."""

    error: str = ""
    message: str = ""


@dataclass(frozen=True)
class CachedPoisonState:
    """A run's copy of the state on the server. state: None if it was not fetched; key: of the record on the server."""

    state: PoisonState | None = None
    key: bytes | None = None

    @property
    def may_hold(self) -> bool:
        """Whether entries may be set aside."""
        return self.state is None or bool(self.state.streams)

    @property
    def holds_pieces(self) -> bool:
        """Whether pieces wait to be read."""
        return self.state is not None and bool(self.state.pieces)

    @property
    def streams(self) -> frozenset[str]:
        """Streams of which entries are set aside."""
        return frozenset() if self.state is None else self.state.streams


class PoisonRecord:
    """The record of one query's state while a batch is planned or chosen. cache: the run's copy of it."""

    def __init__(self, server: Server, cache: CachedPoisonState, *offsets: Offset) -> None:
        """offsets: the record is beside a stream of one of them; the first offset that has one decides."""
        self._server = server
        self._offset = offsets[0]
        self.cache = cache
        if cache.state is None:
            self.cache = replace(cache, state=PoisonState(), key=None)
            for key in dict.fromkeys(_record_key(offset) for offset in offsets if offset.streams):
                text = server.execute("GET", key)
                if text is not None:
                    self.cache = replace(cache, state=_parse_state(key, text), key=key)
                    break

    @property
    def state(self) -> PoisonState:
        """The state that was read or saved last."""
        assert self.cache.state is not None
        return self.cache.state

    def save(self, state: PoisonState, *obsolete: bytes) -> None:
        """Store the state on the server. If its key has changed, delete the old one. obsolete: other keys to delete."""
        key, old_key = _record_key(self._offset), self.cache.key
        old = [*obsolete, *([old_key] if old_key not in (None, key) else [])]
        self._server.execute_all([("SET", key, state.to_json()), *[("DEL", name) for name in old]])
        self.cache = replace(self.cache, state=state, key=key)


def _parse_state(key: bytes, text: bytes) -> PoisonState:
    try:
        return PoisonState.from_json(text)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise StreamStateError(
            f"key {key.decode('utf-8', 'replace')!r}, the record of failed batches, cannot be read. Delete it "
            f"(DEL {key.decode('utf-8', 'replace')}) and start the query with a new checkpoint"
        ) from None


def delete_record(server: Server, offset: Offset) -> None:
    """Delete the record that an offset names, if there is one."""
    server.execute("DEL", _record_key(offset))


def note_attempt(server: Server, key: bytes, token: str, query: str, batch: str) -> None:
    """Store which micro-batch of Spark reads the batch with this token. A task calls it. The field names the batch: a
    late task of an earlier one changes nothing. key: from `attempt_key_of`."""
    if query:
        server.execute("HSET", key, token, f"{batch} {query}")


def is_done_in_sink(server: Server, end: Offset) -> bool:
    """Whether an exactly-once sink on this server has completed the batch that ends here, or has begun to, which it
    does when all tasks have succeeded. If so, the run has died between the tasks and Spark's commit log, and not of an
    entry. False if that is unknown: another sink or server, or the sink's keys are forbidden to us."""
    note = server.execute("HGET", attempt_key_of(end), end.token)
    batch, _, query = (note or b"").decode("utf-8", "replace").partition(" ")
    number = parse_number(batch)
    if not query or number is None:
        return False
    [reply] = server.execute_all([("HGETALL", record_key(query))], is_not_permitted)
    if is_not_permitted(reply):
        return False
    record = dict(zip(reply[0::2], reply[1::2], strict=True))
    closed = parse_number(record.pop(CLOSED, b""))
    if closed is not None and closed >= number:
        return True
    written = [stream for stream, named in record.items() if parse_number(named) == number]
    done = server.execute_all([("HGET", head_key(stream, query), DONE) for stream in written], is_not_permitted)
    return any(isinstance(reply, bytes) and parse_number(reply) == number for reply in done)


def attempt_key_of(end: Offset) -> bytes:
    """Return the key of the hash in which tasks store the micro-batch of Spark that reads a batch, by its token. It is
    deleted before the tasks of the next batch run."""
    return key_beside(_record_stream(end), "tried", end.group, end.consumer)


def fetch_failure(server: Server, end: Offset) -> QueryFailure:
    """Return the error that `note_failure` stored last, if any."""
    text = server.execute("GET", failure_key(_record_stream(end), end.group, end.consumer))
    try:
        fields = json.loads(text or b"{}")
        return QueryFailure(str(fields.get("error", "")), str(fields.get("message", "")))
    except (ValueError, AttributeError, RecursionError):
        return QueryFailure()


def delete_failure(server: Server, end: Offset) -> None:
    """Delete the stored error, which explains only one end of the query."""
    server.execute("DEL", failure_key(_record_stream(end), end.group, end.consumer))


def note_failure(server: Server, offset: Offset, failure: QueryFailure) -> None:
    """Store why a query ended, for the dead letter of the entry that killed it. offset: any of the query's offsets."""
    if offset.streams:
        key = failure_key(_record_stream(offset), offset.group, offset.consumer)
        server.execute("SET", key, json.dumps({"error": failure.error, "message": failure.message[:2000]}))


def failure_key(stream: str, group: str, consumer: str) -> bytes:
    """Return the key of the error that ended the query."""
    return key_beside(stream, "failure", group, consumer)


def _record_key(offset: Offset) -> bytes:
    return key_beside(_record_stream(offset), "attempts", offset.group, offset.consumer)


def _record_stream(offset: Offset) -> str:
    """Return the stream beside which the record is."""
    return offset.record or first_stream(offset.at)


def first_stream(streams: Iterable[str]) -> str:
    """Return the stream beside which a new record is; "" without streams."""
    return min(streams, key=lambda stream: (is_returned(stream), stream), default="")
