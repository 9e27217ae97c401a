"""The option table: defaults, checks, and errors that name the nearest option."""

import pytest

from spark_streams.errors import InvalidOptionError, UnknownOptionError
from spark_streams.options.parse import parse_options
from spark_streams.options.table import BATCH_SOURCE, SINK, SOURCE, table_of

QUERY = "be800551-afc6-46ac-a357-b30305364bfc"
GOOD = {"streams": "a, b", "group": "g", "url": "redis://localhost:6379/0"}


def test_defaults_are_filled_in() -> None:
    options = parse_options(GOOD, SOURCE, "source")
    assert options["streams"] == ("a", "b")
    assert options["consumer"] == "spark"
    assert options["failOnDataLoss"] is True
    assert options["maxEntriesPerTrigger"].of("a") is None
    assert options["startingOffsets"].of("a") == "$"


def test_names_match_without_regard_to_case_and_sparks_own_are_passed_over() -> None:
    options = parse_options({**GOOD, "MAXENTRIESPERTRIGGER": "5", "checkpointlocation": "/x"}, SOURCE, "source")
    assert options["maxEntriesPerTrigger"].of("a") == 5


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


LETTERS = {"deadLetterStream": "dead"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"streamsPattern": "o*"}, "streams and streamsPattern contradict"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "startingOffsets and startingTimestamp contradict"),
        ({"ordered": "true", "minPartitions": "4"}, "ordered and minPartitions contradict"),
        ({"ordered": "true", "entriesPerPartition": "4"}, "ordered and entriesPerPartition contradict"),
        ({"noAck": "true", "delivery": "at-most-once"}, "noAck and delivery contradict"),
        ({"noAck": "true", "claimIdle": "5s"}, "noAck and claimIdle contradict"),
        ({"noAck": "true", "maxDeliveries": "5", **LETTERS}, "noAck and maxDeliveries contradict"),
        ({"delivery": "at-most-once", "claimIdle": "5s"}, "delivery and claimIdle contradict"),
        ({"delivery": "at-most-once", "maxDeliveries": "5", **LETTERS}, "delivery and maxDeliveries contradict"),
        ({"maxTriggerDelay": "5s"}, "maxTriggerDelay needs option minEntriesPerTrigger"),
        ({"maxDeliveries": "5"}, "maxDeliveries needs option deadLetterStream"),
        ({"mode": "DEADLETTER"}, "mode=DEADLETTER needs option deadLetterStream"),
        (LETTERS, "deadLetterStream has nothing to receive"),
        ({"mode": "DEADLETTER", "deadLetterStream": "a"}, "deadLetterStream='a' is among the streams"),
        ({"minEntriesPerTrigger": "5", "maxEntriesPerTrigger": "4"}, "minEntriesPerTrigger=5 is more than"),
        ({"mode": "FAILFAST", "columnNameOfCorruptRecord": "c"}, "columnNameOfCorruptRecord has no meaning"),
        ({"endingOffsets": "latest"}, "'endingOffsets' is one of spark.read, not of spark.readStream"),
        ({"inferSchema": "true"}, "'inferSchema' is one of spark.read, not of spark.readStream"),
        ({"maxTriggerDelay": "5", "minEntriesPerTrigger": "2"}, "must be a duration above 0 with its unit"),
        ({"claimIdle": "0s"}, "must be a duration above 0"),
        ({"startingTimestamp": "yesterday"}, "must be a time as ISO-8601 or in milliseconds"),
        ({"startingTimestamp": "1960-01-01"}, "is before 1970"),
    ],
)
def test_options_that_contradict_or_lack_each_other_are_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        parse_options({**GOOD, **given}, SOURCE, "source")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"transaction": "t", "transactionBatch": "0"}, "transactionBatch needs option transactionQuery"),
        ({"transaction": "t", "transactionQuery": QUERY}, "transactionQuery needs option transactionBatch"),
        ({"transactionBatch": "0", "transactionQuery": QUERY}, "transactionBatch needs option transaction:"),
        ({"transaction": "t", "transactionBatch": "-1", "transactionQuery": QUERY}, "must be a whole number"),
        ({"transaction": "t", "transactionBatch": "0", "transactionQuery": "billing"}, "must be the id of a query"),
    ],
)
def test_a_named_write_is_told_its_query_and_batch_together(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        parse_options({"stream": "s", "url": GOOD["url"], **given}, SINK, "sink")


def test_the_first_batch_has_number_0() -> None:
    given = {"stream": "s", "transaction": "t", "transactionBatch": "0", "transactionQuery": QUERY.upper()}
    options = parse_options({"url": GOOD["url"], **given}, SINK, "sink")
    assert (options["transactionBatch"], options["transactionQuery"]) == (0, QUERY)


def test_a_pattern_makes_no_streams() -> None:
    given = {"url": GOOD["url"], "group": "g", "streamsPattern": "o*", "createStreams": "false"}
    with pytest.raises(InvalidOptionError, match="streamsPattern and createStreams contradict"):
        parse_options(given, SOURCE, "source")


def test_options_at_their_harmless_value_contradict_nothing() -> None:
    given = {"ordered": "false", "minPartitions": "4", "noAck": "false", "claimIdle": "5m", "delivery": "at-least-once"}
    assert parse_options({**GOOD, **given}, SOURCE, "source")["claimIdle"] == 300_000


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("1700000000000", "1699999999999-18446744073709551615"),
        ("2023-11-14T22:13:20Z", "1699999999999-18446744073709551615"),
        ("2023-11-14T23:13:20+01:00", "1699999999999-18446744073709551615"),
        ("2023-11-14 22:13:20", "1699999999999-18446744073709551615"),
        ("0", "0-0"),
    ],
)
def test_a_starting_time_is_the_id_below_its_first_entry(text: str, after: str) -> None:
    assert parse_options({**GOOD, "startingTimestamp": text}, SOURCE, "source")["startingOffsets"].of("a") == after


