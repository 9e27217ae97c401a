"""The users of docs/reference/access.md: for each role its keys and commands, and what runs with exactly these.

The commands of a use (`rstream doctor --for`) are those that the doctor asks for. tests/legs/identity/test_rights.py
runs each line with the rights of its roles and no others.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from spark_streams.operations.doctor.rights import LOOKING, READING, REDRIVE, WRITING, names_of

_CHANGES = "multi exec discard watch unwatch"
_LEASE = "set get pexpire pttl del exists"
_LOOKED_AT = "%R~orders %R~orders:dead %R~rstream:*:{orders}*"
_LOOKS = "xread get hgetall hkeys pttl"


class Role(NamedTuple):
    """A user. keys: patterns; use: whose commands it has; more: other commands; what: it is for, besides lines of
    LINES; note: below its command."""

    keys: str
    use: str
    more: str = ""
    what: str = ""
    note: str = ""


ROLES: Mapping[str, Role] = {
    "reader": Role(
        "~orders ~orders:dead ~rstream:*:{orders}:billing ~rstream:*:{orders}:billing:* ~rstream:shards:{orders}"
        " ~rstream:begun:billing:* ~rstream:session:billing:* ~rstream:outbox:{orders:dead}:billing:*"
        " ~rstream:origins:{orders:dead} ~rstream:told:* ~rstream:doctor",
        READING,
        "xtrim xdel",
        "A source, with its dead letters, `retryDelay`, `claimIdle` and `onCommit`",
        '`+client|reply` is optional: without it, `rstream doctor` notes "replies cannot be suppressed", and the'
        " driver also receives each entry. For `streamsPattern`, write the pattern (`orders:*`) instead of the stream's"
        " name. Only [`noAck`](options.md#noAck) needs `+xgroup|destroy`, for its scratch group. With `+role` (or"
        " `+info`) a query asks once a minute whether its server is still the master.",
    ),
    "writer": Role(
        "~totals ~rstream:sink:{totals}:* ~rstream:sink:[^{]* ~rstream:runs ~rstream:pace:* ~rstream:shards:{totals}"
        " ~rstream:origins:{totals} %R~rstream:told:* ~rstream:doctor ~rstream:lease:{totals}:load-*"
        " ~rstream:session:load:*",
        WRITING,
        "scan memory|usage pttl",
        "A sink, and the job `load`",
    ),
    "redrive": Role(
        "~orders:dead ~orders ~rstream:redrive:{orders:dead}* ~rstream:lease:{orders:dead}:redrive"
        " ~rstream:session:redrive:* ~rstream:redriven:{orders}:* %R~rstream:shards:{orders}"
        " %R~rstream:origins:{orders:dead} ~rstream:doctor",
        REDRIVE,
        what="The job `reprocess_dead_letters`",
        note="The keys include the streams that dead letters return to, and no others.",
    ),
    "looker": Role(
        _LOOKED_AT,
        LOOKING,
        _LOOKS,
        "`spark.read`",
        "For the memory of streams, the console and `lag` also use `+memory|usage`; the console and `lag --over` use"
        " `+info`. The console's changes need the rights of their commands.",
    ),
    "exporter": Role(
        _LOOKED_AT,
        LOOKING,
        f"{_LOOKS} info memory|usage",
        note="For all streams of a server, give `+@read +@connection +time -@dangerous +info` on the keys `~*` (`%R~*`"
        " is enough from Redis 7.0 on).",
    ),
    "operator": Role(
        "~orders ~rstream:*:{orders}* ~rstream:begun:* ~rstream:session:*",
        LOOKING,
        f"{_CHANGES} {_LEASE} hgetall xgroup|create xgroup|setid xgroup|createconsumer xgroup|delconsumer"
        " xgroup|destroy xclaim xack",
    ),
}

# Each command that connects, as users of these roles run it: `{id}` is of an entry, `out` is the stream of a writer.
LINES: Mapping[str, tuple[str, ...]] = {
    "looker": (
        "streams", "shards", "show s", "where s {id}", "tail s --last 3", "lag", "lag s --group g", "lag s --over 1s",
        "lag s --max 100 --max-seconds 1000", "pending s", "pending s --group g --entries 3", "top --once",
        "wait s --group g --for 1s", "dead list", "dead show dead", "dead export dead", "export s -", "groups list s",
        "init etl --stream s",
    ),
    "exporter": ("exporter --once",),
    "writer": ("add out n=1", "import x.jsonl out --yes"),
    "looker writer": ("copy s out --yes",),
    "redrive": ("dead redrive dead", "dead redrive dead --limit 1 --yes", "dead purge dead --limit 1 --yes"),
    "operator": (
        "replay s --group g --from earliest --yes", "groups create s --group new --yes", "groups prune s --idle 1d",
        "groups seek s --group g --to latest --yes", "groups claim s --group g --from spark --to bob --yes",
        "groups ack s --group g --consumer spark --last-id 99999999999999-0 --yes", "groups delete s --group g --yes",
    ),
}  # fmt: skip

# Rights that something needs besides those of a role.
MORE: Mapping[str, str] = {
    "`reader` and `writer`, to refuse a server that drops streams when its memory is full": "`+info`; without it a"
    " query cannot see `maxmemory-policy`",
    "`looker`, for `rstream export --with-groups`": "`+multi +exec`",
    "`writer`, for `rstream copy --groups`": "those of `operator` on the target",
    "`operator`, for `rstream trim --acked` and `rstream groups prune --hold`": "`+xtrim +memory|usage`; without the"
    " second the commands show no bytes",
    "`operator`, for `rstream groups release`": "`+xnack`, from Redis 8.8 on; an older server refuses an `ACL SETUSER`"
    " with it",
    "`spark_streams.dead_letters.write`, for a consumer that has nothing else: on its stream, its dead-letter stream"
    " and `rstream:origins:{orders:dead}`": "`+hset +xreadgroup +xack +multi +exec +discard +watch +unwatch +xpending"
    " +xinfo|stream +xadd +xclaim`; the role `reader` includes them",
    "`rstream doctor`, which asks for the rights of the user that it is given": "`+info +config|get +client|info"
    " +command|info +command|docs`; without them it says what it could not ask",
    "a [cluster](../guide/clusters.md)": "`+cluster|slots +cluster|info`; without the second, a node that was cut off"
    " is believed sooner",
    "Sentinel": "`+role`, and for the sentinels' user `+@connection +sentinel +subscribe &*`",
}


def rights_of(role: str) -> list[str]:
    """Return the words of `ACL SETUSER` behind the user's name, without its password."""
    keys, use, more, *_ = ROLES[role]
    commands = sorted({*names_of(use), *more.split()})
    return ["reset", "on", *keys.split(), *(f"+{name}" for name in commands)]


