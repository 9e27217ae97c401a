"""What clients make the engine keep beside keys counts for maxmemory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from spark_streams.engine.store.remembered_messages import Idempotence
from tests.engine.persistence.test_stream_payload import serving
from tests.engine.state import Inside
from tests.engine.wire import Wire, command, wire
from tools.waiting import until

pytestmark = pytest.mark.in_turn

OOM = "OOM command not allowed when used memory > 'maxmemory'."
BIG = b"x" * 10_000


@pytest.fixture
def clients() -> Iterator[tuple[Wire, Wire]]:
    """Two clients of a server whose data may take 8 MB."""
    with serving("--maxmemory", "8mb") as served, wire(served) as one, wire(served) as other:
        other.socket.settimeout(20)
        one.socket.settimeout(20)
        yield one, other


def used(client: Wire) -> int:
    lines = client.call("INFO", "memory").decode().split("\r\n")
    return int(dict(line.split(":", 1) for line in lines if ":" in line)["used_memory"])


def watch(client: Wire) -> None:
    for number in range(100):
        client.call("WATCH", *[b"%d-%d-%b" % (number, key, BIG) for key in range(10)])


def watch_short_keys(client: Wire) -> None:
    for number in range(30):
        client.call("WATCH", *[f"{number}-{key}" for key in range(1_000)])


def queue(client: Wire) -> None:
    client.call("MULTI")
    for _ in range(1_000):
        client.call("SET", "k", BIG)


def queue_reads(client: Wire) -> None:
    client.call("MULTI")
    for _ in range(1_000):
        client.call("GET", BIG)


def queue_short_commands(client: Wire) -> None:
    client.call("MULTI")
    for _ in range(20):
        for _ in range(100):
            client.send("MGET", *["k"] * 100)
        for _ in range(100):
            client.reply()


def queue_batches(client: Wire) -> None:
    client.call("XADD", "s", "1-1", "a", "1")
    client.call("MULTI")
    for _ in range(40):
        for _ in range(100):
            client.send("XADD", "s", "*", "field", "v" * 1_000)
        for _ in range(100):
            client.reply()


def name(client: Wire) -> None:
    client.call("CLIENT", "SETNAME", b"n" * 9_000_000)


def name_at_hello(client: Wire) -> None:
    client.call("HELLO", "2", "SETNAME", b"n" * 9_000_000)


def name_a_library(client: Wire) -> None:
    client.call("CLIENT", "SETINFO", "LIB-NAME", b"n" * 9_000_000)


def wait_for_keys(client: Wire) -> None:
    keys = [b"%d%b" % (number, BIG) for number in range(1_000)]
    client.send("XREAD", "BLOCK", "0", "STREAMS", *keys, *["$"] * 1_000)


def wait_for_lists(client: Wire) -> None:
    client.send("BLPOP", *[f"k{number}" for number in range(20_000)], "0")


def send_half_a_request(client: Wire) -> None:
    client.socket.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$20000000\r\n" + b"x" * 9_000_000)


def send_half_a_request_of_short_arguments(client: Wire) -> None:
    client.socket.sendall(b"*1000000\r\n" + b"$1\r\nx\r\n" * 300_000)


def name_producers(client: Wire) -> None:
    for number in range(1_000):
        client.call("XADD", "s", "IDMP", b"%d%b" % (number, BIG), "m", "*", "a", "1")


def name_short_producers(client: Wire) -> None:
    client.call("XADD", "s", "1-1", "a", "1")
    for number in range(40_000):
        client.send("XADD", "s", "IDMP", f"p{number}", "m", "*", "a", "1")
    for _ in range(40_000):
        client.reply()


def name_messages(client: Wire) -> None:
    client.call("XADD", "s", "1-1", "a", "1")
    client.call("XCFGSET", "s", "IDMP-MAXSIZE", "10000")
    for number in range(1_000):
        client.call("XADD", "s", "IDMP", "p", b"%d%b" % (number, BIG), "*", "a", "1")


def record_messages(client: Wire) -> None:
    client.call("XADD", "s", "9999999999999-1", "a", "1")
    client.call("XCFGSET", "s", "IDMP-MAXSIZE", "10000")
    for number in range(1_000):
        client.call("XIDMPRECORD", "s", "p", b"%d%b" % (number, BIG), "9999999999999-1")


def name_consumers(client: Wire) -> None:
    client.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    for number in range(1_000):
        client.call("XREADGROUP", "GROUP", "g", b"%d%b" % (number, BIG), "STREAMS", "s", ">")


def claim_for_consumers(client: Wire) -> None:
    client.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    for number in range(1_000):
        client.call("XAUTOCLAIM", "s", "g", b"%d%b" % (number, BIG), "0", "0")


def copy(client: Wire) -> None:
    for _ in range(100):
        client.call("XADD", "s", "*", "a", BIG)
    for number in range(20):
        client.call("COPY", "s", f"t{number}")


def have_every_second_entry_pending(client: Wire) -> None:
    for number in range(30_000):
        client.send("XADD", "s", f"1-{number + 1}", "a", "1")
    for _ in range(30_000):
        client.reply()
    client.call("XDEL", "s", *[f"1-{number + 1}" for number in range(0, 30_000, 2)])
    for group in range(3):
        client.call("XGROUP", "CREATE", "s", group, "0")
        client.call("XREADGROUP", "GROUP", group, "c", "COUNT", "30000", "STREAMS", "s", ">")


KINDS: list[Callable[[Wire], None]] = [
    watch, watch_short_keys, queue, queue_reads, queue_short_commands, queue_batches, name, name_at_hello,
    name_a_library, wait_for_keys, wait_for_lists, send_half_a_request, send_half_a_request_of_short_arguments,
    name_producers, name_short_producers, name_messages, record_messages, name_consumers, claim_for_consumers, copy,
    have_every_second_entry_pending,
]  # fmt: skip


# Without a command that has run.
UNNOTED = {wait_for_keys, wait_for_lists, send_half_a_request, send_half_a_request_of_short_arguments}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_counts_for_maxmemory(clients: tuple[Wire, Wire], kind: Callable[[Wire], None]) -> None:
    """Another client's write is refused, and is accepted again when the first client is gone or its key is deleted."""
    one, other = clients
    assert other.call("SET", "before", "v") == b"OK"
    kind(one)
    if kind in UNNOTED:
        time.sleep(1.5)  # connections are measured once a second
    accepted = 0
    while other.call("SET", f"k{accepted}", BIG) == b"OK":
        accepted += 1
    assert accepted < 300, "it does not count"
    assert used(other) > 6_000_000
    one.close()
    other.call("FLUSHALL")
    until(lambda: used(other) < 1_000_000, "it is not given back")
    assert other.call("SET", "after", "v") == b"OK"


