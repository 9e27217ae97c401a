"""Copies of keys of any type, on any server: the bundled engine dumps streams only."""

from __future__ import annotations

from collections.abc import Iterable

import redis

Command = tuple[object, ...]


def copies(client: redis.Redis, keys: Iterable[str | bytes]) -> list[Command]:
    """The commands that make these keys again, as they are now. client: without decode_responses."""
    made: list[Command] = []
    for key in keys:
        kind, left = client.type(key), client.pttl(key)
        if kind == b"stream":
            made.append(("RESTORE", key, 0, client.dump(key)))
        elif kind == b"string":
            made.append(("SET", key, client.get(key)))
        elif kind == b"hash":
            made.append(("HSET", key, *[word for pair in client.hgetall(key).items() for word in pair]))
        elif kind == b"set":
            made.append(("SADD", key, *client.smembers(key)))
        elif kind != b"none":
            raise ValueError(f"no copies of a {kind!r}")
        if left >= 0:
            made.append(("PEXPIRE", key, left))
    return made


def make_again(client: redis.Redis, commands: Iterable[Command]) -> None:
    """Carry these commands out."""
    pipe = client.pipeline(transaction=False)
    for command in commands:
        pipe.execute_command(*command)
    pipe.execute()
