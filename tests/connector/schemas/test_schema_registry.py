"""A registry is asked once for each ID, waited for if it is away, and its answers are not mistaken."""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from spark_streams.connector.errors import InvalidOptionError, LoginError, RegistryError
from spark_streams.connector.schemas.decoder import Decoder, ids_of
from spark_streams.connector.schemas.payload_format import Login, PayloadFormat, check_url
from spark_streams.connector.schemas.reasons import UnreadableError
from spark_streams.connector.schemas.schema_registry import MOST_AT_ONCE, MOST_UNKNOWN, Registry
from spark_streams.connector.wire.address import DEFAULT_PATIENCE
from tests.connector.schemas.avro_values import FIRST, READER, VERSIONS, encoded, form, record
from tests.connector.schemas.registry_server import RegistryServer

QUICK = replace(DEFAULT_PATIENCE, first_pause=0.01, longest_pause=0.05)
IMPATIENT = replace(QUICK, limit=0.3, reply=0.2)  # for a registry that never answers
VALUES = {
    1: {"customer": "ann", "amount": 7},
    2: {"customer": "bob", "amount": 2**40, "note": "x"},
    3: {"buyer": "cyd", "amount": 9, "currency": "CHF"},
}


def reason_of(decoder: Decoder, value: bytes) -> str:
    with pytest.raises(UnreadableError) as told:
        decoder.decode(value)
    return told.value.reason


def test_three_versions_of_a_schema_are_read_by_one(registry: RegistryServer) -> None:
    """One request for each, whatever the number of values, and each schema is parsed once."""
    for schema_id, schema in VERSIONS.items():
        registry.add(schema_id, schema)
    client = Registry(registry.url, patience=QUICK)
    decoder = Decoder(form(READER, framed=True, registry=registry.url), client)
    values = [encoded(VERSIONS[n], VALUES[n], n) for n in (1, 2, 3)] * 20
    found = [decoder.decode(value) for value in values]
    assert found[:3] == [
        {"customer": "ann", "amount": 7, "currency": "USD"},
        {"customer": "bob", "amount": 2**40, "currency": "USD"},
        {"customer": "cyd", "amount": 9, "currency": "CHF"},
    ]
    assert len(decoder._reads) == 3
    assert registry.requests == {f"/schemas/ids/{n}": 1 for n in (1, 2, 3)}


