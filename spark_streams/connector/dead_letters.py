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
    → XCLAIM … FORCE                                                  pending again, if EXEC refused the XADD alone

`rstream dead` lists these dead letters and sends them back. Importing this module loads neither pyspark nor pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import redis
import redis.asyncio
from redis.client import NEVER_DECODE

from spark_streams.base.ids import MAX_ID
from spark_streams.connector.deadletter.envelope import raw, text
from spark_streams.connector.deadletter.post import Command, FailedEntry, acknowledgement, now, origin_command
from spark_streams.connector.errors import IdsExhaustedError, InvalidOptionError, ServerReplyError, UnsupportedError
from spark_streams.connector.keys import slot_of

if TYPE_CHECKING:
    from typing import TypeAlias

    Text: TypeAlias = str | bytes
    Value: TypeAlias = str | bytes | int | float
    Fields: TypeAlias = Mapping[Any, Value] | Iterable[tuple[Text, Value]]

__all__ = ["write", "write_async"]

_ATTEMPTS = 100  # while other clients append to the same dead-letter stream
_AS_BYTES: Any = {NEVER_DECODE: True}  # the reply to XINFO STREAM has two entries, and they may be binary


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

    Texts in `fields` are encoded as the client decodes them, and names as UTF-8. Binary values need a client without
    `decode_responses`, or with `encoding_errors="surrogateescape"`: others cannot read them, or read them with loss.

    Args:
        client: A client of redis-py. A pipeline is not accepted. A cluster needs redis-py 6.1 (asyncio: 6.2).
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
        InvalidOptionError: `to` is the stream of the entry.
        UnsupportedError: Both streams are in different slots of a cluster, or redis-py is too old for a cluster.
        IdsExhaustedError: The stream `to` has no ID left.
        ServerReplyError: Other clients append to `to` all the time, or the server refused the dead letter within the
            transaction. The entry is still pending.
        redis.DataError: A field is `None`, for example, which redis-py cannot send. The entry is still pending.
        redis.RedisError: The server refused a command, or the connection was lost. The entry is still pending, or its
            dead letter is complete: call the function again.
    """
    letter = _DeadLetter.encoded(client, stream, group, entry_id, fields, to, _failure(reason, error, stage))
    with letter.transaction(client) as pipe:
        for _ in range(_ATTEMPTS):
            pipe.watch(letter.to)
            pending = pipe.xpending_range(letter.stream, letter.group, entry_id, entry_id, 1, consumer)
            if not pending:
                return None
            entry = letter.failed_entry(pending[0])
            try:
                letter.require_ids(pipe.execute_command("XINFO STREAM", letter.to, **_AS_BYTES))
            except redis.ResponseError as reply:
                letter.require_missing(reply)
            letter.queue(pipe, entry)
            try:
                added, acknowledged, _ = pipe.execute(raise_on_error=False)
            except redis.WatchError:
                continue
            if not isinstance(added, Exception):
                return cast("Text", added)
            if acknowledged:
                cast("Any", client).execute_command(*letter.restore(entry), parse_justid=True)
            raise letter.refused(added)
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
    letter = _DeadLetter.encoded(client, stream, group, entry_id, fields, to, _failure(reason, error, stage))
    async with letter.transaction(client) as pipe:
        for _ in range(_ATTEMPTS):
            await pipe.watch(letter.to)
            pending = await pipe.xpending_range(letter.stream, letter.group, entry_id, entry_id, 1, consumer)
            if not pending:
                return None
            entry = letter.failed_entry(pending[0])
            try:
                letter.require_ids(await pipe.execute_command("XINFO STREAM", letter.to, **_AS_BYTES))
            except redis.ResponseError as reply:
                letter.require_missing(reply)
            letter.queue(pipe, entry)
            try:
                added, acknowledged, _ = await pipe.execute(raise_on_error=False)
            except redis.WatchError:
                continue
            if not isinstance(added, Exception):
                return cast("Text", added)
            if acknowledged:
                await client.execute_command(*letter.restore(entry), parse_justid=True)
            raise letter.refused(added)
    raise letter.busy()


@dataclass(frozen=True)
class _DeadLetter:
    """A dead letter that is not written yet."""

    encode: Callable[[Value], bytes]  # the reverse of what the client decodes
    stream: bytes
    group: bytes
    entry_id: bytes
    fields: Sequence[bytes]
    to: bytes
    failure: Mapping[str, str]  # values of the envelope, by names without their prefix

    @classmethod
    def encoded(
        cls, client: Any, stream: Text, group: Text, entry_id: Text, fields: Fields, to: Text, failure: dict[str, str]
    ) -> _DeadLetter:
        """Encode values as the client decodes them. Raises InvalidOptionError, redis.DataError."""
        encode: Callable[[Value], bytes] = client.get_encoder().encode
        pairs = fields.items() if isinstance(fields, Mapping) else fields
        words = [bytes(encode(word)) for pair in pairs for word in pair]
        letter = cls(encode, _bytes(stream), _bytes(group), _bytes(entry_id), words, _bytes(to), failure)
        if letter.to == letter.stream:
            raise InvalidOptionError(f"to={text(letter.to)!r} is the stream of the entry: name another stream")
        return letter

    def transaction(self, client: Any) -> Any:
        """Return an empty pipeline. Raises UnsupportedError if no transaction can cover both streams."""
        is_cluster = isinstance(client, (redis.RedisCluster, redis.asyncio.RedisCluster))
        if is_cluster and slot_of(self.stream) != slot_of(self.to):
            raise UnsupportedError(
                f"dead letters of stream {text(self.stream)!r} cannot be written to {text(self.to)!r}: no "
                "transaction covers two slots of a cluster. Give both names the same hash tag, such as {orders} and "
                "{orders}:dead"
            )
        try:
            return client.pipeline(transaction=True)
        except redis.exceptions.RedisClusterException as error:
            raise UnsupportedError(
                f"redis-py {redis.__version__} has no transactions in a cluster: {error}. Install redis-py 6.2 or newer"
            ) from error

    def require_ids(self, stream: Mapping[Any, Any]) -> None:
        """Check the reply to XINFO STREAM: an XADD that fails within EXEC does not stop the XACK (FACTS R14)."""
        if stream["last-generated-id"] == str(MAX_ID).encode():
            raise IdsExhaustedError(
                f"stream {text(self.to)!r} cannot take a dead letter: its last possible ID is used. Name another one"
            )

    def require_missing(self, reply: redis.ResponseError) -> None:
        """Check the error of XINFO STREAM: a stream that does not exist can take dead letters."""
        if "no such key" not in str(reply):
            raise reply

    def failed_entry(self, pending: Mapping[str, Any]) -> FailedEntry:
        """Return the entry with its envelope. pending: the reply to XPENDING."""
        consumer = text(self.encode(pending["consumer"]))
        envelope = {
            **self.failure,
            "stream": text(self.stream),
            "id": text(self.entry_id),
            "group": text(self.group),
            "consumer": consumer,
            "deliveries": str(pending["times_delivered"]),
        }
        return FailedEntry(
            text(self.stream), self.entry_id, self.fields, envelope, pending_for=consumer, released=not consumer
        )

    def queue(self, pipe: Any, entry: FailedEntry) -> None:
        """Queue the transaction."""
        pipe.multi()
        to, stream, group = text(self.to), text(self.stream), text(self.group)
        for command in (
            entry.dead_letter(to), *acknowledgement(group, [entry]), origin_command(to, stream, group)
        ):  # fmt: skip
            pipe.execute_command(*_words(command))

    def restore(self, entry: FailedEntry) -> list[Any]:
        """Return the command that makes the entry pending again: EXEC executed the XACK without the XADD."""
        return _words(entry.restore(text(self.group)))

    def refused(self, reply: Exception) -> ServerReplyError:
        """Return the error if EXEC refused the XADD, for example because IDs or rights were taken away meanwhile."""
        return ServerReplyError(
            f"stream {text(self.to)!r} refused the dead letter of entry {text(self.entry_id)} of stream "
            f"{text(self.stream)!r}. The entry is pending as before. {reply}"
        )

    def busy(self) -> ServerReplyError:
        """Return the error if the WATCH was broken each time."""
        return ServerReplyError(
            f"stream {text(self.to)!r} changes too often: a dead letter could not be appended. Try again, or give "
            "this consumer a dead-letter stream of its own"
        )


def _failure(reason: str, error: BaseException | None, stage: str) -> dict[str, str]:
    """Return what the envelope says of the failure."""
    failed = now()
    kind, message = ("", "") if error is None else (type(error).__name__, str(error))
    texts = {"stage": stage, "reason": reason or kind, "error": kind, "message": message}
    valid = {name: value.encode("utf-8", "backslashreplace").decode() for name, value in texts.items()}
    return {**valid, "first-failed": failed, "last-failed": failed}


def _words(command: Command) -> list[Any]:
    """Return the command's arguments as bytes, whatever the encoding of the client."""
    name, *arguments = command
    return [name, *[raw(word) if isinstance(word, str) else word for word in arguments]]


def _bytes(name: Text) -> bytes:
    return name if isinstance(name, bytes) else raw(name)
