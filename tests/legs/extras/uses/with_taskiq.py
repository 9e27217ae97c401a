"""A task queue on a stream: taskiq-redis sends a task, a worker runs it, and a task of a dead worker is run again."""

from __future__ import annotations

import asyncio
import os

import redis
from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

url = os.environ["RSTREAM_URL"]
broker = RedisStreamBroker(url, xread_block=200, idle_timeout=1000).with_result_backend(RedisAsyncResultBackend(url))


@broker.task
async def total(*amounts: int) -> int:
    return sum(amounts)


async def main() -> None:
    await broker.startup()
    left = await total.kiq(1, 2)
    with redis.Redis.from_url(url) as client:
        client.xreadgroup("taskiq", "dead worker", {"taskiq": ">"})
    await asyncio.sleep(1.2)
    worker = asyncio.create_task(run_receiver_task(broker))
    sent = await total.kiq(3, 4)
    results = [(await task.wait_result(timeout=30)).return_value for task in (left, sent)]
    worker.cancel()
    await broker.shutdown()
    with redis.Redis.from_url(url) as client:
        print("results:", results, "pending:", client.xpending("taskiq", "taskiq")["pending"])


asyncio.run(main())
