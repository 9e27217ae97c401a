"""`rstream dead …` as a person or a script meets it."""

from __future__ import annotations

import base64
import inspect
import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spark_streams.cli import main
from spark_streams.connector.admin.dead_letters import RedriveOptions
from spark_streams.connector.deadletter.envelope import dead_letter_fields
from spark_streams.connector.deadletter.mover import redrive_key
from tests.connector.deadletter.making import DEAD, fill, numbers, words
from tools.servers.server import Server

# click before 8.2 has errors among the output, or nowhere else.
APART = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}


def dead(server: Server, *arguments: str, given: str | None = None, apart: bool = False) -> Result:
    """Run a command against the server. apart: its output and its errors are looked at one by one."""
    return CliRunner(**APART if apart else {}).invoke(
        main, ["dead", *arguments, "--url", server.url], input=given, env={"COLUMNS": "200"}
    )


def test_list_knows_which_streams_hold_dead_letters_and_counts_them_by_kind(server: Server) -> None:
    assert dead(server, "list").output == "none\n"
    ids = fill(server, 90)
    with server.client() as client:
        client.xadd("s", {"n": "no letter"})
        client.set("text", "no stream")
    assert json.loads(dead(server, "list", "--json").output) == [
        {"stream": DEAD, "letters": 90, "oldest": ids[0], "newest": ids[-1]}
    ]
    assert json.loads(dead(server, "list", DEAD, "--json").output) == [
        {"stream": "s", "stage": "read", "reason": reason, "error": "", "letters": count, "first": first, "last": last}
        for reason, count, first, last in (("odd", 60, ids[1], ids[89]), ("decode", 30, ids[0], ids[87]))
    ]
    shown = dead(server, "list", DEAD, "--field", "n=3").stdout
    assert shown.splitlines()[0].split() == ["reason", "stage", "of", "stream", "dead", "letters", "oldest", "newest"]
    assert shown.splitlines()[1].split()[:4] == ["decode", "read", "s", "1"]


def test_list_names_only_streams_that_hold_dead_letters(server: Server) -> None:
    """A letter at either end; a field that is called like one of the envelope makes none."""
    fill(server, 2, into="letters first")
    with server.client() as client:
        client.xadd("letters behind", {"n": "no letter"}, id="1-0")
        for name in ("dl.x", "dl.stream", "dl.id"):
            client.xadd(f"has {name}", {"n": 1, name: "s"})
        client.xadd("sent back", {"n": 1, "dl.redriven": "1 t dead/1-0"})
        client.xadd("in front", {"dl.stream": "s", "dl.id": "1-0", "n": 1})
        client.xadd("letters first", {"n": "no letter"})
        client.xgroup_create("empty", "g", mkstream=True)
        client.xadd("of another writer", {"n": 1, "dl.stream": "s", "dl.id": "1-0"})
    fill(server, 2, into="letters behind")
    listed = json.loads(dead(server, "list", "--json").output)
    assert [one["stream"] for one in listed] == ["letters behind", "letters first", "of another writer"]


