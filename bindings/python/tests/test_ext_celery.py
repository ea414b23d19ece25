"""Limits of Celery tasks, with real workers."""

import gc
import os
import subprocess
import sys
import threading
from datetime import timedelta

import celery
import pytest
import redis
from celery.contrib.testing.worker import start_worker
from conftest import until
from sluicegate import Limiter, ManualClock, Policy
from sluicegate.ext.celery import limited

QUEUE = "leaky-queue:20/1s"


@pytest.fixture
def app(redis_url):
    redis.Redis.from_url(redis_url).flushall()
    app = celery.Celery("tests", broker=redis_url, backend=redis_url, set_as_current=False)
    app.conf.update(broker_connection_retry_on_startup=True, worker_prefetch_multiplier=0, task_acks_late=True)
    yield app
    # Results unsubscribe when they go, which needs the server.
    gc.collect()
    app.close()


class Ran:
    """What tasks have run, in order."""

    def __init__(self):
        self.all, self.lock = [], threading.Lock()

    def add(self, value):
        with self.lock:
            self.all.append(value)


def run(app, ran, count, *tasks):
    """Runs a worker until `count` calls have run."""
    with start_worker(app, pool="solo", perform_ping_check=False):
        for task, args in tasks:
            task.delay(*args)
        until(lambda: len(ran.all) >= count)


def test_tasks_run_in_order_and_take_their_units_once(app):
    # The clock does not advance: each unit that is taken can be read afterwards.
    limiter, ran = Limiter.in_memory(clock=ManualClock()), Ran()

    @app.task(shared=False, base=limited(limiter, QUEUE, key=lambda user, number: user))
    def send(user, number):
        ran.add((user, number))

    run(app, ran, 8, *[(send, ("ada", number)) for number in range(8)])
    assert ran.all == [("ada", number) for number in range(8)]
    assert limiter.peek("ada", QUEUE).reset_after == timedelta(seconds=8 / 20)


def test_retries_of_a_task_take_units_of_their_own(app):
    limiter, ran = Limiter.in_memory(clock=ManualClock()), Ran()

    @app.task(shared=False, bind=True, base=limited(limiter, QUEUE), max_retries=1, name="send")
    def send(self, number):
        ran.add((number, self.request.retries))
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        if number == 1:
            raise self.retry(countdown=0)

    with start_worker(app, pool="solo", perform_ping_check=False):
        results = [send.delay(number) for number in range(2)]
        until(lambda: len(ran.all) == 4)
        with pytest.raises(celery.exceptions.MaxRetriesExceededError):
            results[1].get(timeout=60)
        assert results[0].get(timeout=60) is None
    assert sorted(ran.all) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert limiter.peek("send", QUEUE).reset_after == timedelta(seconds=4 / 20)


def test_tasks_of_a_policy_that_cannot_reserve_retry(app):
    limiter, ran = Limiter.in_memory(), Ran()

    @app.task(shared=False, base=limited(limiter, "sliding-log:2/200ms"), name="send")
    def send(number):
        ran.add(number)

    run(app, ran, 5, *[(send, (number,)) for number in range(5)])
    assert sorted(ran.all) == [0, 1, 2, 3, 4]


def test_task_beyond_max_wait_retries(app):
    limiter, ran = Limiter.in_memory(), Ran()

    @app.task(shared=False, base=limited(limiter, "leaky-queue:10/1s", key="all", max_wait=0.1))
    def send(number):
        ran.add(number)

    run(app, ran, 5, *[(send, (number,)) for number in range(5)])
    assert sorted(ran.all) == [0, 1, 2, 3, 4]


def test_task_that_never_passes_fails(app):
    @app.task(shared=False, base=limited(Limiter.in_memory(), "fixed-window:2/1h", cost=lambda size: size, key="all"))
    def send(size):
        return size

    with start_worker(app, pool="solo", perform_ping_check=False):
        assert send.delay(2).get(timeout=60) == 2
        with pytest.raises(Exception, match="never passes"):
            send.delay(3).get(timeout=60)


def test_task_waits_while_the_store_is_down(app):
    ran = Ran()
    down = Limiter.connect("redis://127.0.0.1:1/")

    @app.task(shared=False, base=limited(down, Policy(QUEUE, on_error="allow"), key="all"))
    def allowed(number):
        ran.add(number)

    @app.task(shared=False, base=limited(down, Policy(QUEUE, on_error="fail"), key="all"))
    def waits(number):
        ran.add(number)

    with start_worker(app, pool="solo", perform_ping_check=False):
        waiting = waits.delay(1)
        allowed.delay(2)
        until(lambda: ran.all == [2])
        until(lambda: waiting.state == "RETRY")


def test_task_that_is_called_directly_is_not_limited(app):
    @app.task(shared=False, base=limited(Limiter.in_memory(), "fixed-window:1/1h", key="all"))
    def send():
        return "sent"

    assert [send(), send(), send.apply().get()] == ["sent"] * 3


def test_invalid_policy_is_an_error_at_once():
    with pytest.raises(ValueError, match="invalid rate `x`"):
        limited(Limiter.in_memory(), "gcra:x")


WORKER = """
import os
import celery, redis
from sluicegate import Limiter
from sluicegate.ext.celery import limited
url = os.environ["REDIS_URL"]
app = celery.Celery("tests", broker=url)
app.conf.update(broker_connection_retry_on_startup=True, worker_prefetch_multiplier=1)
ran = redis.Redis.from_url(url)
@app.task(shared=False, base=limited(Limiter.connect(url, timeout=20), "leaky-queue:40/1s", key="all"), name="send")
def send(number):
    ran.rpush("ran", f"{os.getpid()}:{number}")
"""


def test_processes_share_a_limit(app, redis_url, tmp_path):
    (tmp_path / "served.py").write_text(WORKER)
    command = [sys.executable, "-m", "celery", "-A", "served", "worker", "--concurrency", "2", "--loglevel", "error"]
    environment = {**os.environ, "REDIS_URL": redis_url, "C_FORCE_ROOT": "1"}
    workers = [
        subprocess.Popen([*command, "--hostname", f"worker{number}@local"], cwd=tmp_path, env=environment)
        for number in range(2)
    ]
    ran = redis.Redis.from_url(redis_url)
    try:
        for number in range(40):
            app.send_task("send", (number,))
        until(lambda: ran.llen("ran") >= 40, 60)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
    numbers = [int(entry.split(b":")[1]) for entry in ran.lrange("ran", 0, -1)]
    assert sorted(numbers) == list(range(40))
