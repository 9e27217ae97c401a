"""The current settings: read by name, listed by CONFIG GET, changed by CONFIG SET (all or none).

Code that depends on a setting reads it (`number`, `flag`, `text`), or registers a callback (`on_change`) so that it
needs no lookup while commands run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from spark_streams.engine.resp.request_parser import RequestLimits
from spark_streams.engine.resp.wire_replies import CommandError
from spark_streams.engine.settings.setting_table import NO_LIMITS, OPTIONS, OutputLimit, Setting, SettingError
from spark_streams.engine.store.node_limits import NodeLimits


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
