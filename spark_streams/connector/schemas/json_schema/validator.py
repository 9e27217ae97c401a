"""A JSON Schema that checks values in a number of steps in proportion to their bytes: jsonschema's validators, with
other functions for the keywords that may take longer, and for numbers of any number of digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import urljoin

from spark_streams.base.untyped import Json
from spark_streams.connector.schemas.bounds import MOST_UNEVALUATED, Steps
from spark_streams.connector.schemas.json_schema.numbers import canonical, is_integer, is_multiple, is_number
from spark_streams.connector.schemas.json_schema.patterns import of_schema, search
from spark_streams.connector.schemas.reasons import BAD_VALUE, UnreadableError, library

_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_OF_VALUES = ("enum", "const", "default", "examples")
_Errors = Iterator[Any]


class JsonValidator:
    """Checks values by a schema, and by the schemas to which it refers. Threads may share it."""

    def __init__(self, content: Json, references: Iterable[tuple[str, Json]]) -> None:
        """references: name and content. Raise ValueError or others if a schema is not valid or cannot be bounded."""
        drafts, referencing = library("jsonschema.validators"), library("referencing")
        dialects = library("referencing.jsonschema")
        kind = drafts.validator_for(content, default=drafts.Draft7Validator)
        of = dialects.specification_with(kind.META_SCHEMA.get("$schema", "").rstrip("#"))
        others = [(name, other) for name, other in references]
        for one in (content, *(other for _, other in others)):
            kind.check_schema(one, format_checker=None)
            _check(one)
        # A schema that says its dialect would be checked by jsonschema's own functions for it.
        resources = {name: of.create_resource(_plain(other)) for name, other in others}
        bases = [base for one in (content, *(other for _, other in others)) for base in _bases(one, "")]
        uris = {urljoin(base, name): one for base in bases for name, one in resources.items()} | resources
        self.unresolved = referencing.exceptions.Unresolvable
        self._steps = Steps()
        checker = kind.TYPE_CHECKER.redefine("integer", is_integer).redefine("number", is_number)
        words = {name: self._counted(check) for name, check in (kind.VALIDATORS | _keywords(kind)).items()}
        registry = referencing.Registry().with_resources(uris.items())
        self._validator = drafts.extend(kind, words, type_checker=checker)(_plain(content), registry=registry)

    def accepts(self, value: Json, size: int) -> bool:
        """Return whether a value of this many bytes is valid. Raises `unresolved`, or UnreadableError."""
        self._steps.begin(size)
        return bool(self._validator.is_valid(value))

    def errors(self, value: Json, size: int) -> list[Any]:
        """Return jsonschema's errors. Raises as `accepts`."""
        self._steps.begin(size)
        return [*self._validator.iter_errors(value)]

    def _counted(self, check: Callable[..., Any]) -> Callable[..., Any]:
        take = self._steps.take

        def counted(validator: Any, word: Json, value: Json, schema: Json) -> Any:
            take()
            return check(validator, word, value, schema)

        return counted


def _keywords(kind: Any) -> dict[str, Callable[..., Any]]:
    """Return the functions for the keywords of a draft that take longer, or that round."""
    error_of = library("jsonschema.exceptions").ValidationError

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
            known, patterns = schema.get("properties", {}), of_schema(schema.get("patternProperties", {}))
            for name in value:
                if name not in known and not any(has_match(name) for has_match in patterns):
                    if word is False:
                        yield error_of(f"{name!r} is not a property of the schema")
                    else:
                        yield from validator.descend(value[name], word, path=name)

    def unique_items(validator: Any, word: Json, value: Json, schema: Json) -> _Errors:
        if word and validator.is_type(value, "array") and len(set(map(canonical, value))) < len(value):
            yield error_of("two items are the same")

    def multiple_of(validator: Any, word: Json, value: Json, schema: Json) -> _Errors:
        if validator.is_type(value, "number") and not is_multiple(Decimal(value), Decimal(word)):
            yield error_of(f"{value} is no multiple of {word}")

    def bounded(check: Callable[..., Any]) -> Callable[..., Any]:
        def bounded_check(validator: Any, word: Json, value: Json, schema: Json) -> Any:
            if isinstance(value, dict | list) and len(value) > MOST_UNEVALUATED:
                raise UnreadableError(BAD_VALUE)
            return check(validator, word, value, schema)

        return bounded_check

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
    return known | {name: bounded(kind.VALIDATORS[name]) for name in unevaluated}


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


def _check(content: Json) -> None:
    """Raise ValueError for a pattern that cannot be checked, and for what looks at patterns without RE2."""
    has_patterns = has_unevaluated = False
    for schema in _schemas(content):
        if isinstance(schema.get("pattern"), str):
            search(schema["pattern"])
        if isinstance(schema.get("patternProperties"), dict):
            has_patterns = True
            of_schema(schema["patternProperties"])
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
