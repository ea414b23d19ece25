"""The limiter for asyncio: the same calls, awaited.

>>> import asyncio
>>> from sluicegate import aio
>>> async def admit() -> bool:
...     limiter = aio.Limiter.in_memory()
...     return bool(await limiter.take("user7", "gcra:30/1m"))
>>> asyncio.run(admit())
True
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast
from weakref import WeakKeyDictionary

from . import _native
from ._errors import Denied, StoreError
from ._limiter import Key, Keyed, Settings, check_native, check_settings, check_types, list_of, memory_of, some
from ._native import Decision, ManualClock
from ._policy import Policy, Span

if TYPE_CHECKING:
    from typing_extensions import Unpack

_Limiter = TypeVar("_Limiter", bound="Limiter")
_Any = TypeVar("_Any")
_Error = TypeVar("_Error", bound=Exception)
_Method = TypeVar("_Method", bound=Callable[..., Coroutine[Any, Any, Any]])
_Reply = TypeVar("_Reply")
_bridges: WeakKeyDictionary[asyncio.AbstractEventLoop, _native.Bridge] = WeakKeyDictionary()


# The descriptors of a parent are not those of its child.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_bridges.clear)


class _Reader:
    """What an event loop calls when calls have ended. The loop has the only reference to it: when the loop is closed, its open calls
    are ended."""

    __slots__ = ("_bridge",)

    def __init__(self, bridge: _native.Bridge) -> None:
        self._bridge = bridge

    def __call__(self) -> None:
        self._bridge.drain()

    def __del__(self) -> None:
        self._bridge.abort_all()


def _bridge(loop: asyncio.AbstractEventLoop) -> _native.Bridge:
    bridge = _bridges.get(loop)
    if bridge is None:
        bridge = _bridges[loop] = _native.Bridge()
        loop.add_reader(bridge.fileno(), _Reader(bridge))
    return bridge


async def _call(
    start: Callable[..., int | _Reply], *arguments: object, undo: Callable[[_Reply], object] | None = None
) -> _Reply:
    """Starts a call on the event loop, and awaits it. A task that is cancelled ends the call, and undoes one that has ended. The
    start returns the number of the call, or its reply if that is there at once."""
    loop = asyncio.get_running_loop()
    bridge = _bridge(loop)
    future: asyncio.Future[_Reply] = loop.create_future()
    call = start(bridge, future, *arguments)
    if not isinstance(call, int):
        return call
    try:
        return await future
    except asyncio.CancelledError:
        bridge.abort(call)
        # The reply may have come before the task was cancelled.
        if undo is not None and future.done() and not future.cancelled() and future.exception() is None:
            undo(future.result())
        raise


class _Call(Coroutine[Any, Any, _Reply]):
    """A call to be awaited. Its truth is no decision: to ask for it is an error."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, _Reply]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, _Reply]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __bool__(self) -> NoReturn:
        raise self._not_awaited(TypeError)

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(Decision, name):
            raise self._not_awaited(AttributeError)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _not_awaited(self, kind: type[_Error]) -> _Error:
        self.close()
        return _not_awaited(kind, getattr(self._coroutine, "__qualname__", "call"))

    def __repr__(self) -> str:
        return f"<awaitable of {self._coroutine!r}>"


def _not_awaited(kind: type[_Error], name: str) -> _Error:
    return kind(f"invalid use of `{name}` without `await`: await it")