def commands_of(role: str) -> list[str]:
    """Return the commands of `rstream` that run with the rights of a role, and which other role they need."""
    found = list[str]()
    for roles, lines in LINES.items():
        if role in roles.split():
            others = "".join(f" (with `{other}`)" for other in roles.split() if other != role)
            names = dict.fromkeys(" ".join(line.split()[: _words_of_name(line)]) for line in lines)
            found += [f"`{name}`{others}" for name in names]
    return [found[0].replace("`", "`rstream ", 1), *found[1:]] if found else []


def _words_of_name(line: str) -> int:
    return 2 if line.startswith(("dead ", "groups ")) else 1


def _wrapped(words: Iterable[str]) -> list[str]:
    """Return lines of a command of the shell."""
    quoted = [f"'{word}'" if "~" in word else word.replace("|", "\\|") for word in words]
    return textwrap.wrap(" ".join(quoted), 116, break_long_words=False, break_on_hyphens=False)


def print_roles() -> str:
    """Print a section for each role, with the command that creates its user."""
    parts = []
    for name, role in ROLES.items():
        words = rights_of(name)[2:]
        keys, commands = [[word for word in words if word.startswith("+") is first] for first in (False, True)]
        command = [f"redis-cli ACL SETUSER {name} reset on '>PASSWORD'", *_wrapped(keys), *_wrapped(commands)]
        what = ", ".join(filter(None, [role.what, *commands_of(name)]))
        parts += [f"### {name}", f"{what}:", "```sh\n" + " \\\n  ".join(command) + "\n```", *filter(None, [role.note])]
    return "\n\n".join(parts)


def print_more() -> str:
    """Print the table of rights that something needs besides those of a role."""
    rows = [f"| {what} | {rights.replace('|', chr(92) + '|')} |" for what, rights in MORE.items()]
    return "\n".join(["| for | rights |", "|---|---|", *rows])
