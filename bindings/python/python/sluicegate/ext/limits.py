"""A storage for `limits`, and so for flask-limiter and slowapi, which use it unchanged:

    import sluicegate.ext.limits  # registers the storage

    limiter = flask_limiter.Limiter(get_remote_address, app=app, storage_uri="sluicegate+redis://127.0.0.1/")

`sluicegate://` keeps the state in this process, `sluicegate+redis://` and the other URLs of `sluicegate.Limiter.connect` in a
store, and `async+sluicegate...` is the same for asyncio. All three strategies decide in one step, exactly:

- `fixed-window`: the window begins with the first request;
- `moving-window`: a `sliding-log`;
- `sliding-window-counter`: a `sliding-counter`. As in `limits`, the weighted count is rounded down.

Values outside the range of a policy are brought into it: an amount of 0 denies all, one above 4294967295 is that number, and
a period above 366 days is 366 days. A cost that is not whole is rounded up.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote

try:
    import limits.aio.storage as aio_storage
    import limits.storage as storage
    from limits.errors import ConfigurationError
    from limits.storage.base import TimestampedSlidingWindow
except ImportError as error:
    raise ImportError("sluicegate.ext.limits needs the package `limits`: pip install limits") from error

from .. import _native
from .._errors import Error, StoreUnavailable
from .._limiter import SAME
from .. import Decision, Limiter, Policy, aio

_Reply = TypeVar("_Reply")
# A fixed window that is never full: `limits` compares the count with the limit.
_MOST = 4_294_967_295
_MOST_MICROS = 366 * 24 * 3600 * 1_000_000
_STORES = ("redis", "rediss", "valkey", "valkeys", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel", "unix")
_SCHEMES = ["sluicegate", *(f"sluicegate+{store}" for store in _STORES)]
# `limits` looks up the key of one strategy, or of all.
_FIXED, _MOVING, _COUNTER = "f", "m", "c"
_LETTERS = (_FIXED, _MOVING, _COUNTER)
# Units of a hit in a sliding counter: a limit with almost one hit more admits what the count, rounded down, admits.
_UNITS = 1000
# Before the keys in a store.
_PREFIX = "limits:"
# Policies of each kind that are kept.
_POLICIES = 1024

# A server of Sluicegate cannot list its keys. A reset adds 1 to the count of this key, which is a part of all others.
_GENERATION, _GENERATION_POLICY = "generation", f"fixed-window:{_MOST}/{_MOST_MICROS}us"
# How long a storage uses the generation that it has read, in seconds.
_GENERATION_AGE = 1.0
# How long `get_expiry` uses what `get` has read, in seconds: for a fixed window, `get_window_stats` calls both.
_READ_AGE = 0.1

# The settings of a limiter.
_SETTINGS = {"timeout", "connect_timeout", "key_prefix", "max_denial_cache", "tls_ca", "tls_cert", "tls_key", "use_module", "clock"}
# Parts of the URL.
_PARTS = ("username", "password", "db", "service_name")
# Other settings of those packages, which mean nothing to one connection that is kept open and verifies certificates.
_WITHOUT_EFFECT = set(
    "auto_close_connection_pool client_name cluster_error_retry_attempts decode_responses dynamic_startup_nodes encoding"
    " encoding_errors health_check_interval implementation lib_name lib_version max_connections protocol read_from_replicas"
    " reinitialize_steps require_full_coverage retry retry_on_error retry_on_timeout single_connection_client socket_keepalive"
    " socket_keepalive_options socket_read_size socket_type ssl ssl_cert_reqs ssl_check_hostname ssl_min_version use_replicas"
    .split()
)


def _url(uri: str) -> str | None:
    """The URL of the store; None for a storage in this process."""
    uri = uri.removeprefix("async+")
    return None if uri.startswith("sluicegate://") else uri.removeprefix("sluicegate+")


def _limiter(uri: str, options: Mapping[str, Any], tasks: bool = False) -> Limiter:
    url = _url(uri)
    if url is None:
        return Limiter.in_memory(**{name: options[name] for name in ("max_memory", "clock") if name in options})
    settings: Any = {"key_prefix": _PREFIX}
    for name, value in options.items():
        own = SAME.get(name, name)
        if own in _SETTINGS:
            if value is not None:
                settings[own] = value
        elif name not in _PARTS and name not in _WITHOUT_EFFECT:
            raise ConfigurationError(f"unknown option `{name}`: expected {', '.join(sorted(_SETTINGS | set(SAME)))}")
    if tasks:
        return Limiter(aio.Limiter.connect(_whole(url, options), **settings)._native)
    return Limiter.connect(_whole(url, options), **settings)


def _whole(url: str, options: Mapping[str, Any]) -> str:
    """The URL with the parts that options give, where it has none."""
    scheme, _, rest = url.partition("://")
    hosts, slash, path = rest.partition("/")
    user, password = options.get("username"), options.get("password")
    if "@" not in hosts and (user or password):
        hosts = f"{quote(str(user or ''), safe='')}:{quote(str(password or ''), safe='')}@{hosts}"
    last = options.get("service_name" if scheme.endswith("+sentinel") else "db")
    if last and scheme == "unix" and "?" not in path:
        path = f"{path}?db={last}"
    elif last and not path:
        slash, path = "/", str(last)
    return f"{scheme}://{hosts}{slash}{path}"


def _by_the_store(decision: Decision) -> Decision:
    """A decision, or an error while the store is unavailable: as any storage of `limits`, this one leaves that to its user."""
    if decision.source == "fallback":
        raise StoreUnavailable("the store is unavailable: it has made no decision")
    return decision


def _micros(seconds: float) -> int:
    return min(max(round(seconds * 1_000_000), 1000), _MOST_MICROS)


def _units(amount: float) -> int:
    if type(amount) is int and 0 <= amount <= _MOST:
        return amount
    return min(max(math.ceil(amount), 0), _MOST)


@lru_cache(_POLICIES)
def _fixed(expiry: float) -> Policy:
    return Policy(f"fixed-window:{_MOST}/{_micros(expiry)}us")


@lru_cache(_POLICIES)
def _log(limit: int, expiry: float) -> Policy:
    return Policy(f"sliding-log:{min(limit, _MOST)}/{_micros(expiry)}us")


@lru_cache(_POLICIES)
def _counter(limit: int, expiry: float) -> tuple[Policy, int]:
    """The policy, and the units of a hit."""
    if limit <= _MOST // _UNITS - 1:
        return Policy(f"sliding-counter:{limit * _UNITS + _UNITS - 1}/{_micros(expiry)}us"), _UNITS
    # Without the margin, and never with a capacity that looks as if it had one.
    limit = min(limit, _MOST)
    return Policy(f"sliding-counter:{limit - (limit % _UNITS == _UNITS - 1)}/{_micros(expiry)}us"), 1


def _count_and_expiry(limiter: Limiter, key: str) -> tuple[int, float]:
    usage = _native.usage(limiter._native, key)
    return (0, time.time()) if usage is None else (usage[0], time.time() + usage[2] / 1e6)


def _moving_window(limiter: Limiter, key: str, limit: int, expiry: float) -> tuple[float, int]:
    now, limit = time.time(), min(limit, _MOST)
    if limit < 1:
        return now, 0
    remaining, wait = _native.window(limiter._native, key, _log(limit, expiry))
    # One more unit than are free is free when the oldest event leaves the window.
    return now if remaining == limit or wait is None else now + wait / 1e6 - expiry, limit - remaining


def _sliding_window(limiter: Limiter, key: str, expiry: float) -> tuple[int, float, int, float]:
    period = _micros(expiry) / 1e6
    usage = _native.usage(limiter._native, key)
    if usage is None or usage[4] is None:
        return 0, 0.0, 0, 2 * period - time.time() % period
    units = _UNITS if usage[1] % _UNITS == _UNITS - 1 else 1
    before, current = (count // units for count in usage[4])
    left = period - (usage[3] / 1e6) % period
    return before, left if before else 0.0, current, left + period


class _Generation:
    """The generation of the keys of one store, which all its storages in this process share."""

    def __init__(self) -> None:
        self.number, self.read_at = 0, -math.inf

    @property
    def is_old(self) -> bool:
        return time.monotonic() - self.read_at >= _GENERATION_AGE

    def read(self, decision: Decision) -> None:
        self.number, self.read_at = _MOST - _by_the_store(decision).remaining, time.monotonic()

    def key(self, letter: str, key: str) -> str:
        return f"{letter}{self.number or ''}:{key}"


_generations: dict[tuple[str, str], _Generation] = {}

# Of each thread and task: the store and the key of the last `get`, the expiry of that key, and the time of the read.
_last_read: ContextVar[tuple[_Generation, str, float, float] | None] = ContextVar("last_read", default=None)


def _remember_expiry(generation: _Generation | None, key: str, expiry: float) -> None:
    if generation is not None:
        _last_read.set((generation, key, expiry, time.monotonic()))


def _pop_expiry(generation: _Generation | None, key: str) -> float | None:
    """The expiry that the last `get` has read; None if it must be read again."""
    last = _last_read.get()
    if last is None:
        return None
    _last_read.set(None)
    store, read_key, expiry, read_at = last
    is_usable = store is generation and read_key == key and time.monotonic() - read_at < _READ_AGE
    return expiry if is_usable else None


def _generation(url: str, options: Mapping[str, Any]) -> _Generation:
    return _generations.setdefault((url, str(options.get("key_prefix", _PREFIX))), _Generation())


def _delete_all(limiter: Limiter) -> int | None:
    """Deletes all keys of the storages in a store, and returns their number; None if it cannot list its keys."""
    return _native.delete_matching(limiter._native, f"[{''.join(_LETTERS)}]:*")


def _is_healthy(limiter: Limiter) -> bool:
    try:
        _by_the_store(limiter.peek("health", "gcra:1/1s"))
    except Error:
        return False
    return True


class SluicegateStorage(
    storage.Storage, storage.MovingWindowSupport, storage.SlidingWindowCounterSupport, TimestampedSlidingWindow
):
    """The storage for `limits.strategies`."""

    STORAGE_SCHEME = _SCHEMES

    def __init__(self, uri: str = "sluicegate://", wrap_exceptions: bool = False, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        url = _url(uri)
        self._connect: Callable[[], Limiter] = lambda: _limiter(uri, options)
        self._generation = None if url is None else _generation(url, options)
        self.limiter = self._connect()

    @property
    def storage(self) -> Limiter:
        """What has the state, as of other storages."""
        return self.limiter

    @property
    def base_exceptions(self) -> type[Exception]:
        return Error

    def incr(self, key: str, expiry: float, amount: float = 1) -> int:
        _last_read.set(None)
        if amount < 0:
            return _MOST - self.limiter.refund(self._key(_FIXED, key), _fixed(expiry), _units(-amount)).remaining
        return _MOST - self.limiter.charge(self._key(_FIXED, key), _fixed(expiry), _units(amount)).remaining

    def get(self, key: str) -> int:
        name = self._key(_FIXED, key)
        count, expiry = _count_and_expiry(self.limiter, name)
        _remember_expiry(self._generation, name, expiry)
        return count

    def get_expiry(self, key: str) -> float:
        name = self._key(_FIXED, key)
        expiry = _pop_expiry(self._generation, name)
        return _count_and_expiry(self.limiter, name)[1] if expiry is None else expiry

    def check(self) -> bool:
        return _is_healthy(self.limiter)

    def reset(self) -> int | None:
        """Forgets all keys of the storage: of a store, those with its prefix. Returns their number; None from a server of Sluicegate."""
        _last_read.set(None)
        if self._generation is None:
            count = _native.keys(self.limiter._native)
            self.limiter = self._connect()
            return count
        deleted = _delete_all(self.limiter)
        if deleted is None:
            self._generation.read(self.limiter.charge(_GENERATION, _GENERATION_POLICY))
        return deleted

    def clear(self, key: str) -> None:
        _last_read.set(None)
        for letter in _LETTERS:
            self.limiter.reset(self._key(letter, key))

    def acquire_entry(self, key: str, limit: int, expiry: float, amount: float = 1) -> bool:
        units = _units(amount)
        if units > limit or units == 0:
            return units == 0
        return _by_the_store(self.limiter.take(self._key(_MOVING, key), _log(limit, expiry), units)).allowed

    def get_moving_window(self, key: str, limit: int, expiry: float) -> tuple[float, int]:
        return _moving_window(self.limiter, self._key(_MOVING, key), limit, expiry)

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: float, amount: float = 1) -> bool:
        units = _units(amount)
        if units > limit or units == 0:
            return units == 0
        policy, each = _counter(limit, expiry)
        return _by_the_store(self.limiter.take(self._key(_COUNTER, key), policy, units * each)).allowed

    def get_sliding_window(self, key: str, expiry: float) -> tuple[int, float, int, float]:
        return _sliding_window(self.limiter, self._key(_COUNTER, key), expiry)

    def clear_sliding_window(self, key: str, expiry: float) -> None:
        self.limiter.reset(self._key(_COUNTER, key))

    def _key(self, letter: str, key: str) -> str:
        generation = self._generation
        if generation is None:
            return f"{letter}:{key}"
        if generation.is_old:
            generation.read(self.limiter.peek(_GENERATION, _GENERATION_POLICY))
        return generation.key(letter, key)


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
        url = _url(uri)
        self._connect: Callable[[], Limiter] = lambda: _limiter(uri, options, tasks=True)
        self._generation = None if url is None else _generation(url, options)
        self._use(self._connect())

    def _use(self, limiter: Limiter) -> None:
        # Both share the state: an operation of several requests runs on a thread.
        self._blocking = limiter
        self.limiter = aio.Limiter(limiter._native)

    @property
    def storage(self) -> aio.Limiter:
        """What has the state, as of other storages."""
        return self.limiter

    @property
    def base_exceptions(self) -> type[Exception]:
        return Error

    async def incr(self, key: str, expiry: float, amount: float = 1) -> int:
        _last_read.set(None)
        call = self.limiter.charge if amount >= 0 else self.limiter.refund
        return _MOST - (await call(await self._key(_FIXED, key), _fixed(expiry), _units(abs(amount)))).remaining

    async def get(self, key: str) -> int:
        name = await self._key(_FIXED, key)
        count, expiry = await self._off_loop(_count_and_expiry, name)
        _remember_expiry(self._generation, name, expiry)
        return count

    async def get_expiry(self, key: str) -> float:
        name = await self._key(_FIXED, key)
        expiry = _pop_expiry(self._generation, name)
        return (await self._off_loop(_count_and_expiry, name))[1] if expiry is None else expiry

    async def check(self) -> bool:
        return await self._off_loop(_is_healthy)

    async def reset(self) -> int | None:
        """Forgets all keys of the storage: of a store, those with its prefix. Returns their number; None from a server of Sluicegate."""
        _last_read.set(None)
        if self._generation is None:
            count = _native.keys(self._blocking._native)
            self._use(self._connect())
            return count
        deleted = await self._off_loop(_delete_all)
        if deleted is None:
            self._generation.read(await self.limiter.charge(_GENERATION, _GENERATION_POLICY))
        return deleted

    async def clear(self, key: str) -> None:
        _last_read.set(None)
        for letter in _LETTERS:
            await self.limiter.reset(await self._key(letter, key))

    async def acquire_entry(self, key: str, limit: int, expiry: float, amount: float = 1) -> bool:
        units = _units(amount)
        if units > limit or units == 0:
            return units == 0
        return _by_the_store(await self.limiter.take(await self._key(_MOVING, key), _log(limit, expiry), units)).allowed

    async def get_moving_window(self, key: str, limit: int, expiry: float) -> tuple[float, int]:
        return await self._off_loop(_moving_window, await self._key(_MOVING, key), limit, expiry)

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: float, amount: float = 1) -> bool:
        units = _units(amount)
        if units > limit or units == 0:
            return units == 0
        policy, each = _counter(limit, expiry)
        return _by_the_store(await self.limiter.take(await self._key(_COUNTER, key), policy, units * each)).allowed

    async def get_sliding_window(self, key: str, expiry: float) -> tuple[int, float, int, float]:
        return await self._off_loop(_sliding_window, await self._key(_COUNTER, key), expiry)

    async def clear_sliding_window(self, key: str, expiry: float) -> None:
        await self.limiter.reset(await self._key(_COUNTER, key))

    async def _key(self, letter: str, key: str) -> str:
        generation = self._generation
        if generation is None:
            return f"{letter}:{key}"
        if generation.is_old:
            generation.read(await self.limiter.peek(_GENERATION, _GENERATION_POLICY))
        return generation.key(letter, key)

    async def _off_loop(self, call: Callable[..., _Reply], *arguments: Any) -> _Reply:
        if self._generation is None:
            return call(self._blocking, *arguments)
        return await asyncio.to_thread(call, self._blocking, *arguments)
