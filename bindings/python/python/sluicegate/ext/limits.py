"""A storage for `limits`, and so for flask-limiter and slowapi, which use it unchanged:

    import sluicegate.ext.limits  # registers the storage

    limiter = flask_limiter.Limiter(get_remote_address, app=app, storage_uri="sluicegate+redis://127.0.0.1/")

`sluicegate://` keeps the state in this process, `sluicegate+redis://` and the other URLs of `sluicegate.Limiter.connect` in a
store, and `async+sluicegate...` is the same for asyncio. All three strategies decide in one step, exactly:

- `fixed-window`: the window begins with the first request;
- `moving-window`: a `sliding-log`;
- `sliding-window-counter`: a `sliding-counter`. As in `limits`, the weighted count is rounded down.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

try:
    import limits.aio.storage as aio_storage
    import limits.storage as storage
    from limits.storage.base import TimestampedSlidingWindow
except ImportError as error:
    raise ImportError("sluicegate.ext.limits needs the package `limits`: pip install limits") from error

from .. import _native
from .._errors import Error, StoreUnavailable
from .. import Decision, Limiter, aio

_Reply = TypeVar("_Reply")
# A fixed window that is never full: `limits` compares the count with the limit.
_MOST = 4_294_967_295
_STORES = ("redis", "rediss", "valkey", "valkeys", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel", "unix")
_SCHEMES = ["sluicegate", *(f"sluicegate+{store}" for store in _STORES)]
# `limits` looks up the key of one strategy, or of all.
_FIXED, _MOVING, _COUNTER, _LARGE = "f:", "m:", "c:", "l:"
_PREFIXES = (_FIXED, _MOVING, _COUNTER, _LARGE)
# Units of a hit in a sliding counter: a limit with almost one hit more admits what the count, rounded down, admits.
_UNITS = 1000
# The settings of TLS, and their names in the package `redis`.
_TLS = {"tls_ca": "ssl_ca_certs", "tls_cert": "ssl_certfile", "tls_key": "ssl_keyfile"}
# Before the keys in a store.
_PREFIX = "limits:"


def _url(uri: str) -> str | None:
    """The URL of the store; None for a storage in this process."""
    uri = uri.removeprefix("async+")
    return None if uri.startswith("sluicegate://") else uri.removeprefix("sluicegate+")


def _clear(limiter: Limiter, key: str) -> None:
    for prefix in _PREFIXES:
        limiter.reset(prefix + key)


def _fixed(expiry: float) -> str:
    return f"fixed-window:{_MOST}/{_micros(expiry)}us"


def _log(limit: int, expiry: float) -> str:
    return f"sliding-log:{limit}/{_micros(expiry)}us"


def _counter(limit: int, expiry: float) -> tuple[str, str, int]:
    """The prefix of the key, the policy and the units of a hit. The count is rounded down where the limit has a margin."""
    if limit > _MOST // _UNITS - 1:
        return _LARGE, f"sliding-counter:{limit}/{_micros(expiry)}us", 1
    return _COUNTER, f"sliding-counter:{limit * _UNITS + _UNITS - 1}/{_micros(expiry)}us", _UNITS


def _by_the_store(decision: Decision) -> Decision:
    """A decision, or an error while the store is unavailable: as any storage of `limits`, this one leaves that to its user."""
    if decision.source == "fallback":
        raise StoreUnavailable("the store is unavailable: it has made no decision")
    return decision


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _count(limiter: Limiter, key: str) -> int:
    usage = _native.usage(limiter._native, _FIXED + key)
    return 0 if usage is None else usage[0]


def _expiry(limiter: Limiter, key: str) -> float:
    usage = _native.usage(limiter._native, _FIXED + key)
    return time.time() + (0 if usage is None else usage[2] / 1e6)


def _moving_window(limiter: Limiter, key: str, limit: int, expiry: float) -> tuple[float, int]:
    now, policy, key = time.time(), _log(limit, expiry), _MOVING + key
    remaining = _by_the_store(limiter.peek(key, policy)).remaining
    if remaining == limit:
        return now, 0
    # One more unit than are free is free when the oldest event leaves the window.
    wait = _by_the_store(limiter.peek(key, policy, remaining + 1)).retry_after
    if wait is None:
        return now, limit - remaining
    return now + wait.total_seconds() - expiry, limit - remaining


def _sliding_window(limiter: Limiter, key: str, expiry: float) -> tuple[int, float, int, float]:
    for prefix, units in ((_COUNTER, _UNITS), (_LARGE, 1)):
        usage = _native.usage(limiter._native, prefix + key)
        if usage is not None and usage[4] is not None:
            before, current = (count // units for count in usage[4])
            left = expiry - (usage[3] / 1e6) % expiry
            return before, left if before else 0.0, current, left + expiry
    return 0, 0.0, 0, 2 * expiry - time.time() % expiry


class SluicegateStorage(
    storage.Storage, storage.MovingWindowSupport, storage.SlidingWindowCounterSupport, TimestampedSlidingWindow
):
    """The storage for `limits.strategies`."""

    STORAGE_SCHEME = _SCHEMES

    def __init__(self, uri: str = "sluicegate://", wrap_exceptions: bool = False, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self._connect: Callable[[], Limiter] = lambda: _limiter(uri, options)
        self._url, self._options = _url(uri), options
        self.limiter = self._connect()

    @property
    def base_exceptions(self) -> type[Exception]:
        return Error

    def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        return _MOST - self.limiter.charge(_FIXED + key, _fixed(expiry), amount).remaining

    def get(self, key: str) -> int:
        return _count(self.limiter, key)

    def get_expiry(self, key: str) -> float:
        return _expiry(self.limiter, key)

    def check(self) -> bool:
        return _is_healthy(self.limiter)

    def reset(self) -> int | None:
        """Forgets all keys: of a store, those with its prefix, for which the package `redis` is needed."""
        if self._url is not None:
            return _delete_all(self._url, self._options)
        count = _native.keys(self.limiter._native)
        self.limiter = self._connect()
        return count

    def clear(self, key: str) -> None:
        _clear(self.limiter, key)

    def acquire_entry(self, key: str, limit: int, expiry: float, amount: int = 1) -> bool:
        if amount > limit:
            return False
        return _by_the_store(self.limiter.take(_MOVING + key, _log(limit, expiry), amount)).allowed

    def get_moving_window(self, key: str, limit: int, expiry: float) -> tuple[float, int]:
        return _moving_window(self.limiter, key, limit, expiry)

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: float, amount: int = 1) -> bool:
        if amount > limit:
            return False
        prefix, policy, units = _counter(limit, expiry)
        return _by_the_store(self.limiter.take(prefix + key, policy, amount * units)).allowed

    def get_sliding_window(self, key: str, expiry: float) -> tuple[int, float, int, float]:
        return _sliding_window(self.limiter, key, expiry)

    def clear_sliding_window(self, key: str, expiry: float) -> None:
        self.limiter.reset(_COUNTER + key)
        self.limiter.reset(_LARGE + key)


class AsyncSluicegateStorage(
    aio_storage.Storage,
    aio_storage.MovingWindowSupport,
    aio_storage.SlidingWindowCounterSupport,
    TimestampedSlidingWindow,
):
    """The storage for `limits.aio.strategies`."""

    STORAGE_SCHEME = [f"async+{scheme}" for scheme in _SCHEMES]

    def __init__(self, uri: str = "async+sluicegate://", wrap_exceptions: bool = False, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self._url, self._options = _url(uri), options
        settings = options if self._url is None else {"tasks": True, **options}
        self._connect: Callable[[], Limiter] = lambda: _limiter(uri, settings)
        self._use(self._connect())

    def _use(self, limiter: Limiter) -> None:
        # Both share the state: an operation of several requests runs on a thread.
        self._blocking = limiter
        self.limiter = aio.Limiter(limiter._native)

    @property
    def base_exceptions(self) -> type[Exception]:
        return Error

    async def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        return _MOST - (await self.limiter.charge(_FIXED + key, _fixed(expiry), amount)).remaining

    async def get(self, key: str) -> int:
        return await self._off_loop(_count, key)

    async def get_expiry(self, key: str) -> float:
        return await self._off_loop(_expiry, key)

    async def check(self) -> bool:
        return await asyncio.to_thread(_is_healthy, self._blocking)

    async def reset(self) -> int | None:
        """Forgets all keys: of a store, those with its prefix, for which the package `redis` is needed."""
        if self._url is not None:
            return await asyncio.to_thread(_delete_all, self._url, self._options)
        count = _native.keys(self._blocking._native)
        self._use(self._connect())
        return count

    async def clear(self, key: str) -> None:
        for prefix in _PREFIXES:
            await self.limiter.reset(prefix + key)

    async def acquire_entry(self, key: str, limit: int, expiry: float, amount: int = 1) -> bool:
        if amount > limit:
            return False
        return _by_the_store(await self.limiter.take(_MOVING + key, _log(limit, expiry), amount)).allowed

    async def get_moving_window(self, key: str, limit: int, expiry: float) -> tuple[float, int]:
        return await self._off_loop(_moving_window, key, limit, expiry)

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: float, amount: int = 1) -> bool:
        if amount > limit:
            return False
        prefix, policy, units = _counter(limit, expiry)
        return _by_the_store(await self.limiter.take(prefix + key, policy, amount * units)).allowed

    async def get_sliding_window(self, key: str, expiry: float) -> tuple[int, float, int, float]:
        return await self._off_loop(_sliding_window, key, expiry)

    async def clear_sliding_window(self, key: str, expiry: float) -> None:
        await self.limiter.reset(_COUNTER + key)
        await self.limiter.reset(_LARGE + key)

    async def _off_loop(self, call: Callable[..., _Reply], *arguments: Any) -> _Reply:
        if self._url is None:
            return call(self._blocking, *arguments)
        return await asyncio.to_thread(call, self._blocking, *arguments)


def _limiter(uri: str, options: dict[str, Any]) -> Limiter:
    url = _url(uri)
    if url is None:
        return Limiter.in_memory(**options)
    settings: Any = {"key_prefix": _PREFIX, **options}
    if settings.pop("tasks", False):
        return Limiter(aio.Limiter.connect(url, **settings)._native)
    return Limiter.connect(url, **settings)


def _is_healthy(limiter: Limiter) -> bool:
    try:
        _by_the_store(limiter.peek("health", "gcra:1/1s"))
    except Error:
        return False
    return True


def _delete_all(url: str, options: dict[str, Any]) -> int:
    try:
        import redis
    except ImportError:
        raise NotImplementedError("reset needs the package `redis`: pip install redis") from None
    scheme, _, rest = url.partition("://")
    if "+" in scheme:
        raise NotImplementedError("reset does not search the nodes of a cluster: clear the keys one by one")
    scheme, prefix = scheme.replace("valkey", "redis"), str(options.get("key_prefix", _PREFIX))
    client = redis.Redis.from_url(f"{scheme}://{rest}", **{_TLS[name]: options[name] for name in _TLS if options.get(name)})
    escaped = "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in prefix)
    count = 0
    with client:
        for key in client.scan_iter(match=f"{escaped}*", count=1000):
            count += client.unlink(key)
    return count
