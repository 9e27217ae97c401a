"""Rates on the pages are figures of docs/internals/figures.json, and of no other run."""

from __future__ import annotations

import io
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tools.bench.peers import page
from tools.bench.row import FILE, NoFigureError, Row, record, rows_in, run_in_turns, show
from tools.bench.servers import RawClient

ROOT = Path(__file__).resolve().parents[2]
_DOCS = ROOT / "docs"
# Pages that name rates for users. facts.md describes single experiments, and CHANGELOG.md what was so at a time.
PAGES = [ROOT / "README.md", *(page for page in sorted(_DOCS.rglob("*.md")) if page.stem != "facts")]
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6}
_WORDS = r"(?:entries|rows|messages|dead letters|values)"
_RATE = re.compile(rf"(?<![\d.,])(\d[\d,]*(?:\.\d+)?)\s*(?:([kM])/s|{_WORDS}(?:/s|\s+(?:per|a)\s+second))")


def rates_in(text: str) -> list[tuple[str, float]]:
    """Return the rates that a text names, as they are printed and in 1/s."""
    found = []
    for rate in _RATE.finditer(text):
        found.append((rate[1], float(rate[1].replace(",", "")) * _FACTORS[rate[2] or ""]))
    return found


def known_rates() -> set[float]:
    rows = [row for row in rows_in() if row["unit"] == "/s"]
    return {row[side] for row in rows for side in ("ours", "peers") if side in row}


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("It reads 526,000 entries per second, and 1.2 M/s.", [526_000, 1_200_000]),
        ("| 541 k/s | 1,060,000 rows/s |", [541_000, 1_060_000]),
        ("1,000 entries\na second", [1_000]),
        ("5,000 rows, one command per second, 10,000 entries in batches", []),
    ],
)
def test_a_rate_is_found_with_its_unit(text: str, rates: list[float]) -> None:
    assert [rate for _, rate in rates_in(text)] == rates


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_rate_on_a_page_is_one_of_the_figures(page: Path) -> None:
    known = known_rates()
    unknown = [shown for shown, rate in rates_in(page.read_text(encoding="utf-8")) if rate not in known]
    assert not unknown, "take it from docs/internals/figures.json, which `scripts/bench --json` writes"


def thousands_in(chart: str) -> list[float]:
    return [float(number.replace(",", "")) * 1e3 for number in re.findall(r">([\d,]+(?:\.\d+)?)</text>", chart)]


def test_the_chart_shows_figures() -> None:
    shown = thousands_in((_DOCS / "assets" / "speed.svg").read_text(encoding="utf-8"))
    assert len(shown) > 8
    assert set(shown) <= known_rates()


def test_the_chart_beside_the_peers_is_the_one_of_the_figures() -> None:
    if page.found():
        assert page.CHART.read_text(encoding="utf-8") == page.chart(), "print it: python -m tools.reference"
    else:
        assert not page.CHART.exists()


def test_table_and_chart_beside_the_peers(tmp_path: Path) -> None:
    """A line has what was measured: ours once, each peer in its column. Without figures the page says so."""
    rows = [
        (measured("K1", [526_000.0], [299_000.0]), "drain, 3 fields, into noop, Kafka connector, partitions 4: rate"),
        (measured("K1", [526_000.0], [1_230_000.0]), "drain, 3 fields, into noop, Flink, partitions 4: rate"),
        (measured("K4", [0.0], [7.0]), "kill: rows lost"),
    ]
    for (row, row.measure), row.peer_name in zip(rows, ("Kafka connector", "Flink", "spark-redis"), strict=True):
        row.unit = "/s" if row.number == "K1" else ""
    record("peers", [row for row, _ in rows], file := tmp_path / "figures.json")
    assert page.table(file).splitlines()[4:] == [
        "| read, k/s | 526 | 299 | 1,230 |  |",
        "| rows lost | 0 |  |  | 7 |",
    ]
    assert thousands_in(page.chart(file)) == [526_000, 299_000, 1_230_000]
    assert len({*re.findall(r'<rect x.* fill="(#\w+)"', page.chart(file))}) == 3
    file.write_text("{}")
    assert page.table(file) == "Kafka and Flink were not measured."


