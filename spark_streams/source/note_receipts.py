"""Receipts for notes: what proves that none of them is gone.

Notes stand in a key of their own (source.task_notes), which a server may drop when its memory is full, and anybody may
delete. A group and its consumers stand in the stream itself. So a task that leaves notes enters a consumer there,

    <consumer>~noted~<the batch's token>~<a name>.<how many notes>

and writes, with the notes, a field `<token> receipt <the name>`. It never reads. A consumer whose field is not there
tells of notes that are gone. Consumer and field are removed when all notes of the stream are taken.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from spark_streams.numbers import COUNT_MAX, whole
from spark_streams.source.group.group_state import NOTED
from spark_streams.source.membership import Membership
from spark_streams.wire.connection import Argument, Reply, ReplyError
from spark_streams.wire.reply_errors import is_key_required, is_no_group
from spark_streams.wire.server import Server
from spark_streams.wire.xinfo import consumers_in

KIND = b"receipt"


@dataclass(frozen=True)
class Receipt:
    """For `count` notes on one stream, which were left together."""

    token: str
    name: str
    count: int

    @classmethod
    def new(cls, token: str, count: int) -> Self:
        """Another one than any before."""
        return cls(token, secrets.token_hex(6), count)

    @classmethod
    def parse(cls, member: Membership, consumer: str) -> Self | None:
        """None where the consumer is no receipt of ours."""
        prefix = member.consumer + NOTED
        token, _, rest = consumer.removeprefix(prefix).partition("~")
        name, _, count = rest.rpartition(".")
        notes = whole(count, COUNT_MAX)
        known = consumer.startswith(prefix) and name
        return cls(token, name, notes) if known and notes is not None else None

    def consumer(self, member: Membership) -> str:
        """The consumer's name."""
        return f"{member.consumer}{NOTED}{self.token}~{self.name}.{self.count}"

    @property
    def field(self) -> bytes:
        """The field beside the notes."""
        return b"%b %b %b" % (self.token.encode(), KIND, self.name.encode())


def is_refused(reply: Reply) -> bool:
    """Whether a receipt could not be entered because the group or the stream is gone."""
    return is_no_group(reply) or is_key_required(reply)


def question(stream: str, member: Membership) -> tuple[str, ...]:
    """The command whose reply `among` reads."""
    return ("XINFO", "CONSUMERS", stream, member.group)


def among(member: Membership, consumers: Reply) -> list[Receipt]:
    """The receipts of a stream, of any batch; none where the group is gone."""
    if isinstance(consumers, ReplyError):
        return []
    receipts = [Receipt.parse(member, consumer.text) for consumer in consumers_in(consumers)]
    return [receipt for receipt in receipts if receipt is not None]


def missing_notes(
    server: Server, keys: Mapping[str, bytes], receipts: Mapping[str, Sequence[Receipt]], token: str
) -> dict[str, int]:
    """How many notes of the batch with this token are gone, per stream. keys: of the notes; receipts: of all batches.

    A task that ran twice has left its notes twice, so they may be fewer.
    """
    asked = [(stream, one) for stream, some in receipts.items() for one in some if one.token == token]
    found = server.execute_all([("HEXISTS", keys[stream], one.field) for stream, one in asked])
    gone: dict[str, int] = {}
    for (stream, one), there in zip(asked, found, strict=True):
        if not there:
            gone[stream] = gone.get(stream, 0) + one.count
    return gone


def removal(stream: str, member: Membership, receipts: Iterable[Receipt]) -> list[tuple[Argument, ...]]:
    """The commands that remove them from the group."""
    return [("XGROUP", "DELCONSUMER", stream, member.group, one.consumer(member)) for one in receipts]
