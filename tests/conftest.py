"""Fixtures that every test shares: the servers that stream behaviour is tested on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

import pytest
import redis
from hypothesis import HealthCheck, settings

from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.parts import MOST_ARGUMENTS
from tests.longest_request import Requests
from tests.seeds import TIMES
from tests.trimming import nodes_of_one_entry
from tests.turns import EACH_TURN, TURNS, rows_of_turn, test_and_row, turn_of_file
from tools.day_seed import first_seed
from tools.servers.managed.newer_watch import running_newer_engine
from tools.servers.server import (
    KINDS,
    Server,
    kind_of_turn,
    redis_server_path,
    running_engine,
    running_redis,
    skip_without_redis,
)
from tools.side_by_side import LEFT_OUT

# A deadline would measure how busy the machine is. An example that failed becomes a test, not a file on one disk.
# The usual run takes the same examples each time. The nightly run takes twenty times as many, at random.
settings.register_profile(
    "tests",
    deadline=None,
    database=None,
    derandomize=TIMES == 1,
    max_examples=100 * TIMES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")

_TURN = pytest.StashKey[int]()
_LEFT_OUT = pytest.StashKey[list[str]]()
_REQUESTS = pytest.StashKey[Requests]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--by-turns",
        action="append",
        default=[],
        metavar="PATH",
        help="of this folder or file (from the root of the clone; can be given several times) run each test of both "
        "servers on one of them, chosen by the test's name and the day (or RSTREAM_SEED)",
    )
    parser.addoption(
        "--in-turn",
        action="store_true",
        help=f"run one of {TURNS} parts of the tests that need Spark or are marked in_turn, chosen by their file, and "
        f"of the rows (parameters) of each other test in the folders of --by-turns; RSTREAM_SEED or the day chooses",
    )
    parser.addoption(
        "--without", action="append", default=[], metavar="MARKER", help="run no test with this marker (several times)"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TURN] = first_seed()
    config.stash[_LEFT_OUT] = []
    config.stash[_REQUESTS] = Requests()


def turn_of(config: pytest.Config) -> int:
    """The seed that chooses the server of each test, by turns."""
    return config.stash[_TURN]


def asked_by_turns(item: pytest.Item) -> bool:
    """Whether this test is in a folder or file of --by-turns."""
    file = PurePosixPath(item.nodeid.partition("::")[0])
    return any(file.is_relative_to(path) for path in item.config.getoption("--by-turns"))


def by_turns(item: pytest.Item) -> bool:
    """Whether this test runs on one of both servers."""
    return asked_by_turns(item) and redis_server_path() is not None


def pytest_report_header(config: pytest.Config) -> str | None:
    """What repeats this choice."""
    has_turns = config.getoption("--by-turns") or config.getoption("--in-turn")
    return f"by turns: RSTREAM_SEED={config.stash[_TURN]}" if has_turns else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """--in-turn; and --by-turns, where this machine has both."""
    seed = config.stash[_TURN]
    others = [item for item in items if turn_of_item(item) not in (None, seed % TURNS)]
    later = others if config.getoption("--in-turn") else []
    config.stash[_LEFT_OUT] = _names_of(later, items)
    has_turn = {item: not by_turns(item) or _has_turn(item, seed) for item in items} | dict.fromkeys(later, False)
    if config.getoption("--in-turn"):
        of_rows = [item for item in items if asked_by_turns(item) and turn_of_item(item) is None]
        chosen = rows_of_turn([item.nodeid for item in of_rows], seed)
        has_turn |= {item: False for item in of_rows if item.nodeid not in chosen}
    without = config.getoption("--without")
    has_turn |= {item: False for item in items if any(map(item.get_closest_marker, without))}
    config.hook.pytest_deselected(items=[item for item in items if not has_turn[item]])
    items[:] = [item for item in items if has_turn[item]]


def turn_of_item(item: pytest.Item) -> int | None:
    """The turn in which this test runs: that of its file, or the given one; None: each.

    Raises UsageError for a turn that never comes.
    """
    marker, file = item.get_closest_marker("in_turn"), item.nodeid.partition("::")[0]
    if marker is None and (item.get_closest_marker("spark") is None or file in EACH_TURN):
        return None
    turn = marker.args[0] if marker and marker.args else turn_of_file(file)
    if turn not in range(TURNS):
        raise pytest.UsageError(f"in_turn({turn}) of {item.nodeid} never runs: there are {TURNS} turns, from 0")
    return int(turn)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Lines that tools/side_by_side.py repeats at its end."""
    left_out = config.stash[_LEFT_OUT]
    for line in (LEFT_OUT + ", ".join(left_out) if left_out else "", config.stash[_REQUESTS].line()):
        if line:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session", autouse=True)
