"""The query's consumer in its group, and the client with which its run reads and changes the group."""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.connector.keys import key_beside
from spark_streams.connector.source.commit_mark import committed_key
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.wire.connection import Server


@dataclass(frozen=True)
class Membership:
    """Consumer of a group."""

    group: str
    consumer: str


@dataclass(frozen=True)
class GroupClient:
    """One consumer of one group, over one connection. After a broken connection the next attempt has another client."""

    server: Server
    member: Membership
    limits: Limits = LIMITS

    @property
    def group(self) -> str:
        return self.member.group

    @property
    def consumer(self) -> str:
        return self.member.consumer

    def mark_key(self, stream: str) -> bytes:
        return committed_key(stream, self.member.group, self.member.consumer)


def lease_key(stream: str, group: str, consumer: str) -> bytes:
    return key_beside(stream, "lease", group, consumer)