def test_rows_that_are_measured_again_replace_only_themselves(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    rows = [measured(number, [1.0], [2.0]) for number in ("K1", "K2", "K3")]
    record("peers", rows, file)
    record("peers", [measured("K2", [5.0], [1.0]), measured("K4", [3.0], [1.0])], file, part=True)
    assert [(one["number"], one["ours"]) for one in rows_in(file)] == [("K1", 1), ("K3", 1), ("K2", 5), ("K4", 3)]


def test_a_run_without_a_figure_leaves_its_rows_out_and_says_why() -> None:
    """Not the others. A row keeps the rounds in which both sides had a figure."""
    rounds = iter([1.0, NoFigureError("it took too long\nand its log"), 3.0])

    def peer() -> float:
        value = next(rounds)
        if isinstance(value, NoFigureError):
            raise value
        return value

    rows = [Row("K1", "a", "", "s", None, lambda: 2.0, peer), Row("K2", "b", "", "s", None, lambda: 2.0, lambda: 1.0)]
    run_in_turns(rows, 3, lambda _: None)
    assert [(row.our_figures, row.peer_figures, row.skipped.partition("\n")[0]) for row in rows] == [
        ([2.0], [1.0], "it took too long"), ([2.0] * 3, [1.0] * 3, "")
    ]  # fmt: skip
    show(rows, "title", console := Console(file=io.StringIO(), width=200))
    assert "it took too long" in str(console.file.getvalue())  # type: ignore[attr-defined]


def test_the_table_of_figures_has_those_of_its_rows() -> None:
    """The columns ours and peer, in the unit of the row, and the ratio."""
    page = (_DOCS / "internals" / "performance.md").read_text(encoding="utf-8")
    section = page.partition("\n## Figures\n")[2].partition("\n## ")[0]
    wrong = []
    for line in re.findall(r"^\| (P\d.*) \|$", section, re.MULTILINE):
        number, _, ours, peer, ratio = [cell.strip() for cell in line.split("|")][:5]
        rows = [row for row in rows_in() if row["number"] in number.split(", ")]
        known = {row[side] for row in rows for side in ("ours", "peers", "ratio") if side in row}
        shown = re.findall(r"\d[\d,]*(?:\.\d+)?", re.sub(r"[A-Za-z]\w*-?\w*", "", f"{ours} {peer} {ratio}"))
        for figure in (float(one.replace(",", "")) for one in shown):
            if not {figure, figure * 1e3, figure * 1e6, figure / 1e3} & known:
                wrong.append(f"{number}: {figure:g}")
    assert not wrong


def measured(number: str, ours: list[float], peers: list[float] | None = None) -> Row:
    peer = None if peers is None else lambda: 0.0
    made = Row(number, "a measure", "", "/s", None, lambda: 0.0, peer, "the peer")
    made.our_figures, made.peer_figures = ours, peers or []
    return made


def test_a_group_that_is_measured_replaces_the_one_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With medians of three digits, machine, date, server and Spark. A row that was skipped is left out."""
    where = {"date": "2026-01-02", "machine": "m", "server": "redis-server 7", "spark": "4"}
    monkeypatch.setattr("tools.bench.row._circumstances", lambda: where)
    file = tmp_path / "figures.json"
    record("source", [measured("P1", [1.0])], file)
    record("sink", [measured("P9", [2.0])], file)
    record("source", [measured("P1", [123_456.0, 5.0, 1e6], [61_728.0, 5.0, 1e6]), measured("P2", [])], file)
    assert [one["number"] for one in rows_in(file)] == ["P1", "P9"]
    groups = json.loads(file.read_text(encoding="utf-8"))
    assert {name: value for name, value in groups["source"].items() if name != "rows"} == where
    assert groups["source"]["rows"] == [
        {
            "number": "P1", "measure": "a measure", "unit": "/s", "rounds": 3, "ours": 123_000.0,
            "peer": "the peer", "peers": 61_700.0, "ratio": 1.0,
        }
    ]  # fmt: skip


def test_the_file_says_where_each_group_was_measured() -> None:
    groups = json.loads(FILE.read_text(encoding="utf-8"))
    assert {"date", "machine", "server", "spark", "rows"} == set.intersection(*map(set, groups.values()))


@pytest.mark.parametrize(
    "wait",
    [
        lambda client: client.call("PING"), lambda client: client.send(b"", 1), lambda client: client.bytes_of(b""),
        lambda client: client.exchange(b"", 1),
    ],
)  # fmt: skip
def test_a_client_whose_server_has_ended_does_not_wait_for_it(wait: Callable[[RawClient], object]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, RawClient(server.getsockname()[1]) as client:
        server.accept()[0].close()
        with pytest.raises(ConnectionError):
            wait(client)
