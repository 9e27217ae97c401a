"""JSON values are validated, keep their digits, and become Spark's types."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from spark_streams.connector.errors import SchemaError
from spark_streams.connector.schemas.decoder import Decoder
from spark_streams.connector.schemas.json_schema import search
from spark_streams.connector.schemas.payload_columns import columns_of
from spark_streams.connector.schemas.payload_format import PayloadFormat
from spark_streams.connector.schemas.reasons import UnreadableError
from spark_streams.connector.schemas.schema_registry import Registry
from tests.connector.schemas.registry_server import RegistryServer
from tests.connector.schemas.test_avro import decoded

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0},
        "price": {"type": "number", "multipleOf": 0.01},
        "at": {"type": "string", "format": "date-time"},
    },
    "required": ["n"],
}


def form(schema: object = SCHEMA, **more: Any) -> PayloadFormat:
    return PayloadFormat("json", json.dumps(schema), **more)


@pytest.mark.parametrize(
    ("text", "into", "value"),
    [
        ('{"n": 1, "price": 0.10}', "n BIGINT, price DECIMAL(10,2)", {"n": 1, "price": Decimal("0.10")}),
        ('{"n": 1.0, "price": 1e2}', "n INT, price DOUBLE", {"n": 1, "price": 100.0}),
        ('{"n": 1, "price": 0.1}', "n INT, price FLOAT", {"n": 1, "price": 0.10000000149011612}),
        ('{"n": 1, "at": "2026-01-31T10:00:00.5+02:00"}', "at TIMESTAMP",
         {"at": datetime(2026, 1, 31, 8, 0, 0, 500000, UTC)}),
        ('{"n": 1, "at": "2026-01-31t10:00:00.123456000z"}', "at TIMESTAMP",
         {"at": datetime(2026, 1, 31, 10, 0, 0, 123456, UTC)}),
        ('{"n": 1, "at": "2026-01-31T10:00:00.1200000"}', "at TIMESTAMP_NTZ",
         {"at": datetime(2026, 1, 31, 10, 0, 0, 120000)}),
        ('{"n": 1, "d": "2026-01-31"}', "d DATE", {"d": date(2026, 1, 31)}),
        ('{"n": 1, "l": [{"a": null}, null], "m": {"k": 1}}', "l ARRAY<STRUCT<a: INT>>, m MAP<STRING, INT>",
         {"l": [{"a": None}, None], "m": {"k": 1}}),
    ],
)  # fmt: skip
def test_a_value_that_fits(text: str, into: str, value: object) -> None:
    assert decoded([text.encode()], form(), into) == [(value, None)]


@pytest.mark.parametrize(
    ("text", "into"),
    [
        ("{}", "n INT"),
        ('{"n": -1}', "n INT"),
        ('{"n": "1"}', "n INT"),
        ('{"n": 1.5}', "n INT"),
        ('{"n": 1, "n": 2}', "n INT"),
        ('{"n": NaN}', "n INT"),
        ('{"n": 1e400}', "n INT"),
        ('{"n": 1, "x": NaN}', "x DOUBLE"),
        ('{"n": 1, "price": 0.001}', "price DECIMAL(10,3)"),
        ('{"n": 1, "x": 0.12345678901234567890}', "x DOUBLE"),
        ('{"n": 1, "x": 1e999999999}', "x DOUBLE"),
        ('{"n": 1, "x": 1e999999999}', "x DECIMAL(10,2)"),
        ('{"n": 1, "x": 1.5}', "x BIGINT"),
        ('{"n": 1, "at": "2026-01-31T10:00:00"}', "at TIMESTAMP"),
        ('{"n": 1, "at": "2026-01-31T10:00:00.1234567Z"}', "at TIMESTAMP"),
        ('{"n": 1, "at": "2026-01-31T10:00:00.1234560001Z"}', "at TIMESTAMP"),
        ('{"n": 1, "at": "2026-01-31T10:00:000Z"}', "at TIMESTAMP"),
        ('{"n": 1, "at": "2026-13-31T10:00:00Z"}', "at TIMESTAMP"),
        ('{"n": 1, "s": "\\ud800"}', "s STRING"),
        ('{"n": 1, "s": "x"}', "s BINARY"),
        ("[1]", "n INT"),
        ("null", "n INT"),
        ('{"n": 1', "n INT"),
        ("\xff", "n INT"),
    ],
)
def test_a_value_that_does_not_fit(text: str, into: str) -> None:
    assert decoded([text.encode("latin-1")], form(), into) == [(None, "bad-value")]


def test_each_value_is_validated_by_its_own_schema(registry: RegistryServer) -> None:
    registry.add(1, SCHEMA, "JSON")
    registry.add(2, {"$ref": "https://elsewhere.example/x.json"}, "JSON")
    registry.add(3, {"properties": {"n": {"$ref": "n.json"}}}, "JSON",
                 [{"name": "n.json", "subject": "n", "version": 1}])  # fmt: skip
    registry.add_version("n", 1, {"type": "integer"}, "JSON")
    decoder = Decoder(form({"properties": {}}, framed=True, registry=registry.url), Registry(registry.url))

    def reason_of(schema_id: int, text: bytes) -> str | None:
        try:
            decoder.decode(b"\0\0\0\0" + bytes([schema_id]) + text)
        except UnreadableError as error:
            return error.reason
        return None

    assert reason_of(1, b'{"n": 1}') is None
    assert reason_of(1, b'{"n": -1}') == "bad-value"
    assert reason_of(2, b'{"n": 1}') == "other-schema"  # and nothing is fetched from elsewhere
    assert reason_of(3, b'{"n": 1}') is None
    assert reason_of(3, b'{"n": "1"}') == "bad-value"


# -- Patterns mean what ECMA says, or are refused by name --------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        (r"^\d+$", "12", "١"),
        (r"^a$", "a", "a\n"),
        (r"^\w+$", "aZ_9", "é"),
        (r"^\p{L}$", "é", "1"),
        (r"^\p{Lu}\P{Lu}$", "Éa", "éa"),
        (r"^\p{Script=Greek}+$", "αβ", "ab"),
        (r"^\p{Letter}$", "a", "-"),
        (r"^(?<year>\d{4})-(?<day>\d\d)$", "2026-01", "26-01"),
        (r"^\u00e9$", "é", "e"),
        (r"^\u{1F600}$", "😀", "x"),
        (r"^\ud83d\ude00$", "😀", "x"),
        (r"^\x41\cJ$", "A\n", "AJ"),
        (r"^[\s]$", "\ufeff", "x"),
        (r"^\s$", "\u2028", "\u200b"),
        (r"^\S$", "x", "\u00a0"),
        (r"^[^\s]+$", "ab", "a\u3000b"),
        (r"^[\S]$", "x", "\ufeff"),
        (r"^.$", "\u0085", "\r"),
        (r"^[^]$", "\n", "ab"),
        (r"^a[]$|b", "b", "a"),
        (r"^[[]$", "[", "]"),
        (r"^[a-z(?=]$", "=", "A"),
        (r"^[.\]]$", "]", "x"),
        (r"^[\b]$", "\b", "b"),
        (r"^\/\$\{\}\-$", "/${}-", "x"),
        (r"^[\w.-]+@[\w-]+\.\w{2,}$", "a.b-c@x-y.org", "a@b"),
        (r"\bcat\b", "a cat.", "concat"),
        (r"b", "abc", "ac"),
        (r"^(?:a|b)*?c$", "ababc", "abd"),
        ("^\N{SNOWMAN}$", "\N{SNOWMAN}", "x"),
        (r"^\0$", "\0", "0"),
    ],
)
def test_a_pattern_of_ecma(pattern: str, matching: str, others: str) -> None:
    assert search(pattern)(matching)
    assert not search(pattern)(others)


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        (r"^(?=a)", "a lookaround"),
        (r"^(?!a)", "a lookaround"),
        (r"(?<=a)b", "a lookaround"),
        (r"(?<!a)b", "a lookaround"),
        (r"(a)\1", "a reference back"),
        (r"(?<x>a)\k<x>", "a reference back"),
        (r"(?i)a", "flags"),
        (r"(?P<x>a)", "flags"),
        (r"a\Z", "an escape that ECMA does not have"),
        (r"\Aa", "an escape that ECMA does not have"),
        (r"a{1001}", "repetition"),
        (r"a++", "repetition"),
        ("[", "missing"),
        ("(", "missing"),
        (r"\p{Nonsense}", "property|character class"),
        ("\\", "trailing"),
    ],
)
def test_a_pattern_that_is_refused_names_itself_before_the_first_value(pattern: str, what: str) -> None:
    with pytest.raises(ValueError, match=rf"pattern .*it has .*{what}"):
        search(pattern)
    for schema in ({"pattern": pattern}, {"patternProperties": {pattern: {"type": "string"}}}):
        with pytest.raises(SchemaError, match="pattern"):
            columns_of(PayloadFormat("json", _text({"properties": {"s": {"type": "string"} | schema}})))


def test_names_and_values_that_look_like_patterns_are_none() -> None:
    properties = {
        "pattern": {"type": "string"},
        "const": {"type": "string", "enum": ["("], "default": {"pattern": "("}},
    }
    assert columns_of(PayloadFormat("json", _text({"properties": properties}))) == {
        "pattern": "STRING",
        "const": "STRING",
    }


def _text(schema: object) -> str:
    return json.dumps(schema)