def test_what_redis_refuses_in_a_transaction(clients: tuple[Wire, Wire]) -> None:
    """Any command that would be queued; EXEC, DISCARD and MULTI are not refused."""
    one, other = clients
    for number in range(900):
        if other.call("SET", f"k{number}", BIG) == OOM:
            break
    assert one.call("GET", "k1") == BIG
    assert one.call("MULTI") == b"OK"
    assert one.call("GET", "k1") == OOM
    assert one.call("MULTI") == "ERR MULTI calls can not be nested"
    assert str(one.call("WATCH", "k")).startswith("ERR")
    assert one.call("EXEC") == "EXECABORT Transaction discarded because of previous errors."
    assert one.call("MULTI") == b"OK"
    assert one.call("DISCARD") == b"OK"


def test_a_full_server_still_takes_a_few_watched_keys(clients: tuple[Wire, Wire]) -> None:
    """A client may clean up by a transaction, but not fill the memory with watched keys."""
    one, other = clients
    for number in range(900):
        if other.call("SET", f"k{number}", BIG) == OOM:
            break
    assert one.call("WATCH", "k1") == b"OK"
    replies = [one.call("WATCH", b"%d%b" % (number, BIG)) for number in range(1_000)]
    assert replies[0] == b"OK"
    assert replies[-1] == OOM
    assert replies.count(b"OK") < 10
    assert one.call("UNWATCH") == b"OK"
    assert one.call("DEL", *[f"k{number}" for number in range(900)]) > 0
    until(lambda: other.call("SET", "after", "v") == b"OK", "it is not given back")


def test_reads_do_not_fill_a_server() -> None:
    """A command that keeps nothing does not count, however long its arguments are."""
    with serving("--maxmemory", "8mb") as served, wire(served) as client:
        for _ in range(3_000):
            client.call("GET", BIG)
        assert client.call("SET", "k", "v") == b"OK"


def test_the_memory_of_producers_is_counted_exactly() -> None:
    """After any life it is what the remembered messages take: nothing is counted twice or left behind."""
    memory = Idempotence(10, 5)
    now = 1_000_000

    def counted() -> int:
        fresh = Idempotence(10, 5)
        for producer, messages in memory.producers.items():
            fresh.restore(producer, messages)
        return fresh.memory

    for number in range(200):
        now += 500
        producer, message = b"p%d" % (number % 7), b"m" * (number % 13 + 1)
        if memory.find(producer, message) is None:
            memory.remember(producer, message, now << 64)
        if number % 50 == 0 and memory.producers[producer]:
            memory.forget(producer, next(iter(memory.producers[producer])))
        if number % 10 == 0:
            memory.forget_old(now)
        assert memory.memory == counted()
    memory.configure(20, None)
    assert memory.memory == 0


def test_what_the_engine_remembers_of_long_keys_is_bounded() -> None:
    """Beginnings of records, shapes of batches, spellings of commands: none keeps a long key or grows with them."""
    inside = Inside()
    engine = inside.engine
    for number in range(200):
        inside.call("".join(c.upper() if number >> i & 1 else c for i, c in enumerate("xreadgroup")), "x")
        inside.call("".join(c.upper() if number >> i & 1 else c for i, c in enumerate("xlen")), "s")
    assert len(engine._command_cache) <= 4
    data = command("XADD", "k" * 100_000, "*", "a", "1") * 3
    for _ in range(3):
        assert engine.shapes.learn(data) is None
    assert not engine.shapes._shapes
