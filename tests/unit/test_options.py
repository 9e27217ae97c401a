"""The option table: defaults, checks, and errors that name the nearest option."""

import pytest

from spark_streams.errors import InvalidOptionError, UnknownOptionError, UnsupportedError
from spark_streams.options import SINK, SOURCE, parse_options, table_of

GOOD = {"streams": "a, b", "group": "g", "url": "redis://localhost:6379/0"}


def test_defaults_are_filled_in() -> None:
    options = parse_options(GOOD, SOURCE, "source")
    assert options["streams"] == ("a", "b")
    assert options["consumer"] == "spark"
    assert options["failOnDataLoss"] is True
    assert options["maxEntriesPerTrigger"] is None
    assert options["startingOffsets"].of("a") == "$"


def test_names_match_without_regard_to_case_and_sparks_own_are_passed_over() -> None:
    options = parse_options({**GOOD, "MAXENTRIESPERTRIGGER": "5", "checkpointlocation": "/x"}, SOURCE, "source")
    assert options["maxEntriesPerTrigger"] == 5


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(UnknownOptionError, match="no option 'gruop'; did you mean 'group'"):
        parse_options({**GOOD, "gruop": "x"}, SOURCE, "source")


@pytest.mark.parametrize("name", ["streams", "group"])
def test_a_missing_option_is_named(name: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"option {name} is missing"):
        parse_options({k: v for k, v in GOOD.items() if k != name}, SOURCE, "source")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("streams", ""),
        ("streams", "a,,b"),
        ("streams", "a,a"),
        ("streams", '["a", 1]'),
        ("streams", "[a"),
        ("maxEntriesPerTrigger", "0"),
        ("maxEntriesPerTrigger", "-3"),
        ("maxEntriesPerTrigger", "many"),
        ("maxEntriesPerTrigger", "²"),
        ("maxEntriesPerTrigger", "9" * 30),
        ("failOnDataLoss", "yes"),
        ("mode", "IGNORE"),
        ("startingOffsets", "yesterday"),
        ("startingOffsets", '{"a": 5}'),
        ("startingOffsets", "{a"),
        ("group", ""),
        ("url", "localhost:6379"),
        ("url", "redis://"),
        ("url", "redis://h:port"),
        ("url", "redis://h/db"),
        ("url", "embedded:?idle=soon"),
        ("url", "embedded:?other=1"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_it(name: str, value: str) -> None:
    with pytest.raises(InvalidOptionError, match="RSTREAM_INVALID_OPTION"):
        parse_options({**GOOD, name: value}, SOURCE, "source")


def test_starting_offsets_per_stream() -> None:
    given = {**GOOD, "streams": "a,b,c", "startingOffsets": '{"a": "earliest", "b": "5-1"}'}
    starting = parse_options(given, SOURCE, "source")["startingOffsets"]
    assert (starting.of("a"), starting.of("b"), starting.of("c")) == ("0", "5-1", "$")


def test_addresses_that_are_not_available_say_so() -> None:
    with pytest.raises(UnsupportedError, match="redis\\+cluster"):
        parse_options({**GOOD, "url": "redis+cluster://a:1,b:2"}, SOURCE, "source")


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:secret@host:1/0",
        "redis://:secret@host:1",
        "redis://me@corp:secret@host:1/0",
        "redis://u:p@secret@host",
        "redis://host:1/?password=secret",
        "rediss://host?ssl_password=secret",
        "unix:///run/r.sock?password=secret",
    ],
)
def test_a_password_never_shows(url: str) -> None:
    address = parse_options({**GOOD, "url": url}, SOURCE, "source").address
    assert address.url == url
    assert "secret" not in f"{address} {address!r}"


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@host",
        "redis:secret@host",
        "redis//:secret@host",
        ":secret@host:6379",
        "redis://u:secret",
        "redis://u:secret@host:port",
        "redis://host?pass%77ord2=secret",
        "embedded:?idle=5&password=secret",
        "embedded://u:secret@x",
    ],
)
def test_a_password_in_a_url_that_is_refused_does_not_show_either(url: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        parse_options({**GOOD, "url": url}, SOURCE, "source")
    assert "secret" not in str(caught.value)


def test_the_parameters_of_a_url_are_checked() -> None:
    for url, words in (
        ("redis://h?protocol=3", "unknown parameter 'protocol'"),
        ("redis://h?socket_timeot=3", "did you mean 'socket_timeout'"),
        ("redis://h?socket_timeout=0", "socket_timeout must be a number of seconds above 0"),
        ("redis://h?ssl_cert_reqs=none", "unknown parameter 'ssl_cert_reqs'"),
        ("embedded:?fsync=no", "fsync is always, everysec or no, and wants embedded:///directory"),
        ("embedded:///d?fsync=often", "fsync is always, everysec or no"),
    ):
        with pytest.raises(InvalidOptionError, match=words.replace("?", ".")):
            parse_options({**GOOD, "url": url}, SOURCE, "source")
    parse_options({**GOOD, "url": "rediss://h?ssl_cert_reqs=none&socket_timeout=3"}, SOURCE, "source")
    parse_options({**GOOD, "url": "embedded:?idle=60"}, SOURCE, "source")


def test_offsets_for_a_stream_that_is_not_read_are_refused() -> None:
    with pytest.raises(
        InvalidOptionError, match="startingOffsets names stream 'A', which is not among streams; did you"
    ):
        parse_options({**GOOD, "startingOffsets": '{"A": "earliest"}'}, SOURCE, "source")


def test_every_option_has_a_line_in_the_table() -> None:
    for table in (SOURCE, SINK):
        text = table_of(table)
        assert all(f"| `{option.name}` |" in text and option.doc for option in table)
