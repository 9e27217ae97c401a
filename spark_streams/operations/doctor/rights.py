"""Check of the user's rights: the commands that each use needs, and which of them the user may not run on which keys.

The check changes nothing, and works on every server: after MULTI a server checks the right when it queues a command,
and DISCARD drops the queue, so no command is executed (R41). The commands outside (WATCH, EXEC, CLIENT REPLY) change
nothing. If the user may not run MULTI, only the read commands are tried, by running them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.connector.admin.streams import missing_right
from spark_streams.connector.operator_commands import shell_words
from spark_streams.connector.wire.connection import Connection, ReplyError
from spark_streams.connector.wire.replies import is_forbidden, is_unknown_command
from spark_streams.operations.doctor.server_facts import Findings, Level, ServerFinding

LOOKING, READING, WRITING, REDRIVE = "looking", "reading", "writing", "redrive"
USES = (LOOKING, READING, WRITING, REDRIVE)
OWN = "rstream:doctor"  # an example of the product's own keys
_ANY = "rstream:doctor:stream"  # an example of a stream if none is named: only rights for commands are checked

_KEY = "{}"
_LOOK = (
    *("XINFO STREAM {}", "XINFO GROUPS {}", "XINFO CONSUMERS {} g", "XLEN {}", "XRANGE {} - + COUNT 1"),
    *("XREVRANGE {} + - COUNT 1", "XPENDING {} g", "TIME", "ECHO 1"),
)
_FIND = ("SCAN 0 COUNT 1", "TYPE {}")
_TRANSACTION = ("MULTI", "EXEC", "DISCARD", "WATCH {}", "UNWATCH")
_LEASE = ("SET {} 1", "GET {}", "PEXPIRE {} 1", "PTTL {}", "DEL {}", "EXISTS {}")
_LETTERS = ("XADD {} * a 1", "HSET {} a 1", "HGET {} a", "HDEL {} a", "HSTRLEN {} a")
_NOTES = ("HSET {} a 1", "HGETALL {}", "HDEL {} a")
# By use: commands on streams, and on the product's own keys.
_COMMANDS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    LOOKING: ((*_LOOK, *_FIND), ()),
    READING: (
        (
            *(*_LOOK, *_FIND, *_TRANSACTION, "CLIENT REPLY ON"),
            *("XGROUP CREATE {} g 0", "XGROUP SETID {} g 0", "XGROUP CREATECONSUMER {} g c"),
            *("XGROUP DELCONSUMER {} g c", "XGROUP DESTROY {} rstream-probe"),
            *("XREADGROUP GROUP g c STREAMS {} >", "XREAD STREAMS {} $"),
            *("XACK {} g 0-1", "XCLAIM {} g c 1 0-1"),
            "XADD {} * a 1",  # a dead letter
            "ROLE",  # or INFO replication
        ),
        (
            *(*_LEASE, *_LETTERS[1:], "HSETNX {} a 1", "HGETALL {}", "HSCAN {} 0"),
        ),
    ),
    WRITING: (
        (*_LOOK, *_TRANSACTION, "TYPE {}", "XADD {} * a 1", "XTRIM {} MAXLEN 1", "WAIT 0 1"),
        (
            *("SET {} 1", "GET {}", "DEL {}", "UNLINK {}", "EXISTS {}", "EXPIRE {} 1", "APPEND {} 1"),
            *("GETRANGE {} 0 1", "INCRBY {} 1", "DECRBY {} 1", "HSET {} a 1", "HGET {} a", "HMGET {} a"),
            *("HGETALL {}", "HKEYS {}", "HVALS {}", "HLEN {}", "HDEL {} a", "SADD {} a", "SREM {} a", "SMEMBERS {}"),
        ),
    ),
    REDRIVE: ((*_LOOK, *_FIND, *_TRANSACTION, "XADD {} * a 1", "XDEL {} 0-1"), (*_LEASE, *_NOTES, "HMGET {} a")),
}  # fmt: skip
# In a cluster every use reads the slots, and dead letters are moved to other slots with notes beside their streams.
_SLOTS = ("CLUSTER SLOTS", "CLUSTER INFO")
_OUTSIDE = ("WATCH", "UNWATCH", "EXEC", "CLIENT")
_SILENCE = "+client|reply"  # a query works without it
_WITH_SUBCOMMAND = ("XINFO", "XGROUP", "CLIENT", "CLUSTER")


@dataclass(frozen=True)
class Missing:
    """The rights that a use lacks. rights: `+xadd`, `~orders`; unknown: why others could not be checked, else empty."""

    rights: tuple[str, ...]
    unknown: str = ""


def commands_of(use: str, streams: Sequence[str], in_cluster: bool = False) -> list[list[str]]:
    """What this use runs: on every stream, and on a key of the product's own."""
    on_streams, on_own_keys = _COMMANDS[use]
    if in_cluster:
        on_streams = (*on_streams, *_SLOTS)
        on_own_keys = tuple(dict.fromkeys((*on_own_keys, *(_NOTES if use == READING else ()))))
    return [
        *_filled(on_streams, streams or [_ANY]),
        *_filled(on_own_keys, [OWN]),
    ]


def names_of(use: str, in_cluster: bool = False) -> list[str]:
    """Return the names of the commands with their subcommands: `xadd`, `xinfo|stream`."""
    return sorted({_name(words) for words in commands_of(use, [], in_cluster)})