def test_show_and_export_tell_everything_of_a_dead_letter(server: Server, tmp_path: Path) -> None:
    with server.client() as client:
        entry = [b"n", b"1", b"n", b"\xff\x00", b"\xfe", "é\x1b[31m".encode()]
        told = {"stream": "s", "id": "1-0", "reason": "b\udcffd"}
        one = client.execute_command("XADD", DEAD, "*", *dead_letter_fields(entry, told)).decode()
        two = client.execute_command("XADD", DEAD, "*", *dead_letter_fields([b"a", b"x\ny"], told)).decode()
    shown = dead(server, "show", DEAD, "--limit", "1").output
    assert f"letter {one}" in shown
    assert "dl.stream    s" in shown
    assert "\\xff\\x00" in shown
    assert "\x1b" not in shown  # data never speaks to the terminal
    lines = dead(server, "export", DEAD).output.splitlines()
    first, second = map(json.loads, lines)
    ff, fe = ({"base64": base64.b64encode(raw).decode()} for raw in (b"\xff\x00", b"\xfe"))
    assert (first["id"], second["id"]) == (one, two)
    assert first["fields"] == [["n", "1"], ["n", ff], [fe, "é\x1b[31m"]]
    assert second["fields"] == {"a": "x\ny"}
    assert first["envelope"]["reason"] == {"base64": base64.b64encode(b"b\xffd").decode()}
    assert (first["envelope"]["stream"], first["envelope"]["redrives"]) == ("s", "0")
    assert json.loads(dead(server, "show", DEAD, "--json").output) == [first, second]
    saved = dead(server, "export", DEAD, "--limit", "1", "--output", str(tmp_path / "letters.jsonl"), apart=True)
    assert "1 dead letter of dead written to" in saved.stderr
    assert (tmp_path / "letters.jsonl").read_text().splitlines() == lines[:1]


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (["--reason", "decod"], "no dead letter of dead has reason 'decod'. It has: odd (60), decode (30)"),
        (["--reason", "a*", "--reason", "b*"], "has reason 'a*' or 'b*'. It has: odd (60), decode (30)"),
        (["--stage", "query"], "no dead letter of dead has stage 'query'. It has: read (90)"),
        (["--stream", "t"], "no dead letter of dead has stream 't'. It has: s (90)"),
        (["--error", "E"], "no dead letter of dead has error 'E'. It has: (none) (90)"),
        (
            ["--field", "n=x"],
            "none of the 90 dead letters of dead matches all criteria. To count them by kind: rstream dead list dead",
        ),
        (["--reason", "odd", "--older", "1d"], "none of the 90 dead letters of dead matches all criteria. "),
    ],
)
def test_a_choice_that_means_nothing_says_what_there_is(server: Server, choice: list[str], said: str) -> None:
    fill(server, 90)
    for asked in (
        ["list", DEAD], ["show", DEAD], ["export", DEAD], ["redrive", DEAD], ["redrive", DEAD, "--yes"],
        ["purge", DEAD, "--yes"], ["purge", DEAD],
    ):  # fmt: skip
        told = dead(server, *asked, *choice)
        assert told.exit_code == 0, told.output
        assert said in told.output, asked
        if asked[0] not in ("purge", "redrive"):
            assert told.output.count("\n") == 1
    told = dead(server, "list", DEAD, *choice, "--json", apart=True)
    assert (json.loads(told.stdout), said in told.stderr) == ([], True)


def test_only_the_most_frequent_of_many_values_are_named(server: Server) -> None:
    for number in range(13):
        fill(server, 13 - number, first=1, reason=f"r{number}\x1b")
    told = dead(server, "list", DEAD, "--reason", "x").output
    assert "It has: r0\\x1b (13), r1\\x1b (12)," in told
    assert told.endswith("r9\\x1b (4) and 3 more\n")


def test_a_stream_without_dead_letters_is_reported(server: Server) -> None:
    with server.client() as client:
        client.xadd("s", {"n": 1})
    for asked in (["list", "s"], ["show", "s"], ["redrive", "s"]):
        told = dead(server, *asked).output
        assert "s holds no dead letters. To list streams with dead letters: rstream dead list\n" in told


def test_show_one_dead_letter_by_its_id(server: Server) -> None:
    ids = fill(server, 5)
    with server.client() as client:
        other = client.xadd(DEAD, {"n": "no letter"}).decode()
    shown = dead(server, "show", DEAD, ids[2]).output
    assert shown.count("dead letter ") == 1
    assert f"dead letter {ids[2]}   " in shown
    assert [one["id"] for one in json.loads(dead(server, "show", DEAD, ids[2], "--json").output)] == [ids[2]]
    for one, said in (
        ("5-5", f"no entry 5-5 in stream 'dead' at {server.url}; the entry after it is {ids[0]}"),
        (other, f"entry {other} of stream 'dead' is not a dead letter, or does not match the other options"),
    ):
        told = dead(server, "show", DEAD, one)
        assert (told.exit_code, said in told.output) == (1, True), told.output
    assert dead(server, "show", DEAD, ids[2], "--last-id", ids[3]).exit_code == 2


def test_redrive_says_what_it_would_do_and_what_it_did(server: Server) -> None:
    fill(server, 90)
    looked = dead(server, "redrive", DEAD, "--reason", "odd")
    assert "odd     read   move    s             60" in looked.stdout
    assert "dry run, nothing was changed; with --yes: moved 60 dead letters of dead" in looked.stdout
    assert numbers(server) == []
    done = json.loads(dead(server, "redrive", DEAD, "--reason", "odd", "--limit", "50", "--yes", "--json").stdout)
    assert (done["moved"], done["parked"], done["stopped"], done["dry_run"]) == (50, 0, False, False)
    assert [(kind["reason"], kind["to"], kind["letters"]) for kind in done["by"]] == [("odd", "s", 50)]
    again = dead(server, "redrive", DEAD, "--to", "retry", "--max-redrives", "0", "--yes").stdout
    assert "moved 0 dead letters of dead · parked 40" in again
    assert len(numbers(server, f"{DEAD}:parked")) == 40


