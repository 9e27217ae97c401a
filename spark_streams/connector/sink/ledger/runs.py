"""Beginning of a run, on the driver before there are tasks. The server decides which of two runs began later.

    rstream:runs    the highest number of a run so far: microseconds of the server's clock, and always higher than the
                    number before; if the key is lost, numbers continue from the clock

A run's name begins with its number, so names sort in the order in which runs began, independent of the drivers' clocks.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.keys import CLOSED, RUNS
from spark_streams.connector.sink.ledger.batch import Batch
from spark_streams.connector.sink.ledger.ledger import JOB_SECONDS, NONE_CLOSED, number_in
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import drops_any_key, evicting_policy, find_worst_policy
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.named_errors import ASK
from spark_streams.connector.wire.replies import is_forbidden, milliseconds, transact
from spark_streams.connector.wire.session import Session

_log = logging.getLogger("spark_streams.sink")


def run_name(number: int) -> str:
    """Return the name of a run with this number."""
    return f"r{number:020d}-{secrets.token_hex(4)}"


Ready = Callable[[Server], object]  # prepares the streams before anything is written; may be run again


def _do_nothing(_server: Server) -> None:
    """Prepare nothing."""


def begin_run(address: Address, ready: Ready = _do_nothing) -> str:
    """Begin a run of a query's batch, and return its name.

    Raises UnsupportedError if the server may evict keys, RetriesExhaustedError, ServerReplyError, and the errors of
    `ready`.
    """
    with Session(address, is_known=True) as session:
        session.run(ready)
        while (number := session.run(_next_number)) is None:
            pass
    return run_name(number)


def begin_job(address: Address, ready: Ready = _do_nothing) -> Batch:
    """Begin a job: create its record, and return its batch. Raises the errors of begin_run."""
    batch = Batch.of_job(secrets.token_hex(8))
    with Session(address) as session:
        session.run(ready)
        session.run(lambda server: _make_record(server, batch))
    return batch


def connect_once(address: Address, is_known: bool, ready: Ready) -> None:
    """Connect once on the driver: an error shows here, while tasks wait for an unreachable server. is_known: as in
    Session. Raises ServerError."""
    with Session(address, is_known=is_known) as session:
        session.run(ready)


def _make_record(server: Server, batch: Batch) -> None:
    """Create a job's record. Raises UnsupportedError."""
    policy = _require_memory(server.address, evicting_policy(server))
    if policy.startswith("volatile"):
        _log.warning(
            "the server at %s evicts keys that expire when its memory is full (maxmemory-policy %s), and the keys of a "
            "job's ledger expire. Make sure that its memory does not fill up before the job has ended",
            server.address, policy,
        )  # fmt: skip
    server.execute_all([("HSET", batch.record, CLOSED, NONE_CLOSED), ("EXPIRE", batch.record, JOB_SECONDS)])


def _next_number(server: Server) -> int | None:
    """Return the next run's number; None if another driver was faster."""
    home = server.connection_for(RUNS)  # the node whose clock is used
    commands = [("WATCH", RUNS), ("GET", RUNS), ("TIME",)]
    *replies, memory = home.execute_all([*commands, ASK], is_forbidden)  # only ASK may be
    _, last, clock = home.checked(commands, replies)
    other_policies = [node.execute_all([ASK], is_forbidden)[0] for node in server.nodes() if node is not home]
    _require_memory(server.address, find_worst_policy([memory, *other_policies]))
    number = max(milliseconds(clock) * 1000, number_in(last or b"0") + 1)
    return number if transact(home, [("SET", RUNS, number)]) is not None else None


def _require_memory(address: Address, policy: str | None) -> str:
    """Return the server's eviction policy, empty if the user may not read it. Raises UnsupportedError if the server may
    evict the ledger."""
    if drops_any_key(policy):
        raise UnsupportedError(
            f"the server at {address} evicts any key when its memory is full (maxmemory-policy {policy}), also the "
            "ledger of the rows that are written. Set maxmemory-policy to noeviction (or volatile-lru), or set "
            "delivery=at-least-once"
        )
    return policy or ""
