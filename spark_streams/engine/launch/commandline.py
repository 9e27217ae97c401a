"""The command line and the configuration file: both end in the same table of options (settings/table.py)."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from spark_streams.engine.resp.inline import split_quoted
from spark_streams.engine.settings.config import Config
from spark_streams.engine.settings.table import OPTIONS, PASSWORD_VARIABLE, Option, SettingError

_MOVING = """\
Options are those of redis.conf, on the command line or in a file of that form (name and value on a line, # begins a
comment, include reads another file); the command line has the last word. Anything that this engine does not have is
refused.

examples:
  {prog} --port 6400
  {prog} --unixsocket /tmp/streams.sock --requirepass-file /run/secrets/streams
  {prog} engine.conf --maxmemory 500mb
  {prog} --appendonly yes --dir /var/lib/streams

moving out, on the day that a real Redis is wanted: with --appendonly yes everything is in one file of plain commands,
which redis-cli loads (BGREWRITEAOF first makes it short):
  redis-cli -p 6379 --pipe < /var/lib/streams/appendonly.aof
"""
_INCLUDES = 16  # deep
_PASSWORD_FILE = "requirepass-file"


class Chosen(NamedTuple):
    """What the command line says beyond the settings."""

    idle: float | None
    parent: int | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        unknown = message.partition("unrecognized arguments: ")[2].split(" ")[0]
        names = [f"--{name}" for name in OPTIONS]
        near = difflib.get_close_matches(unknown, names, 1) if unknown.startswith("--") else []
        print(f"{self.prog}: {message}" + (f" (did you mean {near[0]}?)" if near else ""), file=sys.stderr)
        print(f"{self.prog} --help shows every option", file=sys.stderr)
        sys.exit(2)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        usage=f"{prog} [FILE] [--option VALUE] ...",
        description="Serve the bundled stream engine: every Redis client works with it.",
        epilog=_MOVING.format(prog=prog),
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=110),
        allow_abbrev=False,
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="a configuration file, as redis.conf")
    for title, options in groupby(OPTIONS.values(), key=lambda option: option.group):
        group = parser.add_argument_group(title) if title else None
        for option in options:
            _add(parser if group is None else group, option)
            if option.name == "requirepass" and group is not None:
                group.add_argument(
                    f"--{_PASSWORD_FILE}",
                    metavar="FILE",
                    dest=_PASSWORD_FILE,
                    help=f"its first line is the password; or set {PASSWORD_VARIABLE}. Neither shows in a process list",
                )
    own = parser.add_argument_group("for programs that start an engine")
    own.add_argument("--idle", type=float, metavar="SECONDS", help="stop after so long without a client")
    own.add_argument("--parent", type=int, metavar="PID", help="stop when this process, our parent, is gone")
    return parser


def _add(group: argparse._ActionsContainer, option: Option) -> None:
    shown = "" if option.default in ("", "0") else f" (default {option.default})"
    group.add_argument(
        f"--{option.name}",
        metavar=option.metavar,
        dest=option.name,
        help=(option.help + shown).replace("%", "%%") if option.help else argparse.SUPPRESS,
    )


def configure(config: Config, prog: str, arguments: list[str] | None) -> Chosen:
    """Read the arguments, and the file they name, into the settings. Exits with code 2 when something is wrong."""
    parser = _parser(prog)
    words = sys.argv[1:] if arguments is None else arguments
    chosen = vars(parser.parse_args(_joined(words)))
    seen: set[str] = set()
    if chosen["file"] is not None:
        try:
            seen |= read_file(config, Path(chosen["file"]))
        except SettingError as problem:
            parser.error(str(problem))
    for name in OPTIONS:
        if chosen[name] is not None:
            try:
                config.start_with(name, chosen[name])
            except SettingError as problem:
                parser.error(f"--{name} {chosen[name]}: {problem}")
            seen.add(name)
    try:
        _take_password(config, chosen[_PASSWORD_FILE], "requirepass" in seen, chosen["requirepass"] is not None)
    except SettingError as problem:
        parser.error(str(problem))
    if "port" not in seen and (config.text("unixsocket") or config.number("tls-port")):
        config.start_with("port", "0")
    missing = _missing(config)
    if missing:
        parser.error(missing)
    return Chosen(chosen["idle"], chosen["parent"])


def _take_password(config: Config, file: str | None, known: bool, said: bool) -> None:
    """The password from the file, or from the environment if nothing else says one (known). Raises SettingError."""
    if file is None:
        if not known:
            config.start_with("requirepass", os.environ.get(PASSWORD_VARIABLE, ""))
        return
    if said:
        raise SettingError(f"give --requirepass or --{_PASSWORD_FILE}, not both")
    try:
        lines = Path(file).read_bytes().splitlines()
    except OSError as problem:
        raise SettingError(f"--{_PASSWORD_FILE}: cannot read {file}: {problem.strerror}") from None
    if not lines or not lines[0]:
        raise SettingError(f"--{_PASSWORD_FILE}: {file} is empty: the password is its first line")
    config.start_with("requirepass", lines[0].decode("utf-8", "surrogateescape"))


def _joined(words: list[str]) -> list[str]:
    """`--name a b` as `--name=a b`: an option takes all words up to the next option, whatever they begin with."""
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
        return "--port 0 needs a --unixsocket or a --tls-port: there would be nothing to listen on"
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
    """Settings from a file in redis.conf's form; the names that it sets. Raises SettingError with file and line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as problem:
        raise SettingError(f"cannot read {path}: {problem.strerror}") from None
    seen: set[str] = set()
    for at, line in enumerate(lines, 1):
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
                    raise SettingError("include in a circle")
                seen |= read_file(config, path.parent / value, depth + 1)
                continue
            if name not in OPTIONS:
                near = difflib.get_close_matches(name, OPTIONS, 1)
                raise SettingError("no such option" + (f" (did you mean {near[0]}?)" if near else ""))
            config.start_with(name, value)
            seen.add(name)
        except SettingError as problem:
            text = line.decode("utf-8", "replace").strip()
            raise SettingError(f"{path}, line {at}: {text}: {problem}") from None
    return seen