def ask_rights(
    server: Connection, uses: Sequence[str], streams: Sequence[str], in_cluster: bool = False
) -> dict[str, Missing]:
    """Return the missing rights of each use for the URL's user. A node of a cluster checks its own list of users before
    it redirects to the node of the key. Raises ServerUnreachableError."""
    commands_by_use = {use: commands_of(use, streams, in_cluster) for use in uses}
    all_commands = list(dict.fromkeys(tuple(words) for commands in commands_by_use.values() for words in commands))
    refused, is_whole = _refused(server, all_commands)
    missing = {}
    for use, commands in commands_by_use.items():
        rights = sorted({refused[tuple(words)] for words in commands if tuple(words) in refused})
        looks_only = use == LOOKING
        missing[use] = Missing(
            tuple(rights),
            "" if is_whole or looks_only else "the other rights cannot be checked without MULTI and DISCARD",
        )
    return missing


def rights_findings(user: str, missing: Mapping[str, Missing], streams: Sequence[str]) -> Findings:
    """Yield one finding for all uses that lack nothing, and one for each set of missing rights."""
    who = f"user {user}" if user else "the URL's user"
    same: dict[Missing, list[str]] = {}
    for use, lacks in missing.items():
        same.setdefault(lacks, []).append(use)
    complete_uses = same.pop(Missing(()), [])
    for lacks, uses in same.items():
        yield _lacking(who, user, uses, lacks)
    if complete_uses:
        on = f"{', '.join(streams)} and rstream:*" if streams else "rstream:* (--stream NAME also checks a stream)"
        yield ServerFinding(Level.OK, "rights", f"{who} has all rights for {_listed(complete_uses)}, on {on}")


def _lacking(who: str, user: str, uses: Sequence[str], lacks: Missing) -> ServerFinding:
    unknown = f" ({lacks.unknown})" if lacks.unknown else ""
    keys_first = sorted(lacks.rights, key=lambda right: (not right.startswith("~"), right))
    if lacks.rights == (_SILENCE,):
        return ServerFinding(
            Level.NOTE, "rights", f"replies cannot be suppressed for {who} (CLIENT REPLY)",
            "a query works; each entry is also sent to its driver, which drops it (1 kB: 2 µs)",
            f"if possible, grant {_SILENCE}",
        )  # fmt: skip
    granted = [right for right in keys_first if right[0] in "+~"]
    remedies = [f"ACL SETUSER {shell_words([user or 'USER', *granted])}"] if granted else []
    if renamed := [right for right in keys_first if right[0] not in "+~"]:
        remedies.append(f"the server does not know {' '.join(renamed)}: remove rename-command from its configuration")
    return ServerFinding(
        Level.WARNING, "rights", f"{who} lacks rights for {_listed(uses)}: {' '.join(keys_first)}{unknown}",
        "a query or command that needs one of them fails with an error that names it (RSTREAM_NOT_PERMITTED)",
        "; ".join(remedies) + (" +@transaction; then run this again" if lacks.unknown else ""),
    )  # fmt: skip


def _refused(server: Connection, commands: Sequence[tuple[str, ...]]) -> tuple[dict[tuple[str, ...], str], bool]:
    """Return the missing right of each refused command, and whether all commands could be checked."""
    outside = [words for words in commands if words[0] in _OUTSIDE]
    inside = [words for words in commands if words[0] not in (*_OUTSIDE, "MULTI", "DISCARD")]
    refused = _lacked(outside, server.pipeline(outside))
    refused |= _lacked([("DISCARD",)], server.pipeline([("DISCARD",)]))
    opened = server.pipeline([("MULTI",)]) if ("DISCARD",) not in refused else []
    if not opened or isinstance(opened[0], ReplyError):
        refused |= _lacked([("MULTI",)], opened)
        reading = names_of(LOOKING, in_cluster=True)
        read_commands = [words for words in inside if _name(words) in reading]
        return refused | _lacked(read_commands, server.pipeline(read_commands)), False
    refused |= _lacked(inside, server.pipeline(inside))
    *_, replication = server.pipeline([("DISCARD",), ("UNWATCH",), ("INFO", "replication")])
    if isinstance(replication, bytes):  # what a query asks where ROLE is refused
        refused.pop(("ROLE",), None)
    return refused, True


def _lacked(commands: Sequence[tuple[str, ...]], replies: Sequence[object]) -> dict[tuple[str, ...], str]:
    refused = zip(commands, replies, strict=False)
    rights = {
        words: _SILENCE if words[0] == "CLIENT" else _right(words, reply)
        for words, reply in refused
        if is_forbidden(reply) or (words[0] == "CLIENT" and isinstance(reply, ReplyError))
    }
    return {words: right for words, right in rights.items() if not right.startswith("~") or _ANY not in words}


def _right(words: Sequence[str], reply: object) -> str:
    """Return the right; the name of a command that the server does not know, or knows by another name."""
    return _name(words) if is_unknown_command(reply) else missing_right(str(reply), words)[1]


def _filled(commands: Sequence[str], keys: Sequence[str]) -> list[list[str]]:
    split = [(command.split(), keys if _KEY in command else [""]) for command in commands]
    return [[key if word == _KEY else word for word in words] for words, of_command in split for key in of_command]


def _name(words: Sequence[str]) -> str:
    contains = words[0] in _WITH_SUBCOMMAND
    return "|".join(words[: 1 + contains]).lower()


def _listed(uses: Sequence[str]) -> str:
    return uses[0] if len(uses) == 1 else f"{', '.join(uses[:-1])} and {uses[-1]}"
