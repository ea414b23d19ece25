"""Every way in decides as the oracle does, which is written from the semantics."""

from datetime import timedelta

import pytest
from sluicegate import Limiter, ManualClock, OperationError, PolicyError, StoreError, aio

# What a store in another process cannot decide is an error there as well.
ERRORS = (OperationError, PolicyError, StoreError)


def arguments(step):
    if step.operation == "reset":
        return (), {}
    wait = {"max_wait": timedelta(microseconds=step.wait)} if step.operation == "reserve" else {}
    return (step.policy, step.cost), wait


def check(step, decide):
    positional, named = arguments(step)
    try:
        decision = decide(*positional, **named)
    except ERRORS:
        assert step.answer is None, step
    else:
        if step.operation != "reset":
            assert decision.integers() == step.answer, step


def in_memory(histories):
    """A store in memory forgets what has recovered, and so does not follow a clock that steps back."""
    found = [it for it in histories if all(a.now <= b.now for a, b in zip(it, it[1:]))]
    assert len(found) > len(histories) / 4
    return found


def test_histories_in_memory_decide_as_oracle(histories, traces):
    for history in in_memory(histories) + traces:
        clock = ManualClock()
        limiter = Limiter.in_memory(clock=clock)
        for step in history:
            clock.set_us(step.now)
            check(step, lambda *a, **n: getattr(limiter, step.operation)(b"key", *a, **n))


async def test_histories_asyncio_decide_as_oracle(histories, traces):
    for history in in_memory(histories)[:100] + traces:
        clock = ManualClock()
        limiter = aio.Limiter.in_memory(clock=clock)
        for step in history:
            clock.set_us(step.now)
            positional, named = arguments(step)
            try:
                decision = await getattr(limiter, step.operation)("key", *positional, **named)
            except ERRORS:
                assert step.answer is None, step
            else:
                assert step.operation == "reset" or decision.integers() == step.answer, step


def in_scripts(history):
    """Scripts take times up to 2^51, and windows of calendars from 1970 on."""
    return all(0 < step.now < 1 << 51 for step in history)


def test_histories_on_redis_decide_as_oracle(histories, traces, redis_url):
    clock = ManualClock()
    limiter = Limiter.connect(redis_url, clock=clock, timeout=10)
    for number, history in enumerate(filter(in_scripts, histories[:60] + traces)):
        key = f"sync-{number}"
        for step in history:
            clock.set_us(step.now)
            check(step, lambda *a, **n: getattr(limiter, step.operation)(key, *a, **n))


async def test_histories_on_redis_with_asyncio_decide_as_oracle(histories, traces, redis_url):
    clock = ManualClock()
    limiter = aio.Limiter.connect(redis_url, clock=clock, timeout=10)
    for number, history in enumerate(filter(in_scripts, histories[60:120] + traces)):
        for step in history:
            clock.set_us(step.now)
            positional, named = arguments(step)
            try:
                decision = await getattr(limiter, step.operation)(f"async-{number}", *positional, **named)
            except ERRORS:
                assert step.answer is None, step
            else:
                assert step.operation == "reset" or decision.integers() == step.answer, step


def test_a_wrong_answer_is_noticed(histories):
    step = next(step for step in histories[0] if step.answer and step.operation != "reset")
    step.answer[2] += 1
    limiter = Limiter.in_memory()
    with pytest.raises(AssertionError):
        check(step, lambda *a, **n: getattr(limiter, step.operation)(b"key", *a, **n))
    step.answer[2] -= 1
