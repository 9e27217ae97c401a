"""The users of docs/reference/access.md, as it creates them: what a reader copies is what tests run with."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tools.servers.server import Server

RIGHTS = Path(__file__).resolve().parents[3] / "docs" / "reference" / "access.md"
_BLOCK = re.compile(r"^redis-cli ACL SETUSER (?:.*\\\n)*.*$", re.M)
_NAMES = {"orders:dead": "dead", "orders": "s", "billing": "g", "totals": "out"}


def documented() -> dict[str, list[str]]:
    """By user: the words behind its name, without its password."""
    commands = [shlex.split(block.replace("\\\n", " ")) for block in _BLOCK.findall(RIGHTS.read_text(encoding="utf-8"))]
    return {words[3]: [word for word in words[4:] if not word.startswith(">")] for words in commands}


def rights(user: str, **names: str) -> list[str]:
    """The words of a user for other names than those of the docs: stream, dead, group, out; else those of the tests."""
    given = {"orders": names.get("stream", "s"), "orders:dead": names.get("dead", "dead")}
    given |= {"billing": names.get("group", "g"), "totals": names.get("out", "out")}
    replaced = re.compile("|".join(map(re.escape, _NAMES)))
    return [replaced.sub(lambda found: given[found[0]], word) for word in documented()[user]]


def besides(what: str) -> str:
    """The rights that the table below the users adds for something: `rstream doctor`, `a [cluster]`."""
    found = re.search(rf"^\| {re.escape(what)}[^|]*\| `([^`]+)`", RIGHTS.read_text(encoding="utf-8"), re.M)
    assert found is not None
    return found[1].replace("\\|", "|")


def as_user(server: Server, *words: str) -> Server:
    """The server as a user sees it who has these rights and no others."""
    with server.client() as admin:
        rest = [word for word in words if word not in ("reset", "on")]
        admin.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", *rest)
    return Server("redis", server.url.replace("://", "://limited:pw@"))
