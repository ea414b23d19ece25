"""Threads, forks, signals, and the end of the interpreter. Each of these has an interpreter of its own where it may break it."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import until
from sluicegate import Limiter, Policy

LIMIT = 500
WINDOW = Policy.fixed_window(LIMIT, per="1h")


def stores(redis_url):
    return {"memory": Limiter.in_memory(), "redis": Limiter.connect(redis_url, timeout=20)}


def run(code, *arguments, deadline=60):
    """Runs a program, whose errors and whose end by a signal are failures."""
    # Newer versions warn of each fork beside threads, which some of these tests need.
    warnings = ["-W", "ignore:This process:DeprecationWarning"]
    command = [sys.executable, "-X", "faulthandler", *warnings, "-c", code, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=deadline)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return ended.stdout


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_threads_thousand_take_exactly_the_limit(store, redis_url):
    limiter = stores(redis_url)[store]
    start = threading.Barrier(1000)
    allowed = []

    def take():
        start.wait()
        allowed.append(bool(limiter.take("threads", WINDOW)))

    threads = [threading.Thread(target=take) for _ in range(1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(allowed) == [False] * (1000 - LIMIT) + [True] * LIMIT


def test_hold_renewed_by_one_thread_is_read_by_others(redis_url):
    # In an interpreter of its own: two locks in the wrong order stop all of its threads.
    code = """
import sys, threading
from sluicegate import Limiter
limiter = Limiter.connect(sys.argv[1], timeout=20)
hold = limiter.hold("renewed", "concurrency:1/30s")
ended = threading.Event()
def read():
    while not ended.is_set():
        assert hold.open and hold.id
readers = [threading.Thread(target=read) for _ in range(3)]
for reader in readers:
    reader.start()
assert all(hold.renew() for _ in range(50))
ended.set()
for reader in readers:
    reader.join()
assert hold.settle() and not hold.settle() and not hold.renew()
"""
    run(code, redis_url)


FORK = """
import os, sys
from sluicegate import Limiter
limiter = Limiter.connect(sys.argv[1], timeout=20) if sys.argv[1] else Limiter.in_memory()
policy = "fixed-window:100/1h"
assert limiter.take("forked", policy).remaining == 99
hold = limiter.hold("forked-hold", "concurrency:2/30s")
reader, writer = os.pipe()
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        own = limiter.hold("forked-hold", "concurrency:100/30s")
        os.write(writer, limiter.take("forked", policy).remaining.to_bytes(1, "little"))
        os.write(writer, own.id[:8] + hold.id[:8])
        assert not sys.argv[1] or not hold.settle(), "it is the parent's"
        own.settle()
        del hold, own, limiter
        os._exit(0)
    children.append(child)
    assert os.waitpid(child, 0)[1] == 0
said = [os.read(reader, 17) for _ in children]
remaining = [each[0] for each in said]
assert remaining == ([98, 97, 96] if sys.argv[1] else [98] * 3), remaining
ids = {each[1:9] for each in said} | {hold.id[:8]}
assert len(ids) == 4, "each process has ids of its own"
assert limiter.peek("forked-hold", "concurrency:2/30s", 1).remaining == 1, "the hold is open still"
assert hold.settle()
"""


def test_fork_child_settles_holds_of_several_keys_in_its_own_memory():
    code = """
import os
from sluicegate import Limiter
policy = "concurrency:1/30s"
for options in [{}, {"timeout": 1}, {"renew": True}]:
    limiter = Limiter.in_memory()
    hold = limiter.hold_all([("a", policy), ("b", policy)], **options)
    child = os.fork()
    if child == 0:
        assert hold.settle(), options
        assert limiter.peek("a", policy), options
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, options
    assert not limiter.peek("a", policy), "it is open in the parent"
    assert hold.settle() and limiter.peek("b", policy)
"""
    run(code)


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_fork_child_has_state_connections_and_ids_of_its_own(store, redis_url):
    run(FORK, redis_url if store == "redis" else "")


def test_fork_while_tasks_use_the_table_child_takes():
    """A lock of the table that another thread has at the fork would never be released in the child."""
    code = """
import asyncio, os, signal, threading
from sluicegate import Limiter, aio
shared = aio.Limiter.in_memory()
local = Limiter(shared._native)
async def use():
    async def one(number):
        while True:
            async with shared.hold(f"key{number % 3}", "concurrency:60000/30s", timeout=1):
                pass
    await asyncio.gather(*map(one, range(20)))
threading.Thread(target=lambda: asyncio.run(use()), daemon=True).start()
for number in range(300):
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        for key in range(3):
            local.hold(f"key{key}", "concurrency:60000/30s").settle()
            local.take(f"key{key}", "fixed-window:100000/1h")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, number
os._exit(0)
"""
    run(code)


@pytest.mark.parametrize("store", ["memory", "redis"])
@pytest.mark.parametrize("call", ["wait", "hold"])
def test_interrupt_while_waiting_ends_the_call_and_holds_nothing(store, call, redis_url):
    limiter = stores(redis_url)[store]
    key, policy = f"interrupted-{call}", "concurrency:1/1h" if call == "hold" else "fixed-window:1/1m"
    if call == "hold":
        held = limiter.hold(key, policy)
        assert held, held.decision
    else:
        assert limiter.take(key, policy)

    def interrupt():
        # The main thread is in the call as soon as it has slept for a while.
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    # A program that a shell has started in the background ignores the signal otherwise.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            if call == "hold":
                limiter.hold(key, policy, timeout=60)
            else:
                limiter.wait(key, policy, timeout=90)
    finally:
        # If the call has failed otherwise, the signal must not hide how.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        thread.join()
        signal.signal(signal.SIGINT, before)
    if call == "hold":
        held.settle()
        until(lambda: limiter.peek(key, policy).remaining == 1)


SHUTDOWN = """
import asyncio, sys, threading, time
from sluicegate import Limiter, aio
limiter = Limiter.connect(sys.argv[1]) if sys.argv[1] else Limiter.in_memory()
shared = aio.Limiter(limiter._native)
full = "fixed-window:1/1h"
limiter.take("full", full)
def wait():
    limiter.wait("full", full, timeout=4000)
def run():
    asyncio.run(tasks())
async def tasks():
    await asyncio.gather(*(shared.wait("full", full, timeout=4000) for _ in range(10)))
for target in (wait, run):
    threading.Thread(target=target, daemon=True).start()
async def main():
    asyncio.ensure_future(shared.wait("full", full, timeout=4000))
    await shared.take("other", full)
    await asyncio.sleep(0.1)
asyncio.run(main())
"""


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_interpreter_with_waiting_calls_exits(store, redis_url):
    started = time.monotonic()
    run(SHUTDOWN, redis_url if store == "redis" else "")
    assert time.monotonic() - started < 20


def test_calls_million_in_memory_keep_their_size():
    code = """
import resource
from sluicegate import Limiter, Policy
limiter, policy = Limiter.in_memory(), Policy.gcra(1000000, per="1m")
def size():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
def calls(count):
    for number in range(count):
        limiter.take("key", policy).retry_after
        limiter.take("key", "gcra:10/1s").headers()
calls(50_000)
before = size()
calls(450_000)
assert size() - before < 4 << 20, (before, size())
"""
    run(code, deadline=240)
