"""Each number with a unit on a page is a figure of docs/internals/figures.json, or has its source in the table below:
words of the code or of a test that say the same. A number that changes on one side only is found.

Rates are in test_figures.py. Code, printed tables, facts.md and the table of performance.md are not looked at.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.bench.row import rows_in
from tools.chaos.drivers import KILLS

ROOT = Path(__file__).resolve().parents[2]
_WITHOUT = ("facts", "mutants", "performance")
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.stem not in _WITHOUT)]
_NOT_READ = re.compile(
    r"^( *)```.*?^ *```|<!-- printed: (?!keys-)([\w-]+) -->.*?<!-- end of \2 -->|`[^`\n]*`", re.DOTALL | re.MULTILINE
)
_WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twenty", "thirty"]
_TIMES, _COUNTS = r"µs|ms|s\b|(?:second|minute|hour|day|week)s?\b", r"(?:times|entries|rows|streams|fields)\b"
_UNITS = rf"{_TIMES}|kB|MB|GB|KB|bytes|×|%|cores|{_COUNTS}"
_NUMBER = re.compile(rf"(?<![\w.,/:-])(\d[\d,]*(?:\.\d+)?)\s({_UNITS})")
_IN_WORDS = re.compile(rf"\b({'|'.join(_WORDS)})\s((?:second|minute|hour|week)s?\b|days?\b)")
_RATE = re.compile(r"\d\s(?:entries|rows)(?:/s|\s+(?:per|a)\s+second)")  # test_figures.py

_LIMIT = "connector/wire/address.py: limit: float = 60.0"
_FIRST_TRY = "connector/wire/address.py: first_connection: float = 5.0"
_SAMPLE = "connector/source/limits.py: sample_entries: int = 1_000"
_INFER = "connector/source/infer_schema.py: "
_SAMPLED = f"{_INFER}STREAMS = 20"
_RENEWED = "connector/wire/connection.py: RENEW_EVERY = 5.0"
_LEASE = "connector/wire/lease.py: TTL = 10_000"
_IDLE_ENGINE = "engine/launch/embedded.py: IDLE_SECONDS = 600.0"
_LEDGER = "tests/connector/sink/test_chunk_writer.py: pytest.approx(8 * count, rel=0.05)"
_CHUNK = "connector/options/table.py: default=5_000"
_STOP = '__init__.py: stop_within: str = "30s"'
_FORGOTTEN = "operations/transfer/copied_groups.py: _SECONDS = 30 * 86_400"
_SEARCH = "operations/console/entry_search.py: _SEARCH_SECONDS = 2.0"
_HELD = "operations/doctor/stream_findings.py: ENTRIES, BYTES = 10_000, 10_000_000"
_ALERTS = "jobs/templates/alerts.yml: "
_SIZES = "tests/project/test_docs_numbers.py: def test_the_examples_of_a_deployment_follow_from_the_costs"
_CONSOLE = "operations/console/incoming.py: "
_DOCTOR = "operations/doctor/server_findings.py: "
_GUARD = "engine/access_guard.py: "
_QUOTA = "connector/source/quota.py: "
_PROMETHEUS = "connector/watch/metrics_page.py: "
_EXAMPLE, _THEIRS = "an example, or an advice", "of another program"
_OLD = "measured once, by no test"

# Page and number → file and words in it. A file of the package is named without `spark_streams/`.
SOURCES: Mapping[str, Mapping[str, str]] = {
    "README": {"ten minutes": _IDLE_ENGINE},
    "access": {
        "2 seconds": _SEARCH,
        "20 seconds": f"{_CONSOLE}REQUEST_SECONDS = 20.0",
        "32 kB": f"{_CONSOLE}HEAD_BYTES = 32 << 10",
        "1 MB": f"{_CONSOLE}FORM_BYTES = 1 << 20",
        "1,024 bytes": f"{_CONSOLE}NAME_BYTES = 1_024",
        "500 fields": f"{_CONSOLE}EDITABLE_FIELDS = 500",
        "768 kB": f"{_CONSOLE}EDITABLE_BYTES = 768 << 10",
        "96 kB": f"{_CONSOLE}COMMAND_BYTES = 96 << 10",
    },
    "architecture": {
        "2 s": "base/given_text.py: PATTERN_INTERVAL = 2.0",
        "5 s": "base/given_text.py: IDLE_CHECK = 5.0",
        "ten seconds": _LEASE,
    },
    "clusters": {"5 seconds": _THEIRS},
    "commands-doctor": {
        "8 MB": f"{_DOCTOR}PAGE, LARGEST_PAGE = 4 << 20, 32 << 20",
        "64 MB": f"{_DOCTOR}PAGE, LARGEST_PAGE = 4 << 20, 32 << 20",
        "10,000 entries": _HELD,
        "10 MB": _HELD,
        "1 MB": "operations/doctor/stream_findings.py: LARGE_BYTES = 1_000_000",
    },
    "console": {
        "50,000 entries": "operations/console/entry_search.py: _SEARCHED = 50_000",
        "two seconds": _SEARCH,
        "ten minutes": "operations/console/visitors.py: PLAN_SECONDS = 600",
    },
    "copy": {"30 days": _FORGOTTEN},
    "dead-letters": dict.fromkeys(("one minute", "ten minutes", "one hour"), _EXAMPLE),
    "engine": {
        "512 bytes": "engine/commands/command_arguments.py: LONGEST_PATTERN = 512",
        "400 bytes": "engine/commands/values/dump_restore.py: = 64 << 20, 400",
        "64 MB": "engine/commands/values/dump_restore.py: = 64 << 20, 400",
        "64 kB": _OLD,
        "14 MB": _OLD,
        "3 KB": "engine/server/client_connections.py: PER_CONNECTION = 3000",
        "64 KB": f"{_GUARD}MAX_WATCHED = 64 * 1024",
        "16 KB": "engine/server/client_connections.py: UNREAD_BEFORE_AUTH = 16 * 1024",
        "ten minutes": _IDLE_ENGINE,
        "two seconds": "engine/persistence/aof_writer.py: _PATIENCE = 2.0",
    },
    "first-query": {"30 seconds": _STOP},
    "guarantees": {
        "5,000 rows": _CHUNK,
        "8 MB": "connector/sink/chunks.py: MAX_BYTES = 8 << 20",
        "170 bytes": "tests/connector/sink/test_chunk_writer.py: pytest.approx([140, 170], rel=0.05)",
        "8 bytes": _LEDGER,
        "one minute": _LIMIT,
        "five seconds": _FIRST_TRY,
    },
    "jobs": {
        "30 s": 'jobs/parts/query.py: job.duration("job.stop_within", "30s")',
        "ten seconds": _EXAMPLE,
        "30 days": "jobs/output/deltalake_table.py: _LONGER = 24 * 30",
        "250 bytes": _THEIRS,
        "8 bytes": _LEDGER,
    },
    "keys": {
        "10 s": _LEASE,
        "30 days": _FORGOTTEN,
        "1,024 bytes": "connector/shards/names.py: MAX_NAME = 1_024",
        "1,000 times": "tests/connector/shards/test_rule.py: def test_the_test_vector_of_the_docs",
    },
    "login-aws": {"900 s": _THEIRS, "12 hours": _THEIRS},
    "metrics": {
        "5 seconds": "connector/watch/lineage/lineage.py: _AT_LAST = 5.0",
        "ten seconds": f"{_PROMETHEUS}SECONDS = 10.0",
        "one second": "operations/monitor/snapshots.py: SECONDS = 1.0",
        "one day": "operations/commands/read/lag.py: than a day ahead of the server's clock",
    },
    "monitoring": {
        "300 s": f"{_ALERTS}rstream_lag_seconds > 300",
        "10 minutes": f"{_ALERTS}deriv(rstream_lag_entries[10m])",
        "1 MB": f"{_ALERTS}rstream_end_entry_bytes > 1e6",
        "5 minutes": f"{_ALERTS}rstream_group_idle_seconds > 300",
        "600 s": f"{_ALERTS}rstream_oldest_pending_seconds > 600",
        "10,000 entries": f"{_ALERTS}rstream_held_entries > 10000",
        "10 MB": f"{_ALERTS}rstream_held_bytes > 10e6",
        "85 %": f"{_ALERTS}rstream_server_memory_limit_bytes > 0.85",
        "3 times": f"{_ALERTS}increase(rstream_query_failures_total[1h]) > 3",
        "14.4 %": f"{_ALERTS}> 14.4 * 0.01",
        "10 s": f'{_ALERTS}{{le="10.0"}}',
    },
    "notebooks": {"ten minutes": _THEIRS},
    "options": {
        "1,024 bytes": "connector/wire/scan.py: LONGEST_NAME = 1_024",
        "10,000 streams": "connector/wire/scan.py: MOST_STREAMS = 10_000",
        "64 KB": "connector/source/limits.py: sampled_bytes: int = 64 << 10",
        "100 entries": f"{_QUOTA}MINIMUM = 100",
        "1,000 entries": f"{_QUOTA}FIRST = 1_000",
        "1.5 times": f"{_QUOTA}_TOO_LONG = 1.5",
        "0.5 µs": "docs/internals/facts.md: takes redis-server 0.22 to 0.5 µs an entry",
    },
    "platforms": {"12 hours": _THEIRS},
    "reading-tables": {"1,000 entries": _SAMPLE, "20 streams": _SAMPLED},
    "recipes": {"ten minutes": _EXAMPLE},
    "schemas": {
        "5,000 fields": "connector/schemas/reasons.py: FIRST_STEPS = 5_000",
        "10 s": "connector/schemas/decode_process.py: SECONDS = 10.0",
        "512 MB": "connector/schemas/decode_process.py: MEMORY = 512 << 20",
    },
    "security": {
        "80 bytes": "connector/source/rows/nested_json.py: LONGEST_QUOTED = 80",
        "five seconds": _RENEWED,
    },
    "servers": dict.fromkeys(("1 kB", "2 µs"), "operations/doctor/rights.py: which drops it (1 kB: 2 µs)"),
    "spark-clusters": {"15 seconds": _THEIRS},
    "start-and-restart": {"ten seconds": _LEASE},
    "testing": {"one day": "tests/turns.py: TURNS = 7", "100 bytes": _EXAMPLE},
    "trim": {"ten seconds": "connector/source/limits.py: lag_check: float = 10.0"},
    "troubleshooting": {"ten seconds": _THEIRS, "150 MB": _OLD},
    "tuning": {
        "0.1 s": 'docs/internals/figures.json: "measure": "a trigger of 100 entries"',
        "100 entries": 'docs/internals/figures.json: "measure": "a trigger of 100 entries"',
        "1,000 streams": 'docs/internals/figures.json: "measure": "a trigger over 1,000 streams"',
        "10,000 entries": "tools/bench/source.py: 10,000 new entries",
        "0.2 s": "connector/source/limits.py: idle_wait: float = 0.2",
        "15 bytes": _OLD,
        "84 bytes": 'docs/internals/figures.json: "peers": 84.4',
        "100 bytes": _EXAMPLE,
        "10 streams": _EXAMPLE, "100 streams": _EXAMPLE,
        "6.9 GB": _SIZES, "9.9 GB": _SIZES, "11.0 GB": _SIZES, "ten minutes": _SIZES,
    },
    "types": {"1,000 entries": _SAMPLE, "20 streams": _SAMPLED, "80 %": f"{_INFER}SHARE = 0.8"},
    "unnoticed": {"5,000 rows": _CHUNK},
}  # fmt: skip


def numbers_in(page: str) -> list[str]:
    """Return the numbers of a page with their units."""
    text = _RATE.sub("", " ".join(_NOT_READ.sub(" code ", page).split()))
    return [f"{one[1]} {one[2]}" for pattern in (_NUMBER, _IN_WORDS) for one in pattern.finditer(text)]


def figures() -> set[str]:
    """Return the figures with their units, and the ratios, as pages write them."""
    found = set()
    for row in rows_in():
        unit = {"B": "bytes"}.get(row["unit"], row["unit"])
        found |= {f"{row[side]:,.15g} {unit}" for side in ("ours", "peers") if side in row}
        found |= {f"{row['ratio']:{form}} ×" for form in ("g", ".1f", ".2f") if "ratio" in row}
    return found


def unknown(page: str, name: str) -> set[str]:
    return set(numbers_in(page)) - figures() - set(SOURCES.get(name, ()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_number_on_a_page_is_a_figure_or_has_a_source(page: Path) -> None:
    assert unknown(page.read_text(encoding="utf-8"), page.stem) == set()


def test_each_source_says_it_and_each_number_is_on_its_page() -> None:
    missing = []
    for name, numbers in SOURCES.items():
        pages = " ".join(page.read_text(encoding="utf-8") for page in PAGES if page.stem == name)
        missing += [f"{name}: {number}" for number in set(numbers) - set(numbers_in(pages))]
        for number, source in numbers.items():
            path, _, words = source.partition(": ")
            files = [ROOT / path, ROOT / "spark_streams" / path]
            if words and not any(file.is_file() and words in file.read_text(encoding="utf-8") for file in files):
                missing.append(f"{name}: {number}: {source}")
    assert missing == []


@pytest.mark.parametrize("planted", ["a chunk of 9 MB", "it takes 99 ms", "after two minutes", "0.123 × as fast"])
def test_a_number_without_a_source_is_found(planted: str) -> None:
    page = next(page for page in PAGES if page.stem == "guarantees").read_text(encoding="utf-8")
    assert len(unknown(f"{page}\n\nText: {planted}.\n", "guarantees")) == 1


# -- numbers that follow from others -----------------------------------------------------------------------------------


def section(page: str, heading: str) -> str:
    texts = [path.read_text(encoding="utf-8") for path in PAGES if path.stem == page]
    return "".join(text.partition(f"## {heading}\n")[2].partition("\n## ")[0] for text in texts)


def test_the_examples_of_a_deployment_follow_from_the_costs() -> None:
    """As docs/guide/tuning.md says: no thread is used by more than half."""
    text = section("tuning", "Plan servers and executors")
    costs = {row["measure"]: row["ours"] for row in rows_in() if row["number"] == "P34"}
    in_table = re.findall(r"^\| (server|driver|executors) \| .* \| ([\d. ·]+) \|$", text, re.MULTILINE)
    assert [float(one) for _, shown in in_table for one in shown.split(" · ")] == list(costs.values())
    reading = costs["server: read and acknowledge through a group"]
    producing = costs["server: XADD of a producer, pipelined"]
    decoding = costs["executors: receive and decode"]
    example = r"^\| ([\d,]+), [\d,]+ streams \| (\d+) \| ([\d.]+) GB \| (\d+) \| (\d+) \|$"
    examples = re.findall(example, text, re.MULTILINE)
    assert len(examples) == 3
    for shown, *others in examples:
        rate = int(shown.replace(",", ""))
        servers = math.ceil(rate * (producing + reading) / 500_000)
        memory = rate * 600 * (100 + 15) / servers / 1e9
        queries, cores = math.ceil(rate / 2e6), math.ceil(rate * (reading + decoding) / 500_000)
        assert others == [str(servers), f"{memory:.1f}", str(queries), str(cores)]


def test_the_bucket_of_ann_is_that_of_the_recipe() -> None:
    assert f"example:state:{{{zlib.crc32(b'ann') % 64}}}:ann" in section("recipes-tables", "The latest state in hashes")


def test_a_driver_is_killed_at_as_many_points_as_the_page_says() -> None:
    assert len(KILLS) == 14
    assert "killed at fourteen points of a batch" in (ROOT / "docs/internals/testing.md").read_text(encoding="utf-8")
