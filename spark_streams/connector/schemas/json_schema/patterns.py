"""Patterns of JSON Schema, which are ECMA's, in linear time: translated for RE2.

    \\d \\w \\b   ASCII, in both     $  the end, in both    .  also not \\r, U+2028, U+2029     \\s  Unicode's spaces
    \\uhhhh \\u{h} \\cX              \\x{h}                 [^] []  any character, none         (?<name>)  (?P<name>)

Refused by name: what needs backtracking (lookaround and references back), more than 1,000 repetitions, and what ECMA
does not have.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from spark_streams.connector.schemas.reasons import library

_SPACES = r"\t\n\v\f\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
_NOT_SPACES = (
    r"\x{0}-\x{8}\x{e}-\x{1f}!-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}"
    r"\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{fefe}\x{ff00}-\x{10ffff}"
)
_NO_LINE_END = r"[^\n\r\x{2028}\x{2029}]"
_TOKEN = re.compile(
    r"\\u\{(?P<code>[0-9a-fA-F]{1,6})\}|\\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|\\u(?P<unit>[0-9a-fA-F]{4})|\\x(?P<byte>[0-9a-fA-F]{2})|\\c(?P<control>[a-zA-Z])"
    r"|\\(?P<property>[pP]\{[^}]*\})|\\k<[^>]*>|\\(?P<escaped>.)"
    r"|(?P<look>\(\?<?[=!])|\(\?<(?P<group>[A-Za-z_]\w*)>|(?P<flags>\(\?(?!:|<)[^)]*)|(?P<any>\[\^\])|(?P<none>\[\])"
    r"|(?P<plain>.)",
    re.DOTALL,
)
_PROPERTY = re.compile(r"([pP])\{(?:(?:Script|sc|General_Category|gc)=)?(\w+)\}")
_CATEGORIES = {
    "Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Titlecase_Letter": "Lt", "Mark": "M",
    "Number": "N", "Decimal_Number": "Nd", "Punctuation": "P", "Symbol": "S", "Separator": "Z", "Space_Separator": "Zs",
}  # fmt: skip
_SAME = "dDwWbBtnfvr"  # escapes that RE2 has with the same meaning


@functools.lru_cache(maxsize=10_000)
def search(pattern: str) -> Callable[[str], bool]:
    """Return whether a text has a match. Raises UnsupportedError if RE2 is missing, ValueError that names the
    pattern and what it has."""
    re2 = library("re2")
    options = re2.Options()
    options.log_errors = False
    try:
        found = re2.compile(translated(pattern), options)
    except re2.error as error:
        text = error.args[0] if error.args else ""
        why = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        raise _refused(pattern, why) from None

    def has_match(text: str) -> bool:
        return found.search(text) is not None

    return has_match


def translated(pattern: str) -> str:
    """Return a pattern of ECMA as one of RE2. Raises ValueError for what RE2 has in another meaning, or lacks."""
    parts, in_class = [], False
    for token in _TOKEN.finditer(pattern):
        text, kind = token[0], token.lastgroup
        if in_class and kind in ("look", "group", "flags", "any", "none"):
            # Within [ ], these characters mean themselves; [ needs an escape there, and ] ends the class.
            inner = "".join(f"\\{one}" if one == "[" else one for one in text)
            in_class = "]" not in text
            parts.append(inner)
        elif kind == "plain":
            if not in_class:
                in_class = text == "["
                parts.append(_NO_LINE_END if text == "." else text)
            else:
                in_class = text != "]"
                parts.append(r"\[" if text == "[" else text)
        else:
            parts.append(_part(pattern, token, in_class))
    return "".join(parts)


def _part(pattern: str, token: re.Match[str], in_class: bool) -> str:
    kind, text = token.lastgroup, token[0]
    if kind == "low":
        return _code(0x10000 + ((int(token["high"], 16) & 0x3FF) << 10) + (int(token["low"], 16) & 0x3FF))
    if kind in ("code", "unit", "byte"):
        return _code(int(token[kind], 16))
    if kind == "control":
        return _code(ord(token["control"]) % 32)
    if kind == "property":
        return _property(pattern, token["property"])
    if kind == "escaped":
        return _escaped(pattern, token["escaped"], in_class)
    if kind == "group":
        return f"(?P<{token['group']}>"
    if kind == "any":
        return r"[\x{0}-\x{10ffff}]"
    if kind == "none":
        return r"[^\x{0}-\x{10ffff}]"
    what = "a lookaround" if kind == "look" else "flags" if kind == "flags" else "a reference back"
    raise _refused(pattern, f"{what} ({text})")


def _property(pattern: str, name: str) -> str:
    match = _PROPERTY.fullmatch(name)
    if match is None:
        raise _refused(pattern, f"\\{name}")
    return rf"\{match[1]}{{{_CATEGORIES.get(match[2], match[2])}}}"


def _escaped(pattern: str, one: str, in_class: bool) -> str:
    if one == "s":
        return _SPACES if in_class else f"[{_SPACES}]"
    if one == "S":
        return _NOT_SPACES if in_class else f"[^{_SPACES}]"
    if one == "b" and in_class:
        return r"\x{8}"
    if one == "0":
        return r"\x{0}"
    if one in _SAME:
        return f"\\{one}"
    if one.isascii() and one.isalnum():
        what = "a reference back" if one.isdigit() else "an escape that ECMA does not have"
        raise _refused(pattern, f"{what} (\\{one})")
    return f"\\{one}" if one.isascii() and one != "_" else one


def _code(number: int) -> str:
    return rf"\x{{{number:x}}}"


def _refused(pattern: str, what: str) -> ValueError:
    return ValueError(f"pattern {pattern[:100]!r} cannot be checked in linear time, or is not valid: it has {what}")


def of_schema(patterns: Any) -> list[Callable[[str], bool]]:
    """Return the checks of several patterns."""
    return [search(one) for one in patterns]
