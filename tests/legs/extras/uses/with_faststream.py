"""A FastStream service: a consumer group reads orders, and its answers go to the next stream."""

from __future__ import annotations

import asyncio
import os

import redis
from faststream.redis import RedisBroker, StreamSub

url = os.environ["RSTREAM_URL"]
broker = RedisBroker(url)


@broker.subscriber(stream=StreamSub("orders", group="billing", consumer="ann", polling_interval=100))
@broker.publisher(stream="billed")
async def bill(order: dict[str, int]) -> dict[str, int]:
    return {"total": order["amount"] * 2}


async def main() -> None:
    async with broker:
        await broker.start()
        for amount in (1, 2):
            await broker.publish({"amount": amount}, stream="orders")
        with redis.Redis.from_url(url) as client:
            while client.xlen("billed") < 2:
                await asyncio.sleep(0.05)
            print("billed:", client.xlen("billed"), "pending:", client.xpending("orders", "billing")["pending"])


asyncio.run(main())
