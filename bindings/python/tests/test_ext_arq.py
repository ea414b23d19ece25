"""Limits of arq jobs, with a real worker."""

from datetime import timedelta

import arq
import pytest
from arq.connections import RedisSettings
from sluicegate import Limiter, ManualClock, aio
from sluicegate.ext.arq import limited

QUEUE = "leaky-queue:20/1s"


async def run(redis_url, job, arguments, **settings):
    """Runs the jobs with these arguments in order, in a worker that ends when none is left."""
    redis = RedisSettings.from_dsn(f"{redis_url}0")
    pool = await arq.create_pool(redis)
    await pool.flushall()
    jobs = [await pool.enqueue_job("job", *each) for each in arguments]
    worker = arq.Worker(
        functions=[arq.func(job, name="job")], redis_settings=redis, burst=True, poll_delay=0.01, handle_signals=False, **settings
    )
    await worker.async_run()
    results = [await it.result_info() for it in jobs]
    await worker.close()
    await pool.aclose()
    return results


async def test_jobs_take_their_units_once_and_none_of_their_tries(redis_url):
    limiter = Limiter.in_memory(clock=ManualClock())
    ran = []

    @limited(aio.Limiter(limiter._native), QUEUE, key=lambda user, number: user)
    async def send(ctx, user, number):
        ran.append((number, ctx["job_try"]))

    results = await run(redis_url, send, [("ada", number) for number in range(8)], max_tries=1)
    assert [result.success for result in results] == [True] * 8
    assert sorted(ran) == [(number, 1) for number in range(8)]
    assert limiter.peek("ada", QUEUE).reset_after == timedelta(seconds=8 / 20)


async def test_tries_of_a_job_take_units_of_their_own(redis_url):
    limiter = Limiter.in_memory(clock=ManualClock())
    ran = []

    @limited(aio.Limiter(limiter._native), QUEUE)
    async def send(ctx, number):
        ran.append((number, ctx["job_try"]))
        if ctx["job_try"] == 1:
            raise arq.Retry()

    results = await run(redis_url, send, [(1,), (2,)], max_tries=2)
    assert [result.success for result in results] == [True] * 2
    assert sorted(ran) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    name = f"{__name__}.test_tries_of_a_job_take_units_of_their_own.<locals>.send"
    assert limiter.peek(name, QUEUE).reset_after == timedelta(seconds=4 / 20)


async def test_job_that_never_passes_fails(redis_url):
    @limited(aio.Limiter.in_memory(), "fixed-window:1/1h", cost=2)
    async def send(ctx):
        raise AssertionError("it ran")

    (result,) = await run(redis_url, send, [()])
    assert (result.success, type(result.result).__name__) == (False, "Denied")


async def test_jobs_of_a_policy_that_cannot_reserve_retry(redis_url):
    ran = []

    @limited(aio.Limiter.in_memory(), "sliding-log:2/200ms", key="all")
    async def send(ctx, number):
        ran.append(number)

    results = await run(redis_url, send, [(number,) for number in range(5)], max_tries=1)
    assert [result.success for result in results] == [True] * 5
    assert sorted(ran) == [0, 1, 2, 3, 4]


def test_invalid_policy_is_an_error_at_once():
    with pytest.raises(ValueError, match="invalid rate `x`"):
        limited(aio.Limiter.in_memory(), "gcra:x")(run)


async def test_job_without_a_key_is_named_after_module_and_function(redis_url):
    limiter = Limiter.in_memory(clock=ManualClock())

    @limited(aio.Limiter(limiter._native), "gcra:5/1h")
    async def job(ctx):
        pass

    await run(redis_url, job, [()])
    name = f"{__name__}.test_job_without_a_key_is_named_after_module_and_function.<locals>.job"
    assert limiter.peek(name, "gcra:5/1h").remaining == 4
    assert limiter.peek("job", "gcra:5/1h").remaining == 5
