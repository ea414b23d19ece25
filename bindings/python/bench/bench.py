"""`cargo xtask bench python`: this package beside other limiters of PyPI, each as its documentation shows it.

The rounds of all candidates are interleaved, and each figure is the median of its rounds. A ratio is how many times less time,
or memory, ours takes. `--quick` runs one small round of each, without figures to rely on.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import limits
import limits.aio
import slowapi
import slowapi.middleware
import slowapi.util
import throttled
import throttled.asyncio
from aiolimiter import AsyncLimiter
from pyrate_limiter import Duration, Limiter as PyrateLimiter, Rate
from sluicegate import Limiter, ManualClock, Policy, aio
from sluicegate.ext.asgi import RateLimitMiddleware
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

# Every candidate admits this many per minute: more than a round requests.
LIMIT = 1_000_000
ROUNDS = 7
KEYS = itertools.count()

Round = Callable[[int], float]
"""Makes a number of calls, and returns the seconds that they took."""


@dataclass
class Row:
    work: str
    against: str
    ratio: float
    bar: float
    detail: str

    def __str__(self) -> str:
        held = "holds" if self.ratio >= self.bar else "MISSED"
        return f"{self.work:<34} {self.against:<28} {self.ratio:>7.1f} x {self.bar:>6.1f} x  {held:<6}  {self.detail}"


def timed(statement: str, fresh: bool = False, **names: object) -> Round:
    """Runs a statement, which may use `key`: with `fresh`, that is a new one for each round, because the lists of the moving
    window of `limits` grow with each request."""

    def run(count: int) -> float:
        names["key"] = f"key{next(KEYS)}" if fresh else "user7"
        return timeit.Timer(statement, globals=names).timeit(count)

    return run


def medians(rounds: dict[str, tuple[Round, int]], count: int) -> dict[str, float]:
    """Seconds of a call of each candidate."""
    seconds: dict[str, list[float]] = {name: [] for name in rounds}
    for name, (run, calls) in rounds.items():
        run(calls // 10 + 1)
    for _ in range(count):
        for name, (run, calls) in rounds.items():
            seconds[name].append(run(calls) / calls)
    return {name: statistics.median(each) for name, each in seconds.items()}


def nanos(seconds: float) -> str:
    return f"{seconds * 1e9:,.0f} ns" if seconds < 1e-5 else f"{seconds * 1e6:,.1f} us"


def compared(work: str, ours: str, bars: dict[str, float], found: dict[str, float]) -> Iterator[Row]:
    for name, bar in bars.items():
        detail = f"{nanos(found[ours])} beside {nanos(found[name])}"
        yield Row(work, name, found[name] / found[ours], bar, detail)


def in_memory(quick: bool) -> Iterator[Row]:
    limiter, policy = Limiter.in_memory(), Policy.gcra(LIMIT, per="1m")
    item = limits.parse(f"{LIMIT}/minute")
    moving = limits.strategies.MovingWindowRateLimiter(limits.storage.MemoryStorage())
    fixed = limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage())
    gcra = throttled.Throttled(
        using="gcra", quota=throttled.per_min(LIMIT, burst=LIMIT), store=throttled.MemoryStore()
    )
    pyrate = PyrateLimiter(Rate(LIMIT, Duration.MINUTE))
    calls = 300 if quick else 10_000
    bars = {
        "limits, moving window": 20.0,
        "limits, fixed window": 8.0,
        "throttled-py, GCRA": 8.0,
        "pyrate-limiter": 20.0,
    }
    rounds = {
        "ours": (timed("take(key, policy)", True, take=limiter.take, policy=policy), calls * 10),
        "limits, moving window": (timed("hit(item, key)", True, hit=moving.hit, item=item), calls),
        "limits, fixed window": (timed("hit(item, key)", True, hit=fixed.hit, item=item), calls),
        "throttled-py, GCRA": (timed("limit(key)", True, limit=gcra.limit), calls),
        "pyrate-limiter": (timed("acquire(key)", True, acquire=pyrate.try_acquire), calls // 2),
    }
    found = medians(rounds, 1 if quick else ROUNDS)
    yield from compared("in memory, one hot key", "ours", bars, found)


def in_memory_tasks(quick: bool) -> Iterator[Row]:
    limiter, policy = aio.Limiter.in_memory(), Policy.gcra(LIMIT, per="1m")

    def run_ours(count: int) -> float:
        async def run() -> float:
            started = time.perf_counter()
            for _ in range(count):
                await limiter.take("user7", policy)
            return time.perf_counter() - started

        return asyncio.run(run())

    def run_theirs(count: int) -> float:
        async def run() -> float:
            theirs = AsyncLimiter(LIMIT, 60)
            started = time.perf_counter()
            for _ in range(count):
                await theirs.acquire()
            return time.perf_counter() - started

        return asyncio.run(run())

    calls = 300 if quick else 20_000
    rounds = {"ours": (run_ours, calls), "aiolimiter": (run_theirs, calls)}
    found = medians(rounds, 1 if quick else ROUNDS)
    yield from compared("in memory, one hot key, asyncio", "ours", {"aiolimiter": 3.0}, found)


def one_call(quick: bool) -> Iterator[Row]:
    limiter, policy, clock = Limiter.in_memory(), Policy.gcra(LIMIT * 1000, per="1s"), ManualClock()
    rounds = {
        "take": (timed("take(key, policy)", take=limiter.take, policy=policy), 1000 if quick else 300_000),
        "empty": (timed("empty()", empty=clock.now_us), 1000 if quick else 300_000),
    }
    found = medians(rounds, 1 if quick else ROUNDS)
    above = found["take"] - found["empty"]
    detail = f"{nanos(above)} above a call that reads a number, at most 400 ns"
    yield Row("one call", "an empty call", 400e-9 / above, 1.0, detail)


def memory_of_keys(quick: bool) -> Iterator[Row]:
    count = 10_000 if quick else 1_000_000
    programs = {
        "ours": "limiter = Limiter.in_memory()\nfor n in range(count): limiter.take(f'user{n}', 'gcra:30/1h')",
        "limits, memory storage": "limiter = limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage())\n"
        "item = limits.parse('30/hour')\nfor n in range(count): limiter.hit(item, f'user{n}')",
    }
    head = (
        "import limits, os\nfrom sluicegate import Limiter\ncount = {count}\n"
        "def size(): return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE')\n"
        "{warm}before = size()\n"
    )
    found = {}
    for name, program in programs.items():
        warm = "Limiter.in_memory().take('user', 'gcra:30/1h')\n"
        code = f"{head.format(count=count, warm=warm)}{program}\nprint((size() - before) / count)"
        output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        found[name] = float(output.stdout)
    ours, theirs = found["ours"], found["limits, memory storage"]
    detail = f"{ours:.0f} bytes beside {theirs:.0f}, with its Python strings"
    yield Row(f"in memory, {count:,} keys", "limits, memory storage", theirs / ours, 5.0, detail)


@contextmanager
def redis_server() -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    program = shutil.which("redis-server")
    assert program, "redis-server is not installed"
    command = [program, "--port", str(port), "--save", "", "--bind", "127.0.0.1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def redis_sync(quick: bool, url: str) -> Iterator[Row]:
    limiter, policy = Limiter.connect(url, timeout=20), Policy.gcra(LIMIT, per="1m")
    item = limits.parse(f"{LIMIT}/minute")
    storage = limits.storage.storage_from_string(url)
    moving = limits.strategies.MovingWindowRateLimiter(storage)
    fixed = limits.strategies.FixedWindowRateLimiter(storage)
    gcra = throttled.Throttled(
        using="gcra",
        quota=throttled.per_min(LIMIT, burst=LIMIT),
        store=throttled.RedisStore(server=url),
    )
    calls = 50 if quick else 2000
    rounds = {
        "ours": (timed("take(key, policy)", True, take=limiter.take, policy=policy), calls),
        "limits, moving window": (timed("hit(item, key)", True, hit=moving.hit, item=item), calls),
        "limits, fixed window": (timed("hit(item, key)", True, hit=fixed.hit, item=item), calls),
        "throttled-py, GCRA": (timed("limit(key)", True, limit=gcra.limit), calls),
    }
    found = medians(rounds, 1 if quick else ROUNDS)
    bars = dict.fromkeys([name for name in rounds if name != "ours"], 2.0)
    yield from compared("Redis, one thread", "ours", bars, found)


def redis_tasks(quick: bool, url: str) -> Iterator[Row]:
    policy, item = Policy.gcra(LIMIT, per="1m"), limits.parse(f"{LIMIT}/minute")

    def tasks(make: Callable[[], Callable[[str], object]]) -> Round:
        def run(count: int) -> float:
            key = f"key{next(KEYS)}"

            async def all_tasks() -> float:
                hit = make()

                async def one(calls: int) -> None:
                    for _ in range(calls):
                        await hit(key)  # type: ignore[misc]

                await one(5)
                started = time.perf_counter()
                await asyncio.gather(*(one(count // 64) for _ in range(64)))
                return time.perf_counter() - started

            return asyncio.run(all_tasks())

        return run

    limiter = aio.Limiter.connect(url, timeout=20)

    def ours() -> Callable[[str], object]:
        return lambda key: limiter.take(key, policy)

    def moving() -> Callable[[str], object]:
        storage = limits.storage.storage_from_string(f"async+{url}", implementation="redispy")
        strategy = limits.aio.strategies.MovingWindowRateLimiter(storage)
        return lambda key: strategy.hit(item, key)

    def gcra() -> Callable[[str], object]:
        theirs = throttled.asyncio.Throttled(
            using="gcra",
            quota=throttled.asyncio.per_min(LIMIT, burst=LIMIT),
            store=throttled.asyncio.RedisStore(server=url),
        )
        return lambda key: theirs.limit(key)

    calls = 640 if quick else 6400
    rounds = {
        "ours": (tasks(ours), calls),
        "limits, moving window": (tasks(moving), calls),
        "throttled-py, GCRA": (tasks(gcra), calls),
    }
    found = medians(rounds, 1 if quick else ROUNDS)
    bars = {"limits, moving window": 4.0, "throttled-py, GCRA": 4.0}
    yield from compared("Redis, asyncio, 64 tasks", "ours", bars, found)


def redis_denied(quick: bool, url: str) -> Iterator[Row]:
    limiter, policy = Limiter.connect(url, timeout=20), Policy.gcra(1, per="1h")
    item = limits.parse("1/hour")
    theirs = limits.strategies.MovingWindowRateLimiter(limits.storage.storage_from_string(url))
    limiter.take("user7", policy)
    theirs.hit(item, "user7")
    rounds = {
        "ours": (timed("take(key, policy)", take=limiter.take, policy=policy), 1000 if quick else 100_000),
        "limits, moving window": (timed("hit(item, key)", hit=theirs.hit, item=item), 50 if quick else 2000),
    }
    found = medians(rounds, 1 if quick else ROUNDS)
    yield from compared("Redis, a denied key in a flood", "ours", {"limits, moving window": 50.0}, found)


def asgi(quick: bool) -> Iterator[Row]:
    """The time that the middleware adds to a request, both with headers in the response."""

    async def hello(_: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    def bare() -> Starlette:
        return Starlette(routes=[Route("/", hello)])

    slow = bare()
    slow.state.limiter = slowapi.Limiter(
        slowapi.util.get_remote_address, default_limits=[f"{LIMIT}/minute"], headers_enabled=True
    )
    slow.add_middleware(slowapi.middleware.SlowAPIASGIMiddleware)
    ours = RateLimitMiddleware(bare(), aio.Limiter.in_memory(), f"fixed-window:{LIMIT}/1m")
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/", "query_string": b"", "root_path": ""}
    fields = [(b"host", b"127.0.0.1"), (b"user-agent", b"bench"), (b"accept", b"*/*")]

    def requests(app: Callable[..., Any]) -> Round:
        def run(count: int) -> float:
            started: list[int] = []

            async def receive() -> dict[str, object]:
                return {"type": "http.request"}

            async def send(message: dict[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    started.append(message["status"])

            async def all_requests() -> float:
                start = time.perf_counter()
                for _ in range(count):
                    await app({**scope, "headers": [*fields], "client": ("10.0.0.1", 5000)}, receive, send)
                return time.perf_counter() - start

            seconds = asyncio.run(all_requests())
            assert started == [200] * count
            return seconds

        return run

    calls = 50 if quick else 5000
    apps = {"bare": bare(), "ours": ours, "slowapi": slow}
    found = medians({name: (requests(app), calls) for name, app in apps.items()}, 1 if quick else ROUNDS)
    added, theirs = found["ours"] - found["bare"], found["slowapi"] - found["bare"]
    detail = f"{nanos(added)} added beside {nanos(theirs)}, to {nanos(found['bare'])}"
    yield Row("ASGI middleware, added to a request", "slowapi", theirs / added, 3.0, detail)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true")
    quick = arguments.parse_args().quick
    gc.disable()
    print(f"{'work':<34} {'against':<28} {'ratio':>9} {'bar':>8}")
    missed = 0

    def show(rows: Iterator[Row]) -> None:
        nonlocal missed
        for row in rows:
            missed += row.ratio < row.bar
            print(row, flush=True)

    for measure in (in_memory, in_memory_tasks, one_call, memory_of_keys, asgi):
        show(measure(quick))
        gc.collect()
    with redis_server() as url:
        for measure_redis in (redis_sync, redis_tasks, redis_denied):
            show(measure_redis(quick, url))
            gc.collect()
    if missed and not quick:
        sys.exit(f"{missed} bars are missed")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
