"""INFO, COMMAND, CONFIG: information about the server, and its settings."""

from __future__ import annotations

import os
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterable

from spark_streams.base.version import __version__
from spark_streams.engine.client import Client
from spark_streams.engine.command_table import COMMANDS, Command, command, every_command, keys_of
from spark_streams.engine.commands.command_arguments import any_pattern_of, syntax_error
from spark_streams.engine.core import REDIS_VERSION, Engine
from spark_streams.engine.resp import wire_replies as replies
from spark_streams.engine.store.keyspace import peak, resident
from spark_streams.engine.store.stream import StoredStream


def _server(engine: Engine) -> dict[str, object]:
    up = (engine.now - engine.started) // 1000
    return {
        "redis_version": REDIS_VERSION,
        "rstream_version": __version__,
        "rstream_emulates": "streams of redis_version; of other types and of the server only what stream clients use",
        "redis_mode": "standalone",
        "os": f"{os.uname().sysname} {os.uname().release} {os.uname().machine}" if hasattr(os, "uname") else os.name,
        "arch_bits": 64 if sys.maxsize > 2**32 else 32,
        "process_id": os.getpid(),
        "run_id": engine.run_id,
        "tcp_port": engine.config.number("port") or engine.config.number("tls-port"),
        "uptime_in_seconds": up,
        "uptime_in_days": up // 86400,
        "executable": sys.executable,
    }


def _clients(engine: Engine) -> dict[str, object]:
    return {
        "connected_clients": len(engine.clients),
        "maxclients": engine.config.number("maxclients"),
        "blocked_clients": engine.waiters.count,
        "watching_clients": sum(bool(client.watching) for client in engine.clients.values()),
        "clients_in_timeout_table": engine.waiters.timed,
        "total_watched_keys": sum(len(db.watched) for db in engine.databases),
        "total_blocking_keys": sum(len(db.waiting) for db in engine.databases),
        "total_blocking_keys_on_nokey": sum(
            any(waiter.needs_key for waiter in queue) for db in engine.databases for queue in db.waiting.values()
        ),
    }


def _memory(engine: Engine) -> dict[str, object]:
    used, rss, limit = engine.memory.used(), resident(), engine.memory.limit
    return {
        "used_memory": used,
        "used_memory_human": human(used),
        "used_memory_rss": rss,
        "used_memory_rss_human": human(rss),
        "used_memory_peak": peak(),
        "used_memory_peak_human": human(peak()),
        "used_memory_startup": 0,  # only rss and peak include the interpreter
        "used_memory_dataset": engine.memory.dataset(),
        "mem_clients_normal": engine.memory.buffers(),
        "maxmemory": limit,
        "maxmemory_human": human(limit),
        "maxmemory_policy": "noeviction",
        "mem_fragmentation_ratio": f"{rss / (engine.memory.base + used):.2f}",
        "mem_allocator": "python",
    }


def human(count: int) -> str:
    """Return bytes in Redis' human-readable form."""
    value, unit = float(count), "B"
    for larger in "KMGT":
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count}B" if unit == "B" else f"{value:.2f}{unit}"


def _persistence(engine: Engine) -> dict[str, object]:
    return {"loading": int(engine.loading), **engine.persistence.info()}


def _stats(engine: Engine) -> dict[str, object]:
    return {
        "total_connections_received": engine.connections_received,
        "total_commands_processed": engine.commands_processed,
        "rejected_connections": engine.connections_rejected,
        "expired_keys": engine.keys_expired,
        "evicted_keys": 0,
        "total_error_replies": engine.error_replies,
    }


def _replication(engine: Engine) -> dict[str, object]:
    return {"role": "master", "connected_slaves": 0, "master_repl_offset": 0}


def _cpu(engine: Engine) -> dict[str, object]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {"used_cpu_sys": f"{usage.ru_stime:.6f}", "used_cpu_user": f"{usage.ru_utime:.6f}"}


def _commandstats(engine: Engine) -> dict[str, object]:
    return {
        f"cmdstat_{spec.name}": f"calls={spec.calls},usec={spec.nanoseconds // 1000},"
        f"usec_per_call={spec.nanoseconds / 1000 / max(spec.calls, 1):.2f},rejected_calls={spec.rejected},"
        f"failed_calls={spec.failed}"
        for spec in every_command()
        if spec.calls or spec.rejected
    }


def _errorstats(engine: Engine) -> dict[str, object]:
    return {f"errorstat_{name}": f"count={count}" for name, count in engine.errors.items()}


def _cluster(engine: Engine) -> dict[str, object]:
    return {"cluster_enabled": 0}


def _keyspace(engine: Engine) -> dict[str, object]:
    return {
        f"db{db.number}": f"keys={len(db.values)},expires={len(db.expires)},avg_ttl=0"
        for db in engine.databases
        if db.keys()
    }


def _keysizes(engine: Engine) -> dict[str, object]:
    """How many streams of each database have how many entries: 4=2 counts two streams of 4 to 7 entries (Redis 8.12).
    Redis also has lines of other types."""
    return {
        f"db{db.number}_distrib_streams_items": _histogram(value.length for value in streams)
        for db in engine.databases
        if (streams := [value for value in db.values.values() if type(value) is StoredStream])
    }


def _histogram(sizes: Iterable[int]) -> str:
    counts = sorted(Counter(map(int.bit_length, sizes)).items())
    return ",".join(f"{_power(bits)}={count}" for bits, count in counts)


def _power(bits: int) -> str:
    """Return the largest power of two of this many bits as Redis writes it, with 1,024 as 1K; 0 of none."""
    units, rest = divmod(bits - 1, 10)
    return f"{1 << rest}{' KMGTP'[units].strip()}" if bits else "0"