def _awaited(method: _Method) -> _Method:
    """Makes a forgotten `await` an error, where the result decides. Type checkers see a coroutine function."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> _Call[Any]:
        return _Call(method(*args, **kwargs))

    return cast(_Method, call)


class Hold:
    """Units that are held until they are settled; or the denial of a hold. It is true if the units are held."""

    __slots__ = ("_native",)

    def __init__(self, native: _native.Hold) -> None:
        self._native = native

    @property
    def decision(self) -> Decision:
        """The decision on the hold."""
        return self._native.decision

    @property
    def id(self) -> bytes:
        """The id of the hold; empty once it is settled."""
        return bytes(self._native.id)

    @property
    def open(self) -> bool:
        """Whether units are still held, as far as this process has seen."""
        return self._native.open

    def __bool__(self) -> bool:
        return bool(self._native)

    @_awaited
    async def settle(self, used: int | list[int] | None = None) -> Decision:
        """Ends the hold, and charges the units used: a number, one for each key, or as many as were held. The decision
        is a denial if the hold has expired, or was settled before."""
        return await _call(self._native.start_settle, used)

    @_awaited
    async def renew(self) -> Decision:
        """Prolongs the hold by its lifetime from now on. The decision is a denial if it is not open."""
        return await _call(self._native.start_renew)

    async def __aenter__(self) -> Hold:
        self._native.check()
        return self

    async def __aexit__(self, *_: object) -> None:
        # The body has run, and the settle is repeated in the background.
        with suppress(StoreError):
            await self.settle()

    def __repr__(self) -> str:
        return repr(self._native)


class _Holding:
    """A hold to be awaited, or entered by `async with`."""

    __slots__ = ("_hold", "_start")

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._hold: Hold | None = None

    def __await__(self) -> Generator[Any, None, Hold]:
        return self._started().__await__()

    def __bool__(self) -> NoReturn:
        raise _not_awaited(TypeError, "Limiter.hold")

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(Hold, name):
            raise _not_awaited(AttributeError, "Limiter.hold")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    async def _started(self) -> Hold:
        return Hold(await self._start())

    async def __aenter__(self) -> Hold:
        self._hold = await self
        return await self._hold.__aenter__()

    async def __aexit__(self, *_: object) -> None:
        if self._hold is not None:
            await self._hold.__aexit__()


class Limiter:
    """Limits in this process (`in_memory`), or in a store that processes share (`connect`): as `sluicegate.Limiter`."""

    __slots__ = ("_is_local", "_native", "__weakref__")

    def __new__(cls: type[_Any], *given: object, **_: object) -> _Any:
        check_native(cls, given)
        return object.__new__(cls)

    def __init__(self, native: _native.Limiter) -> None:
        self._native = native
        self._is_local = native.is_local

    @classmethod
    def in_memory(
        cls: type[_Limiter], *, max_memory: int = 1 << 30, clock: ManualClock | None = None
    ) -> _Limiter:
        """A limiter in this process; see `sluicegate.Limiter.in_memory`."""
        return cls(memory_of(max_memory, clock))

    @classmethod
    def connect(cls: type[_Limiter], url: str, **settings: Unpack[Settings]) -> _Limiter:
        """A limiter in the store at `url`; see `sluicegate.Limiter.connect`."""
        check_types(url=url)
        check_settings(settings)
        return cls(_native.Limiter.connect(url, tasks=True, **settings))

    @_awaited
    async def take(self, key: Key, policy: Policy | str, cost: int = 1) -> Decision:
        """Takes `cost` units, all or none."""
        if self._is_local:
            return self._native.take(key, policy, cost)
        return await _call(self._native.start_apply, "take", key, policy, cost, None)

    @_awaited
    async def peek(self, key: Key, policy: Policy | str, cost: int = 1) -> Decision:
        """Returns what `take` would return, and changes nothing."""
        if self._is_local:
            return self._native.peek(key, policy, cost)
        return await _call(self._native.start_apply, "peek", key, policy, cost, None)

    @_awaited
    async def charge(self, key: Key, policy: Policy | str, cost: int = 1) -> Decision:
        """Takes `cost` units whether or not they fit, for a cost that is known only afterwards."""
        if self._is_local:
            return self._native.charge(key, policy, cost)
        return await _call(self._native.start_apply, "charge", key, policy, cost, None)

    @_awaited
    async def refund(self, key: Key, policy: Policy | str, cost: int = 1) -> Decision:
        """Gives back up to `cost` of the units in use."""
        if self._is_local:
            return self._native.refund(key, policy, cost)
        return await _call(self._native.start_apply, "refund", key, policy, cost, None)

    @_awaited
    async def require(self, key: Key, policy: Policy | str, cost: int = 1) -> Decision:
        """Takes `cost` units, or raises `Denied`."""
        decision = await self.take(key, policy, cost)
        if not decision:
            raise Denied(decision, cost)
        return decision

    @_awaited
    async def reserve(
        self, key: Key, policy: Policy | str, cost: int = 1, *, max_wait: Span
    ) -> Decision:
        """Takes `cost` units now, for use after `decision.delay`, which is at most `max_wait`."""
        if self._is_local:
            return self._native.reserve(key, policy, cost, max_wait=max_wait)
        return await _call(self._native.start_apply, "reserve", key, policy, cost, max_wait)

    @_awaited
    async def wait(
        self, key: Key, policy: Policy | str, cost: int = 1, *, timeout: Span, jitter: Span | None = None
    ) -> Decision:
        """Waits until `cost` units are taken, or returns a denial at once if that does not happen within `timeout`. A task
        that is cancelled before its time has come gives its units back."""
        if self._is_local:
            reply = self._native.poll_wait(key, policy, cost, timeout, jitter)
            return await _call(reply.start) if isinstance(reply, _native.PendingCall) else reply
        return await _call(self._native.start_wait, key, policy, cost, timeout, jitter)

    @_awaited
    async def reset(self, key: Key) -> bool:
        """Forgets the usage of `key`. Whether it had any."""
        if self._is_local:
            return self._native.reset(key)
        return bool(await _call(self._native.start_reset, key))

    @_awaited
    async def take_many(self, takes: Iterable[Keyed]) -> list[Decision]:
        """Takes from several keys, each by itself, in one round trip."""
        if self._is_local:
            return self._native.take_many(list_of("takes", takes))
        return await _call(self._native.start_take_many, list_of("takes", takes))

    @_awaited
    async def take_all(self, takes: Iterable[Keyed]) -> Decision:
        """Takes from all keys or from none. `decision.key` is the index of the binding key."""
        if self._is_local:
            return self._native.take_all(some("takes", takes))
        return await _call(self._native.start_take_all, some("takes", takes))

    def hold(
        self,
        key: Key,
        policy: Policy | str,
        cost: int = 1,
        *,
        ttl: Span | None = None,
        id: Key | None = None,
        timeout: Span = 0,
        renew: bool = False,
    ) -> _Holding:
        """Holds `cost` units until they are settled, or for `ttl`: `async with limiter.hold(...)`, or `await` it. A task that
        is cancelled while it waits holds nothing; with an `id`, it may leave the hold open until that expires, because another call may have
        the same id."""
        return self.hold_all([(key, policy, cost)], ttl=ttl, id=id, timeout=timeout, renew=renew)

    def hold_all(
        self,
        holds: Iterable[Keyed],
        *,
        ttl: Span | None = None,
        id: Key | None = None,
        timeout: Span = 0,
        renew: bool = False,
    ) -> _Holding:
        """Holds units of all keys or of none. `settle` takes one number, or one for each key."""
        check_types(renew=renew)
        native, keys = self._native, some("holds", holds)
        undo = _native.Hold.cancel

        async def start() -> _native.Hold:
            if not self._is_local:
                return await _call(native.start_hold, keys, id, ttl, timeout, renew, undo=undo)
            reply = native.poll_hold(keys, id, ttl, timeout, renew)
            return await _call(reply.start, undo=undo) if isinstance(reply, _native.PendingCall) else reply

        return _Holding(start)

    def counters(self) -> dict[str, int]:
        """Decisions by source, and other counts, of a store in another process."""
        return self._native.counters()

    @_awaited
    async def close(self) -> None:
        """Gives unused leased units back to the store."""
        if not self._is_local:
            await asyncio.to_thread(self._native.close)

    async def __aenter__(self: _Limiter) -> _Limiter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
