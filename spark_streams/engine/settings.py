"""All options as a table, with the names of redis.conf: type, default and one line of help.

The command line, the configuration file, `--help`, CONFIG GET and CONFIG SET are derived from it. An option that this
engine does not implement is an error; no option is accepted and ignored.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import NamedTuple

from spark_streams.engine.resp.request_parser import RequestLimits
from spark_streams.engine.resp.wire_replies import CommandError
from spark_streams.engine.store.node_limits import NodeLimits
from spark_streams.engine.store.remembered_messages import MAX_DURATION, MAX_SIZE

PASSWORD_VARIABLE = "RSTREAM_ENGINE_PASSWORD"  # environment variable of `rstream serve`

_UNITS = {"": 1, "b": 1, "k": 1000, "kb": 1024, "m": 1000**2, "mb": 1024**2, "g": 1000**3, "gb": 1024**3}
_MEMORY = re.compile(r"([0-9]{1,19})([kmg]?b?)", re.IGNORECASE)
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


class SettingError(ValueError):
    """A value that an option cannot have. The text gives the reason, in Redis' words if Redis has the option."""


class SettingKind(NamedTuple):
    """How an option's text is read and shown."""

    read: Callable[[str], object]
    show: Callable[[object], str] = str


def number(low: int, high: int) -> SettingKind:
    """A whole number."""

    def read(text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise SettingError("argument couldn't be parsed into an integer")
        return _within(int(text), low, high)

    return SettingKind(read)


def memory(low: int = 0) -> SettingKind:
    """A number of bytes: `100mb`."""
    return SettingKind(lambda text: _within(read_memory(text), low, _LONG_MAX))


def read_memory(text: str) -> int:
    """Bytes, with a unit or without. Raises SettingError."""
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise SettingError("argument must be a memory value")
    return int(match[1]) * _UNITS[match[2].lower()]


def _within(value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise SettingError(f"argument must be between {low} and {high} inclusive")
    return value


def one_of(*choices: str) -> SettingKind:
    """One of several words."""

    def read(text: str) -> str:
        if text.lower() not in choices:
            raise SettingError("argument(s) must be one of the following: " + ", ".join(choices))
        return text.lower()

    return SettingKind(read)


def _read_flag(text: str) -> bool:
    if text.lower() not in ("yes", "no"):
        raise SettingError("argument must be 'yes' or 'no'")
    return text.lower() == "yes"


def _read_mode(text: str) -> int:
    if not re.fullmatch(r"[0-7]{1,4}", text):
        raise SettingError("argument couldn't be parsed into an integer")
    return int(text, 8)


class OutputLimit(NamedTuple):
    """Unsent bytes above which a client is closed: immediately (hard), or after some seconds (soft). 0: no limit."""

    hard: int = 0
    soft: int = 0
    seconds: int = 0


OutputLimits = dict[str, OutputLimit]
NO_LIMITS: OutputLimits = {
    "normal": OutputLimit(),
    "slave": OutputLimit(256 << 20, 64 << 20, 60),
    "pubsub": OutputLimit(32 << 20, 8 << 20, 60),
}


def _read_limits(text: str) -> OutputLimits:
    words = text.split()
    if not words or len(words) % 4:
        raise SettingError("Wrong number of arguments in buffer limit configuration.")
    limits = {}
    for name, hard, soft, seconds in zip(words[::4], words[1::4], words[2::4], words[3::4], strict=True):
        kind = "slave" if name.lower() == "replica" else name.lower()
        if kind not in NO_LIMITS:
            raise SettingError("Invalid client class specified in buffer limit configuration.")
        if not (_MEMORY.fullmatch(hard) and _MEMORY.fullmatch(soft) and seconds.isdigit()):
            raise SettingError("Error in hard, soft or soft_seconds setting in buffer limit configuration.")
        limits[kind] = OutputLimit(read_memory(hard), read_memory(soft), int(seconds))
    return limits


def _show_limits(value: object) -> str:
    assert isinstance(value, dict)
    return " ".join(f"{name} {limit.hard} {limit.soft} {limit.seconds}" for name, limit in value.items())


def _read_file_name(text: str) -> str:
    if not text or "/" in text or "\0" in text:
        raise SettingError("appendfilename can't be a path, just a filename")
    return text


def _read_text(text: str) -> str:
    if "\0" in text:
        raise SettingError("argument contains a zero byte")
    return text


TEXT = SettingKind(_read_text)
FILE_NAME = SettingKind(_read_file_name)
FLAG = SettingKind(_read_flag, lambda value: "yes" if value else "no")
MODE = SettingKind(_read_mode, lambda value: f"{value:o}")
LIMITS = SettingKind(_read_limits, _show_limits)


class Setting(NamedTuple):
    """One setting. If `help` is empty, CONFIG GET shows it, and it cannot have another value."""

    name: str
    kind: SettingKind
    default: str
    group: str = ""
    help: str = ""
    metavar: str = ""
    while_running: bool = False  # CONFIG SET may change it
    immutable: bool = False  # Redis cannot change it, either


def _table(*options: Setting) -> dict[str, Setting]:
    return {option.name: option for option in options}


ADDRESS, TLS, ACCESS, LIMITED, STREAMS, PERSISTENCE, PROCESS = (
    "addresses",
    "TLS",
    "access",
    "limits (changeable with CONFIG SET)",
    "streams (changeable with CONFIG SET)",
    "persistence",
    "the process",
)

OPTIONS: dict[str, Setting] = _table(
    Setting("port", number(0, 65535), "6379", ADDRESS, "TCP port; 0: none, as with a --unixsocket or --tls-port", "N"),
    Setting("bind", TEXT, "127.0.0.1", ADDRESS, "addresses to listen on", "ADDRESS ..."),
    Setting("unixsocket", TEXT, "", ADDRESS, "listen on this Unix socket, too", "PATH", immutable=True),
    Setting("unixsocketperm", MODE, "600", ADDRESS, "mode of the Unix socket", "OCTAL", immutable=True),
    Setting("tcp-backlog", number(0, _INT_MAX), "511", ADDRESS, "connections that may wait to be accepted", "N",
           immutable=True),
    Setting("tls-port", number(0, 65535), "0", TLS, "TCP port for TLS; 0 for none", "N"),
    Setting("tls-cert-file", TEXT, "", TLS, "the server's certificate, PEM", "FILE"),
    Setting("tls-key-file", TEXT, "", TLS, "its private key, PEM", "FILE"),
    Setting("tls-key-file-pass", TEXT, "", TLS, "password of the private key", "TEXT"),
    Setting("tls-ca-cert-file", TEXT, "", TLS, "certificate authorities that sign clients' certificates, PEM", "FILE"),
    Setting("tls-auth-clients", one_of("no", "yes", "optional"), "yes", TLS, "whether clients need a certificate",
           "yes|no|optional"),
    Setting("requirepass", TEXT, "", ACCESS, "the default user's password; none: no login needed", "PASSWORD",
           while_running=True),
    Setting("protected-mode", FLAG, "yes", ACCESS, "without a password, refuse clients from other machines", "yes|no",
           while_running=True),
    Setting("maxclients", number(1, 2**32 - 1), "10000", ACCESS, "clients at the same time", "N", while_running=True),
    Setting("timeout", number(0, _INT_MAX), "0", ACCESS, "close clients after this idle time; 0: never", "SECONDS",
           while_running=True),
    Setting("tcp-keepalive", number(0, _INT_MAX), "300", ACCESS, "probe idle connections after this time; 0: never",
           "SECONDS", while_running=True),
    Setting("maxmemory", memory(), "0", LIMITED, "refuse writes above this data size (no eviction); 0: no limit",
           "BYTES", while_running=True),
    Setting("client-output-buffer-limit", LIMITS, "normal 0 0 0", LIMITED,
           "close clients with this many unsent bytes: immediately, or after some seconds", "CLASS HARD SOFT SECONDS",
           while_running=True),
    Setting("client-query-buffer-limit", memory(1 << 20), "1gb", LIMITED, "most bytes of an unfinished request",
            "BYTES",
           while_running=True),
    Setting("proto-max-bulk-len", memory(1 << 20), "512mb", LIMITED, "most bytes of one argument", "BYTES",
           while_running=True),
    Setting("stream-node-max-entries", number(0, _LONG_MAX), "100", STREAMS,
           "entries in a node; ~ trims whole nodes; 0: no limit",
           "N", while_running=True),
    Setting("stream-node-max-bytes", memory(), "4096", STREAMS, "bytes in a node; 0: no limit", "BYTES",
           while_running=True),
    Setting("stream-idmp-duration", number(1, MAX_DURATION), "100", STREAMS,
           "seconds for which a new stream remembers idempotent messages", "SECONDS", while_running=True),
    Setting("stream-idmp-maxsize", number(1, MAX_SIZE), "100", STREAMS,
           "messages of one producer that a new stream remembers", "N", while_running=True),
    Setting("appendonly", FLAG, "no", PERSISTENCE, "write all changes to a file; load it at the start", "yes|no",
           while_running=True),
    Setting("appendfsync", one_of("always", "everysec", "no"), "everysec", PERSISTENCE,
           "flush to disk: before each reply, every second in the background, never", "always|everysec|no",
           while_running=True),
    Setting("appendfilename", FILE_NAME, "appendonly.aof", PERSISTENCE, "the file's name in dir", "NAME",
           immutable=True),
    Setting("aof-load-truncated", FLAG, "yes", PERSISTENCE, "after a crash, cut off an unfinished end; no: refuse it",
           "yes|no", while_running=True),
    Setting("auto-aof-rewrite-percentage", number(0, _INT_MAX), "100", PERSISTENCE,
           "rewrite the file after it has grown by this percentage since the last rewrite; 0: never", "N",
           while_running=True),
    Setting("auto-aof-rewrite-min-size", memory(), "64mb", PERSISTENCE, "smallest file that is rewritten", "BYTES",
           while_running=True),
    Setting("dir", TEXT, "", PROCESS, "working directory", "PATH"),
    Setting("logfile", TEXT, "", PROCESS, "log file; none: standard error", "FILE", immutable=True),
    Setting("loglevel", one_of("debug", "verbose", "notice", "warning", "nothing"), "notice", PROCESS, "what is logged",
           "debug|verbose|notice|warning|nothing", while_running=True),
    Setting("enable-debug-command", one_of("no", "yes", "local"), "no", PROCESS,
           "who may run DEBUG, which moves the clock for tests", "no|yes|local", immutable=True),
    # Options with only one possible value.
    Setting("save", TEXT, ""),
    Setting("aof-use-rdb-preamble", FLAG, "no"),
    Setting("maxmemory-policy", TEXT, "noeviction"),
    Setting("databases", TEXT, "16", immutable=True),
    Setting("cluster-enabled", FLAG, "no", immutable=True),
    Setting("daemonize", FLAG, "no", immutable=True),
    Setting("io-threads", TEXT, "1", immutable=True),
    Setting("slowlog-log-slower-than", TEXT, "-1"),
    Setting("latency-monitor-threshold", TEXT, "0"),
    Setting("notify-keyspace-events", TEXT, ""),
)  # fmt: skip

# -- The current settings: read by name, listed by CONFIG GET, changed by CONFIG SET (all or none) ---------------------

# Code that depends on a setting reads it (`number`, `flag`, `text`), or registers a callback (`on_change`) so that it
# needs no lookup while commands run.


class Config:
    """The current value of every option."""

    def __init__(self, limits: NodeLimits) -> None:
        self._limits = limits
        self.requests = RequestLimits()  # limits of authenticated clients; the parsers hold this object
        self.output: OutputLimit = NO_LIMITS["normal"]
        self._values: dict[str, object] = {name: option.kind.read(option.default) for name, option in OPTIONS.items()}
        self._values["client-output-buffer-limit"] = dict(NO_LIMITS)
        self._callbacks: dict[str, list[Callable[[], None]]] = {}

    def number(self, name: str) -> int:
        """Return a number, or a number of bytes."""
        value = self._values[name]
        assert isinstance(value, int)
        return value

    def flag(self, name: str) -> bool:
        """Return a yes-or-no option."""
        return bool(self._values[name])

    def text(self, name: str) -> str:
        """Return a text, or the selected choice."""
        return str(self._values[name])

    def on_change(self, name: str, callback: Callable[[], None]) -> None:
        """Call `callback` now and after each change of the option."""
        self._callbacks.setdefault(name, []).append(callback)
        callback()

    def start_with(self, name: str, text: str) -> None:
        """Set an option from the command line or the configuration file. Raises SettingError."""
        option = OPTIONS.get(name)
        if option is None:
            raise SettingError("no such option")
        value = option.kind.read(text)
        if not option.help and value != self._values[name]:
            raise SettingError(f"this engine supports only '{option.kind.show(self._values[name])}'")
        self._apply({name: value})

    def fill(self, name: str, value: object) -> None:
        """Store a value that is determined at start (the free port, the directory)."""
        self._values[name] = value

    def get(self, selected: Callable[[bytes], bool]) -> dict[str, str]:
        """Return the settings whose names are selected."""
        return {
            name: option.kind.show(self._values[name]) for name, option in OPTIONS.items() if selected(name.encode())
        }

    def set(self, pairs: list[tuple[str, str]]) -> None:
        """Change settings, all or none. Raises CommandError."""
        fresh: dict[str, object] = {}
        name = ""
        for name, text in pairs:
            option = OPTIONS.get(name)
            if option is None:
                raise CommandError(f"ERR Unknown option or number of arguments for CONFIG SET - '{name}'")
            try:
                if name in fresh:
                    raise SettingError("duplicate parameter")
                fresh[name] = self._changed(option, text)
            except SettingError as problem:
                raise CommandError(
                    f"ERR CONFIG SET failed (possibly related to argument '{name}') - {problem}"
                ) from None
        before = {name: self._values[name] for name in fresh}
        try:
            self._apply(fresh)
        except SettingError as problem:
            self._apply(before)
            raise CommandError(f"ERR CONFIG SET failed (possibly related to argument '{name}') - {problem}") from None

    def _changed(self, option: Setting, text: str) -> object:
        if option.while_running:
            return option.kind.read(text)
        if option.immutable:
            raise SettingError("can't set immutable config")
        with contextlib.suppress(SettingError):
            if option.kind.read(text) == self._values[option.name]:
                return self._values[option.name]
        raise SettingError(
            "can't be changed while this engine runs" if option.help else "can't be changed in this engine"
        )

    def _apply(self, fresh: dict[str, object]) -> None:
        for name, value in fresh.items():
            current = self._values[name]
            # CONFIG SET changes output limits only for the classes that it names.
            self._values[name] = (
                {**current, **value} if isinstance(current, dict) and isinstance(value, dict) else value
            )
        self._limits.entries = self.number("stream-node-max-entries")
        self._limits.bytes = self.number("stream-node-max-bytes")
        self._limits.idmp_duration = self.number("stream-idmp-duration")
        self._limits.idmp_maxsize = self.number("stream-idmp-maxsize")
        self.requests.bulk = self.number("proto-max-bulk-len")
        self.requests.held = self.number("client-query-buffer-limit")
        limits = self._values["client-output-buffer-limit"]
        assert isinstance(limits, dict)
        self.output = limits["normal"]
        for name in fresh:
            for callback in self._callbacks.get(name, ()):
                callback()
