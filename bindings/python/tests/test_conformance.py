"""Every way in decides as the oracle does, which is written from the semantics."""

from datetime import timedelta

import pytest
from sluicegate import Limiter, ManualClock, OperationError, PolicyError, StoreError, aio

# A store in another process returns the same errors.
ERRORS = (OperationError, PolicyError, StoreError)


def micros(count):
    return None if count == -1 else timedelta(microseconds=count)


class Replay:
    """A history of one key, replayed. Python ends a hold by its object: `next_step` returns a call, or None if the step does
    nothing, and ends the history at one that Python cannot express."""

    def __init__(self, limiter, key):
        self.limiter, self.key, self.holds, self.kept = limiter, key, {}, []

    def call(self, step):
        """The call of a step, which returns the decision."""
        limiter, key = self.limiter, self.key
        if step.operation == "reset":
            return lambda: limiter.reset(key)
        if step.operation == "hold":
            return lambda: limiter.hold(key, step.policy, step.cost, id=step.id, ttl=micros(step.wait))
        if step.operation in ("settle", "renew"):
            hold, policy, ttl = self.holds.get(step.id, (None, None, None))
            if hold is None or policy != step.policy or (step.operation == "renew" and ttl != step.wait):
                return None
            used = None if step.cost == -1 else step.cost
            return hold.renew if step.operation == "renew" else lambda: hold.settle(used)
        wait = {"max_wait": micros(step.wait)} if step.operation == "reserve" else {}
        return lambda: getattr(limiter, step.operation)(key, step.policy, step.cost, **wait)

    def is_over(self, step):
        """Whether a step without a call would change something."""
        return step.answer is None or bool(step.answer[0])

    def check(self, step, result):
        """Compares the result of a call, or the error that it has raised, with the answer of the oracle."""
        if isinstance(result, ERRORS):
            assert step.answer is None, step
        elif step.operation == "hold":
            self.kept.append(result)
            assert result.decision.integers() == step.answer, step
            if result:
                self.holds[step.id] = (result, step.policy, step.wait)
        elif step.operation in ("settle", "renew") and not result and result.never:
            # The process remembers the holds that it has ended, and sends no request for them.
            assert step.answer[0] == 0 and step.answer[3] == -1, step
        elif step.operation != "reset":
            assert result.integers() == step.answer, step


def replay(limiter, clock, key, history):
    """Replays a history, and returns the number of its steps."""
    replay = Replay(limiter, key)
    for number, step in enumerate(history):
        clock.set_us(step.now)
        call = replay.call(step)
        if call is None:
            if replay.is_over(step):
                return number
            continue
        try:
            result = call()
        except ERRORS as error:
            result = error
        replay.check(step, result)
    return len(history)


async def replay_async(limiter, clock, key, history):
    """The same on an event loop."""
    replay = Replay(limiter, key)
    for number, step in enumerate(history):
        clock.set_us(step.now)
        call = replay.call(step)
        if call is None:
            if replay.is_over(step):
                return number
            continue
        try:
            result = await call()
        except ERRORS as error:
            result = error
        replay.check(step, result)
    return len(history)


def total(histories):
    return sum(map(len, histories))


def in_memory(histories):
    """A store in memory drops keys that have recovered, and therefore does not follow a clock that steps back."""
    found = [it for it in histories if all(a.now <= b.now for a, b in zip(it, it[1:]))]
    assert len(found) > len(histories) / 4
    return found


def test_histories_in_memory_decide_as_oracle(histories, hold_histories, traces):
    found = in_memory(histories) + in_memory(hold_histories) + in_memory(traces)
    steps = 0
    for history in found:
        clock = ManualClock()
        steps += replay(Limiter.in_memory(clock=clock), clock, b"key", history)
    assert steps > total(found) / 2


async def test_histories_asyncio_decide_as_oracle(histories, hold_histories, traces):
    found = in_memory(histories)[:100] + in_memory(hold_histories)[:100] + in_memory(traces)
    steps = 0
    for history in found:
        clock = ManualClock()
        steps += await replay_async(aio.Limiter.in_memory(clock=clock), clock, "key", history)
    assert steps > total(found) / 2


def in_scripts(history):
    """Scripts take times up to 2^51, and windows of calendars from 1970 on."""
    return all(0 < step.now < 1 << 51 for step in history)


def test_histories_on_redis_decide_as_oracle(histories, hold_histories, traces, redis_url):
    clock = ManualClock()
    limiter = Limiter.connect(redis_url, clock=clock, timeout=10)
    found = [*filter(in_scripts, histories[:60] + hold_histories[:60] + traces)]
    steps = sum(replay(limiter, clock, f"sync-{number}", history) for number, history in enumerate(found))
    assert steps > total(found) / 2


async def test_histories_on_redis_with_asyncio_decide_as_oracle(histories, hold_histories, traces, redis_url):
    clock = ManualClock()
    limiter = aio.Limiter.connect(redis_url, clock=clock, timeout=10)
    found = [*filter(in_scripts, histories[60:120] + hold_histories[60:120] + traces)]
    steps = 0
    for number, history in enumerate(found):
        steps += await replay_async(limiter, clock, f"async-{number}", history)
    assert steps > total(found) / 2


@pytest.mark.parametrize("operation", ["take", "hold", "settle"])
def test_oracle_wrong_answer_is_detected(hold_histories, operation):
    def noticed(history):
        step = next((step for step in history if step.operation == operation and step.answer and step.answer[0]), None)
        if step is None or replay(Limiter.in_memory(clock=(clock := ManualClock())), clock, "key", history) <= history.index(step):
            return False
        step.answer[2] += 1
        with pytest.raises(AssertionError):
            replay(Limiter.in_memory(clock=clock), clock, "key", history)
        step.answer[2] -= 1
        return True

    assert any(noticed(history) for history in in_memory(hold_histories))
