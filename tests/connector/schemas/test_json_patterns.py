"""Patterns mean what ECMA says, or are refused by name."""

from __future__ import annotations

import json

import pytest

from spark_streams.connector.errors import SchemaError
from spark_streams.connector.schemas.decode import columns_of
from spark_streams.connector.schemas.json_schema import search
from spark_streams.connector.schemas.payload_format import PayloadFormat


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
