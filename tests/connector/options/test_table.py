"""The option table, and the fields that hold its values."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args, get_origin, get_type_hints

import pytest

from spark_streams.connector.options.access_options import AccessOptions, SinkOptions
from spark_streams.connector.options.option import Option, documented
from spark_streams.connector.options.parsers import PerStream
from spark_streams.connector.options.source_options import BatchSourceOptions, SourceOptions
from tools.reference import table_of

KINDS = (AccessOptions, SourceOptions, BatchSourceOptions, SinkOptions)
OPTIONS = [pytest.param(kind, option, id=f"{kind.__name__}-{option.name}") for kind in KINDS for option in kind.TABLE]
NOT_TYPED = "explicit"  # says which options were
BY_STREAM = {
    "startingOffsets": '{"a": "5-1"}',
    "startingTimestamp": '{"a": 5}',
    "endingOffsets": '{"a": "5-1"}',
    "endingTimestamp": '{"a": 5}',
    "maxEntriesPerTrigger": '{"a": 5}',
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_has_a_line_in_the_table(kind: type[AccessOptions]) -> None:
    text = table_of(kind.TABLE)
    assert all(f"</a>`{option.name}` |" in text for option in documented(kind.TABLE))
    undocumented = {option.name for option in kind.TABLE} - {option.name for option in documented(kind.TABLE)}
    assert undocumented <= {"transactionBatch", "transactionQuery", "chunkSize"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_has_one_field_and_every_field_one_option(kind: type[AccessOptions]) -> None:
    assert sorted(option.field for option in kind.TABLE) == sorted({one.name for one in fields(kind)} - {NOT_TYPED})


@pytest.mark.parametrize(("kind", "option"), OPTIONS)
def test_a_field_has_the_type_that_its_option_is_parsed_to(kind: type[AccessOptions], option: Option) -> None:
    """And None beside it if that is the default. A value by stream: see the next test."""
    found = get_type_hints(kind)[option.field]
    parsed = get_type_hints(option.parse)["return"]
    if get_origin(parsed) is PerStream:
        assert option.name in BY_STREAM
        assert [get_origin(one) or one for one in without_none(found)] == [PerStream]
        assert (type(None) in get_args(found)) == (option.default is None)
    else:
        assert found == (parsed | None if option.default is None else parsed)


@pytest.mark.parametrize(("kind", "option"), [one for one in OPTIONS if one.values[1].name in BY_STREAM])
def test_a_value_by_stream_has_the_type_of_its_field(kind: type[AccessOptions], option: Option) -> None:
    (by_stream,) = without_none(get_type_hints(kind)[option.field])
    (value,) = get_args(by_stream)
    parsed = option.parse(BY_STREAM[option.name])
    for one in (parsed, option.default):
        if one is not None:
            assert isinstance(one, PerStream)
            assert all(isinstance(each, value) for each in (one.otherwise, *one.named.values()))


def without_none(kind: object) -> list[object]:
    """The types of a union but None; any other type alone."""
    union = get_args(kind) if get_origin(kind) is not PerStream else (kind,)
    return [one for one in union or (kind,) if one is not type(None)]