def heard_requests(request: pytest.FixtureRequest) -> Iterator[None]:
    """All requests of this process are heard."""
    with request.config.stash[_REQUESTS].hearing():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test fails whose requests are longer than a managed server takes."""
    requests = item.config.stash[_REQUESTS]
    requests.taken()
    yield
    if found := requests.taken():
        pytest.fail(f"requests of more than {MOST_ARGUMENTS:,} arguments: {found[:5]}", pytrace=False)


def _names_of(some: Sequence[pytest.Item], items: Sequence[pytest.Item]) -> list[str]:
    """Names of these items: of a file if these are all its tests, else of tests, without parameters."""

    def file_of(item: pytest.Item) -> str:
        return item.nodeid.partition("::")[0]

    left, there = Counter(map(file_of, some)), Counter(map(file_of, items))
    whole = {file for file, count in left.items() if count == there[file]}
    return [*dict.fromkeys(file_of(i) if file_of(i) in whole else i.nodeid.partition("[")[0] for i in some)]


def _parameters(item: pytest.Item) -> Mapping[str, object]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def _has_turn(item: pytest.Item, seed: int) -> bool:
    """Parameter `server`: each test has a turn of its own; `kind`: the tests of a file, which share what was done to a
    server, have one turn."""
    given = _parameters(item)
    if given.get("kind") in KINDS:
        return kind_of_turn(item.nodeid.partition("::")[0], seed) == given["kind"]
    kind = given.get("server", given.get("watched_server"))
    if kind not in KINDS:
        return True
    return kind_of_turn(" ".join(test_and_row(item.nodeid)), seed) == kind


@pytest.fixture(scope="module")
def servers_of_kinds(request: pytest.FixtureRequest) -> dict[str, Server]:
    """The servers that tests of this file look at by their parameter `kind`: both, one by turns, or those of `-k`."""
    kinds = {_parameters(item).get("kind") for item in request.session.items if item.path == request.path}
    there = KINDS if redis_server_path() else KINDS[:1]
    return {kind: request.getfixturevalue(f"{kind}_server") for kind in there if kind in kinds}


@pytest.fixture(scope="session")
def engine_server() -> Iterator[Server]:
    with running_engine() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    skip_without_redis()
    with running_redis() as server:
        yield server


@pytest.fixture(scope="session")
def newer_server() -> Iterator[Server]:
    """The engine with a newer rule of WATCH: on it run modules with `watches_streams`, too."""
    with running_newer_engine() as server:
        yield server


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Server:
    """An empty server: the same test runs on the bundled engine and on a real redis-server."""
    chosen: Server = request.getfixturevalue(f"{request.param}_server")
    with chosen.client() as client:
        client.flushall()
    return chosen


@pytest.fixture(params=[*KINDS, "newer"])
def watched_server(request: pytest.FixtureRequest) -> Server:
    """An empty server, with the older and the newer rule of WATCH."""
    chosen: Server = request.getfixturevalue(f"{request.param}_server")
    with chosen.client() as client:
        client.flushall()
    return chosen


@pytest.fixture
def small_nodes(server: Server) -> Iterator[None]:
    """Each node of a stream has one entry, so that trimming of whole nodes (`~`) is exact."""
    with nodes_of_one_entry(server):
        yield


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A plain client of the server, whose replies are texts."""
    with server.client(decode_responses=True) as one:
        yield one


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    """A connection of ours to the server."""
    with Connection(Address.parse(server.url)) as one:
        yield one
