"""Write dead letters from consumers that do not use Spark, with a client of redis-py.

    for entry_id, fields in entries:
        try:
            process(fields)
        except Exception as error:
            dead_letters.write(client, "orders", "billing", entry_id, fields, to="orders:dead", error=error)
        else:
            client.xack("orders", "billing", entry_id)

The dead letter is appended and its entry acknowledged in one transaction. So an entry is either pending or a dead
letter, also if the program is killed, and it has one dead letter, also if several consumers give it up:

    → WATCH to   XPENDING stream group id id 1   XINFO STREAM to      is it still due, and can `to` take it?
    → MULTI   XADD to …   XACK stream group id   EXEC                 nil if `to` has changed since WATCH: again

`rstream dead` lists these dead letters and sends them back. Importing this module loads neither pyspark nor pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import redis
import redis.asyncio

from spark_streams.deadletter.envelope import dead_letter_fields, raw, text
from spark_streams.deadletter.write.failed_entry import now
from spark_streams.errors import IdsExhaustedError, ServerReplyError, UnsupportedError
from spark_streams.model.ids import MAX_ID
from spark_streams.model.keys import slot_of

if TYPE_CHECKING:
    from typing import TypeAlias

    Text: TypeAlias = str | bytes
    Value: TypeAlias = str | bytes | int | float
    Fields: TypeAlias = Mapping[Any, Value] | Iterable[tuple[Text, Value]]

__all__ = ["write", "write_async"]

_ATTEMPTS = 100  # while other clients append to the same dead-letter stream


def write(
    client: redis.Redis | redis.RedisCluster,
    stream: Text,
    group: Text,
    entry_id: Text,
    fields: Fields,
    *,
    to: Text,
    reason: str = "",
    error: BaseException | None = None,
    stage: str = "process",
    consumer: Text | None = None,
) -> Text | None:
    """Write the dead letter of a pending entry and acknowledge the entry, in one transaction.

    A client with `decode_responses=True` cannot read values that are not text. Such a client cannot pass them on.

    Args:
        client: A client of redis-py. A pipeline is not accepted.
        stream: Stream of the entry.
        group: Group that the entry is pending in.
        entry_id: ID of the entry.
        fields: The entry's own fields. A mapping, or pairs if a name occurs twice.
        to: Stream for the dead letter. In a cluster it must be in the slot of `stream`: `{orders}` and `{orders}:dead`.
        reason: Why the entry is given up, for example `no amount`. Default: the class of `error`.
        error: The exception. Its class and its text become `dl.error` and `dl.message`.
        stage: The step in which it failed.
        consumer: Write only if the entry is still pending for this consumer. Default: for any.

    Returns:
        ID of the dead letter. `None` if the entry is no longer pending: it was acknowledged, or is a dead letter, or is
        pending for another consumer. Then nothing was written.

    Raises:
        UnsupportedError: Both streams are in different slots of a cluster.
        IdsExhaustedError: The stream `to` has no ID left.
        ServerReplyError: Other clients append to `to` all the time.
        redis.RedisError: The server refused a command, or the connection was lost. The entry is still pending, or its
            dead letter is complete: call the function again.
    """
    letter = _DeadLetter(stream, group, entry_id, fields, to, _failure(reason, error, stage))
    letter.require_one_slot(client)
    with client.pipeline(transaction=True) as pipe:
        for _ in range(_ATTEMPTS):
            pipe.watch(to)
            pending = pipe.xpending_range(stream, group, entry_id, entry_id, 1, consumer)
            if not pending:
                return None
            try:
                letter.require_ids(pipe.xinfo_stream(to))
            except redis.ResponseError as reply:
                letter.require_missing(reply)
            letter.queue(pipe, pending[0])
            try:
                return cast("Text", pipe.execute()[0])
            except redis.WatchError:
                continue
    raise letter.busy()


async def write_async(
    client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
    stream: Text,
    group: Text,
    entry_id: Text,
    fields: Fields,
    *,
    to: Text,
    reason: str = "",
    error: BaseException | None = None,
    stage: str = "process",
    consumer: Text | None = None,
) -> Text | None:
    """Do the same with a client of `redis.asyncio`. See `write`."""
    letter = _DeadLetter(stream, group, entry_id, fields, to, _failure(reason, error, stage))
    letter.require_one_slot(client)
    async with client.pipeline(transaction=True) as pipe:
        for _ in range(_ATTEMPTS):
            await pipe.watch(to)
            pending = await pipe.xpending_range(stream, group, entry_id, entry_id, 1, consumer)
            if not pending:
                return None
            try:
                letter.require_ids(await pipe.xinfo_stream(to))
            except redis.ResponseError as reply:
                letter.require_missing(reply)
            letter.queue(pipe, pending[0])
            try:
                return cast("Text", (await pipe.execute())[0])
            except redis.WatchError:
                continue
    raise letter.busy()


@dataclass(frozen=True)
class _DeadLetter:
    """A dead letter that is not written yet. failure: values of the envelope, by names without their prefix."""

    stream: Text
    group: Text
    entry_id: Text
    fields: Fields
    to: Text
    failure: Mapping[str, str]

    def require_one_slot(self, client: object) -> None:
        """Check that one transaction can cover both streams. Raises UnsupportedError."""
        is_cluster = isinstance(client, (redis.RedisCluster, redis.asyncio.RedisCluster))
        if is_cluster and slot_of(_bytes(self.stream)) != slot_of(_bytes(self.to)):
            raise UnsupportedError(
                f"dead letters of stream {_text(self.stream)!r} cannot be written to {_text(self.to)!r}: no "
                "transaction covers two slots of a cluster. Give both names the same hash tag, such as {orders} and "
                "{orders}:dead"
            )

    def require_ids(self, stream: Mapping[Any, Any]) -> None:
        """Check the reply to XINFO STREAM: an XADD that fails within EXEC does not stop the XACK (FACTS R14)."""
        if _bytes(stream["last-generated-id"]) == str(MAX_ID).encode():
            raise IdsExhaustedError(
                f"stream {_text(self.to)!r} cannot take a dead letter: its last possible ID is used. Name another one"
            )

    def require_missing(self, reply: redis.ResponseError) -> None:
        """Check the error of XINFO STREAM: a stream that does not exist can take dead letters."""
        if "no such key" not in str(reply):
            raise reply

    def queue(self, pipe: Any, pending: Mapping[str, Any]) -> None:
        """Queue the transaction. pending: the reply to XPENDING."""
        envelope = {
            **self.failure,
            "stream": _text(self.stream),
            "id": _text(self.entry_id),
            "group": _text(self.group),
            "consumer": _text(pending["consumer"]),
            "deliveries": str(pending["times_delivered"]),
        }
        pairs = self.fields.items() if isinstance(self.fields, Mapping) else self.fields
        words = [_bytes(word) for pair in pairs for word in pair]
        pipe.multi()
        pipe.execute_command("XADD", self.to, "*", *dead_letter_fields(words, envelope))
        pipe.execute_command("XACK", self.stream, self.group, self.entry_id)

    def busy(self) -> ServerReplyError:
        """Return the error if the WATCH was broken each time."""
        return ServerReplyError(
            f"stream {_text(self.to)!r} changes too often: a dead letter could not be appended. Try again, or give "
            "this consumer a dead-letter stream of its own"
        )


def _failure(reason: str, error: BaseException | None, stage: str) -> dict[str, str]:
    """Return what the envelope says of the failure."""
    failed = now()
    kind, message = ("", "") if error is None else (type(error).__name__, str(error))
    times = {"first-failed": failed, "last-failed": failed}
    return {"stage": stage, "reason": reason or kind, "error": kind, "message": message, **times}


def _bytes(value: Value) -> bytes:
    return value if isinstance(value, bytes) else raw(str(value))


def _text(value: Value) -> str:
    return text(_bytes(value))
