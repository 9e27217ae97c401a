"""The named errors of error replies and refused logins, with a remedy in one line.

    WRONGTYPE           the key holds another type
    NOGROUP             the stream or its group is missing
    NOAUTH              the server needs a password, and the URL has none
    WRONGPASS           the user or the password is wrong, or the user is disabled
    MOVED, CROSSSLOT …  the address names one server, which is a node of a cluster
    … exhausted …       the stream has used its last possible ID
    NOPERM              the user has no right to the command, or to a key
    OOM                 the server's memory is full
    anything else       the server's text

None of them contains a part of a login (`str` of an address hides it).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import redis

from spark_streams.base.ids import MAX_ID
from spark_streams.base.pattern import escape
from spark_streams.base.units import binary_size
from spark_streams.connector import errors
from spark_streams.connector.wire.address import Address

# -- the memory of a server: one that has used all of `maxmemory` answers OOM, or evicts keys --------------------------

FULL = "OOM"  # the code of its replies
ASK = ("INFO", "memory")  # a user without +info may not send it
_POLICY = re.compile(rb"^maxmemory_policy:([a-z-]{1,40})\r?$", re.MULTILINE)
_FIELD = re.compile(rb"^(used_memory|maxmemory):(\d{1,19})\r?$", re.MULTILINE)


@dataclass(frozen=True)
class Memory:
    """Bytes in use, and the limit. Both are 0 if the server did not tell them."""

    used: int = 0
    limit: int = 0  # maxmemory; 0: no limit
    policy: str = "noeviction"  # maxmemory-policy

    @classmethod
    def read(cls, reply: object) -> Memory:
        """Return the memory from a reply to ASK; an error reply tells nothing."""
        if not isinstance(reply, bytes):
            return cls()
        numbers = {name: int(digits) for name, digits in _FIELD.findall(reply)}
        policy = _POLICY.search(reply)
        return cls(
            numbers.get(b"used_memory", 0), numbers.get(b"maxmemory", 0), policy[1].decode() if policy else cls.policy
        )

    @property
    def share(self) -> float:
        """Part of the limit that is in use; 0 without a limit."""
        return self.used / self.limit if self.limit else 0.0


def server_full(where: str, memory: Memory) -> errors.ServerFullError:
    """Return the error for a refused command. where: the command and the server."""
    numbers = f" ({binary_size(memory.used)} used of maxmemory {binary_size(memory.limit)})" if memory.limit else ""
    return errors.ServerFullError(
        f"{where}: the server's memory is full{numbers}. Free memory or raise maxmemory: rstream trim --acked lists "
        "entries that no group needs any more, and rstream doctor checks the server",
        FULL,
    )


# -- the errors --------------------------------------------------------------------------------------------------------

EXHAUSTED = "exhausted the last possible ID"  # in the server's text
# NOPERM … to run the 'xgroup|create' command: the same words in Redis 7 and 8 and in Valkey.
_REFUSED_COMMAND = re.compile(r"'([^' ]+)' command")
_TAG = re.compile(r"\{[^}]+\}")
_SPACE = re.compile(r"[ \t-\r\0]")  # of ASCII: ACL SETUSER refuses it in a pattern
REDIRECTIONS = frozenset({"MOVED", "ASK"})
# Words that a message shows: what follows is internal, or a value.
_SHOWN_WORDS = {"ECHO": 1, "SET": 2, "HSET": 2, "SADD": 2, "RESTORE": 2, "XADD": 3}
_UNKNOWN = Memory()
_CONTAINERS = ("XGROUP", "XINFO", "MEMORY")  # their key follows a subcommand


def error_behind(
    address: Address, code: str, text: str, words: Sequence[str], memory: Memory = _UNKNOWN
) -> errors.RStreamError:
    """Return the named error of an error reply. code: its first word; text: all of it; words: the command's; memory:
    of the server, if it is full."""
    where = f"{_shown(words)} at {address}"
    if code == FULL:
        return server_full(where, memory)
    if code == "WRONGTYPE":
        return not_a_stream(address, _key_of(words), words[0])
    if code == "NOGROUP":
        return errors.GroupMissingError(
            f"{where}: the stream or its consumer group is missing ({text}): restore it; a query that is started again "
            "names the command that creates its group at the checkpoint's position"
            + (" (embedded: forgets its streams when it ends)" if address.forgets else "")
        )
    if EXHAUSTED in text:
        return ids_exhausted(address, _key_of(words))
    if code in ("NOAUTH", "WRONGPASS"):
        return login_refused(address, text, code)
    if code == "NOPERM":
        return not_permitted(where, text, words)
    if words[0] == "ECHO" and "unknown command" in text.lower():
        return errors.ServerReplyError(
            f"what answers at {address} holds no streams ({text}), as a Sentinel does: write "
            "redis+sentinel://host:26379/name-of-the-master",
            code,
        )
    if code in REDIRECTIONS | {"CROSSSLOT"} and not address.is_cluster:
        return node_of_a_cluster(address)
    return errors.ServerReplyError(f"{where} was answered with: {text}", code)


def _shown(words: Sequence[str]) -> str:
    """Return the part of a command that a message shows."""
    return " ".join(words[: _SHOWN_WORDS.get(words[0], 4)])[:200]


def not_a_stream(address: Address, key: str, command: str) -> errors.WrongKeyTypeError:
    """Return the error for a key of another type. command: the command that was, or would be, refused for it."""
    return errors.WrongKeyTypeError(
        f"key {key!r} at {address} holds another type than a stream; name another key ({command})"
    )


def ids_exhausted(address: Address, stream: str, entries: str = "more entries") -> errors.IdsExhaustedError:
    """Return the error for a stream that can take no more entries. entries: which it was to take."""
    return errors.IdsExhaustedError(
        f"stream {stream!r} at {address} cannot take {entries}: its last ID is {MAX_ID}, the highest possible one. "
        "Stop its readers and writers, and rename it (RENAME): its entries and groups are kept under the new name"
    )


def node_of_a_cluster(address: Address) -> errors.UnsupportedError:
    """Return the error for a single server's address that is a node of a cluster."""
    return errors.UnsupportedError(
        f"the server at {address} is a node of a cluster, and other nodes hold some of the keys: write "
        "redis+cluster:// instead of redis:// (rediss+cluster:// instead of rediss://), "
        f"{url_of_cluster(str(address))}; or, if a service has one address for all its shards: one hash tag in the "
        "names of streams that are written together, as orders and {orders}:dead"
    )


