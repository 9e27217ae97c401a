"""`--set`, `--unset` and `--id`: chosen dead letters are corrected and sent back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from spark_streams.connector.deadletter.envelope import MARK, dead_letter_fields
from spark_streams.connector.deadletter.letter_page import parse_criteria
from spark_streams.connector.deadletter.redrive import DeadLetterRedrive
from spark_streams.connector.deadletter.redrive_plan import RedriveOptions
from spark_streams.connector.deadletter.transform import DeadLetter, FieldChanges
from spark_streams.connector.errors import InvalidOptionError, TransformError
from spark_streams.connector.wire.address import Address
from tests.connector.deadletter.making import DEAD, SMALL, fill, numbers, record_origin, words
from tests.connector.deadletter.test_cli import dead
from tools.sending import KilledError, dying_at
from tools.servers.server import Server


def own_fields(server: Server) -> list[list[bytes]]:
    """Fields of the entries of `s`, without the mark."""
    with server.client() as client:
        return [fields[: fields.index(MARK)] for _, fields in words(client, "s")]


def test_a_corrected_dead_letter_is_sent_back_with_its_other_fields(server: Server) -> None:
    ids = fill(server, 5)
    arguments = ("--id", ids[2], "--set", "n=a=b", "--set", "new=\udcfe", "--unset", "raw")
    planned = json.loads(dead(server, "redrive", DEAD, *arguments, "--json").output)
    assert (planned["moved"], planned["dry_run"]) == (1, True)
    changes = [(row["field"], row["now"], row["then"]) for row in planned["fields"]]
    assert changes == [("n", "2", "a=b"), ("raw", changes[1][1], None), ("new", None, "\udcfe")]
    long = json.loads(dead(server, "redrive", DEAD, "--set", f"n={300 * '9'}", "--json").output)
    assert [row["then"] for row in long["fields"]] == 5 * [f"{200 * '9'}…"]
    shown = dead(server, "redrive", DEAD, *arguments).output
    assert next(line.split()[1:] for line in shown.splitlines() if line.startswith(ids[2])) == ["n", "2", "a=b"]
    assert own_fields(server) == []
    done = json.loads(dead(server, "redrive", DEAD, *arguments, "--yes", "--json").output)
    assert done["moved"] == 1
    assert own_fields(server) == [[b"n", b"a=b", b"new", b"\xfe"]]
    with server.client() as client:
        assert [entry for entry, _ in words(client, DEAD)] == [ids[0], ids[1], ids[3], ids[4]]


def test_ids_choose_dead_letters_in_every_command(server: Server) -> None:
    ids = fill(server, 300)
    chosen = [ids[250], ids[3], ids[77]]
    options = [word for entry in chosen for word in ("--id", entry)]
    listed = json.loads(dead(server, "list", DEAD, *options, "--json").output)
    assert sum(kind["letters"] for kind in listed) == 3
    shown = json.loads(dead(server, "show", DEAD, *options, "--json").output)
    assert [letter["id"] for letter in shown] == sorted(chosen, key=ids.index)
    earlier = json.loads(dead(server, "list", DEAD, *options, "--last-id", ids[100], "--json").output)
    assert sum(kind["letters"] for kind in earlier) == 2
    purged = json.loads(dead(server, "purge", DEAD, *options, "--field", "n=3", "--yes", "--json").output)
    assert purged["deleted"] == 1
    many = [word for entry in ids[:200] for word in ("--id", entry)]
    assert json.loads(dead(server, "redrive", DEAD, *many, "--yes", "--json").output)["moved"] == 199
    assert sorted(numbers(server)) == [n for n in range(200) if n != 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "n"], "not of the form NAME=VALUE"),
        (["--set", "n=1", "--unset", "n"], "named twice"),
        (["--set", "dl.redriven=1"], "only a redrive writes it"),
        (["--set", "n=1", "--transform", "a:b"], "cannot be combined with a transform"),
        (["--id", "x"], "id='x'"),
    ],
)
def test_unusable_changes_are_refused(server: Server, arguments: list[str], message: str) -> None:
    fill(server, 2)
    result = dead(server, "redrive", DEAD, *arguments, "--yes")
    assert result.exit_code == 2
    assert message in result.output
    assert numbers(server) == []


def test_an_ambiguous_or_empty_result_moves_nothing(server: Server) -> None:
    with server.client() as client:
        record_origin(client, DEAD, "s", "g")
        envelope = {"stream": "s", "id": "1-0", "group": "g"}
        twice = client.execute_command("XADD", DEAD, "*", *dead_letter_fields([b"a", b"1", b"a", b"2"], envelope))
        client.execute_command("XADD", DEAD, "*", *dead_letter_fields([b"b", b"1"], envelope))
    result = dead(server, "redrive", DEAD, "--set", "a=3", "--yes")
    assert result.exit_code == 1
    assert f"dead letter {twice.decode()} has the field 'a' 2 times" in result.output
    assert "would have no field left" in dead(server, "redrive", DEAD, "--unset", "b", "--yes").output
    with server.client() as client:
        assert client.xlen(DEAD) == 2
        assert client.xlen("s") == 0


def test_a_killed_redrive_goes_on_with_its_changes(server: Server) -> None:
    fill(server, 60)
    options = RedriveOptions(DEAD, changes=FieldChanges.parse(["raw=right"]))
    for place in range(1, 200):
        try:
            with dying_at(place, executed=place % 2 == 1):
                DeadLetterRedrive(Address.parse(server.url), options, limits=SMALL).run()
            break
        except KilledError:
            with server.client() as client:  # the lease of a dead process ends
                for key in client.keys("rstream:lease:*"):
                    client.delete(key)
    values = own_fields(server)
    assert sorted(int(fields[1]) for fields in values) == list(range(60))
    assert {fields[3] for fields in values} == {b"right"}


def test_changes_and_ids_are_part_of_the_digest() -> None:
    plain = RedriveOptions("d")
    assert replace(plain, rate=5).digest() == RedriveOptions("d").digest() == plain.digest()
    assert replace(plain, changes=FieldChanges.parse(["a=1"])).digest() != plain.digest()
    assert replace(plain, criteria=parse_criteria(ids=["1-0"])).digest() != plain.digest()


def test_changes_of_fields() -> None:
    letter = DeadLetter("1-0", [("a", "1"), ("b", "2")], {})
    assert FieldChanges.parse(["b="], ["a"]).apply(letter) == [("b", "")]
    assert FieldChanges.parse(["=x"]).apply(letter) == [("a", "1"), ("b", "2"), ("", "x")]
    with pytest.raises(TransformError, match="no field left"):
        FieldChanges.parse([], ["a", "b"]).apply(letter)
    with pytest.raises(InvalidOptionError, match="twice"):
        FieldChanges.parse(["a=1", "a=2"])


def test_progress_lines_for_programs(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(server, 40)
    monkeypatch.setenv("RSTREAM_PROGRESS", "json")
    result = dead(server, "redrive", DEAD, "--yes", "--json", apart=True)
    assert json.loads(result.stdout)["moved"] == 40
    assert json.loads(result.stderr.splitlines()[-1]) == {"done": 40, "total": 40, "note": "moved 40"}


def test_a_name_with_an_equals_sign_is_changed_and_no_other(server: Server) -> None:
    with server.client() as client:
        told = {"stream": "s", "group": "g", "id": "1-0", "reason": "odd"}
        fields: list[Any] = dead_letter_fields([b"a=b", b"1", b"a", b"2", b"c\\", b"3"], told)
        client.execute_command("XADD", DEAD, "*", *fields)
        changes = ("--set", r"a\=b=x=y", "--set", "c\\\\=z", "--field", r"a\=b=1")
        assert dead(server, "redrive", DEAD, "--allow", "s", *changes, "--yes").exit_code == 0
        [(_, sent)] = client.xrange("s")
        assert {name: value for name, value in sent.items() if not name.startswith(b"dl.")} == {
            b"a=b": b"x=y", b"a": b"2", b"c\\": b"z",
        }  # fmt: skip
