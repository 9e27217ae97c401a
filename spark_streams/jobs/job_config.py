"""A job's configuration: a TOML file, overridden by `--set`, and checked against the keys of the job.

Pure, except for reading the file. Every error is a ConfigError of one line that names the key.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from spark_streams.base.untyped import Json
from spark_streams.connector.errors import ConfigError

Config = dict[str, Json]  # TOML's values: those of JSON, and times
# A key's shape: a type (str, int, bool, list), a choice of types, FREE for a table of any keys, or a table of shapes.
Shape = Mapping[str, object]
FREE = object()


def load(path: str | None, overrides: Iterable[str], shape: Shape, required: Iterable[str]) -> Config:
    """Return the checked configuration. required: dotted keys. Raises ConfigError."""
    config = _read(path) if path else {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {override!r} is not KEY=VALUE; write for example --set source.group=etl")
        _set_value(config, key.strip(), _value(text, _shape_at(shape, key.strip()), key.strip()))
    check_keys(config, shape, "", path or "--set")
    for key in required:
        if value_at(config, key) in (None, "", {}, []):
            raise ConfigError(f"{path or 'the configuration'}: {key} is missing; add it, or pass --set {key}=…")
    expanded = _expand_variables(config, path or "--set")
    assert isinstance(expanded, dict)
    return expanded


def value_at(config: Config, key: str, default: Json = None) -> Json:
    """Return the value at a dotted key."""
    current: Json = config
    for part in key.split("."):
        if not isinstance(current, dict) or part not in current:
            return default
        current = current[part]
    return current


def _read(path: str) -> Config:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path!r} (seen from {Path.cwd()})") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the config file {path!r} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the config file {path!r} is not TOML: {error}") from None


def _shape_at(shape: object, key: str) -> object:
    """Return the shape at a dotted key. Values in a table of free keys are options, that is strings."""
    for part in key.split("."):
        if shape is FREE:
            return str
        shape = shape.get(part) if isinstance(shape, Mapping) else None
    return shape


def _value(text: str, expected: object, key: str) -> Json:
    """Parse the value of `--set`.

    If a string is expected, it is the text that was typed, without quotes around it. Otherwise it is parsed as TOML; a
    text that is not TOML is a string. Raises ConfigError for quotes that do not enclose all of it.
    """
    quoted = text.strip().startswith(("'", '"'))
    if expected is str and not quoted:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if quoted:
            raise ConfigError(
                f"--set {key}: {text} begins with a quote and is not a TOML string; leave the quotes out, or enclose "
                'all of it in quotes ("…")'
            ) from None
        return text


def _set_value(config: Config, key: str, value: Json) -> None:
    *tables, last = key.split(".")
    target = config
    for table in tables:
        target = target.setdefault(table, {})
        if not isinstance(target, dict):
            raise ConfigError(f"--set {key}: {table!r} is a value, not a table")
    target[last] = value


def check_keys(config: Mapping[str, Json], shape: Shape, prefix: str, where: str) -> None:
    """Raise ConfigError for a key that the shape does not have, or a value of another type.

    prefix: what messages write before a key; where: the file.
    """
    for key, value in config.items():
        if key not in shape:
            near = difflib.get_close_matches(key, shape, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"valid keys: {', '.join(shape)}"
            raise ConfigError(f"{where}: unknown key {prefix}{key}; {hint}")
        expected = shape[key]
        if expected is FREE or isinstance(expected, Mapping):
            if not isinstance(value, dict):
                raise ConfigError(f"{where}: {prefix}{key} must be a table, not {value!r}")
            if isinstance(expected, Mapping):
                check_keys(value, expected, f"{prefix}{key}.", where)
            continue
        assert isinstance(expected, type | tuple)
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            raise ConfigError(f"{where}: {prefix}{key} must be a {_NAMES[expected]}, not {value!r}")


_NAMES = {
    str: "string",
    int: "whole number",
    bool: "true or false",
    list: "list",
    (list, dict): "list or a table",
    (str, list): "string or a list",
}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def _expand_variables(value: Json, where: str) -> Json:
    """Replace `${NAME}` in strings by the environment variable, which is the place for secrets."""
    if isinstance(value, dict):
        return {key: _expand_variables(inner, where) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expand_variables(inner, where) for inner in value]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            raise ConfigError(f"{where}: the environment variable {name} is not set; export it")
        return os.environ[name]

    return _VARIABLE.sub(variable, value)