def test_a_continued_redrive_of_letters_that_are_gone_does_not_say_that_none_matches(server: Server) -> None:
    fill(server, 5)
    orders = RedriveOptions(DEAD).checked().digest()
    state = {
        "run": "0123456789abcdef",
        "serial": 1,
        "orders": orders,
        "to": [],
        "bound": "1-1",
        "moved": 0,
        "parked": 0,
    }
    with server.client() as client:
        client.set(redrive_key(DEAD), json.dumps(state))
    first, then = (dead(server, "redrive", DEAD, "--yes").stdout for _ in range(2))
    assert "continued a run that had moved 0 dead letters; those after its last ID 1-1 stay for the next run" in first
    assert "none of" not in first
    assert "moved 5 dead letters" in then


def test_redrive_says_which_dead_letters_stay_because_they_name_no_stream_to_go_to(server: Server) -> None:
    fill(server, 3, stream="")
    fill(server, 2, stream=DEAD)
    stay = "5 stay: they name no target stream, or this one; name a target with --to"
    looked = dead(server, "redrive", DEAD)
    assert f"with --yes: moved 0 dead letters of dead · {stay}" in looked.stdout
    assert "decode  read   stay    dead             1" in looked.stdout
    done = dead(server, "redrive", DEAD, "--yes")
    assert f"moved 0 dead letters of dead · {stay}" in done.stdout
    assert (looked.exit_code, done.exit_code) == (3, 3)
    assert json.loads(dead(server, "redrive", DEAD, "--yes", "--json").stdout)["homeless"] == 5
    assert "stay" not in dead(server, "redrive", DEAD, "--to", "s", "--yes").stdout


def test_purge_is_a_dry_run_without_yes(server: Server) -> None:
    fill(server, 90)
    with server.client() as client:
        client.xadd(DEAD, {"no": "letter"})
        planned = dead(server, "purge", DEAD, "--reason", "decode")
        assert (planned.exit_code, client.xlen(DEAD)) == (0, 91)
        assert "decode  read   s                    30" in planned.stdout
        assert "dry run, nothing was changed; with --yes: deleted 30 dead letters of dead" in planned.stdout
        told = json.loads(dead(server, "purge", DEAD, "--reason", "decode", "--json").stdout)
        assert (told["deleted"], told["dry_run"], client.xlen(DEAD)) == (30, True, 91)
        done = dead(server, "purge", DEAD, "--reason", "decode", "--yes")
        assert (done.exit_code, done.stdout, client.xlen(DEAD)) == (0, "deleted 30 dead letters of dead\n", 61)
        told = json.loads(dead(server, "purge", DEAD, "--limit", "7", "--yes", "--json").stdout)
        assert (told["deleted"], told["dry_run"], told["by"][0]["letters"]) == (7, False, 7)
        assert "deleted 53 dead letters of dead" in dead(server, "purge", DEAD, "--yes").stdout
        assert [fields for _, fields in words(client, DEAD)] == [[b"no", b"letter"]]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["list", "none"], 1, "[RSTREAM_STREAM_MISSING] no stream 'none'"),
        (["list", "text"], 1, "[RSTREAM_WRONG_KEY_TYPE] key 'text'"),
        (["list", "--reason", "x"], 2, "options that select dead letters need a STREAM"),
        (["list", DEAD, "--field", "n"], 2, "field 'n' is not of the form NAME=VALUE"),
        (["list", DEAD, "--older", "soon"], 2, "older='soon': "),
        (["show", DEAD, "--first-id", "x-1"], 2, "first id='x-1': not an entry ID"),
        (["redrive", DEAD, "--rate", "0"], 2, "'--rate': 0 is not in the range x>=1"),
        (["redrive", DEAD, "--to", DEAD], 2, "cannot be sent to 'dead' itself"),
        (["redrive", DEAD, "--transform", "nowhere:x"], 1, "[RSTREAM_TRANSFORM] transform 'nowhere:x': nowhere cannot"),
        (
            ["redrive", DEAD, "--to", "text", "--yes"],
            1,
            "[RSTREAM_WRONG_KEY_TYPE] dead letters of stream 'dead' cannot be moved to key",
        ),
        (["purge", "none", "--yes"], 1, "[RSTREAM_STREAM_MISSING] no stream 'none'"),
    ],
)
def test_what_is_wrong_is_one_line(engine_server: Server, arguments: list[str], code: int, message: str) -> None:
    with engine_server.client() as client:
        client.flushall()
        client.set("text", "x")
    fill(engine_server, 3)
    ended = dead(engine_server, *arguments)
    assert ended.exit_code == code, ended.output
    (line,) = [line for line in ended.output.splitlines() if line.startswith("Error: ")]
    assert message in line