def test_a_batch_ends_at_the_last_id_below_its_ending_time() -> None:
    given = {"streams": "a", "url": GOOD["url"], "endingTimestamp": "5", "startingOffsets": '{"a": "3-1"}'}
    options = parse_options(given, BATCH_SOURCE, "source")
    assert options["endingOffsets"].of("a") == "4-18446744073709551615"
    assert options["startingOffsets"].of("a") == "3-1"
    with pytest.raises(InvalidOptionError, match="'group' is one of spark.readStream, not of spark.read"):
        parse_options({**given, "group": "g"}, BATCH_SOURCE, "source")
    with pytest.raises(InvalidOptionError, match="must be earliest or an id"):
        parse_options({**given, "startingOffsets": "latest"}, BATCH_SOURCE, "source")
    with pytest.raises(InvalidOptionError, match="streams is missing \\(or streamsPattern\\)"):
        parse_options({"url": GOOD["url"]}, BATCH_SOURCE, "source")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"maxlen": "5", "minId": "5"}, "maxlen and minId contradict"),
        ({"minId": "5", "retention": "1h"}, "minId and retention contradict"),
        ({"trim": "maxlen"}, "trim=maxlen needs option maxlen"),
        ({"trim": "minid"}, "trim=minid needs option minId or retention"),
        ({"trim": "minid", "maxlen": "5"}, "trim and maxlen contradict"),
        ({"maxlen": "5", "approximate": "false", "trimLimit": "3"}, "only whole nodes"),
        ({"approximate": "false"}, "approximate needs one of maxlen, minId, retention, retentionBytes or trim=acked"),
        ({"trimLimit": "3"}, "trimLimit needs one of"),
        ({"minId": "x"}, "minId='x' is not a stream id"),
        ({"retention": "7"}, "retention='7' must be a duration"),
        ({"delivery": "at-most-once"}, "must be one of exactly-once, at-least-once"),
        ({"waitReplicas": "0"}, "waitReplicas='0'"),
    ],
)
def test_sink_options_that_do_not_fit(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        parse_options({"stream": "s", "url": GOOD["url"], **given}, SINK, "sink")


def test_sink_options_by_default_and_given() -> None:
    plain = parse_options({"stream": "s", "url": GOOD["url"]}, SINK, "sink")
    assert (plain["delivery"], plain["trim"], plain["approximate"]) == ("exactly-once", None, True)
    acked = {"url": GOOD["url"], "trim": "acked", "retention": "2d", "trimLimit": "9"}
    given = parse_options(acked, SINK, "sink")
    assert (given["stream"], given["retention"], given["trimLimit"]) == (None, 172_800_000, 9)


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
        ("streamWeights", "3", "must be JSON of weights"),
        ("streamWeights", '{"a": 101}', "from 1 to 100"),
        ("streamWeights", '{"a": 2}', "needs option maxEntriesPerTrigger"),
        ("startingTimestamp", '{"a": {}}', "of 'a' must be a time"),
        ("startingTimestamp", '{"a": "soon"}', "of 'a' must be a time"),
    ],
)
def test_what_is_given_by_stream_is_checked_stream_by_stream(option: str, value: str, problem: str) -> None:
    with pytest.raises(InvalidOptionError, match=problem):
        parse_options({**GOOD, option: value}, SOURCE, "source")


def test_a_name_goes_before_a_pattern_and_patterns_in_their_order() -> None:
    given = {**GOOD, "streams": "a,a*,b:1,b:2", "maxEntriesPerTrigger": '{"a*": 1, "b:*": 3, "b:2": 4, "?": 5}'}
    most = parse_options(given, SOURCE, "source")["maxEntriesPerTrigger"]
    assert [most.of(stream) for stream in ("a*", "a", "b:1", "b:2", "c", "other")] == [1, 1, 3, 4, 5, None]


def test_sizes_count_as_redis_does() -> None:
    given = {**GOOD, "maxBytesPerTrigger": "3 MB", "streamWeights": '{"a": 3}'}
    assert parse_options(given, SOURCE, "source")["maxBytesPerTrigger"] == 3 << 20
