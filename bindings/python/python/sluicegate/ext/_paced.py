"""Requests at the pace of a policy, and not during the pauses that a third party requests.

What happens is written once, as generators of steps: `run` and `run_async` take the steps on a limiter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from .. import Decision, Denied, Limiter, Policy, StoreError, aio
from .._limiter import Key
from ._pause import key_of_pause, missing, policy_of, requested_pause, retries

# The name of a method of a limiter with its arguments; or of the time to sleep.
Step = tuple[str, tuple[Any, ...]]
Steps = Generator[Step, Any, None]


@dataclass
class Pace:
    """How requests are sent. Without a decision of the store, they fail by `StoreError`. `retries` is how often one is sent again,
    and `timeout` how long it may wait each time."""

    policy: Union[Policy, str]
    timeout: float
    retries: int
    max_pause: float
    sleep: Callable[[float], object] = time.sleep
    sleep_async: Callable[[float], Awaitable[object]] = asyncio.sleep
    clock: Callable[[], float] = field(default=time.monotonic)

    def __post_init__(self) -> None:
        for name, most in (("timeout", 86_400), ("retries", 1000), ("max_pause", 86_400)):
            if not 0 <= (value := getattr(self, name)) <= most:
                raise ValueError(f"invalid {name} `{value}`: expected 0 to {most}")
        # An invalid text is an error here, not at the first request.
        policy = Policy(self.policy) if isinstance(self.policy, str) else self.policy
        if policy.on_error in (None, "deny"):
            # Without the store, a denial is not a full queue: it is an error at once, and no reason to wait.
            policy = Policy(str(policy), on_error="fail", lease=policy.lease)
        self._policy = policy
        self._peek = policy_of(1, self._policy.on_error)

    def waits(self, key: Key) -> Steps:
        """Waits until a request may be sent. Raises `Denied` if that takes too long."""
        end = self.clock() + self.timeout
        while True:
            yield from self._pauses(key, end)
            decision: Decision = yield "wait", (key, self._policy, max(end - self.clock(), 0.0))
            if not decision:
                raise Denied(decision)
            # A pause may have begun in the meantime: then the request queues again, so that all come at the pace of the policy.
            if (yield "peek", (key_of_pause(key), self._peek)):
                return

    def _pauses(self, key: Key, end: float) -> Steps:
        while True:
            paused: Decision = yield "peek", (key_of_pause(key), self._peek)
            if paused:
                return
            pause = paused.reset_after.total_seconds()
            if self.clock() + pause > end:
                raise Denied(paused)
            yield "sleep", (pause,)

    def start_pause(self, key: Key, status: int, headers: Mapping[str, str]) -> Steps:
        """Starts the pause that a response requests."""
        pause = min(requested_pause(status, headers), self.max_pause)
        if not pause:
            return
        try:
            paused: Decision = yield "peek", (key_of_pause(key), self._peek)
            millis, lacks = missing(pause, paused.reset_after)
            if lacks > 0:
                yield "take", (key_of_pause(key), policy_of(millis, self._policy.on_error), lacks)
        except StoreError:
            # The response has arrived; the next request queries the store again.
            return

    def again(self, method: str, status: int, sent: int) -> bool:
        """Whether to send a request again after `sent` times."""
        return sent <= self.retries and retries(method, status)

    def run(self, limiter: Limiter, steps: Steps) -> None:
        """Takes steps on a limiter."""
        reply: Any = None
        try:
            step = next(steps)
            while True:
                try:
                    reply = self._step(limiter, step)
                except StoreError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration:
            return

    def _step(self, limiter: Limiter, step: Step) -> object:
        name, arguments = step
        if name == "sleep":
            return self.sleep(*arguments)
        if name == "wait":
            key, policy, timeout = arguments
            return limiter.wait(key, policy, timeout=timeout)
        return getattr(limiter, name)(*arguments)

    async def run_async(self, limiter: aio.Limiter, steps: Steps) -> None:
        """Takes steps on a limiter for asyncio."""
        reply: Any = None
        try:
            step = next(steps)
            while True:
                try:
                    reply = await self._step_async(limiter, step)
                except StoreError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration:
            return

    async def _step_async(self, limiter: aio.Limiter, step: Step) -> object:
        name, arguments = step
        if name == "sleep":
            return await self.sleep_async(*arguments)
        if name == "wait":
            key, policy, timeout = arguments
            return await limiter.wait(key, policy, timeout=timeout)
        return await getattr(limiter, name)(*arguments)
