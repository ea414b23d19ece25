"""In place of the conftest.py of the test suite of `limits`: its storages are ours, and nothing else is changed."""

import json
import os

import pytest
import redis
import sluicegate.ext.limits as ours
from tests import utils

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
URLS = json.loads(os.environ["STORAGES"])
STORAGES = {
    "memory": ("sluicegate://", {}),
    "redis": (f"sluicegate+{URLS['redis']}{WORKER[2:]}", {}),
    # A server of Sluicegate has one database: each process has keys of its own.
    "server": (f"sluicegate+{URLS['server']}", {"key_prefix": f"{WORKER}-server:"}),
    "unix": (f"sluicegate+{URLS['unix']}", {"key_prefix": f"{WORKER}-unix:"}),
}


def params(prefix, *more):
    return [pytest.param(prefix + uri, options, *more, None, id=name) for name, (uri, options) in STORAGES.items()]


def use(found, prefix):
    found.clear()
    found.update(zip(STORAGES, params(prefix)))


use(utils.ALL_STORAGES, "")
use(utils.ALL_STORAGES_ASYNC, "async+")
utils.moving_window_storage.args[1][:] = params("")
utils.async_moving_window_storage.args[1][:] = params("async+")


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    for mark in metafunc.definition.iter_markers("parametrize"):
        if "expected_instance" in mark.args[0]:
            is_async = "aio" in metafunc.definition.path.parts
            expected = ours.AsyncSluicegateStorage if is_async else ours.SluicegateStorage
            mark.args[1][:] = params("async+" if is_async else "", expected)


def pytest_collection_modifyitems(items):
    # It expects the number of the keys, which a server of Sluicegate does not have.
    items[:] = [item for item in items if item.name not in ("test_storage_reset[server]", "test_storage_reset[unix]")]


@pytest.fixture(autouse=True)
def empty_store():
    redis.Redis.from_url(URLS["redis"] + WORKER[2:]).flushdb()
    for name in ("server", "unix"):
        uri, options = STORAGES[name]
        ours.SluicegateStorage(uri, **options).reset()
