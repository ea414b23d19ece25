"""Limits of functions and coroutine functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, Union

from ._errors import Denied
from ._limiter import Key, Limiter
from ._policy import Policy, Span
from .aio import Limiter as AioLimiter

_Function = TypeVar("_Function", bound=Callable[..., Any])


def read_policy(policy: Policy | str) -> Policy:
    """The policy, read."""
    read = Policy(policy) if isinstance(policy, str) else policy
    if not isinstance(read, Policy):
        raise TypeError(f"invalid policy of type `{type(read).__name__}`: expected a Policy or its text")
    return read


def check_key_and_cost(key: object, cost: object) -> None:
    """Raises a `TypeError` that names the one that is neither a value nor a function."""
    for name, value, kinds, expected in (
        ("key", key, (str, bytes), "str or bytes"),
        ("cost", cost, (int,), "a number"),
    ):
        if not isinstance(value, kinds) and not callable(value):
            found = type(value).__name__
            raise TypeError(f"invalid {name} of type `{found}`: expected {expected}, or a function of the arguments")


def limited(
    limiter: Limiter | AioLimiter,
    policy: Policy | str,
    *,
    key: Union[Key, Callable[..., Key]],
    cost: Union[int, Callable[..., int]] = 1,
    wait: Span | None = None,
) -> Callable[[_Function], _Function]:
    """Takes units before each call of a function, and raises `Denied` if they are not available. With `wait`, it waits for them up
    to so many seconds, or a `timedelta`. `key` and `cost` may be functions of the arguments of the call.

    >>> from sluicegate import Denied, Limiter, limited
    >>> @limited(Limiter.in_memory(), "fixed-window:1/1h", key=lambda user: f"mail:{user}")
    ... def send_mail(user):
    ...     return f"sent to {user}"
    >>> send_mail("ada")
    'sent to ada'
    >>> try:
    ...     send_mail("ada")
    ... except Denied as denied:
    ...     print(denied.decision.allowed)
    False

    A coroutine function needs a `sluicegate.aio.Limiter`, another function a `sluicegate.Limiter`.
    """
    # An invalid argument is an error here, not at the first call.
    parsed = read_policy(policy)
    check_key_and_cost(key, cost)

    def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Key, Policy, int]:
        found = key(*args, **kwargs) if callable(key) else key
        return found, parsed, cost(*args, **kwargs) if callable(cost) else cost

    def decorate(function: _Function) -> _Function:
        is_async = inspect.iscoroutinefunction(function)
        if is_async != isinstance(limiter, AioLimiter):
            expected = "sluicegate.aio.Limiter" if is_async else "sluicegate.Limiter"
            raise TypeError(f"invalid limiter of type `{type(limiter).__name__}` for `{function.__name__}`: expected {expected}")
        if isinstance(limiter, AioLimiter):
            return _asynchronous(function, limiter, arguments, wait)
        return _synchronous(function, limiter, arguments, wait)

    return decorate


_Arguments = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Key, Policy, int]]


def _synchronous(function: _Function, limiter: Limiter, arguments: _Arguments, wait: Span | None) -> _Function:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        taken = arguments(args, kwargs)
        decision = limiter.take(*taken) if wait is None else limiter.wait(*taken, timeout=wait)
        if not decision:
            raise Denied(decision, taken[2])
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def _asynchronous(function: _Function, limiter: AioLimiter, arguments: _Arguments, wait: Span | None) -> _Function:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        taken = arguments(args, kwargs)
        decision = await (limiter.take(*taken) if wait is None else limiter.wait(*taken, timeout=wait))
        if not decision:
            raise Denied(decision, taken[2])
        return await function(*args, **kwargs)

    return call  # type: ignore[return-value]