_SECTIONS: dict[str, Callable[[Engine], dict[str, object]]] = {
    "Server": _server,
    "Clients": _clients,
    "Memory": _memory,
    "Persistence": _persistence,
    "Stats": _stats,
    "Replication": _replication,
    "CPU": _cpu,
    "Commandstats": _commandstats,
    "Errorstats": _errorstats,
    "Cluster": _cluster,
    "Keyspace": _keyspace,
    "Keysizes": _keysizes,
}


@command("info", -1, "loading stale")
def info(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """INFO [section …]"""
    sections = {arg.decode("utf-8", "replace").lower() for arg in args[1:]} or {"default"}
    everything = bool(sections & {"all", "everything"})
    parts = []
    for title, fill in _SECTIONS.items():
        if everything or title.lower() in sections or ("default" in sections and title != "Commandstats"):
            lines = "".join(f"{name}:{value}\r\n" for name, value in fill(engine).items())
            parts.append(f"# {title}\r\n{lines}")
    return replies.Verbatim("\r\n".join(parts).encode())


def _describe(spec: Command) -> replies.Reply:
    arity = spec.arity if spec.handler is not None else -2
    subcommands = [_describe(sub) for sub in spec.subcommands.values()]
    return replies.Array(
        [
            replies.bulk(spec.name.encode()),
            replies.integer(arity),
            replies.SetOf([replies.simple(flag) for flag in sorted(spec.flags - {"intransaction", "effect"})]),
            *(replies.integer(position) for position in spec.keys),
            replies.SetOf([]),
            replies.Array([]),
            replies.Array([]),
            replies.Array(subcommands),
        ]
    )


def _named(name: bytes) -> Command | None:
    parent, bar, child = name.lower().partition(b"|")
    spec = COMMANDS.get(parent)
    return spec.subcommands.get(child) if spec is not None and bar else spec


def _doc(spec: Command) -> replies.Reply:
    text = ((spec.handler.__doc__ if spec.handler is not None else None) or spec.name.upper()).split("\n")[0]
    pairs: list[tuple[replies.Reply, replies.Reply]] = [
        (replies.bulk(b"summary"), replies.bulk(text.encode())),
        (replies.bulk(b"since"), replies.bulk(b"1.0.0")),
        (replies.bulk(b"group"), replies.bulk(b"stream" if spec.name.startswith("x") else b"generic")),
    ]
    if spec.subcommands:
        subs = [(replies.bulk(sub.name.encode()), _doc(sub)) for sub in spec.subcommands.values()]
        pairs.append((replies.bulk(b"subcommands"), replies.Map(subs)))
    return replies.Map(pairs)


def command_root(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """COMMAND [COUNT | DOCS [name …] | INFO [name …] | LIST | GETKEYS command …]"""
    if len(args) == 1:
        return replies.Array([_describe(spec) for spec in COMMANDS.values()])
    sub, names = args[1].lower(), args[2:]
    if sub == b"count" and not names:
        return replies.integer(len(COMMANDS))
    if sub == b"info":
        specs = [_named(name) for name in names] if names else list(COMMANDS.values())
        return replies.Array([replies.NIL_ARRAY if spec is None else _describe(spec) for spec in specs])
    if sub == b"docs":
        named_specs = [(name, _named(name)) for name in names or COMMANDS]
        return replies.Map([(replies.bulk(name.lower()), _doc(spec)) for name, spec in named_specs if spec is not None])
    if sub == b"list" and not names:
        return replies.Array(replies.bulks(COMMANDS))
    if sub == b"getkeys" and names:
        return _get_keys(engine, names)
    raise replies.CommandError(b"ERR unknown subcommand '%b'. Try COMMAND HELP." % args[1][:128])


def _get_keys(engine: Engine, args: list[bytes]) -> replies.Reply:
    spec = _named(args[0])
    if spec is not None and spec.subcommands and len(args) > 1:
        spec = spec.subcommands.get(args[1].lower())
    if spec is None:
        raise replies.CommandError("ERR Invalid command specified")
    if spec.name in ("xread", "xreadgroup"):
        index = next((i for i, arg in enumerate(args) if arg.lower() == b"streams"), len(args))
        stream_args = args[index + 1 :]
        return replies.Array(replies.bulks(stream_args[: len(stream_args) // 2]))
    keys = keys_of(spec, args)
    if not keys:
        raise replies.CommandError("ERR The command has no key arguments")
    return replies.Array(replies.bulks(keys))


command("command", -1, "loading stale")(command_root)


@command("config|get", -3, "loading")
def config_get(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """CONFIG GET pattern …"""
    settings = engine.config.get(any_pattern_of([arg.lower() for arg in args[2:]]))
    return replies.Map(
        [(replies.bulk(name.encode()), replies.bulk(value.encode())) for name, value in settings.items()]
    )


@command("config|set", -4, "loading")
def config_set(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """CONFIG SET name value …"""
    if len(args) % 2:
        raise syntax_error()
    texts = [arg.decode("utf-8", "replace") for arg in args[2:]]
    engine.config.set([(name.lower(), value) for name, value in zip(texts[::2], texts[1::2], strict=True)])
    return replies.OK


@command("config|resetstat", 2, "loading")
def config_resetstat(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """CONFIG RESETSTAT"""
    for spec in every_command():
        spec.calls = spec.rejected = spec.failed = spec.nanoseconds = 0
    engine.errors.clear()
    engine.error_replies = engine.commands_processed = engine.connections_received = engine.connections_rejected = 0
    engine.keys_expired = 0
    return replies.OK
