"""Tasks that are cancelled, event loops that are closed, and the state that they leave."""

import asyncio
import gc
import os
import random
import signal
import threading
import time

import pytest
import uvloop
from conftest import start_redis, until
from sluicegate import Denied, Limiter, aio

MANY = "fixed-window:1000000/1h"


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_event_loops_many_leave_no_descriptors(new_loop, redis_url):
    limiter = aio.Limiter.connect(redis_url, timeout=20)

    async def take():
        return await asyncio.gather(*(limiter.take("loops", MANY) for _ in range(5)))

    def run():
        loop = new_loop()
        try:
            assert all(loop.run_until_complete(take()))
        finally:
            loop.close()

    run()
    before = descriptors()
    for _ in range(50):
        run()
    assert descriptors() <= before + 2


def test_event_loops_in_threads_share_a_limiter(redis_url):
    limiter = aio.Limiter.connect(redis_url, timeout=20)
    taken = []

    async def take():
        decisions = await asyncio.gather(*(limiter.take("in-threads", MANY) for _ in range(50)))
        taken.extend(decision.remaining for decision in decisions)

    threads = [threading.Thread(target=lambda: asyncio.run(take())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == 400, "each unit is taken once"


def test_event_loop_closed_before_its_calls_end_is_no_error(redis_url):
    limiter = aio.Limiter.connect(redis_url, timeout=20)
    loop = asyncio.new_event_loop()
    task = loop.create_task(limiter.wait("closed", "fixed-window:1/1h", 2, timeout=5))

    async def a_moment():
        await asyncio.sleep(0)

    loop.run_until_complete(a_moment())
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    assert asyncio.run(limiter.take("closed", MANY))


@pytest.mark.parametrize("store", ["memory", "redis"])
async def test_cancelled_takes_use_each_unit_at_most_once(store, redis_url):
    limiter = aio.Limiter.in_memory() if store == "memory" else aio.Limiter.connect(redis_url, timeout=20)
    rng, key = random.Random(7), "cancelled-takes"
    tasks = [asyncio.ensure_future(limiter.take(key, MANY)) for _ in range(300)]
    for task in rng.sample(tasks, 150):
        await asyncio.sleep(rng.choice([0, 0, 0.0005]))
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    answered = [it.remaining for it in ended if not isinstance(it, asyncio.CancelledError)]
    assert len(set(answered)) == len(answered), "a unit was taken twice"
    used = 1_000_000 - (await limiter.peek(key, MANY)).remaining
    assert len(answered) <= used <= len(tasks)


@pytest.mark.parametrize("store", ["memory", "redis"])
async def test_cancelled_holds_are_returned(store, redis_url):
    limiter = aio.Limiter.in_memory() if store == "memory" else aio.Limiter.connect(redis_url, timeout=20)
    rng, key, policy = random.Random(8), "cancelled-holds", "concurrency:20/1h"

    async def work():
        async with limiter.hold(key, policy, timeout=rng.choice([0, 5])):
            await asyncio.sleep(rng.choice([0, 0.001, 0.01]))

    tasks = [asyncio.ensure_future(work()) for _ in range(200)]
    for task in rng.sample(tasks, 150):
        await asyncio.sleep(rng.choice([0, 0, 0.001]))
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        assert ended is None or isinstance(ended, (asyncio.CancelledError, Denied)), ended
    for _ in range(3000):
        if (await limiter.peek(key, policy)).remaining == 20:
            return
        await asyncio.sleep(0.01)
    pytest.fail("holds are left")


def test_cancelled_hold_that_the_store_answers_later_is_returned():
    """The store makes the hold after the task was cancelled."""
    server = start_redis()
    try:
        limiter = aio.Limiter.connect(server.url, timeout=20)
        policy = "concurrency:1/1h"

        async def cancel():
            assert await limiter.take("connected", MANY)
            server.process.send_signal(signal.SIGSTOP)
            task = asyncio.ensure_future(limiter.hold("late", policy)._started())
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            server.process.send_signal(signal.SIGCONT)

        asyncio.run(cancel())
        checking = Limiter.connect(server.url, timeout=20)
        until(lambda: checking.peek("late", policy).remaining == 1)
    finally:
        server.stop()


async def test_settle_cancelled_is_finished_in_the_background(redis_url):
    limiter = aio.Limiter.connect(redis_url, timeout=20)
    for number in range(20):
        hold = await limiter.hold(f"settled{number}", "token-bucket:100/1h", 10, ttl=3600)
        task = asyncio.ensure_future(hold.settle(4))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    for number in range(20):
        for _ in range(3000):
            if (await limiter.peek(f"settled{number}", "token-bucket:100/1h")).remaining == 96:
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail(f"{number}: {await limiter.peek(f'settled{number}', 'token-bucket:100/1h')}")


async def test_hold_renewed_and_settled_returns_decisions(redis_url):
    for limiter in [aio.Limiter.in_memory(), aio.Limiter.connect(redis_url, timeout=20)]:
        hold = await limiter.hold("decisions", "token-bucket:100/1h", 10, ttl=30)
        assert (await hold.renew()).remaining == 90
        for invalid in [-1, [1, 2], "x", 2**40]:
            with pytest.raises((ValueError, TypeError)):
                await hold.settle(invalid)
        assert hold.open, "an invalid number settles nothing"
        assert (await hold.settle(4)).remaining == 96
        assert not await hold.settle(4) and not await hold.renew()


@pytest.mark.parametrize("store", ["memory", "redis"])
async def test_cancelled_holds_charge_no_rate(store, redis_url):
    limiter = aio.Limiter.in_memory() if store == "memory" else aio.Limiter.connect(redis_url, timeout=20)
    key, policy = "cancelled-rates", "token-bucket:1000/1h"
    for number in range(60):
        task = asyncio.ensure_future(limiter.hold(key, policy, 10, ttl=3600)._started())
        for _ in range(number % 6):
            await asyncio.sleep(0)
        if number % 2:
            await asyncio.sleep(0.0003)
        task.cancel()
        ended = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(ended, aio.Hold):
            await ended.settle(0)
        del ended, task
    for _ in range(1000):
        if (await limiter.peek(key, policy)).remaining == 1000:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{await limiter.peek(key, policy)}")


def test_cancelled_hold_whose_reply_is_there_charges_no_rate(redis_url):
    """The task is cancelled after the future has its result, and before the task goes on."""
    limiter = aio.Limiter.connect(redis_url, timeout=20)
    key, policy = "cancelled-after-reply", "token-bucket:100/1h"

    async def cancel():
        task = asyncio.ensure_future(limiter.hold(key, policy, 10, ttl=3600)._started())
        while task._fut_waiter is None or not task._fut_waiter.done():
            assert not task.done()
            # The reply is set by a callback, and the task is woken by the next one: between them comes this.
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    checking = Limiter.connect(redis_url, timeout=20)
    until(lambda: checking.peek(key, policy).remaining == 100)


async def cancel_at(moment, holding):
    """Cancels a hold: after it is sent, after its reply is there, or after its future has the reply."""
    task = asyncio.ensure_future(holding._started() if hasattr(holding, "_started") else holding)
    await asyncio.sleep(0)
    if moment == "replied":
        # The event loop does not read the reply.
        time.sleep(0.05)
    while moment == "done" and not task._fut_waiter.done():
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # For a settle in the background.
    await asyncio.sleep(0.1)


@pytest.mark.parametrize("moment", ["sent", "replied", "done"])
async def test_cancelled_hold_with_an_id_leaves_the_hold_of_another_call(moment, redis_url):
    limiter = aio.Limiter.connect(redis_url, timeout=20)
    key, policy = f"cancelled-id-{moment}", "concurrency:9/1h"
    held = await limiter.hold(key, policy, id="job 7")
    await cancel_at(moment, limiter.hold(key, policy, id="job 7", renew=True))
    assert await held.renew(), "it is open"
    keys = [(key, policy), (f"{key}2", policy)]
    both = await limiter.hold_all(keys, id="job 8")
    await cancel_at(moment, limiter.hold_all(keys, id="job 8"))
    assert await both.renew(), "they are open"
    assert await held.settle() and await both.settle()


@pytest.mark.parametrize("store", ["memory", "redis"])
async def test_hold_with_an_id_is_settled_when_it_is_dropped(store, redis_url):
    limiter = aio.Limiter.in_memory() if store == "memory" else aio.Limiter.connect(redis_url, timeout=20)
    for renew in [False, True]:
        hold = await limiter.hold("dropped-id", "concurrency:1/1h", id="job 7", renew=renew)
        del hold
        gc.collect()
        for _ in range(1000):
            if (await limiter.peek("dropped-id", "concurrency:1/1h")).remaining == 1:
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("it is open")


@pytest.mark.parametrize("policy", ["gcra:2/1h", "fixed-window:2/1h", "leaky-queue:2/1h"])
def test_wait_of_available_units_ends_without_an_event_loop(policy):
    limiter = aio.Limiter.in_memory()
    waiting = limiter.wait("user7", policy, timeout=60)
    with pytest.raises(StopIteration) as ended:
        waiting.send(None)
    assert ended.value.value.allowed and ended.value.value.integers()[5] == 0


def test_hold_of_available_units_ends_without_an_event_loop():
    held = aio.Limiter.in_memory().hold("user7", "concurrency:1/30s", timeout=60).__await__()
    with pytest.raises(StopIteration) as ended:
        held.send(None)
    assert ended.value.value


async def test_hold_that_waits_has_the_units_of_a_settled_one():
    limiter = aio.Limiter.in_memory()
    first = await limiter.hold("user7", "concurrency:1/30s")
    second = asyncio.ensure_future(limiter.hold("user7", "concurrency:1/30s", timeout=20)._started())
    await asyncio.sleep(0)
    await first.settle()
    assert await second


AWAITED = {
    "take": lambda limiter: limiter.take("k", MANY),
    "peek": lambda limiter: limiter.peek("k", MANY),
    "charge": lambda limiter: limiter.charge("k", MANY),
    "refund": lambda limiter: limiter.refund("k", MANY),
    "require": lambda limiter: limiter.require("k", MANY),
    "reserve": lambda limiter: limiter.reserve("k", "gcra:9/1s", max_wait=1),
    "wait": lambda limiter: limiter.wait("k", MANY, timeout=1),
    "reset": lambda limiter: limiter.reset("k"),
    "take_many": lambda limiter: limiter.take_many([("k", MANY)]),
    "take_all": lambda limiter: limiter.take_all([("k", MANY)]),
    "hold": lambda limiter: limiter.hold("k", MANY, ttl=30),
    "hold_all": lambda limiter: limiter.hold_all([("k", MANY)], ttl=30),
    "close": lambda limiter: limiter.close(),
}


def test_every_call_for_asyncio_is_tried_without_await():
    names = {name for name in dir(aio.Limiter) if not name.startswith("_")}
    assert set(AWAITED) == names - {"in_memory", "connect", "counters"}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("call", AWAITED)
@pytest.mark.parametrize("store", ["memory", "redis"])
async def test_truth_of_a_call_without_await_is_an_error(call, store, redis_url):
    limiter = aio.Limiter.in_memory() if store == "memory" else aio.Limiter.connect(redis_url, timeout=20)
    with pytest.raises(TypeError, match=f"^invalid use of `Limiter.{call.removesuffix('_all') if 'hold' in call else call}` without `await`: await it$"):
        if AWAITED[call](limiter):
            pytest.fail("it is no decision")
    with pytest.raises(TypeError, match="await it"):
        assert not AWAITED[call](limiter)
    gc.collect()


@pytest.mark.filterwarnings("error")
async def test_truth_of_a_settle_without_await_is_an_error():
    hold = await aio.Limiter.in_memory().hold("k", MANY, ttl=30)
    for call in [hold.settle, hold.renew]:
        with pytest.raises(TypeError, match="await it"):
            bool(call())
    assert hold.open and await hold.settle()


@pytest.mark.parametrize("store", ["memory", "redis"])
async def test_calls_may_be_tasks_and_run_together(store, redis_url):
    limiter = aio.Limiter.in_memory() if store == "memory" else aio.Limiter.connect(redis_url, timeout=20)
    key = f"tasks-{store}"
    calls = [asyncio.create_task(limiter.take(key, MANY)), asyncio.ensure_future(limiter.take(key, MANY))]
    decisions = [*await asyncio.gather(*calls, limiter.take(key, MANY)), await asyncio.wait_for(limiter.take(key, MANY), 20)]
    assert sorted(it.remaining for it in decisions) == [999_996, 999_997, 999_998, 999_999]


@pytest.mark.parametrize("policy", ["gcra:1/1s:burst=1", "leaky-queue:1/1s:capacity=1000", "token-bucket:1/1s"])
@pytest.mark.parametrize("store", ["memory", "redis"])
async def test_wait_cancelled_gives_its_units_back(store, policy, redis_url):
    limiter = aio.Limiter.in_memory() if store == "memory" else aio.Limiter.connect(redis_url, timeout=20)
    key = f"cancelled-waits-{policy}"
    assert await limiter.take(key, policy)
    tasks = [asyncio.ensure_future(limiter.wait(key, policy, timeout=3600)) for _ in range(30)]
    # Until all have reserved.
    while (await limiter.peek(key, policy)).reset_after.total_seconds() < 25:
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for _ in range(1000):
        if (await limiter.peek(key, policy)).reset_after.total_seconds() <= 1:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{await limiter.peek(key, policy)}")


# A refund could be of units that others have taken since.
@pytest.mark.parametrize("moment", ["replied", "done"])
async def test_wait_cancelled_after_it_has_passed_keeps_its_units(moment, redis_url):
    limiter = aio.Limiter.connect(redis_url, timeout=20)
    for policy in ["token-bucket:100/1h", "fixed-window:100/1h", "sliding-log:100/1h"]:
        key = f"cancelled-replies-{moment}-{policy}"
        for _ in range(5):
            await cancel_at(moment, limiter.wait(key, policy, 10, timeout=5))
        assert (await limiter.peek(key, policy)).remaining == 50, policy


@pytest.fixture
def interrupts():
    """SIGINT raises KeyboardInterrupt, also in a process of the background, which is started to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_wait_ended_by_a_signal_gives_its_units_back(redis_url):
    policy = "gcra:1/1h"
    for limiter in [Limiter.in_memory(), Limiter.connect(redis_url, timeout=20)]:
        assert limiter.take("signalled", policy)
        for _ in range(3):

            def interrupt():
                try:
                    until(lambda: limiter.peek("signalled", policy).reset_after.total_seconds() > 3700)
                finally:
                    os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                limiter.wait("signalled", policy, timeout=36_000)
            thread.join()
            # Before the next signal, which would otherwise come before its wait.
            until(lambda: limiter.peek("signalled", policy).reset_after.total_seconds() <= 3600)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("store", ["memory", "redis"])
def test_event_loop_closed_while_calls_wait_ends_them(store, new_loop, redis_url):
    limiter = Limiter.in_memory() if store == "memory" else Limiter.connect(redis_url, timeout=20)
    waiting = aio.Limiter(limiter._native) if store == "memory" else aio.Limiter.connect(redis_url, timeout=20)
    key = f"closed-loop-{new_loop.__module__}"
    held = limiter.hold(key, "concurrency:1/1h")
    assert limiter.take(f"{key}-wait", "gcra:1/1h")
    loop = new_loop()
    tasks = [
        loop.create_task(waiting.hold(key, "concurrency:1/1h", timeout=3600)._started()),
        loop.create_task(waiting.wait(f"{key}-wait", "gcra:1/1h", timeout=36_000)),
    ]

    async def sent():
        while (await waiting.peek(f"{key}-wait", "gcra:1/1h")).reset_after.total_seconds() < 3700:
            await asyncio.sleep(0.01)

    loop.run_until_complete(sent())
    loop.close()
    assert not any(task.done() for task in tasks)
    until(lambda: limiter.peek(f"{key}-wait", "gcra:1/1h").reset_after.total_seconds() <= 3600)
    assert len(aio._bridges[loop]) == 0
    held.settle()
    assert limiter.hold(key, "concurrency:1/1h"), "no other call holds it"
    for task in tasks:
        task._log_destroy_pending = False
