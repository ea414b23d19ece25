"""The decorator of functions."""

import asyncio
import threading

import pytest
from sluicegate import Denied, Limiter, ManualClock, PolicyError, aio, limited


def test_function_is_denied_by_key_and_cost():
    limiter = Limiter.in_memory()

    @limited(limiter, "fixed-window:3/1h", key=lambda user, size=1: user, cost=lambda user, size=1: size)
    def send(user, size=1):
        """Sends."""
        return user, size

    assert send("ada", size=2) == ("ada", 2)
    with pytest.raises(Denied) as denied:
        send("ada", 2)
    assert denied.value.decision.remaining == 1
    assert send("eve", 3) == ("eve", 3)
    assert (send.__name__, send.__doc__) == ("send", "Sends.")


async def test_coroutine_function_is_denied():
    @limited(aio.Limiter.in_memory(), "fixed-window:1/1h", key="all")
    async def send():
        return "sent"

    assert await send() == "sent"
    with pytest.raises(Denied):
        await send()


def test_function_waits_for_its_units():
    calls, lock = [], threading.Lock()

    @limited(Limiter.in_memory(), "leaky-queue:50/1s", key="all", wait=20)
    def call():
        with lock:
            calls.append(True)

    threads = [threading.Thread(target=call) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 5


def test_function_that_would_wait_too_long_is_denied():
    clock = ManualClock()

    @limited(Limiter.in_memory(clock=clock), "gcra:1/1h", key="all", wait=5)
    def call():
        return "called"

    assert call() == "called"
    with pytest.raises(Denied) as denied:
        call()
    # The clock stands still, but the wait is in real time.
    assert 3595 <= denied.value.decision.retry_after.total_seconds() < 3600


async def test_coroutines_wait_for_their_units():
    @limited(aio.Limiter.in_memory(), "leaky-queue:50/1s", key="all", wait=20)
    async def call():
        return "called"

    assert await asyncio.gather(*(call() for _ in range(5))) == ["called"] * 5


def test_limiter_of_the_other_kind_is_rejected():
    with pytest.raises(TypeError, match=r"invalid limiter of type `Limiter` for `call`: expected sluicegate.aio.Limiter"):

        @limited(Limiter.in_memory(), "gcra:1/1s", key="all")
        async def call(): ...

    with pytest.raises(TypeError, match=r"expected sluicegate.Limiter"):

        @limited(aio.Limiter.in_memory(), "gcra:1/1s", key="all")
        def called(): ...


def test_invalid_policy_is_an_error_at_once():
    with pytest.raises(PolicyError):
        limited(Limiter.in_memory(), "gcra:x", key="all")