def url_of_cluster(address: str) -> str:
    """Return the URL of a node's cluster, which has no number of a database."""
    head, question, path = address.replace("://", "+cluster://", 1).partition("?")
    return head.removesuffix("/0") + question + path


def not_permitted(where: str, text: str, words: Sequence[str]) -> errors.NotPermittedError:
    """Return the error for a missing right. where: the command and the server."""
    action, right = missing_right(text, words)
    return errors.NotPermittedError(
        f"{where}: the url's user has no right to {action} ({text}); give it with ACL SETUSER USER "
        f"{shlex.quote(right)} (rstream help access lists all rights that are needed)",
        "NOPERM",
        right,
    )


def missing_right(text: str, words: Sequence[str]) -> tuple[str, str]:
    """Return the refused action and the ACL SETUSER rule that allows it (`+xadd`, `~orders`), from a NOPERM."""
    match = _REFUSED_COMMAND.search(text)
    if match is not None:
        command = match[1]
        return f"run {command.replace('|', ' ').upper()}", f"+{command.lower()}"
    key = _key_of(words)
    if not key:
        return "use a key of this transaction", "~key"
    pattern, tag = escape(key), _TAG.search(key)
    if key.startswith("rstream:"):  # all keys of this product, of the same stream if the key belongs to one
        pattern = f"rstream:*:{escape(tag[0])}*" if tag else "rstream:*"
    return f"use key {key!r}", f"~{_SPACE.sub('?', pattern)}"


def reading_error(where: str, error: errors.ServerReplyError, stream: str) -> errors.ServerReplyError:
    """Return the error for a reply that is no list of entries."""
    if error.code == "NOPERM":
        return not_permitted(where, error.message, ("XRANGE", stream))
    return errors.ServerReplyError(f"{where}: {error.message}", error.code)


def login_error(address: Address, error: redis.RedisError) -> errors.ServerReplyError:
    """Return the error for a server that answers and refuses the connection."""
    text = str(error).rstrip(".")
    if isinstance(error, redis.exceptions.NoPermissionError):
        return not_permitted(f"connecting to {address}", f"NOPERM {text}", ())
    if not isinstance(error, redis.AuthenticationError):
        return errors.ServerReplyError(f"{address} refused the connection: {text}")
    if "called without any password" in text or "no password is set" in text:
        hint = (
            "the url gives one: leave it out of the url"
            if address.identity is None
            else f"one is given {address.login}"
        )
        return errors.LoginError(f"the server at {address} has no password, and {hint}")
    return login_refused(address, text, "NOAUTH" if "required" in text else "WRONGPASS")


def login_refused(address: Address, text: object, code: str = "WRONGPASS") -> errors.LoginError:
    """Return the error for a refused or missing login. text: the server's words."""
    if code == "NOAUTH" and address.identity is None:
        return errors.LoginError(
            f"the server at {address} needs a password: write it into the url (or RSTREAM_URL), "
            f"{_with_login(address)}, without a user's name for the default user, or give option passwordFile",
            code,
        )
    reason = str(text).removeprefix("WRONGPASS ").rstrip(".")
    hint = "" if address.identity else "; in a password write @ : / ? # % as %40 %3A %2F %3F %23 %25"
    return errors.LoginError(
        f"the server at {address} refuses the user and password {address.login} ({reason}): check both{hint}", code
    )


def remedy(url: str, why: str) -> str:
    """Return a remedy for a failed connection. url: one server. why: the cause, which is shown elsewhere."""
    if url.startswith("rediss:"):
        if "certificate is not valid for" in why:
            return (
                "write the host in the url as its certificate names it, or give the server a certificate for this "
                "host (in a cluster, or behind sentinels, for each host that they announce)"
            )
        if "certificate verify failed" in why:
            return "name the authority of its certificate in the url: ?ssl_ca_certs=/path/to/ca.pem"
        if "No such file" in why:
            return "check that the files of ssl_ca_certs, ssl_certfile and ssl_keyfile are on every machine with a task"
        if "EOF" in why or "certificate required" in why or "reset" in why:
            return (
                "it may want a client's certificate (ssl_certfile=/path/to/client.pem&ssl_keyfile=/path/to/client.key "
                "in the url), or speak no TLS there (redis://)"
            )
    return "start one there, or set url (or RSTREAM_URL)"


def _with_login(address: Address) -> str:
    """Return the address with placeholders for user and password."""
    scheme, slashes, location = str(address).partition("?")[0].partition("://")
    return f"{scheme}://user:password@{location.rpartition('@')[2]}" if slashes else "redis://user:password@host:port"


def _key_of(words: Sequence[str]) -> str:
    """Return a command's first key; "" if it has none."""
    if not words or words[0] in ("EXEC", "MULTI"):
        return ""
    place = words.index("STREAMS") + 1 if "STREAMS" in words else 2 if words[0] in _CONTAINERS else 1
    return words[place] if place < len(words) else ""
