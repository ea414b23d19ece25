"""`cargo xtask bench python`: this package beside other limiters of PyPI, each with the same algorithm on both sides.

Clients of Redis in Python have the parser of hiredis. The rounds of all candidates are interleaved, and each figure is the median of its rounds. A ratio is how many times less time,
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
from collections.abc import Callable, Coroutine, Iterator
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
from sluicegate.ext.limits import SluicegateStorage
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
        return f"{self.work:<34} {self.against:<40} {self.ratio:>7.1f} x {self.bar:>6.1f} x  {held:<6}  {self.detail}"


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


@dataclass
class Pair:
    """Ours and theirs, which do the same."""

    against: str
    ours: Round
    theirs: Round
    bar: float


def compared(work: str, pairs: list[Pair], calls: int, quick: bool) -> Iterator[Row]:
    rounds = {}
    for pair in pairs:
        rounds[f"ours, {pair.against}"] = (pair.ours, calls)
        rounds[pair.against] = (pair.theirs, calls)
    found = medians(rounds, 1 if quick else ROUNDS)
    for pair in pairs:
        ours, theirs = found[f"ours, {pair.against}"], found[pair.against]
        yield Row(work, pair.against, theirs / ours, pair.bar, f"{nanos(ours)} beside {nanos(theirs)}")


# The strategies of `limits`, and our algorithms that decide the same.
STRATEGIES = {"fixed-window": "fixed-window", "moving-window": "sliding-log", "sliding-window-counter": "sliding-counter"}
ITEM = limits.parse(f"{LIMIT}/minute")


def takes(limiter: Limiter, algorithm: str) -> Round:
    burst = f":burst={LIMIT}" if algorithm == "gcra" else ""
    return timed("take(key, policy)", True, take=limiter.take, policy=Policy(f"{algorithm}:{LIMIT}/1m{burst}"))


def hits(storage: Any, strategy: str) -> Round:
    return timed("hit(item, key)", True, hit=limits.strategies.STRATEGIES[strategy](storage).hit, item=ITEM)


def throttled_hits(store: Any) -> Round:
    gcra = throttled.Throttled(using="gcra", quota=throttled.per_min(LIMIT, burst=LIMIT), store=store)
    return timed("limit(key)", True, limit=gcra.limit)


def in_memory(quick: bool) -> Iterator[Row]:
    limiter = Limiter.in_memory()
    pyrate = PyrateLimiter(Rate(LIMIT, Duration.MINUTE))
    pairs = []
    for (strategy, algorithm), bar in zip(STRATEGIES.items(), (5.0, 4.0, 8.0)):
        theirs = hits(limits.storage.MemoryStorage(), strategy)
        pairs.append(Pair(f"limits, {strategy}", takes(limiter, algorithm), theirs, bar))
    pairs.append(Pair("throttled-py, gcra", takes(limiter, "gcra"), throttled_hits(throttled.MemoryStore()), 8.0))
    pyrate_hits = timed("acquire(key)", True, acquire=pyrate.try_acquire)
    pairs.append(Pair("pyrate-limiter, sliding log", takes(limiter, "sliding-log"), pyrate_hits, 8.0))
    yield from compared("in memory, one hot key", pairs, 300 if quick else 10_000, quick)


def drop_in_memory(quick: bool) -> Iterator[Row]:
    """The storage for `limits`, by its strategies: the unchanged program of a user of `limits`."""
    pairs = [
        Pair(f"limits, {name}", hits(SluicegateStorage(), name), hits(limits.storage.MemoryStorage(), name), 1.0)
        for name in STRATEGIES
    ]
    yield from compared("drop-in, in memory", pairs, 300 if quick else 10_000, quick)


def in_memory_tasks(quick: bool) -> Iterator[Row]:
    """A wait for units that are available: beside the call of aiolimiter, and beside our call that does not wait."""
    limiter, policy = aio.Limiter.in_memory(), Policy(f"leaky-bucket:{LIMIT}/1m:capacity={LIMIT}")

    async def waits(count: int) -> float:
        key = f"key{next(KEYS)}"
        started = time.perf_counter()
        for _ in range(count):
            await limiter.wait(key, policy, timeout=60)
        return time.perf_counter() - started

    async def takes(count: int) -> float:
        key = f"key{next(KEYS)}"
        started = time.perf_counter()
        for _ in range(count):
            await limiter.take(key, policy)
        return time.perf_counter() - started

    async def theirs(count: int) -> float:
        limiter = AsyncLimiter(LIMIT, 60)
        started = time.perf_counter()
        for _ in range(count):
            await limiter.acquire()
        return time.perf_counter() - started

    def run(calls: Callable[[int], Coroutine[Any, Any, float]]) -> Round:
        return lambda count: asyncio.run(calls(count))

    pairs = [
        Pair("aiolimiter, leaky bucket", run(waits), run(theirs), 0.4),
        Pair("our take, leaky bucket", run(waits), run(takes), 0.5),
    ]
    yield from compared("in memory, wait, asyncio", pairs, 300 if quick else 20_000, quick)


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


def calls_one_by_one(call: Callable[[str], object], count: int, key: str) -> list[float]:
    """The seconds of each call."""
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        call(key)
        seconds.append(time.perf_counter() - started)
    return seconds


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def redis_sync(quick: bool, url: str) -> Iterator[Row]:
    """One thread, on a machine with nothing else to do and on one with four busy loops: the median and the mean."""
    limiter, ours = Limiter.connect(url, timeout=20), SluicegateStorage(f"sluicegate+{url}", timeout=20)
    theirs = limits.storage.storage_from_string(url)
    gcra = throttled.Throttled(
        using="gcra", quota=throttled.per_min(LIMIT, burst=LIMIT), store=throttled.RedisStore(server=url)
    )

    def take(algorithm: str) -> Callable[[str], object]:
        burst = f":burst={LIMIT}" if algorithm == "gcra" else ""
        policy = Policy(f"{algorithm}:{LIMIT}/1m{burst}")
        return lambda key: limiter.take(key, policy)

    def hit(storage: Any, name: str) -> Callable[[str], object]:
        strategy = limits.strategies.STRATEGIES[name](storage)
        return lambda key: strategy.hit(ITEM, key)

    pairs = [(f"limits, {name}", take(algorithm), hit(theirs, name)) for name, algorithm in STRATEGIES.items()]
    pairs += [(f"drop-in: limits, {name}", hit(ours, name), hit(theirs, name)) for name in STRATEGIES]
    pairs.append(("throttled-py, gcra", take("gcra"), gcra.limit))
    calls = 20 if quick else 500
    for loops, machine in ((0, ""), (4, ", busy")):
        found: list[tuple[list[float], list[float]]] = [([], []) for _ in pairs]
        with busy_loops(loops):
            for _ in range(1 if quick else ROUNDS):
                for (_, own, other), (own_seconds, other_seconds) in zip(pairs, found):
                    key = f"key{next(KEYS)}"
                    own_seconds += calls_one_by_one(own, calls, key)
                    other_seconds += calls_one_by_one(other, calls, key)
        for (against, _, _), (own_seconds, other_seconds) in zip(pairs, found):
            # The mean is mostly that of the scheduler.
            for kind, middle, bar in (("median", statistics.median, 0.8), ("mean", statistics.fmean, 1.0)):
                own_time, other_time = middle(own_seconds), middle(other_seconds)
                detail = f"{nanos(own_time)} beside {nanos(other_time)}"
                yield Row(f"Redis, one thread{machine}, {kind}", against, other_time / own_time, bar, detail)


def redis_tasks(quick: bool, url: str) -> Iterator[Row]:
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

    def ours(algorithm: str) -> Callable[[], Callable[[str], object]]:
        burst = f":burst={LIMIT}" if algorithm == "gcra" else ""
        policy = Policy(f"{algorithm}:{LIMIT}/1m{burst}")
        return lambda: lambda key: limiter.take(key, policy)

    def hits_of(uri: str, name: str, **options: Any) -> Callable[[], Callable[[str], object]]:
        def make() -> Callable[[str], object]:
            storage = limits.storage.storage_from_string(uri, **options)
            strategy = limits.aio.strategies.STRATEGIES[name](storage)
            return lambda key: strategy.hit(ITEM, key)

        return make

    def gcra() -> Callable[[str], object]:
        theirs = throttled.asyncio.Throttled(
            using="gcra",
            quota=throttled.asyncio.per_min(LIMIT, burst=LIMIT),
            store=throttled.asyncio.RedisStore(server=url),
        )
        return lambda key: theirs.limit(key)

    pairs = []
    for name, algorithm in STRATEGIES.items():
        theirs = tasks(hits_of(f"async+{url}", name, implementation="redispy"))
        pairs.append(Pair(f"limits, {name}", tasks(ours(algorithm)), theirs, 1.5))
        drop_in = tasks(hits_of(f"async+sluicegate+{url}", name, timeout=20))
        pairs.append(Pair(f"drop-in: limits, {name}", drop_in, theirs, 1.2))
    pairs.append(Pair("throttled-py, gcra", tasks(ours("gcra")), tasks(gcra), 4.0))
    yield from compared("Redis, asyncio, 64 tasks", pairs, 640 if quick else 6400, quick)


def redis_denied(quick: bool, url: str) -> Iterator[Row]:
    limiter, policy = Limiter.connect(url, timeout=20), Policy("sliding-log:1/1h")
    item = limits.parse("1/hour")
    theirs = limits.strategies.MovingWindowRateLimiter(limits.storage.storage_from_string(url))
    limiter.take("user7", policy)
    theirs.hit(item, "user7")
    own = timed("take(key, policy)", take=limiter.take, policy=policy)
    pair = Pair("limits, moving-window", own, timed("hit(item, key)", hit=theirs.hit, item=item), 50.0)
    yield from compared("Redis, a denied key in a flood", [pair], 50 if quick else 2000, quick)


def redis_lease(quick: bool, url: str) -> Iterator[Row]:
    """A decision from a lease beside one in memory."""
    leased, memory = Limiter.connect(url, timeout=20), Limiter.in_memory()
    policy, units = Policy.gcra(LIMIT * 1000, per="1s"), 100_000
    takes = {
        "lease": timed("take(key, policy)", take=leased.take, policy=Policy(str(policy), lease=units)),
        "memory": timed("take(key, policy)", take=memory.take, policy=policy),
    }
    # Chunks double. After these, most rounds need none.
    takes["lease"](1000 if quick else 3 * units)
    calls = 1000 if quick else units // 20
    found = medians({name: (run, calls) for name, run in takes.items()}, 1 if quick else 5 * ROUNDS)
    counters = leased.counters()
    assert counters["lease"] > 0.98 * (counters["lease"] + counters["store"]), counters
    times, most = found["lease"] / found["memory"], 1.5
    detail = f"{nanos(found['lease'])} beside {nanos(found['memory'])}: {times:.2f} times, at most {most}"
    yield Row("Redis, a decision from a lease", "our take in memory", 1 / times, 1 / most, detail)


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
    print(f"{'work':<34} {'against':<40} {'ratio':>9} {'bar':>8}")
    missed = 0

    def show(rows: Iterator[Row]) -> None:
        nonlocal missed
        for row in rows:
            missed += row.ratio < row.bar
            print(row, flush=True)

    for measure in (in_memory, drop_in_memory, in_memory_tasks, one_call, memory_of_keys, asgi):
        show(measure(quick))
        gc.collect()
    with redis_server() as url:
        for measure_redis in (redis_sync, redis_tasks, redis_denied, redis_lease):
            show(measure_redis(quick, url))
            gc.collect()
    if missed and not quick:
        sys.exit(f"{missed} bars are missed")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
