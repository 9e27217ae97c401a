"""What a command did, as a sentence, facts and tables."""

from __future__ import annotations

import json

import pytest

from spark_streams.connector.operator_commands import shell_line
from spark_streams.operations.console.actions import ACTIONS, summarize
from spark_streams.operations.console.allow_list import AllowList
from spark_streams.operations.console.changes import Audit, Change, CommandOutcome


@pytest.mark.parametrize(
    ("command", "output", "planned", "done"),
    [
        (
            "dead redrive",
            {"stream": "d", "moved": 1},
            "Would send back 1 dead letter of d.",
            "Sent back 1 dead letter of d.",
        ),
        (
            "dead purge",
            {"stream": "d", "deleted": 2_000},
            "Would delete 2,000 dead letters of d permanently.",
            "Deleted 2,000 dead letters of d permanently.",
        ),
        (
            "groups seek",
            {"streams": [{"read_again": 1, "skipped": 2}, {"read_again": None, "skipped": 3}]},
            "The group would read 1 entry again, and skip 5.",
            "The group will read 1 entry again, and skip 5.",
        ),
        ("groups claim", {"streams": [{"entries": 3}]}, "Would hand over 3 entries.", "Handed over 3 entries."),
        ("groups ack", {"streams": []}, "Would acknowledge 0 entries.", "Acknowledged 0 entries."),
        (
            "groups prune",
            {"streams": [{"pending": 1}]},
            "Would delete 1 group, with 1 pending entry.",
            "Deleted 1 group, with 1 pending entry.",
        ),
    ],
)
def test_sentences(command: str, output: dict[str, object], planned: str, done: str) -> None:
    assert summarize(command, output, is_done=False).sentence == planned
    assert summarize(command, output, is_done=True).sentence == done


def test_values_without_content_are_left_out() -> None:
    output = {
        "dry_run": True,
        "refused": ["a query runs"],
        "streams": [{"stream": "s", "read_again": 0, "skipped": 5, "gone": None}, {"stream": "t", "read_again": 1}],
        "then": [],
        "in_use": 0,
    }
    summary = summarize("groups seek", output, is_done=False)
    assert summary.notes == [("Why it would be refused now", ["a query runs"])]
    assert summary.facts == []
    [table] = summary.tables
    assert table.heads == ["stream", "#read again", "#skipped"]
    assert table.rows == [["s", 0, 5], ["t", 1, None]]
    assert summarize("groups seek", None, is_done=False).sentence == ""
    assert summarize("unknown", {"x_y": 1}, is_done=True).facts == [("x y", 1)]


def test_arguments_of_actions() -> None:
    seek = ACTIONS["seek"]
    assert seek.arguments({"names": ["s"], "group": ["g"], "to": ["-5"], "even-active": ["1"]}, is_dry=False) == [
        *("groups", "seek", "s", "--group", "g", "--to=-5", "--even-active", "--yes"),
    ]
    assert seek.arguments({"names": ["-s", "a*"], "group": ["-g"], "to": [""], "even-active": [""]}, is_dry=True) == [
        *("groups", "seek", "--group=-g", "--", "-s", "a\\*"),
    ]
    redrive = ACTIONS["redrive"].arguments({"names": ["d"], "id": ["1-0", "2-0"], "set": ["a="]}, is_dry=True)
    assert redrive == ["dead", "redrive", "d", "--id", "1-0", "--id", "2-0", "--set", "a="]
    assert ACTIONS["prune"].arguments({"names": ["s"], "group": ["[x]"], "idle": ["7d"]}, is_dry=False)[-2:] == [
        *("\\[x\\]", "--yes"),
    ]
    with pytest.raises(ValueError, match="has no option yes"):
        seek.arguments({"yes": ["1"]}, is_dry=True)
    assert shell_line(["a b", "it's", "x\ny\x1b", "\udcff"]) == "rstream 'a b' 'it'\"'\"'s' $'x\\x0ay\\x1b' $'\\xff'"


def test_an_audit_line_has_one_line_for_any_name() -> None:
    from datetime import UTC, datetime

    lines: list[str] = []
    audit = Audit(lines.append, AllowList())
    change = Change(1, "a\n\udcff;ř", ["groups", "seek", "a\nb\x1b", "--yes"], datetime.now(UTC))
    audit.begin(change)
    change.outcome = CommandOutcome(0, {"streams": [{"entries": 2}, {"entries": 3}]}, "")
    audit.end(change)
    assert not any("\n" in line for line in lines)
    named = {"change": 1, "user": "a\n\udcff;ř", "command": ["rstream", "groups", "seek", "a\nb\x1b", "--yes"]}
    begun, ended = ({key: value for key, value in json.loads(line).items() if key != "at"} for line in lines)
    assert begun == {"event": "change begins", **named}
    assert ended == {"event": "change ends", **named, "exit_code": 0, "entries": 5}
