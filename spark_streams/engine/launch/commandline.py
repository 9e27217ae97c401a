"""The command line and the configuration file; both set the options of settings.py."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from spark_streams.base.given_text import first_line
from spark_streams.engine.resp.request_parser import split_quoted
from spark_streams.engine.server.event_loop import SOCKET_CHECK
from spark_streams.engine.settings import OPTIONS, PASSWORD_VARIABLE, Config, Setting, SettingError

_MOVING = """\
Options are those of redis.conf, on the command line or in a file of that form (name and value on a line; # begins a
comment; include reads another file). The command line overrides the file. An option that this engine does not implement
is an error.

examples:
  {prog} --port 6400
  {prog} --unixsocket /tmp/streams.sock --requirepass-file /run/secrets/streams
  {prog} engine.conf --maxmemory 500mb
  {prog} --appendonly yes --dir /var/lib/streams

To move to Redis: with --appendonly yes, all data is in one file of plain commands, which redis-cli can load
(run BGREWRITEAOF first to make the file short):
  redis-cli -p 6379 --pipe < /var/lib/streams/appendonly.aof
"""
_INCLUDES = 16  # depth of nested include lines
_PASSWORD_FILE = "requirepass-file"


class ProcessOptions(NamedTuple):
    """Arguments that are not settings: seconds without a client before a stop, process whose end stops the engine,
    seconds between two looks for the own Unix socket."""

    idle: float | None
    parent: int | None
    socket_check: float


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        unknown = message.partition("unrecognized arguments: ")[2].split(" ")[0]
        names = [f"--{name}" for name in OPTIONS]
        hint = _similar(unknown, names) if unknown.startswith("--") else ""
        print(f"{self.prog}: {message}{hint}", file=sys.stderr)
        print(f"{self.prog} --help shows every option", file=sys.stderr)
        sys.exit(2)


def _similar(name: str, names: Iterable[str]) -> str:
    """Return a hint that names the most similar option, or nothing."""
    import difflib  # only for errors

    similar_names = difflib.get_close_matches(name, names, 1)
    return f" (did you mean {similar_names[0]}?)" if similar_names else ""


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        usage=f"{prog} [FILE] [--option VALUE] ...",
        description="Serve the bundled stream engine. Every Redis client works with it.",
        epilog=_MOVING.format(prog=prog),
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=110),
        allow_abbrev=False,
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="a configuration file in the form of redis.conf")
    for title, options in groupby(OPTIONS.values(), key=lambda option: option.group):
        group = parser.add_argument_group(title) if title else None
        for option in options:
            _add(parser if group is None else group, option)
            if option.name == "requirepass" and group is not None:
                group.add_argument(
                    f"--{_PASSWORD_FILE}",
                    metavar="FILE",
                    dest=_PASSWORD_FILE,
                    help=f"a file with the password in its first line; or set {PASSWORD_VARIABLE}, also hidden in ps",
                )
    launcher_group = parser.add_argument_group("for programs that start an engine")
    launcher_group.add_argument("--idle", type=float, metavar="SECONDS", help="stop after this time without a client")
    launcher_group.add_argument("--parent", type=int, metavar="PID", help="stop when this parent process has ended")
    looks = "seconds between two looks for its own --unixsocket; without it the engine stops (default %(default)g)"
    launcher_group.add_argument("--socket-check", type=float, metavar="SECONDS", default=SOCKET_CHECK, help=looks)
    return parser


def _add(group: argparse._ActionsContainer, option: Setting) -> None:
    shown = "" if option.default in ("", "0") else f" (default {option.default})"
    group.add_argument(
        f"--{option.name}",
        metavar=option.metavar,
        dest=option.name,
        help=(option.help + shown).replace("%", "%%") if option.help else argparse.SUPPRESS,
    )


def configure(config: Config, prog: str, arguments: list[str] | None) -> ProcessOptions:
    """Read the arguments, and the file they name, into the settings. Exit with code 2 if an option is wrong."""
    parser = _parser(prog)
    words = sys.argv[1:] if arguments is None else arguments
    parsed = vars(parser.parse_args(_joined(words)))
    seen: set[str] = set()
    if parsed["file"] is not None:
        try:
            seen |= read_file(config, Path(parsed["file"]))
        except SettingError as problem:
            parser.error(str(problem))
    for name in OPTIONS:
        if parsed[name] is not None:
            try:
                config.start_with(name, parsed[name])
            except SettingError as problem:
                parser.error(f"--{name} {parsed[name]}: {problem}")
            seen.add(name)
    try:
        _take_password(config, parsed[_PASSWORD_FILE], "requirepass" in seen, parsed["requirepass"] is not None)
    except SettingError as problem:
        parser.error(str(problem))
    if "port" not in seen and (config.text("unixsocket") or config.number("tls-port")):
        config.start_with("port", "0")
    missing = _missing(config)
    if missing:
        parser.error(missing)
    return ProcessOptions(parsed["idle"], parsed["parent"], parsed["socket_check"])


def _take_password(config: Config, file: str | None, configured: bool, on_command_line: bool) -> None:
    """Set the password from the file, or from the environment if no option has configured it. Raises SettingError."""
    if file is None:
        if not configured:
            config.start_with("requirepass", os.environ.get(PASSWORD_VARIABLE, ""))
        return
    if on_command_line:
        raise SettingError(f"give --requirepass or --{_PASSWORD_FILE}, not both")
    try:
        password = first_line(file)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", problem)
        raise SettingError(f"--{_PASSWORD_FILE}: cannot read {file}: {reason}") from None
    if not password:
        raise SettingError(f"--{_PASSWORD_FILE}: {file} is empty: the password is its first line")
    config.start_with("requirepass", password.decode("utf-8", "surrogateescape"))


def _joined(words: list[str]) -> list[str]:
    """Join `--name a b` to `--name=a b`: an option takes all words up to the next option."""
    joined: list[str] = []
    values: list[str] | None = None
    for word in [*words, "--"]:
        if word.startswith("--"):
            if values:
                joined[-1] += "=" + " ".join(values)
            joined.append(word)
            values = []
        elif values is None:
            joined.append(word)
        else:
            values.append(word)
    return joined[:-1]


def _missing(config: Config) -> str:
    if not (config.number("port") or config.number("tls-port") or config.text("unixsocket")):
        return "--port 0 needs --unixsocket or --tls-port: otherwise the engine listens on no address"
    if config.number("tls-port"):
        needed = ["tls-cert-file", "tls-key-file"]
        if config.text("tls-auth-clients") != "no":
            needed.append("tls-ca-cert-file")
        absent = [f"--{name}" for name in needed if not config.text(name)]
        if absent:
            note = " (or --tls-auth-clients no)" if "--tls-ca-cert-file" in absent else ""
            return f"--tls-port needs {' and '.join(absent)}{note}"
    return ""


def read_file(config: Config, path: Path, depth: int = 0) -> set[str]:
    """Apply settings from a file in redis.conf's form; return their names. Raises SettingError with file and line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as problem:
        raise SettingError(f"cannot read {path}: {problem.strerror}") from None
    seen: set[str] = set()
    for line_number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith(b"#"):
            continue
        words = split_quoted(line)
        try:
            if not words or len(words) < 2:
                raise SettingError("unbalanced quotes" if words is None else "a name without a value")
            name = words[0].decode("utf-8", "replace").lower()
            value = b" ".join(words[1:]).decode("utf-8", "surrogateescape")
            if name == "include":
                if depth >= _INCLUDES:
                    raise SettingError("include files form a cycle")
                seen |= read_file(config, path.parent / value, depth + 1)
                continue
            if name not in OPTIONS:
                raise SettingError("no such option" + _similar(name, OPTIONS))
            config.start_with(name, value)
            seen.add(name)
        except SettingError as problem:
            text = line.decode("utf-8", "replace").strip()
            raise SettingError(f"{path}, line {line_number}: {text}: {problem}") from None
    return seen
