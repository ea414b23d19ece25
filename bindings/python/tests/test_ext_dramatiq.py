"""Limits of dramatiq actors, with a real worker."""

import threading
from datetime import timedelta

import dramatiq
import pytest
import redis
from conftest import until
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Retries
from sluicegate import Limiter, ManualClock
from sluicegate.ext.dramatiq import LimitError, RateLimit

QUEUE = "leaky-queue:20/1s"


class Running:
    """A broker with a worker, and what has run."""

    def __init__(self, url, limiter):
        self.broker = RedisBroker(url=url, middleware=[RateLimit(limiter), Retries(min_backoff=1, max_backoff=1)])
        self.worker = dramatiq.Worker(self.broker, worker_threads=2, worker_timeout=50)
        self.ran, self.lock = [], threading.Lock()

    def actor(self, function, **options):
        return dramatiq.actor(function, broker=self.broker, **options)

    def add(self, value):
        with self.lock:
            self.ran.append(value)

    def run(self, count, *messages):
        for message in messages:
            self.broker.enqueue(message)
        self.worker.start()
        try:
            until(lambda: len(self.ran) >= count)
        finally:
            self.worker.stop()
            self.broker.close()


@pytest.fixture
def start(redis_url):
    redis.Redis.from_url(redis_url).flushall()
    return lambda limiter: Running(redis_url, limiter)


def test_messages_take_their_units_once(start):
    limiter = Limiter.in_memory(clock=ManualClock())
    running = start(limiter)
    send = running.actor(
        lambda user, number: running.add(number), actor_name="send", limit_policy=QUEUE, limit_key=lambda user, number: user
    )
    free = running.actor(lambda number: running.add(number), actor_name="free")
    running.run(9, free.message(100), *(send.message("ada", number) for number in range(8)))
    assert sorted(running.ran) == [*range(8), 100]
    assert limiter.peek("ada", QUEUE).reset_after == timedelta(seconds=8 / 20)


def test_retries_take_units_of_their_own(start):
    limiter = Limiter.in_memory(clock=ManualClock())
    running = start(limiter)

    def fail(number):
        running.add(number)
        raise ValueError("broken")

    send = running.actor(fail, actor_name="send", limit_policy=QUEUE, max_retries=1)
    running.run(4, send.message(1), send.message(2))
    assert sorted(running.ran) == [1, 1, 2, 2]
    assert limiter.peek("send", QUEUE).reset_after == timedelta(seconds=4 / 20)


def test_messages_of_a_policy_that_cannot_reserve_retry(start):
    running = start(Limiter.in_memory())
    send = running.actor(lambda number: running.add(number), actor_name="send", limit_policy="sliding-log:2/200ms")
    running.run(5, *(send.message(number) for number in range(5)))
    assert sorted(running.ran) == [0, 1, 2, 3, 4]


def test_message_waits_while_the_store_is_down(start):
    running = start(Limiter.connect("redis://127.0.0.1:1/"))
    waits = running.actor(lambda: running.add("waits"), actor_name="waits", limit_policy=QUEUE)
    free = running.actor(lambda: running.add("free"), actor_name="free")
    running.run(1, waits.message(), free.message())
    assert running.ran == ["free"]
    left = running.broker.client.hkeys("dramatiq:default.msgs") + running.broker.client.hkeys("dramatiq:default.DQ.msgs")
    assert len(left) == 1


def test_invalid_policy_is_an_error_at_once(start):
    with pytest.raises(LimitError, match="invalid limit of actor `send`: invalid rate `x`"):
        start(Limiter.in_memory()).actor(lambda: None, actor_name="send", limit_policy="gcra:x")


def test_message_that_fails_to_be_limited_is_not_processed(start):
    running = start(Limiter.in_memory())
    never = running.actor(
        lambda: running.add("never"), actor_name="never", limit_policy="fixed-window:1/1h", limit_cost=2, max_retries=0
    )
    broken = running.actor(
        lambda: running.add("broken"), actor_name="broken", limit_policy=QUEUE, limit_key=lambda: 1 / 0, max_retries=0
    )
    free = running.actor(lambda: running.add("free"), actor_name="free")
    running.run(1, never.message(), broken.message(), free.message())
    dead = running.broker.client
    until(lambda: dead.hlen("dramatiq:default.XQ.msgs") == 2)
    assert running.ran == ["free"]
