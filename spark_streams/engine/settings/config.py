"""The settings in force: read by name, shown by CONFIG GET, changed by CONFIG SET, all or none.

Whoever acts on a setting asks for it (`number`, `flag`, `text`) or is told of changes (`when`), so that nothing has to
be looked up while commands run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from fnmatch import fnmatchcase

from spark_streams.engine.resp.replies import CommandError
from spark_streams.engine.resp.requests import RequestLimits
from spark_streams.engine.settings.table import NO_LIMITS, OPTIONS, Option, OutputLimit, SettingError
from spark_streams.engine.store.node_limits import NodeLimits


class Config:
    """The value of every option."""

    def __init__(self, limits: NodeLimits) -> None:
        self._limits = limits
        self.requests = RequestLimits()  # of clients that may come in; the parsers hold it
        self.output: OutputLimit = NO_LIMITS["normal"]
        self._values: dict[str, object] = {name: one.kind.read(one.default) for name, one in OPTIONS.items()}
        self._values["client-output-buffer-limit"] = dict(NO_LIMITS)
        self._told: dict[str, list[Callable[[], None]]] = {}

    def number(self, name: str) -> int:
        """A number, or bytes."""
        value = self._values[name]
        assert isinstance(value, int)
        return value

    def flag(self, name: str) -> bool:
        """yes or no."""
        return bool(self._values[name])

    def text(self, name: str) -> str:
        """A text, or the word that was chosen."""
        return str(self._values[name])

    def when(self, name: str, told: Callable[[], None]) -> None:
        """Call this now, and after each change of the option."""
        self._told.setdefault(name, []).append(told)
        told()

    def start_with(self, name: str, text: str) -> None:
        """A setting from the command line or the configuration file. Raises SettingError."""
        option = OPTIONS.get(name)
        if option is None:
            raise SettingError("no such option")
        value = option.kind.read(text)
        if not option.help and value != self._values[name]:
            raise SettingError(f"this engine knows only '{option.kind.show(self._values[name])}'")
        self._apply({name: value})

    def fill(self, name: str, value: object) -> None:
        """A value that is known only when the server runs (the port that was free, the directory)."""
        self._values[name] = value

    def get(self, patterns: list[str]) -> dict[str, str]:
        """The settings whose names match one of the glob patterns."""
        lowered = [pattern.lower() for pattern in patterns]
        return {
            name: option.kind.show(self._values[name])
            for name, option in OPTIONS.items()
            if any(fnmatchcase(name, glob) for glob in lowered)
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

    def _changed(self, option: Option, text: str) -> object:
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
            # Of output limits, only the classes that are named change.
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
            for told in self._told.get(name, ()):
                told()
