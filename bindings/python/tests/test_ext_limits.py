"""The storage for `limits`: the test suite of `limits` itself, and flask-limiter and slowapi."""

import importlib.metadata
import json
import math
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import limits
import limits.aio
import pytest
import sluicegate.ext.limits as ours
from sluicegate import StoreError
from sluicegate.ext.limits import AsyncSluicegateStorage, SluicegateStorage

LIMITS = "5.8.0"
# Its tests of storages and strategies, and those that need no storage.
SUITE = ["tests/test_storage.py", "tests/test_strategy.py", "tests/aio/test_storage.py", "tests/aio/test_strategy.py"]


def test_suite_of_limits_passes(tmp_path, redis_url, server_urls):
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*download, "--no-binary", "limits", f"limits=={LIMITS}"], cwd=tmp_path, check=True)
    (archive,) = tmp_path.glob("limits-*.tar.gz")
    shutil.unpack_archive(archive, tmp_path)
    suite = tmp_path / "suite"
    shutil.copytree(tmp_path / f"limits-{LIMITS}/tests", suite / "tests")
    shutil.copy(Path(__file__).parent / "limits_suite/suite_conftest.py", suite / "tests/conftest.py")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-o", "asyncio_mode=auto", "-n", "8", *SUITE]
    # Its tests compare times: a busy machine may delay one. Some have a number of reruns of their own, 1.
    command += ["--force-reruns", "5"]
    urls = {"redis": redis_url, "server": server_urls["redis"], "unix": server_urls["unix"]}
    environment = {**os.environ, "STORAGES": json.dumps(urls)}
    ran = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True)
    print(ran.stdout[-5000:], ran.stderr[-2000:])
    assert ran.returncode == 0
    # Nothing is skipped.
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed and int(passed[1]) >= 162 and "skipped" not in ran.stdout


async def test_store_unavailable_is_an_error_of_the_storage():
    url, settings = "sluicegate+redis://127.0.0.1:1/", {"timeout": 0.2, "connect_timeout": 0.2}
    storage, aio_storage = SluicegateStorage(url, **settings), AsyncSluicegateStorage(f"async+{url}", **settings)
    assert not storage.check() and not await aio_storage.check()
    for call, arguments in [
        ("incr", (60,)),
        ("acquire_entry", (5, 60)),
        ("get_moving_window", (5, 60)),
        ("acquire_sliding_window_entry", (5, 60)),
    ]:
        with pytest.raises(StoreError):
            getattr(storage, call)("user7", *arguments)
        with pytest.raises(StoreError):
            await getattr(aio_storage, call)("user7", *arguments)


@pytest.fixture(params=["memory", "redis", "server", "unix"])
def uri(request, redis_url, server_urls):
    if request.param == "memory":
        return "sluicegate://"
    return f"sluicegate+{redis_url if request.param == 'redis' else server_urls.get(request.param, server_urls['redis'])}"


@pytest.fixture
def options():
    """Keys of its own for a test, where tests share a store."""
    return {"key_prefix": f"{uuid.uuid4()}:"}


@pytest.fixture
def drop_in(uri, options):
    return limits.storage.storage_from_string(uri, **options)


def each_answer(strategy, text):
    """What a strategy answers on an unused key, until it is cleared."""
    item = limits.parse(text)
    yield strategy.test(item, "user7")
    for cost in (1, 2, 0, 1):
        yield strategy.hit(item, "user7", cost=cost), strategy.test(item, "user7", cost=cost)
        yield strategy.get_window_stats(item, "user7").remaining
    strategy.clear(item, "user7")
    yield strategy.get_window_stats(item, "user7").remaining


@pytest.mark.parametrize("text", ["0/minute", "3/hour", "4294967299/hour", "5000000999/hour", "3/2 years"])
@pytest.mark.parametrize("name", limits.strategies.STRATEGIES)
def test_strategy_any_limit_answers_as_in_memory(drop_in, name, text):
    expected = limits.strategies.STRATEGIES[name](limits.storage.MemoryStorage())
    ours = limits.strategies.STRATEGIES[name](drop_in)
    assert list(each_answer(ours, text)) == list(each_answer(expected, text))


