"""Limits with asyncio: in this process, or shared through Redis (`python tasks.py redis://127.0.0.1/`)."""

import asyncio
import sys
import time
from datetime import timedelta

from sluicegate import Policy, aio

PACE = Policy.leaky_queue(50, per=timedelta(seconds=1))


async def call(limiter: aio.Limiter, number: int, started: float) -> None:
    decision = await limiter.wait("api", PACE, timeout=5)
    print(f"call {number} after {time.monotonic() - started:.2f} s: {decision.allowed}")


async def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else None
    async with aio.Limiter.connect(url) if url else aio.Limiter.in_memory() as limiter:
        started = time.monotonic()
        await asyncio.gather(*(call(limiter, number, started) for number in range(5)))
        async with limiter.hold("report", "concurrency:1/30s") as hold:
            print("held:", bool(hold), (await hold.renew()).allowed)
            second = await limiter.hold("report", "concurrency:1/30s")
            print("a second one:", bool(second))


if __name__ == "__main__":
    asyncio.run(main())
