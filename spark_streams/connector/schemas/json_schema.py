"""JSON texts, validated by their JSON Schema with the package jsonschema. Numbers keep their digits as Decimal."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any
from urllib.parse import urljoin

from spark_streams.base.untyped import Json
from spark_streams.connector.schemas import reasons
from spark_streams.connector.schemas.schema_registry import Schema

# -- numbers of JSON, exactly, whatever their number of digits and their exponent --------------------------------------


_LONG = 100  # characters of a canonical text that is kept as it is


def is_number(_: object, value: Json) -> bool:
    return type(value) in (int, Decimal)


def is_integer(_: object, value: Json) -> bool:
    """Return whether a number is whole: 1.0 and 1e300, too."""
    if type(value) is not Decimal:
        return type(value) is int
    _, digits, exponent = value.as_tuple()
    return isinstance(exponent, int) and (exponent >= 0 or not any(digits[exponent:]))


def is_multiple(value: Decimal, of: Decimal) -> bool:
    """Return whether a number is a multiple of another, which is not 0. Exact: no power of ten is written out that is
    longer than the number itself."""
    number, unit = _whole(value), _whole(of)
    shift = _exponent(value) - _exponent(of)
    if number == 0:
        return True
    if shift >= 0:
        return bool(number * pow(10, shift, unit) % unit == 0)
    if -shift > len(str(number)):
        return False
    return bool(number % (unit * 10**-shift) == 0)


class JsonSteps(reasons.StepBudget):
    """Also has the canonical texts of the objects and lists of the value, by identity: each is made once, although
    `uniqueItems` of a type that contains itself asks for it at each level."""

    def begin(self, of_bytes: int) -> None:
        super().begin(of_bytes)
        self.texts: dict[int, str] = {}


def canonical(value: Json, steps: JsonSteps) -> str:
    """Return a text that is the same for values that JSON Schema calls equal: 1, 1.0 and 10e-1. Of a long object or
    list it is a hash. Raises UnreadableError."""
    if isinstance(value, dict | list):
        text = steps.texts.get(id(value))
        if text is None:
            steps.take(1 + len(value))
            if isinstance(value, dict):
                members = [f"{json.dumps(name)}:{canonical(value[name], steps)}" for name in sorted(value)]
                text = f"{{{','.join(members)}}}"
            else:
                text = f"[{','.join([canonical(part, steps) for part in value])}]"
            if len(text) > _LONG:
                text = "#" + hashlib.sha256(text.encode()).hexdigest()
            steps.texts[id(value)] = text
        return text
    if type(value) not in (int, Decimal):
        return json.dumps(value)
    sign, digits, exponent = Decimal(value).as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    return f"{'-' * sign}{kept}e{int(exponent) + len(text) - len(kept)}" if kept else "0"


def _whole(value: Decimal) -> int:
    digits = "".join(map(str, value.as_tuple().digits))
    return int(digits)


def _exponent(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)  # no infinity, which JSON does not have
    return exponent


# -- patterns, which are ECMA's, in linear time: translated for RE2 ----------------------------------------------------

#     \d \w \b   ASCII, in both     $  the end, in both    .  also not \r, U+2028, U+2029     \s  Unicode's spaces
#     \uhhhh \u{h} \cX              \x{h}                 [^] []  any character, none         (?<name>)  (?P<name>)
#
# Refused by name: what needs backtracking (lookaround and references back), more than 1,000 repetitions, and what ECMA
# does not have.

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
    re2 = reasons.library("re2")
    options = re2.Options()
    options.log_errors = False
    try:
        found = re2.compile(translated(pattern), options)
    except re2.error as error:
        text = error.args[0] if error.args else ""
        why = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        raise _refused(pattern, why) from None
    return lambda text: found.search(text) is not None


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


# -- validation in a number of steps in proportion to a value's bytes --------------------------------------------------

# jsonschema's validators, with other functions for the keywords that may take longer, and for numbers of any number of
# digits.

_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_OF_VALUES = ("enum", "const", "default", "examples")
_Errors = Iterator[Any]


class JsonValidator:
    """Checks values by a schema, and by the schemas to which it refers. Threads may share it."""

    def __init__(self, content: Json, references: Iterable[tuple[str, Json]]) -> None:
        """references: name and content. Raise ValueError or others if a schema is not valid or cannot be bounded."""
        drafts, referencing = reasons.library("jsonschema.validators"), reasons.library("referencing")
        dialects = reasons.library("referencing.jsonschema")
        kind = drafts.validator_for(content, default=drafts.Draft7Validator)
        of = dialects.specification_with(kind.META_SCHEMA.get("$schema", "").rstrip("#"))
        others = [(name, other) for name, other in references]
        for one in (content, *(other for _, other in others)):
            kind.check_schema(one, format_checker=None)
            _check_patterns(one)
        # A schema that says its dialect would be checked by jsonschema's own functions for it.
        resources = {name: of.create_resource(_plain(other)) for name, other in others}
        bases = [base for one in (content, *(other for _, other in others)) for base in _bases(one, "")]
        uris = {urljoin(base, name): one for base in bases for name, one in resources.items()} | resources
        self.unresolved = referencing.exceptions.Unresolvable
        self._steps = JsonSteps()
        checker = kind.TYPE_CHECKER.redefine("integer", is_integer).redefine("number", is_number)
        checks = kind.VALIDATORS | _keywords(kind, self._steps)
        words = {name: partial(self._check, check) for name, check in checks.items()}
        registry = referencing.Registry().with_resources(uris.items())
        self._validator = drafts.extend(kind, words, type_checker=checker)(_plain(content), registry=registry)

    def accepts(self, value: Json, size: int) -> bool:
        """Return whether a value of this many bytes is valid. Raises `unresolved`, or UnreadableError."""
        self._steps.begin(reasons.STEPS_OF_A_BYTE * size)
        return bool(self._validator.is_valid(value))

    def errors(self, value: Json, size: int) -> list[Any]:
        """Return jsonschema's errors. Raises as `accepts`."""
        self._steps.begin(reasons.STEPS_OF_A_BYTE * size)
        return [*self._validator.iter_errors(value)]

    def _check(self, check: Callable[..., Any], validator: Any, word: Json, value: Json, schema: Json) -> Any:
        self._steps.take()
        return check(validator, word, value, schema)