async def each_async_answer(strategy, text):
    item = limits.parse(text)
    answers = [await strategy.test(item, "user7")]
    for cost in (1, 2, 0, 1):
        answers += [await strategy.hit(item, "user7", cost=cost), await strategy.test(item, "user7", cost=cost)]
        answers.append((await strategy.get_window_stats(item, "user7")).remaining)
    await strategy.clear(item, "user7")
    return [*answers, (await strategy.get_window_stats(item, "user7")).remaining]


@pytest.mark.parametrize("text", ["0/minute", "3/hour"])
@pytest.mark.parametrize("name", limits.aio.strategies.STRATEGIES)
async def test_async_strategy_any_limit_answers_as_in_memory(uri, options, name, text):
    strategy = limits.aio.strategies.STRATEGIES[name]
    ours = strategy(limits.storage.storage_from_string(f"async+{uri}", **options))
    expected = strategy(limits.aio.storage.MemoryStorage())
    assert await each_async_answer(ours, text) == await each_async_answer(expected, text)


class CountingProxy:
    """Forwards connections to a store, and counts the round trips of their clients."""

    def __init__(self, port):
        self.round_trips = 0
        self.port_of_store = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.forward, args=(client,), daemon=True).start()

    def forward(self, client):
        with client, socket.create_connection(("127.0.0.1", self.port_of_store)) as store:
            is_waiting = False
            while True:
                for source in select.select([client, store], [], [])[0]:
                    data = source.recv(65536)
                    if not data:
                        return
                    # Requests that follow without a reply between them are one round trip.
                    self.round_trips += source is client and not is_waiting
                    is_waiting = source is client
                    (store if is_waiting else client).sendall(data)


@pytest.fixture(params=["redis", "server"])
def proxy(request, redis_url, server_urls, monkeypatch):
    # What is read once in a while is not read again during a test, however slow the machine is.
    monkeypatch.setattr(ours, "_GENERATION_AGE", math.inf)
    monkeypatch.setattr(ours, "_READ_AGE", math.inf)
    proxy = CountingProxy(urlsplit(redis_url if request.param == "redis" else server_urls["redis"]).port)
    yield proxy
    proxy.listener.close()


