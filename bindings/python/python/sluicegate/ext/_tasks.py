"""When tasks of queues may run: what Celery, arq and dramatiq share."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union

from .. import Decision, Denied, Limiter, OperationError, Policy, StoreError, aio
from .._limited import check_key_and_cost, read_policy
from .._limiter import Key
from .._policy import Span

# Delay of a task while the store makes no decision, in seconds.
_UNDECIDED = 1.0

KeyOf = Union[Key, Callable[..., Key]]
CostOf = Union[int, Callable[..., int]]


@dataclass(frozen=True)
class Start:
    """When a task may run: after `delay` seconds, with units that are reserved for it, or else to try again then."""

    delay: float
    reserved: bool


class TaskLimit:
    """The limit of a task. Where its policy can reserve, a task reserves its units for a time within `max_wait`, and runs at
    that time: tasks run in the order of their first starts, at the pace of the policy."""

    def __init__(self, policy: Policy | str, key: KeyOf | None, cost: CostOf, max_wait: Span) -> None:
        # An invalid argument is an error here, not at the first task.
        self._policy = read_policy(policy)
        check_key_and_cost("" if key is None else key, cost)
        self._key, self._cost, self._max_wait = key, cost, max_wait
        try:
            Limiter.in_memory(max_memory=1 << 20).reserve("task", self._policy, max_wait=max_wait)
            self._reserves = True
        except OperationError:
            self._reserves = False

    def start(self, limiter: Limiter, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Start:
        """Decides on a task with this name, which is its key if it has no other, and these arguments. Raises `Denied` if it never passes."""
        key, cost = self._arguments(name, args, kwargs)
        try:
            if self._reserves:
                return self._started(limiter.reserve(key, self._policy, cost, max_wait=self._max_wait))
            return self._started(limiter.take(key, self._policy, cost))
        except StoreError:
            return _put_off(_UNDECIDED)

    async def start_async(self, limiter: aio.Limiter, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Start:
        """The same on an event loop."""
        key, cost = self._arguments(name, args, kwargs)
        try:
            if self._reserves:
                return self._started(await limiter.reserve(key, self._policy, cost, max_wait=self._max_wait))
            return self._started(await limiter.take(key, self._policy, cost))
        except StoreError:
            return _put_off(_UNDECIDED)

    def _arguments(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Key, int]:
        key = self._key(*args, **kwargs) if callable(self._key) else self._key
        return name if key is None else key, self._cost(*args, **kwargs) if callable(self._cost) else self._cost

    def _started(self, decision: Decision) -> Start:
        if decision:
            return Start(decision.delay.total_seconds(), True)
        if decision.never or decision.retry_after is None:
            raise Denied(decision)
        undecided = _UNDECIDED if decision.source == "fallback" else 0.0
        return _put_off(max(decision.retry_after.total_seconds(), undecided))


def _put_off(seconds: float) -> Start:
    # Not all at one time.
    return Start(seconds + random.uniform(0, max(0.1, seconds / 4)), False)
