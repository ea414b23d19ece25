"""What many calls leave behind. Each program has an interpreter of its own; `SLUICEGATE_CALLS` sets the number of calls to a store."""

import os

import pytest
from sluicegate import Limiter, Policy
from test_processes import run

CALLS = int(os.environ.get("SLUICEGATE_CALLS", "50000"))

PROGRAM = """
import asyncio, gc, sys
from sluicegate import Denied, Limiter, Policy, aio
url, count = sys.argv[1], int(sys.argv[2])
policy = Policy("gcra:100/1s")

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def sync(limiter, count):
    for _ in range(count):
        decision = limiter.take("user7", policy)
        decision.headers(); decision.retry_after; decision.policy

def held(limiter, count):
    for _ in range(count):
        with limiter.hold("reports", "concurrency:2/30s"):
            pass

def raised(limiter, count):
    for _ in range(count):
        try:
            limiter.require("denied", "fixed-window:1/1h")
            limiter.require("denied", "fixed-window:1/1h")
        except Denied:
            pass

async def tasks(limiter, count):
    async def one(calls):
        for _ in range(calls):
            await limiter.take("user7", policy)
    await asyncio.gather(*(one(count // 64) for _ in range(64)))

sync_limiter = Limiter.connect(url, timeout=20) if url else Limiter.in_memory()
aio_limiter = aio.Limiter.connect(url, timeout=20) if url else aio.Limiter.in_memory()
def all_kinds(count):
    sync(sync_limiter, count)
    held(sync_limiter, count // 10)
    raised(sync_limiter, count // 10)
    asyncio.run(tasks(aio_limiter, count))

all_kinds(min(count, 20_000))
before = resident()
all_kinds(count)
print(resident() - before)
"""


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_calls_leave_no_memory_behind(store, redis_url):
    url, count = (redis_url, CALLS) if store == "redis" else ("", 1_000_000)
    assert int(run(PROGRAM, url, str(count), deadline=600)) < 3 << 20


def test_leased_units_are_given_back_on_close(redis_url):
    whole = "gcra:1000/1d:burst=1000"
    policy = Policy(whole, lease=100)
    other = Limiter.connect(redis_url)
    with Limiter.connect(redis_url, timeout=20) as limiter:
        for _ in range(50):
            assert limiter.take("leased", policy)
        assert limiter.counters()["lease"] > 0
        assert other.peek("leased", whole).remaining < 950
    assert other.peek("leased", whole).remaining == 950
