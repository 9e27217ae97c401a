"""Commands that this engine refuses by name, and the replies that clients expect of ACL, FUNCTION, MODULE.

A Redis command that this engine does not implement is an unknown command, as in an older Redis. The error
gives the reason. FUNCTION FLUSH is OK, because there are none.
"""

from __future__ import annotations

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import REFUSED, command
from spark_streams.engine.commands.command_arguments import syntax_error
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.wire_replies import EMPTY_ARRAY, OK, CommandError, Reply, bulk

_REASONS = {
    "it runs no read-only scripts and no functions": "eval_ro evalsha_ro fcall fcall_ro",
    "it has no publish/subscribe": "subscribe psubscribe ssubscribe unsubscribe punsubscribe sunsubscribe publish "
    "spublish pubsub",
    "it has no replicas": "replicaof slaveof sync psync replconf failover",
    "it does not show commands as they run": "monitor",
    "it moves no keys between servers": "migrate",
    "it keeps no sorted sets": "zadd zrange zrangebyscore zrem zcard zscore zincrby zpopmin zpopmax bzpopmin bzpopmax "
    "geoadd geosearch",
    "it has no list commands but LPUSH, LPOP, BLPOP, LRANGE": "rpush lpushx rpushx rpop brpop llen lindex lset linsert "
    "lrem ltrim lpos lmove blmove lmpop blmpop rpoplpush brpoplpush",
    "it has no string commands but SET, GET, MGET, MSET, APPEND, GETRANGE, INCR, INCRBY, DECRBY": "decr getdel getex "
    "getset incrbyfloat lcs msetnx psetex setex setnx setrange strlen substr",
    "it has no such hash command": "hmset hincrby hincrbyfloat hstrlen hrandfield",
    "it has no set commands but SADD, SREM, SISMEMBER, SMEMBERS": "scard smismember spop srandmember sscan smove sdiff "
    "sinter sunion",
    "it has no RENAMENX, only RENAME": "renamenx",
    "it keeps no access times": "touch",
    "it picks no keys at random": "randomkey",
    "it keeps no record of slow commands": "slowlog latency",
    "it has no bit operations": "setbit getbit bitcount bitop bitpos bitfield bitfield_ro",
    "it has no HyperLogLogs": "pfadd pfcount pfmerge",
}
for _reason, _names in _REASONS.items():
    REFUSED.update(dict.fromkeys(_names.encode().split(), _reason.encode()))


@command("asking", 1, "fast")
@command("readonly", 1, "fast loading stale")
@command("readwrite", 1, "fast loading stale")
@command("cluster", -2, "loading")
def cluster(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """ASKING, READONLY, READWRITE, CLUSTER …: this is no cluster."""
    raise CommandError("ERR This instance has cluster support disabled")


@command("function|flush", -2, "write")
def function_flush(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """FUNCTION FLUSH [SYNC|ASYNC]: there are no functions."""
    if len(args) > 3 or (len(args) == 3 and args[2].lower() not in (b"sync", b"async")):
        raise syntax_error()
    return OK


@command("acl|whoami", 2, "loading")
def acl_whoami(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """ACL WHOAMI: there is one user."""
    return bulk(b"default")


@command("module|list", 2)
def module_list(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """MODULE LIST: none."""
    return EMPTY_ARRAY
