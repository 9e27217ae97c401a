"""Options of the source: defaults, checks, and errors that name the nearest option."""

import pytest

from spark_streams.connector.errors import InvalidOptionError, UnknownOptionError
from spark_streams.connector.options.source_options import BatchSourceOptions, SourceOptions

GOOD = {"streams": "a, b", "group": "g", "url": "redis://localhost:6379/0"}


def test_defaults_are_filled_in() -> None:
    options = SourceOptions.parse(GOOD)
    assert options.streams == ("a", "b")
    assert options.consumer == "spark"
    assert options.fail_on_data_loss is True
    assert options.max_entries_per_trigger.value_for("a") is None
    assert options.starting_offsets.value_for("a") == "$"


def test_names_match_without_regard_to_case_and_sparks_own_are_passed_over() -> None:
    options = SourceOptions.parse({**GOOD, "MAXENTRIESPERTRIGGER": "5", "checkpointlocation": "/x"})
    assert options.max_entries_per_trigger.value_for("a") == 5


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(UnknownOptionError, match="no option 'gruop'; did you mean 'group'"):
        SourceOptions.parse({**GOOD, "gruop": "x"})


@pytest.mark.parametrize("name", ["streams", "group"])
def test_a_missing_option_is_named(name: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"option {name} is missing"):
        SourceOptions.parse({k: v for k, v in GOOD.items() if k != name})


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
        SourceOptions.parse({**GOOD, name: value})


def test_starting_offsets_per_stream() -> None:
    given = {**GOOD, "streams": "a,b,c", "startingOffsets": '{"a": "earliest", "b": "5-1"}'}
    starting = SourceOptions.parse(given).starting_offsets
    assert (starting.value_for("a"), starting.value_for("b"), starting.value_for("c")) == ("0", "5-1", "$")


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
        "redis+sentinel://u:secret@a,b/name",
        "redis+sentinel://a,b/name?sentinel_password=secret",
        "rediss+cluster://u:secret@a:1,b:2",
    ],
)
def test_a_password_never_shows(url: str) -> None:
    address = SourceOptions.parse({**GOOD, "url": url}).address
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
        "redis://u:a?secret@host",
        "redis://u:a?b=secret@host",
        "redis://u:a/secret@host",
        "redis://u:a#secret@host",
        "redis://[secret@host",
        "redis+sentinel://u:secret/name",
        "redis+sentinel://u:secret@a,b",
        "redis+cluster://u:secret,host:1",
        "redis+cluster://u:secret@a:1,b:x",
        "redis+cluster://a?sentinel_password=secret",
    ],
)
def test_a_password_in_a_url_that_is_refused_does_not_show_either(url: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        SourceOptions.parse({**GOOD, "url": url})
    assert "secret" not in str(caught.value)


def test_the_parameters_of_a_url_are_checked() -> None:
    for url, words in (
        ("redis://h?protocol=3", "unknown parameter 'protocol'"),
        ("redis://h?socket_timeot=3", "did you mean 'socket_timeout'"),
        ("redis://h?socket_timeout=0", "socket_timeout must be a number of seconds above 0"),
        ("redis://h?ssl_cert_reqs=none", "unknown parameter 'ssl_cert_reqs'"),
        ("embedded:?fsync=no", "fsync is always, everysec or no, and needs embedded:///directory"),
        ("embedded:///d?fsync=often", "fsync is always, everysec or no"),
    ):
        with pytest.raises(InvalidOptionError, match=words.replace("?", ".")):
            SourceOptions.parse({**GOOD, "url": url})
    SourceOptions.parse({**GOOD, "url": "rediss://h?ssl_cert_reqs=none&socket_timeout=3"})
    SourceOptions.parse({**GOOD, "url": "embedded:?idle=60"})


def test_offsets_for_a_stream_that_is_not_read_are_refused() -> None:
    with pytest.raises(
        InvalidOptionError, match="startingOffsets names stream 'A', which is not among streams; did you"
    ):
        SourceOptions.parse({**GOOD, "startingOffsets": '{"A": "earliest"}'})


LETTERS = {"deadLetterStream": "dead"}


def test_delivery_is_an_option_of_the_sink() -> None:
    with pytest.raises(UnknownOptionError, match="no option 'delivery', which is one of the sink. The source ackn"):
        SourceOptions.parse({**GOOD, "delivery": "at-most-once"})


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("1700000000000", "1699999999999-18446744073709551615"),
        ("2023-11-14T22:13:20Z", "1699999999999-18446744073709551615"),
        ("2023-11-14T23:13:20+01:00", "1699999999999-18446744073709551615"),
        ("2023-11-14 22:13:20", "1699999999999-18446744073709551615"),
        ("2023-11-14T22:13:20.000001Z", "1700000000000-18446744073709551615"),
        ("0", "0-0"),
    ],
)
def test_a_starting_time_is_the_id_below_its_first_entry(text: str, after: str) -> None:
    assert SourceOptions.parse({**GOOD, "startingTimestamp": text}).starting_offsets.value_for("a") == after


