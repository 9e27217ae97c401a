"""redis-cli, redis-benchmark and redis-py work unchanged against the engine."""

from __future__ import annotations

import asyncio
import shutil
import subprocess

import pytest
import redis
import redis.asyncio

from tools.servers.server import Server

needs_tools = pytest.mark.skipif(
    shutil.which("redis-cli") is None or shutil.which("redis-benchmark") is None,
    reason="redis-cli and redis-benchmark are not installed (Debian: redis-tools)",
)


def tool(server: Server, name: str, *arguments: str, given: bytes = b"") -> str:
    """What one of Redis' own tools prints."""
    path = server.url.removeprefix("unix://")
    ended = subprocess.run([name, "-s", path, *arguments], input=given, capture_output=True, check=True, timeout=60)
    return ended.stdout.decode()


@needs_tools
def test_redis_cli(engine_server: Server) -> None:
    """One-shot, RESP3, interactive with MULTI, bulk loading, and its scans."""
    tool(engine_server, "redis-cli", "flushall")
    assert tool(engine_server, "redis-cli", "xadd", "s", "1-1", "a", "1").strip() == "1-1"
    assert "entries-added" in tool(engine_server, "redis-cli", "-3", "xinfo", "stream", "s")
    assert tool(engine_server, "redis-cli", given=b"multi\nincr n\nexec\n").split() == ["OK", "QUEUED", "1"]
    loaded = tool(engine_server, "redis-cli", "--pipe", given=b"XADD s 2-1 k v\r\nPING\r\n")
    assert "errors: 0, replies: 2" in loaded
    assert sorted(tool(engine_server, "redis-cli", "--scan").split()) == ["n", "s"]
    assert "1 streams with 2 entries" in tool(engine_server, "redis-cli", "--bigkeys")
    assert int(tool(engine_server, "redis-cli", "command", "count")) > 70
    assert "XADD key" in tool(engine_server, "redis-cli", "command", "docs", "xadd")


@needs_tools
def test_redis_benchmark(engine_server: Server) -> None:
    """Its stream commands and its stock tests run without an error."""
    tool(engine_server, "redis-cli", "flushall")
    stock = "ping,set,get,incr,lpush,sadd,hset,mset"
    assert tool(engine_server, "redis-benchmark", "-q", "-n", "1000", "-t", stock).count("requests per second") == 9
    tool(
        engine_server,
        "redis-benchmark",
        "-q",
        "-n",
        "5000",
        "-P",
        "50",
        "xadd",
        "b",
        "maxlen",
        "~",
        "100",
        "*",
        "f",
        "v",
    )
    assert 100 <= int(tool(engine_server, "redis-cli", "xlen", "b")) < 300


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py(server: Server, protocol: int) -> None:
    """The client that everybody uses reads every kind of reply."""
    with server.client(protocol=protocol) as client:
        first = client.xadd("s", {"a": "1"})
        client.xadd("s", {"a": "2"}, maxlen=1000, approximate=True)
        assert client.xgroup_create("s", "g", "0")
        got = client.xreadgroup("g", "c", {"s": ">"}, count=10)
        assert len(got) == 1
        assert client.xpending("s", "g")["pending"] == 2
        assert len(client.xpending_range("s", "g", "-", "+", 10)) == 2
        assert client.xautoclaim("s", "g", "d", 0)[0] == b"0-0"
        assert client.xinfo_stream("s", full=True)["length"] == 2
        assert client.xinfo_groups("s")[0]["lag"] == 0
        assert client.xinfo_consumers("s", "g")[0]["name"] == b"c"
        assert client.xack("s", "g", first) == 1
        with client.pipeline() as pipe:
            pipe.watch("s")
            pipe.multi()
            pipe.xadd("s", {"b": "3"})
            pipe.hset("h", mapping={"x": 1})
            assert pipe.execute()[1] == 1
        assert client.info()["redis_version"]
        assert client.client_list()
        assert client.config_get("stream-node*")["stream-node-max-entries"] == "100"
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            client.xlen("h")


def test_redis_py_async(engine_server: Server) -> None:
    """The asyncio client, with a blocked reader beside a writer."""

    async def converse() -> object:
        async with redis.asyncio.Redis.from_url(engine_server.url) as client:
            await client.flushall()
            waiting = asyncio.create_task(client.xread({"s": "$"}, block=5000))
            while not (await client.info("clients"))["blocked_clients"]:
                await asyncio.sleep(0.01)
            await client.xadd("s", {"a": 1}, id="1-1")
            return await waiting

    assert "1-1" in str(asyncio.run(converse()))