def test_a_reason_is_chosen_by_its_category(server: Server) -> None:
    """As the job etl writes it: what stands before the colon. `--help` shows `--reason decode`."""
    fill(server, 3, reason="decode: amount does not fit DOUBLE")
    fill(server, 2, first=3, reason="decoder failed")
    assert "with --yes: moved 3 dead letters" in dead(server, "redrive", DEAD, "--reason", "decode").output
    purged = dead(server, "purge", DEAD, "--reason", "dec*", "--limit", "1")
    assert "with --yes: deleted 1 dead letter of dead" in purged.output
    assert "moved 3 dead letters of dead" in dead(server, "redrive", DEAD, "--reason", "decode", "--yes").output
    assert "no dead letter of dead has reason 'decode'" in dead(server, "list", DEAD, "--reason", "decode").output


def test_one_dead_letter_is_one(server: Server, tmp_path: Path) -> None:
    fill(server, 1)
    file = str(tmp_path / "letters.jsonl")
    assert f"1 dead letter of {DEAD} written to" in dead(server, "export", DEAD, "--output", file).output
    assert "moved 1 dead letter of dead" in dead(server, "redrive", DEAD, "--yes").output


def test_a_file_that_cannot_be_written_is_named(server: Server, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none" / "letters.jsonl"):
        refused = dead(server, "export", DEAD, "-o", str(place), apart=True)
        assert (refused.exit_code, f"cannot be written to {place}" in refused.stderr) == (2, True), refused.output


@pytest.mark.parametrize(("stream", "name"), [("s", "s"), ("s[1]", "s[1]"), ("-s 'é", "-s 'é")])
def test_if_all_are_refused_the_command_that_works_is_printed(server: Server, stream: str, name: str) -> None:
    """With the name of the stream and the options of the refused one. The exit code is 3, with and without --yes."""
    fill(server, 6, has_group=False, stream=stream)
    with server.client() as client:
        client.xgroup_create(stream, "g", id="0", mkstream=True)
    shown = dead(server, "redrive", DEAD, "--reason", "odd", "--limit", "3")
    told = dead(server, "redrive", DEAD, "--reason", "odd", "--limit", "3", "--yes", apart=True)
    as_json = dead(server, "redrive", DEAD, "--reason", "odd", "--limit", "3", "--json", apart=True)
    assert (shown.exit_code, told.exit_code, as_json.exit_code) == (3, 3, 3), shown.output
    [line] = [line for line in told.output.splitlines() if "rstream dead redrive" in line]
    without_yes = line.replace(" --yes", "")
    assert without_yes == json.loads(as_json.stdout)["command"]
    assert without_yes in shown.output.splitlines()
    _, _, *words = shlex.split(line.partition("rstream ")[2])
    worked = dead(server, "redrive", *words)
    assert worked.exit_code == 0, worked.output
    assert (numbers(server, name), len(numbers(server, DEAD))) == ([1, 2, 4], 3)


def test_if_some_are_refused_the_others_are_sent_back_and_the_exit_code_is_0(server: Server) -> None:
    fill(server, 1)
    fill(server, 1, has_group=False, stream="other")
    for _ in range(2):
        ran = dead(server, "redrive", DEAD)
        assert (ran.exit_code, "--allow other" in ran.output) == (0, True), ran.output


def test_a_dry_run_names_the_groups_that_read_the_entries_again(server: Server) -> None:
    """All groups of each stream that receives one; with --to, those of that stream."""
    fill(server, 3)
    fill(server, 1, stream="other")
    with server.client() as client:
        client.xgroup_create("s", "audit", id="$")
        client.xgroup_create("retry", "\x1b[31m", id="0", mkstream=True)
        client.xadd("new", {"n": 1})
    said = dead(server, "redrive", DEAD).output
    assert "entries of s will be read by its groups: audit, g\n" in said
    assert "entries of other will be read by its groups: g\n" in said
    assert json.loads(dead(server, "redrive", DEAD, "--json").output)["groups"] == {"other": ["g"], "s": ["audit", "g"]}
    said = dead(server, "redrive", DEAD, "--to", "retry").output
    assert "entries of retry will be read by its groups: \\x1b[31m\n" in said
    assert "entries of new will be read by its groups: none\n" in dead(server, "redrive", DEAD, "--to", "new").output
    assert "entries of none will be read by its groups: none\n" in dead(server, "redrive", DEAD, "--to", "none").output
    assert "will be read" not in dead(server, "redrive", DEAD, "--yes").output


def test_a_redrive_whose_transform_skips_all_ends_with_3(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "skips_all.py").write_text("def skip(letter):\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    fill(server, 3)
    for more in ([], ["--yes"], ["--json"]):
        ran = dead(server, "redrive", DEAD, "--transform", "skips_all:skip", *more)
        assert ran.exit_code == 3, ran.output
