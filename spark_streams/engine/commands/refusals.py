"""Commands that this engine refuses by name, and the answers that clients expect of ACL, SCRIPT, FUNCTION, SLOWLOG …

A command of Redis that this engine does not have is an unknown command, as in an older Redis. The error
gives the reason. FLUSH of scripts and functions is OK, because there are none.
"""

from __future__ import annotations

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import COMMANDS, REFUSED, command, every_command
from spark_streams.engine.commands.arguments import integer_of, syntax_error
from spark_streams.engine.core import REDIS_VERSION, Engine
from spark_streams.engine.resp.replies import (
    EMPTY_ARRAY,
    OK,
    Array,
    CommandError,
    Reply,
    Verbatim,
    bulk,
    bulks,
    integer,
)

_REASONS = {
    "it runs no scripts": "eval evalsha eval_ro evalsha_ro fcall fcall_ro",
    "it has no publish/subscribe": "subscribe psubscribe ssubscribe unsubscribe punsubscribe sunsubscribe publish "
    "spublish pubsub",
    "it has no replicas": "replicaof slaveof sync psync replconf failover",
    "it does not show commands as they run": "monitor",
    "it moves no keys between servers": "migrate",
    "it keeps no sorted sets": "zadd zrange zrangebyscore zrem zcard zscore zincrby zpopmin zpopmax bzpopmin bzpopmax "
    "geoadd geosearch",
    "it has no list commands but LPUSH, LPOP, BLPOP, LRANGE": "rpush lpushx rpushx rpop brpop llen lindex lset linsert "
    "lrem ltrim lpos lmove blmove lmpop blmpop rpoplpush brpoplpush",
    "it moves no keys between databases": "move",
    "it has no bit operations": "setbit getbit bitcount bitop bitpos bitfield bitfield_ro",
    "it has no HyperLogLogs": "pfadd pfcount pfmerge",
}
for _reason, _names in _REASONS.items():
    REFUSED.update(dict.fromkeys(_names.encode().split(), _reason.encode()))


@command("cluster", -2, "loading")
def cluster(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """CLUSTER …: this is no cluster."""
    raise CommandError("ERR This instance has cluster support disabled")


def _flush(args: list[bytes]) -> Reply:
    if len(args) > 3 or (len(args) == 3 and args[2].lower() not in (b"sync", b"async")):
        raise syntax_error()
    return OK


@command("script|flush", -2)
def script_flush(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SCRIPT FLUSH [SYNC|ASYNC]: there are no scripts."""
    return _flush(args)


@command("script|exists", -3)
def script_exists(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SCRIPT EXISTS sha1 …: none does."""
    return Array([integer(0)] * (len(args) - 2))


@command("function|flush", -2, "write")
def function_flush(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """FUNCTION FLUSH [SYNC|ASYNC]: there are no functions."""
    return _flush(args)


@command("function|list", -2)
def function_list(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """FUNCTION LIST: none."""
    return EMPTY_ARRAY


@command("slowlog|get", -2, "loading")
def slowlog_get(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SLOWLOG GET [n]: slowlog-log-slower-than is -1, so it is empty."""
    if len(args) > 3 or (len(args) == 3 and integer_of(args[2]) < -1):
        raise CommandError("ERR count should be greater than or equal to -1")
    return EMPTY_ARRAY


@command("slowlog|len", 2, "loading")
def slowlog_len(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SLOWLOG LEN"""
    return integer(0)


@command("slowlog|reset", 2, "loading")
def slowlog_reset(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SLOWLOG RESET"""
    return OK


@command("latency|latest", 2, "loading")
def latency_latest(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """LATENCY LATEST: latency-monitor-threshold is 0, so there are no events."""
    return EMPTY_ARRAY


@command("latency|history", 3, "loading")
def latency_history(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """LATENCY HISTORY event"""
    return EMPTY_ARRAY


@command("latency|reset", -2, "loading")
def latency_reset(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """LATENCY RESET [event …]"""
    return integer(0)


@command("acl|whoami", 2, "loading")
def acl_whoami(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """ACL WHOAMI: there is one user."""
    return bulk(b"default")


@command("acl|users", 2, "loading")
def acl_users(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """ACL USERS"""
    return Array([bulk(b"default")])


@command("acl|list", 2, "loading")
def acl_list(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """ACL LIST: the default user, who may do everything; its password as a hash."""
    import hashlib  # loads OpenSSL

    password = engine.config.text("requirepass")
    how = "#" + hashlib.sha256(password.encode()).hexdigest() if password else "nopass"
    return Array([bulk(f"user default on {how} ~* &* +@all".encode())])


_CATEGORIES = ("keyspace", "read", "write", "set", "list", "hash", "string", "stream", "admin", "fast", "slow",
               "blocking", "connection", "transaction")  # fmt: skip
_BY_FLAG = {"read": "readonly", "write": "write", "fast": "fast", "blocking": "blocking"}


@command("acl|cat", -2, "loading")
def acl_cat(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """ACL CAT [category]: of the categories, those that the command table knows can be listed."""
    if len(args) == 2:
        return Array(bulks(name.encode() for name in _CATEGORIES))
    wanted = args[2].decode("utf-8", "replace").lower()
    if wanted not in _CATEGORIES:
        raise CommandError(b"ERR Unknown category '%b'" % args[2])
    if wanted == "stream":
        return Array(bulks(name for name in COMMANDS if name.startswith(b"x")))
    if wanted == "slow":
        specs = [spec for spec in every_command() if "fast" not in spec.flags and spec.handler is not None]
    elif wanted in _BY_FLAG:
        specs = [spec for spec in every_command() if _BY_FLAG[wanted] in spec.flags]
    else:
        raise CommandError(f"ERR this engine cannot list the commands of '{wanted}'")
    return Array(bulks(spec.name.encode() for spec in specs))


@command("lolwut", -1, "fast")
def lolwut(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """LOLWUT: a wave, and the version."""
    wave = "".join("~-_.._-"[at % 7] for at in range(42))
    return Verbatim(f"{wave}\n\nRedis ver. {REDIS_VERSION}\n".encode())


@command("module|list", 2)
def module_list(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """MODULE LIST: none."""
    return EMPTY_ARRAY