def _keywords(kind: Any, steps: JsonSteps) -> dict[str, Callable[..., Any]]:
    """Return the functions for the keywords of a draft that take longer, or that round."""
    error_of = reasons.library("jsonschema.exceptions").ValidationError

    def pattern(validator: Any, word: str, value: Json, schema: Json) -> _Errors:
        if validator.is_type(value, "string") and not search(word)(value):
            yield error_of(f"a text does not match {word!r}")

    def pattern_properties(validator: Any, word: Json, value: Json, schema: Json) -> _Errors:
        if validator.is_type(value, "object"):
            for one, inner in word.items():
                has_match = search(one)
                for name, part in value.items():
                    if has_match(name):
                        yield from validator.descend(part, inner, path=name, schema_path=one)

    def additional_properties(validator: Any, word: Json, value: Json, schema: Json) -> _Errors:
        if validator.is_type(value, "object"):
            known, patterns = schema.get("properties", {}), [*map(search, schema.get("patternProperties", ()))]
            for name in value:
                if name not in known and not any(has_match(name) for has_match in patterns):
                    if word is False:
                        yield error_of(f"{name!r} is not a property of the schema")
                    else:
                        yield from validator.descend(value[name], word, path=name)

    def unique_items(validator: Any, word: Json, value: Json, schema: Json) -> _Errors:
        if word and validator.is_type(value, "array") and len({canonical(part, steps) for part in value}) < len(value):
            yield error_of("two items are the same")

    def multiple_of(validator: Any, word: Json, value: Json, schema: Json) -> _Errors:
        if validator.is_type(value, "number") and not is_multiple(Decimal(value), Decimal(word)):
            yield error_of(f"{value} is no multiple of {word}")

    def bounded(check: Callable[..., Any], validator: Any, word: Json, value: Json, schema: Json) -> Any:
        if isinstance(value, dict | list) and len(value) > reasons.MOST_UNEVALUATED:
            raise reasons.UnreadableError(reasons.BAD_VALUE)
        return check(validator, word, value, schema)

    words = {
        "pattern": pattern,
        "patternProperties": pattern_properties,
        "additionalProperties": additional_properties,
        "uniqueItems": unique_items,
        "multipleOf": multiple_of,
        "divisibleBy": multiple_of,  # draft 3
    }
    known = {name: check for name, check in words.items() if name in kind.VALIDATORS}
    unevaluated = [name for name in ("unevaluatedProperties", "unevaluatedItems") if name in kind.VALIDATORS]
    return known | {name: partial(bounded, kind.VALIDATORS[name]) for name in unevaluated}


