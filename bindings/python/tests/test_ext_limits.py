"""The storage for `limits`: the test suite of `limits` itself, and flask-limiter and slowapi."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sluicegate import StoreError
from sluicegate.ext.limits import AsyncSluicegateStorage, SluicegateStorage

LIMITS = "5.8.0"
# Its tests of storages and strategies, and those that need no storage.
SUITE = ["tests/test_storage.py", "tests/test_strategy.py", "tests/aio/test_storage.py", "tests/aio/test_strategy.py"]


def test_suite_of_limits_passes(tmp_path, redis_server):
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
    environment = {**os.environ, "REDIS_PORT": str(redis_server.port)}
    ran = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True)
    print(ran.stdout[-5000:], ran.stderr[-2000:])
    assert ran.returncode == 0
    # Nothing is skipped.
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed and int(passed[1]) >= 162 and "skipped" not in ran.stdout


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_reset_host_called_valkey_is_searched(scheme, monkeypatch):
    import redis

    urls = []

    def from_url(url, **settings):
        urls.append((url, settings))
        raise redis.ConnectionError("no such host")

    monkeypatch.setattr(redis.Redis, "from_url", from_url)
    with pytest.raises(redis.ConnectionError):
        SluicegateStorage(f"sluicegate+{scheme}://valkey:6379/2").reset()
    assert urls == [("redis://valkey:6379/2", {})]


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


@pytest.fixture(params=["sluicegate://", "redis"])
def uri(request, redis_url):
    return request.param if request.param != "redis" else f"sluicegate+{redis_url}"


def test_flask_limiter_works_unchanged(uri):
    import flask
    import flask_limiter

    app = flask.Flask("test")
    limiter = flask_limiter.Limiter(
        lambda: "user7", app=app, storage_uri=uri, strategy="moving-window", headers_enabled=True, key_prefix=f"flask{id(app)}"
    )

    @app.get("/")
    @limiter.limit("2/minute")
    def index():
        return "hello"

    client = app.test_client()
    answers = [client.get("/") for _ in range(3)]
    assert [it.status_code for it in answers] == [200, 200, 429]
    assert [it.headers["X-RateLimit-Remaining"] for it in answers] == ["1", "0", "0"]


def test_slowapi_works_unchanged(uri):
    import fastapi
    import slowapi
    from fastapi.testclient import TestClient

    limiter = slowapi.Limiter(lambda: f"user{id(uri)}", storage_uri=uri, strategy="fixed-window")
    app = fastapi.FastAPI()
    app.state.limiter = limiter
    app.add_exception_handler(slowapi.errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler)

    @app.get("/")
    @limiter.limit("2/minute")
    def index(request: fastapi.Request):
        return "hello"

    client = TestClient(app)
    assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
