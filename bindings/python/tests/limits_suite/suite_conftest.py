"""In place of the conftest.py of the test suite of `limits`: its storages are ours, and nothing else is changed."""

import os

import pytest
import redis
import sluicegate.ext.limits as ours
from tests import utils

PORT = int(os.environ["REDIS_PORT"])
STORAGES = {"memory": "sluicegate://", "redis": f"sluicegate+redis://127.0.0.1:{PORT}/{os.environ.get('PYTEST_XDIST_WORKER', 'gw0')[2:]}"}


def params(prefix, *more):
    return [pytest.param(prefix + uri, {}, *more, None, id=name) for name, uri in STORAGES.items()]


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


@pytest.fixture(autouse=True)
def empty_store():
    redis.Redis.from_url(STORAGES["redis"].removeprefix("sluicegate+")).flushdb()