def _schemas(content: Json) -> Iterator[dict[str, Json]]:
    """Yield a schema and those in it, not the values that it names."""
    if isinstance(content, list):
        for one in content:
            yield from _schemas(one)
    elif isinstance(content, dict):
        yield content
        for word, inner in content.items():
            if word in _OF_NAMES and isinstance(inner, dict):
                for one in inner.values():
                    yield from _schemas(one)
            elif word not in _OF_VALUES:
                yield from _schemas(inner)


def _check_patterns(content: Json) -> None:
    """Raise ValueError for a pattern that cannot be checked, and for what looks at patterns without RE2."""
    has_patterns = has_unevaluated = False
    for schema in _schemas(content):
        if isinstance(schema.get("pattern"), str):
            search(schema["pattern"])
        if isinstance(schema.get("patternProperties"), dict):
            has_patterns = True
            for pattern in schema["patternProperties"]:
                search(pattern)
        has_unevaluated |= "unevaluatedProperties" in schema
    if has_patterns and has_unevaluated:
        raise ValueError("unevaluatedProperties beside patternProperties cannot be checked in linear time")


def _plain(content: Json) -> Json:
    """Return a copy of a schema in which none says its dialect: it is that of the whole."""
    if isinstance(content, list):
        return [_plain(one) for one in content]
    if not isinstance(content, dict):
        return content
    copy = {}
    for word, inner in content.items():
        if word in _OF_NAMES and isinstance(inner, dict):
            copy[word] = {name: _plain(one) for name, one in inner.items()}
        elif word in _OF_VALUES:
            copy[word] = inner
        elif word != "$schema":
            copy[word] = _plain(inner)
    return copy


def _bases(content: Json, base: str) -> Iterator[str]:
    """Yield the URIs to which references in a schema are relative."""
    for schema in _schemas(content):
        own = schema.get("$id", schema.get("id"))
        if isinstance(own, str):
            base = urljoin(base, own) if base else own
            yield base


# -- reading -----------------------------------------------------------------------------------------------------------


class JsonReader:
    """Reads values that their own schema accepts: the reader's schema only names columns."""

    def __init__(self, reader: Schema | None) -> None:
        """Raise UnsupportedError if jsonschema is missing, ValueError or others if the schema is not valid."""
        if reader is not None:
            self.validator(reader)

    def reading(self, writer: Schema, indexes: tuple[int, ...]) -> Callable[[bytes], Any]:
        """Return the function that reads values of this schema. It raises UnreadableError."""
        validator = self.validator(writer)

        def read_value(body: bytes) -> Any:
            value = parse(body)
            try:
                accepted = validator.accepts(value, len(body))
            except validator.unresolved:  # $ref to what the registry does not name: nothing is fetched
                raise reasons.UnreadableError(reasons.OTHER_SCHEMA) from None
            if not accepted:
                raise reasons.UnreadableError(reasons.BAD_VALUE)
            return value

        return read_value

    def validator(self, schema: Schema) -> JsonValidator:
        """Return the validator of a schema. Raises ValueError or others if it is not valid."""
        return JsonValidator(_parsed(schema.text), ((one.name, _parsed(one.text)) for one in schema.references))


def parse(body: bytes) -> Json:
    """Return the value of a JSON text in UTF-8. Raises ValueError, also for a name that occurs twice, and beyond a
    bound of reasons.py."""
    value = json.loads(
        body.decode(),
        parse_int=lambda text: int(_bounded(text)),
        parse_float=lambda text: Decimal(_bounded(text)),
        parse_constant=_refuse,
        object_pairs_hook=_object,
    )
    if body.count(b"[") + body.count(b"{") > reasons.DEEPEST:
        _check_depth(value)
    return value


def text_of(value: Any) -> str:
    """Return a value as a JSON text with all digits. What JSON does not have is a text: times, infinities; bytes."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{text_of(str(name))}:{text_of(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    if isinstance(value, bytes):
        return text_of({"base64": b64encode(value).decode()})
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    if isinstance(value, date | Decimal) or (isinstance(value, float) and not math.isfinite(value)):
        value = value.isoformat() if isinstance(value, date) else str(value)
    return json.dumps(value, ensure_ascii=False)


def _parsed(text: str) -> Json:
    return json.loads(text, parse_float=Decimal)


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name occurs twice")
    return members


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _bounded(text: str) -> str:
    if len(text) > reasons.MOST_DIGITS:
        raise ValueError("a number is too long")
    return text


def _check_depth(value: Json) -> None:
    """Raise ValueError if a value is deeper than the bound."""
    level: list[Json] = [value]
    for _ in range(reasons.DEEPEST):
        parts = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
        level = [part for part in parts if isinstance(part, dict | list)]
        if not level:
            return
    raise ValueError("a value is too deep")
