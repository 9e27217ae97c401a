"""Copy keys of any type on any server: the bundled engine supports DUMP for streams only."""

from __future__ import annotations

from collections.abc import Iterable

import redis

Command = tuple[object, ...]


def copies(client: redis.Redis, keys: Iterable[str | bytes]) -> list[Command]:
    """Return commands that restore the present values of these keys. client: without decode_responses."""
    commands: list[Command] = []
    for key in keys:
        kind, milliseconds = client.type(key), client.pttl(key)
        if kind == b"stream":
            commands.append(("RESTORE", key, 0, client.dump(key)))
        elif kind == b"string":
            commands.append(("SET", key, client.get(key)))
        elif kind == b"hash":
            commands.append(("HSET", key, *[word for pair in client.hgetall(key).items() for word in pair]))
        elif kind == b"set":
            commands.append(("SADD", key, *sorted(client.smembers(key))))
        elif kind != b"none":
            raise ValueError(f"keys of type {kind!r} cannot be copied")
        if milliseconds >= 0:
            commands.append(("PEXPIRE", key, milliseconds))
    return commands


def make_again(client: redis.Redis, commands: Iterable[Command]) -> None:
    """Execute these commands."""
    pipe = client.pipeline(transaction=False)
    for command in commands:
        pipe.execute_command(*command)
    pipe.execute()