def test_threads_that_ask_at_once_make_one_request(registry: RegistryServer) -> None:
    registry.add(1, FIRST)
    client = Registry(registry.url, patience=QUICK)
    threads = [threading.Thread(target=client.schema, args=(1,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.requests == {"/schemas/ids/1": 1}


def test_an_unknown_id_is_a_reason_and_asked_for_again_after_a_minute(registry: RegistryServer) -> None:
    now = [0.0]
    client = Registry(registry.url, patience=QUICK, clock=lambda: now[0])
    decoder = Decoder(form(READER, framed=True, registry=registry.url), client)
    value = encoded(FIRST, VALUES[1], 1)
    for now[0] in (0, 1, 59):
        assert reason_of(decoder, value) == "unknown-schema"
    assert registry.requests["/schemas/ids/1"] == 1
    registry.add(1, FIRST)
    now[0] = 61
    assert decoder.decode(value)["customer"] == "ann"


WITHOUT_A_CODE = [
    (404, None),
    (404, {"error_code": 404}),
    (404, {"code": "x"}),
    (404, [1]),
    (400, None),
    (422, {"a": 1}),
    (400, {"error_code": 40403}),
]


@pytest.mark.parametrize("answer", WITHOUT_A_CODE)
def test_an_answer_without_a_code_is_no_registrys_and_stops_the_query(
    registry: RegistryServer, answer: tuple[int, object]
) -> None:
    """Else a wrong URL would make dead letters of all entries. The error names URL, status and what was expected."""
    registry.unknown = answer
    client = Registry(registry.url, patience=QUICK)
    expected = (
        f"{registry.url}/schemas/ids/7 answered HTTP {answer[0]}, as no schema.* expected is a schema, or HTTP 404"
    )
    with pytest.raises(RegistryError, match=expected):
        client.schema(7)


@pytest.mark.parametrize("answer", WITHOUT_A_CODE)
def test_an_answer_without_a_code_is_an_unknown_id_where_a_schema_was_read(
    registry: RegistryServer, answer: tuple[int, object]
) -> None:
    """Anyone may write a value with any ID: it does not stop a query whose registry is known to be one."""
    registry.unknown = answer
    registry.add(1, FIRST)
    client = Registry(registry.url, patience=QUICK)
    assert client.schema(1) is not None
    assert client.schema(7) is None


def test_an_id_that_no_registry_can_have_is_unknown_without_a_request(registry: RegistryServer) -> None:
    """Confluent's registry answers 404 without a code to an ID that is no 32-bit number with a sign."""
    registry.unknown = (404, {"error_code": 404})
    client = Registry(registry.url, patience=QUICK)
    for schema_id in (2**31, 2**32 - 1):
        assert client.schema(schema_id) is None
    assert registry.requests.total() == 0


class Waits:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def clock(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.mark.in_turn
def test_forged_ids_make_no_good_value_unknown(registry: RegistryServer) -> None:
    """Beyond the bound of a minute an ID waits until it may be asked for: it is not unknown before."""
    waits = Waits()
    for schema_id in (1, 5000, 6000):
        registry.add(schema_id, FIRST)
    client = Registry(registry.url, patience=QUICK, clock=waits.clock, sleep=waits.sleep)
    decoder = Decoder(form(READER, framed=True, registry=registry.url), client)
    first, good, later = (encoded(FIRST, VALUES[1], n) for n in (1, 5000, 6000))
    forged = [encoded(FIRST, VALUES[1], n) for n in range(2, MOST_UNKNOWN + 50)]
    decoder.prepare([first])
    decoder.prepare([*forged, good, good])
    assert waits.slept == [60]
    for _ in range(2):
        assert {reason_of(decoder, value) for value in forged} == {"unknown-schema"}
    assert decoder.decode(good)["customer"] == "ann"
    assert registry.requests.total() == len(registry.requests) == 2 + len(forged)
    waits.sleep(61)
    decoder.prepare(forged[:MOST_UNKNOWN])
    decoder.prepare([later])
    assert waits.slept == [60, 61, 60]
    assert decoder.decode(later)["customer"] == "ann"


def test_the_ids_of_a_batch_are_asked_for_at_once(registry: RegistryServer) -> None:
    """Before, 64 unknown IDs took 64 answers in series."""
    registry.add(3, FIRST)
    registry.pause = 0.05
    client = Registry(registry.url, patience=QUICK)
    decoder = Decoder(form(READER, framed=True, registry=registry.url), client)
    values = [encoded(FIRST, VALUES[1], n) for n in range(64)]
    decoder.prepare([*values, None, b"", b"no frame", b"\0\xff\xff\xff\xff", "text"])
    assert 1 < registry.in_progress.most <= MOST_AT_ONCE
    assert decoder.decode(values[3])["customer"] == "ann"
    assert reason_of(decoder, values[4]) == "unknown-schema"
    assert registry.requests == {f"/schemas/ids/{n}": 1 for n in range(64)}


def test_ids_of_most_values_come_first() -> None:
    """So that IDs that occur once, which anyone may write, do not use up the bound before those of a new schema."""
    values = [b"\0\0\0\0\1x", b"\0\0\0\0\7", b"\0\0\0\0\7abc", b"\0\0\0\0", b"\1\0\0\0\7", b"\0\x80\0\0\0", None, "a"]
    assert ids_of(values) == [7, 1]


def test_a_registry_that_stays_away_ends_all_requests_of_a_batch() -> None:
    with RegistryServer() as gone:
        pass
    client = Registry(gone.url, patience=IMPATIENT)
    begin = time.monotonic()
    with pytest.raises(RegistryError, match="without success"):
        client.answers(range(1000))
    assert time.monotonic() - begin < 10


def test_a_schema_that_does_not_lead_to_the_readers_is_a_reason(registry: RegistryServer) -> None:
    registry.add(1, record({"name": "customer", "type": "int"}, {"name": "amount", "type": "int"}))
    registry.add(2, "no JSON")
    registry.add(3, '{"type": "object"}', "JSON")
    registry.add(4, FIRST, "JSON")
    decoder = Decoder(form(READER, framed=True, registry=registry.url), Registry(registry.url, patience=QUICK))
    bodies = [b"\0\0\0\0" + bytes([n]) + b"\2\2\2" for n in (1, 2, 3, 4)]
    assert [reason_of(decoder, body) for body in bodies * 2] == ["other-schema"] * 8
    assert set(registry.requests.values()) == {1}


def test_a_schema_that_refers_to_others(registry: RegistryServer) -> None:
    inner = record({"name": "city", "type": "string"}, name="shop.Address")
    outer = record({"name": "at", "type": "shop.Address"}, name="shop.Order")
    registry.add(1, outer, references=[{"name": "shop.Address", "subject": "a/b", "version": 2}])
    registry.add_version("a/b", 2, inner)
    decoder = Decoder(PayloadFormat("avro", framed=True, registry=registry.url), Registry(registry.url, patience=QUICK))
    assert decoder.decode(b"\0\0\0\0\1\4ab") == {"at": {"city": "ab"}}
    registry.answers["/subjects/a/b/versions/2"] |= {
        "schema": json.dumps(record({"name": "city", "type": "shop.City"}, name="shop.Address")),
        "references": [{"name": "shop.City", "subject": "city", "version": 1}],
    }
    registry.add_version("city", 1, record({"name": "name", "type": "string"}, name="shop.City"))
    decoder = Decoder(PayloadFormat("avro", framed=True, registry=registry.url), Registry(registry.url, patience=QUICK))
    assert decoder.decode(b"\0\0\0\0\1\4ab") == {"at": {"city": {"name": "ab"}}}
    registry.add(2, outer, references=[{"name": "shop.Address", "subject": "none", "version": 2}])
    with pytest.raises(RegistryError, match="has no /subjects/none/versions/2"):
        decoder.decode(b"\0\0\0\0\2\4ab")


def test_each_reference_is_asked_for_once(registry: RegistryServer) -> None:
    """Before, schemas that refer to the same ones took a number of requests that doubles with each level."""
    levels = 8

    def refer(level: int) -> list[dict[str, object]]:
        return [{"name": f"{side}{level}", "subject": f"{side}{level}", "version": 1} for side in "ab"]

    for level in range(1, levels + 1):
        for side in "ab":
            registry.add_version(f"{side}{level}", 1, {"type": "integer"}, "JSON")
            more = refer(level + 1) if level < levels else []
            registry.answers[f"/subjects/{side}{level}/versions/1"]["references"] = more
    registry.add(1, {}, "JSON", refer(1))
    found = Registry(registry.url, patience=QUICK).schema(1)
    assert found is not None
    names = [one.name for one in found.references]
    assert len(names) == 2 * levels
    assert names.index("a8") < names.index("a1")
    assert registry.requests.total() == 2 * levels + 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"schema": None},
        {"schema": {"type": "int"}},
        {"schemaType": 7},
        {"references": 7},
        {"references": ["x"]},
        {"references": [{}]},
        {"references": [{"name": "x", "subject": "x"}]},
    ],
)
def test_a_malformed_answer_stops_the_query_and_makes_no_dead_letters(
    registry: RegistryServer, wrong: dict[str, object]
) -> None:
    """Before, each value was bad-value: all entries would have become dead letters."""
    registry.add(1, FIRST)
    registry.answers["/schemas/ids/1"] |= wrong
    decoder = Decoder(form(READER, framed=True, registry=registry.url), Registry(registry.url, patience=QUICK))
    with pytest.raises(RegistryError, match="another form than a registry's"):
        decoder.decode(encoded(FIRST, VALUES[1], 1))


@pytest.mark.parametrize("fault", [0, 500, 503, 429])
def test_a_registry_that_is_away_is_waited_for(registry: RegistryServer, fault: int) -> None:
    registry.add(1, FIRST)
    registry.faults = [fault] * 3
    found = Registry(registry.url, patience=QUICK).schema(1)
    assert found is not None
    assert json.loads(found.text) == FIRST
    assert registry.requests["/schemas/ids/1"] == 4


def test_a_registry_that_starts_later_is_waited_for() -> None:
    with RegistryServer() as gone:
        pass
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Registry(gone.url, patience=replace(DEFAULT_PATIENCE, sleep=sleep)).schema(1)
    assert pauses[5] > 4 * pauses[0]


def test_a_registry_that_stays_away_is_a_named_error_after_the_limit() -> None:
    with RegistryServer() as gone:
        pass
    with pytest.raises(RegistryError, match="schema registry http://127.0.0.1.*without success.*Refused"):
        Registry(gone.url, patience=IMPATIENT).schema(1)


def test_the_limit_is_a_minute(registry: RegistryServer) -> None:
    assert Registry(registry.url).patience.limit == 60


def test_a_registry_that_does_not_answer_is_a_named_error() -> None:
    """It accepts connections, and is silent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RegistryError, match="timed out|TimeoutError"):
            Registry(url, patience=IMPATIENT).schema(1)


@pytest.fixture
def password(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text("s3cret\nmore\n")
    return file


def test_the_login_is_sent(registry: RegistryServer, password: Path) -> None:
    registry.add(1, FIRST)
    registry.login = "reader:s3cret"
    assert Registry(registry.url, Login("reader", str(password)), patience=QUICK).schema(1) is not None
    function = Login(function=f"{__name__}:login_of_test")
    assert Registry(registry.url, function, patience=QUICK).schema(1) is not None


def login_of_test() -> tuple[str, str]:
    return "reader", "s3cret"


def test_a_login_is_not_sent_to_another_host_to_which_the_registry_leads(
    registry: RegistryServer, password: Path
) -> None:
    registry.add(1, FIRST)
    with RegistryServer() as first:
        first.leads_to = registry.url
        assert Registry(first.url, Login("reader", str(password)), patience=QUICK).schema(1) is not None
        assert (first.logins, registry.logins) == ([True], [False])


@pytest.mark.parametrize("code", [401, 403])
def test_a_refused_login_is_a_named_error_at_once(registry: RegistryServer, password: Path, code: int) -> None:
    registry.faults = [code]
    with pytest.raises(RegistryError, match=f"refuses the login .HTTP {code}.: give login") as told:
        Registry(registry.url, Login("reader", str(password)), patience=QUICK).schema(1)
    assert registry.requests.total() == 1
    assert "s3cret" not in str(told.value)


def test_a_login_that_cannot_be_read_is_a_named_error(registry: RegistryServer, tmp_path: Path) -> None:
    with pytest.raises(LoginError, match="none cannot be read"):
        Registry(registry.url, Login("reader", str(tmp_path / "none")), patience=QUICK).schema(1)
    with pytest.raises(InvalidOptionError, match="'no_module:f' cannot be used: ModuleNotFoundError"):
        Registry(registry.url, Login(function="no_module:f"), patience=QUICK).schema(1)
    with pytest.raises(RegistryError, match="failed with ZeroDivisionError"):
        Registry(registry.url, Login(function=f"{__name__}:failing"), patience=QUICK).schema(1)


def failing() -> None:
    raise ZeroDivisionError("s3cret")


def test_what_is_no_registry_is_a_named_error_and_no_unknown_schema(registry: RegistryServer) -> None:
    """Else a wrong path would make dead letters of all entries."""
    with pytest.raises(RegistryError, match="HTTP 404, as no schema registry does"):
        Registry(f"{registry.url}/api", patience=QUICK).schema(1)
    registry.answers["/schemas/ids/1"] = {"hello": "world"}
    with pytest.raises(RegistryError, match="with no schema"):
        Registry(registry.url, patience=QUICK).schema(1)


@pytest.mark.parametrize(
    "url", ["ftp://h", "file:///etc/passwd", "h:80", "http://", "http://u:s3cret@h", "http://[", "http://h?a=1"]
)
def test_a_url_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidOptionError, match="registry must be http") as told:
        check_url(url)
    assert "s3cret" not in str(told.value)