CALLS = ["hit", "test", "get_window_stats"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", limits.strategies.STRATEGIES)
def test_strategy_each_call_is_one_round_trip(proxy, options, name, call):
    storage = SluicegateStorage(f"sluicegate+redis://127.0.0.1:{proxy.port}/", **options)
    strategy, item = limits.strategies.STRATEGIES[name](storage), limits.parse("9/hour")
    # A first call connects, reads the generation and loads the script.
    strategy.hit(item, "user8")
    for _ in range(3):
        before = proxy.round_trips
        getattr(strategy, call)(item, "user7")
        assert proxy.round_trips - before == 1
        strategy.hit(item, "user7")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", limits.aio.strategies.STRATEGIES)
async def test_async_strategy_each_call_is_one_round_trip(proxy, options, name, call):
    storage = AsyncSluicegateStorage(f"async+sluicegate+redis://127.0.0.1:{proxy.port}/", **options)
    strategy, item = limits.aio.strategies.STRATEGIES[name](storage), limits.parse("9/hour")
    await strategy.hit(item, "user8")
    for _ in range(3):
        before = proxy.round_trips
        await getattr(strategy, call)(item, "user7")
        assert proxy.round_trips - before == 1
        await strategy.hit(item, "user7")


@pytest.mark.parametrize("change", ["incr", "clear", "reset", "other key", "other storage", "age", "second call"])
def test_get_expiry_after_any_change_reads_again(proxy, options, monkeypatch, change):
    uri = f"sluicegate+redis://127.0.0.1:{proxy.port}/"
    storage, other = SluicegateStorage(uri, **options), SluicegateStorage(uri, key_prefix=f"{uuid.uuid4()}:")
    storage.incr("user7", 3600)
    assert other.get("user7") == 0
    assert storage.get("user7") == 1
    left = 3600.0
    if change == "incr":
        # Another window: the first one ends with all its hits.
        storage.limiter.reset("f:user7")
        storage.incr("user7", 1800)
        left = 1800.0
    elif change in ("clear", "reset"):
        storage.clear("user7") if change == "clear" else storage.reset()
        left = 0.0
    elif change == "other key":
        assert storage.get("user8") == 0
    elif change == "other storage":
        assert other.get("user7") == 0
    elif change == "age":
        monkeypatch.setattr(ours, "_READ_AGE", 0.0)
    else:
        storage.get_expiry("user7")
    before = proxy.round_trips
    assert abs(storage.get_expiry("user7") - time.time() - left) < 60
    assert proxy.round_trips - before == 1


@pytest.mark.parametrize("change", ["incr", "clear", "reset"])
async def test_async_get_expiry_after_a_change_reads_again(proxy, options, change):
    storage = AsyncSluicegateStorage(f"async+sluicegate+redis://127.0.0.1:{proxy.port}/", **options)
    await storage.incr("user7", 3600)
    assert await storage.get("user7") == 1
    await getattr(storage, change)(*{"incr": ("user7", 3600), "clear": ("user7",)}.get(change, ()))
    before = proxy.round_trips
    left = await storage.get_expiry("user7") - time.time()
    assert abs(left - (3600 if change == "incr" else 0)) < 60
    assert proxy.round_trips - before == 1


def test_incr_negative_amount_subtracts(drop_in):
    assert [drop_in.incr("user7", 60, amount) for amount in (5, -1, 1.0, -3)] == [5, 4, 5, 2]
    assert drop_in.get("user7") == 2


def test_moving_window_begins_with_its_oldest_hit(drop_in):
    item = limits.parse("5/minute")
    moving = limits.strategies.MovingWindowRateLimiter(drop_in)
    before = time.time()
    assert moving.hit(item, "user7")
    after = time.time()
    assert moving.hit(item, "user7", cost=2)
    stats = moving.get_window_stats(item, "user7")
    # The clock of the process is not that of the store.
    assert before + 59.5 < stats.reset_time < after + 60.5 and stats.remaining == 2


@pytest.mark.parametrize("name", limits.strategies.STRATEGIES)
def test_reset_forgets_all_keys_for_all_storages(drop_in, uri, options, name):
    others = limits.storage.storage_from_string(uri, **{**options, "key_prefix": f"{uuid.uuid4()}:"})
    item, strategy = limits.parse("1/hour"), limits.strategies.STRATEGIES[name]
    same = drop_in if uri == "sluicegate://" else limits.storage.storage_from_string(uri, **options)
    for storage in (drop_in, others):
        assert [strategy(storage).hit(item, user) for user in ("user7", "user8", "user7")] == [True, True, False]
    drop_in.reset()
    assert [strategy(same).hit(item, user) for user in ("user7", "user8", "user7")] == [True, True, False]
    assert not strategy(others).test(item, "user7")
    # Also after a second reset.
    drop_in.reset()
    assert strategy(drop_in).test(item, "user7")


async def test_async_reset_forgets_all_keys(uri, options):
    storage = limits.storage.storage_from_string(f"async+{uri}", **options)
    strategy, item = limits.aio.strategies.FixedWindowRateLimiter(storage), limits.parse("1/hour")
    assert [await strategy.hit(item, "user7"), await strategy.hit(item, "user7")] == [True, False]
    await storage.reset()
    assert await strategy.hit(item, "user7")


def test_reset_on_a_server_reaches_other_processes(server_urls, options):
    uri, item = f"sluicegate+{server_urls['unix']}", limits.parse("1/hour")
    storage = limits.storage.storage_from_string(uri, **options)
    assert limits.strategies.FixedWindowRateLimiter(storage).hit(item, "user7")
    code = (
        "import sys, limits, sluicegate.ext.limits as ours\n"
        "storage = ours.SluicegateStorage(sys.argv[1], key_prefix=sys.argv[2])\n"
        "print(limits.strategies.FixedWindowRateLimiter(storage).test(limits.parse('1/hour'), 'user7'))\n"
        "storage.reset()"
    )
    command = [sys.executable, "-c", code, uri, options["key_prefix"]]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "False\n"
    # A storage reads the generation of its keys once a second.
    ours._generations[server_urls["unix"], options["key_prefix"]].read_at = -math.inf
    assert limits.strategies.FixedWindowRateLimiter(storage).test(item, "user7")


def test_storage_options_of_redis_are_accepted(uri, options):
    theirs = {"socket_timeout": 20, "socket_connect_timeout": None, "health_check_interval": 3, "implementation": "redispy"}
    assert limits.storage.storage_from_string(uri, **options, **theirs).check()


def test_storage_option_unknown_is_an_error(redis_url):
    with pytest.raises(limits.errors.ConfigurationError, match="unknown option `sockettimeout`: expected .* socket_timeout,"):
        SluicegateStorage(f"sluicegate+{redis_url}", sockettimeout=3)


@pytest.mark.parametrize(
    ("url", "options", "whole"),
    [
        ("redis://host", {"username": "ada", "password": "p@ss/word", "db": 3}, "redis://ada:p%40ss%2Fword@host/3"),
        ("redis://host:1/2", {"password": "secret", "db": 3}, "redis://:secret@host:1/2"),
        ("redis://:own@host/", {"password": "secret"}, "redis://:own@host/"),
        ("redis+sentinel://a,b", {"service_name": "main", "db": 1}, "redis+sentinel://a,b/main"),
        ("redis+cluster://a,b", {"db": 0}, "redis+cluster://a,b"),
        ("unix:///run/sluicegate.sock", {"db": 1, "password": "secret"}, "unix://:secret@/run/sluicegate.sock?db=1"),
    ],
)
def test_storage_options_are_parts_of_the_url(url, options, whole):
    assert ours._whole(url, options) == whole


@pytest.mark.parametrize("call", ["reset", "check", "get", "incr"])
def test_wrap_exceptions_wraps_every_error(call):
    url, settings = "sluicegate+redis://127.0.0.1:1/", {"timeout": 0.2, "connect_timeout": 0.2}
    arguments = {"get": ("user7",), "incr": ("user7", 60)}.get(call, ())
    if call == "check":
        assert not SluicegateStorage(url, wrap_exceptions=True, **settings).check()
        return
    with pytest.raises(limits.errors.StorageError):
        getattr(SluicegateStorage(url, wrap_exceptions=True, **settings), call)(*arguments)
    with pytest.raises(StoreError):
        getattr(SluicegateStorage(url, **settings), call)(*arguments)


@pytest.mark.parametrize("strategy", limits.strategies.STRATEGIES)
def test_flask_limiter_works_unchanged(uri, strategy):
    import flask
    import flask_limiter

    app = flask.Flask("test")
    limiter = flask_limiter.Limiter(
        lambda: "user7",
        app=app,
        storage_uri=uri,
        storage_options={"socket_connect_timeout": 30},
        strategy=strategy,
        headers_enabled=True,
        key_prefix=f"flask{uuid.uuid4()}",
        in_memory_fallback_enabled=True,
    )

    @app.get("/")
    @limiter.limit("2/hour")
    def index():
        return "hello"

    @app.get("/closed")
    @limiter.limit("0/minute")
    def closed():
        return "hello"

    client = app.test_client()
    assert client.get("/closed").status_code == 429
    answers = [client.get("/") for _ in range(3)]
    assert [it.status_code for it in answers] == [200, 200, 429]
    assert [it.headers["X-RateLimit-Remaining"] for it in answers] == ["1", "0", "0"]
    # The store has decided, not the fallback.
    assert not limiter._storage_dead
    limiter.reset()
    assert client.get("/").status_code == 200
    (command,) = importlib.metadata.entry_points(group="flask.commands", name="limiter")
    printed = app.test_cli_runner().invoke(command.load(), ["config"])
    assert printed.exit_code == 0 and "Backend" in printed.output, printed.exception


def test_slowapi_works_unchanged(uri, options):
    import fastapi
    import slowapi
    from fastapi.testclient import TestClient

    limiter = slowapi.Limiter(lambda: "user7", storage_uri=uri, storage_options=options, strategy="fixed-window")
    app = fastapi.FastAPI()
    app.state.limiter = limiter
    app.add_exception_handler(slowapi.errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler)

    @app.get("/")
    @limiter.limit("2/minute")
    def index(request: fastapi.Request):
        return "hello"

    client = TestClient(app)
    assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