@pytest.mark.parametrize("time", ["5", "1970-01-01T00:00:00.004001"])
def test_a_batch_ends_at_the_last_id_below_its_ending_time(time: str) -> None:
    """IDs have whole milliseconds: those of the last one are before a time within it."""
    given = {"streams": "a", "url": GOOD["url"], "endingTimestamp": time, "startingOffsets": '{"a": "3-1"}'}
    options = BatchSourceOptions.parse(given)
    assert options.ending_offsets.value_for("a") == "4-18446744073709551615"
    assert options.starting_offsets.value_for("a") == "3-1"


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("maxEntriesPerTrigger", '{"a": 0}', "of 'a' must be a whole number above 0"),
        ("maxEntriesPerTrigger", '{"a": true}', "of 'a' must be a whole number above 0"),
        ("maxEntriesPerTrigger", '{"a": 1, "a": 2}', "names a stream twice"),
        ("maxEntriesPerTrigger", "{}", "names no stream"),
        ("maxEntriesPerTrigger", '{"aa": 4}', "names stream 'aa', which is not among streams; did you mean 'a'"),
        ("maxEntriesPerTrigger", '{"z*": 4}', "names 'z[*]', which matches none among streams"),
        ("maxBytesPerTrigger", "64 megabytes", "must be a size above 0, such as 64mb"),
        ("maxBytesPerTrigger", "0", "must be a size above 0"),
        ("startingTimestamp", '{"a": {}}', "of 'a' must be a time"),
        ("startingTimestamp", '{"a": "soon"}', "of 'a' must be a time"),
    ],
)
def test_what_is_given_by_stream_is_checked_stream_by_stream(option: str, value: str, problem: str) -> None:
    with pytest.raises(InvalidOptionError, match=problem):
        SourceOptions.parse({**GOOD, option: value})


def test_a_name_goes_before_a_pattern_and_patterns_in_their_order() -> None:
    given = {**GOOD, "streams": "a,a*,b:1,b:2", "maxEntriesPerTrigger": '{"a*": 1, "b:*": 3, "b:2": 4, "?": 5}'}
    most = SourceOptions.parse(given).max_entries_per_trigger
    assert [most.value_for(stream) for stream in ("a*", "a", "b:1", "b:2", "c", "other")] == [
        1,
        5,
        3,
        4,
        5,
        None,
    ]  # the stream a* has this name, so it is not a pattern


def test_sizes_count_as_redis_does() -> None:
    given = {**GOOD, "maxBytesPerTrigger": "3 MB"}
    assert SourceOptions.parse(given).max_bytes_per_trigger == 3 << 20


@pytest.mark.parametrize("kind", [SourceOptions, BatchSourceOptions])
def test_an_archive_whose_uri_has_a_login_is_refused_without_a_word_of_it(
    kind: type[SourceOptions | BatchSourceOptions],
) -> None:
    with pytest.raises(InvalidOptionError, match="archivePath='s3://…' has a login: give it by the env") as refused:
        kind.parse({"streams": "a", "url": GOOD["url"], "archivePath": "s3://KEY:SECRET@bucket/x"})
    assert "SECRET" not in str(refused.value)
