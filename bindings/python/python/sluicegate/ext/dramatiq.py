"""Limits of dramatiq actors, whose messages are delayed instead of denied:

    broker.add_middleware(RateLimit(Limiter.connect("redis://127.0.0.1/")))

    @dramatiq.actor(limit_policy="leaky-queue:30/1m", limit_key=lambda user: f"mail:{user}")
    def send_mail(user): ...

The options of an actor are `limit_policy`, `limit_key` (a text or bytes, or a function of the arguments; otherwise the name of the actor), `limit_cost`
and `limit_max_wait`. A message that may not be processed yet goes back to the broker with a delay, and keeps the worker free. It does not
use up `max_retries`. One that can never pass fails with a
`LimitError`, whose cause is `sluicegate.Denied`.
"""

from __future__ import annotations

try:
    import dramatiq
    from dramatiq.middleware import Middleware, MiddlewareError, SkipMessage
except ImportError as error:
    raise ImportError("sluicegate.ext.dramatiq needs the package `dramatiq`: pip install dramatiq") from error

from typing import Any

from .. import Limiter
from ._kind import of_kind
from ._tasks import TaskLimit

__all__ = ["LimitError", "RateLimit"]

# The option of a message with reserved units: the number of retries at that time, because a retry needs units of its own.
_RESERVED = "sluicegate_reserved"


class LimitError(MiddlewareError):
    """The limit of an actor is invalid, or a message fails because of it; its cause has the reason."""


class RateLimit(Middleware):
    """The middleware. It runs before those that measure messages or limit their age."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = of_kind(limiter, Limiter)
        self._limits: dict[str, TaskLimit] = {}

    @property
    def actor_options(self) -> set[str]:
        return {"limit_cost", "limit_key", "limit_max_wait", "limit_policy"}

    def before_declare_actor(self, broker: dramatiq.Broker, actor: dramatiq.Actor[Any, Any]) -> None:
        options = actor.options
        policy = options.get("limit_policy")
        if policy is None:
            return
        key, cost = options.get("limit_key"), options.get("limit_cost", 1)
        try:
            self._limits[actor.actor_name] = TaskLimit(policy, key, cost, options.get("limit_max_wait", 3600))
        except Exception as error:
            # dramatiq logs other errors, and goes on without the limit.
            raise LimitError(f"invalid limit of actor `{actor.actor_name}`: {error}") from error

    def before_process_message(self, broker: dramatiq.Broker, message: Any) -> None:
        limit = self._limits.get(message.actor_name)
        if limit is None:
            return
        try:
            starts = self._starts(limit, broker, message)
        except Exception as error:
            raise LimitError(f"no start of `{message}`: {error}") from error
        if not starts:
            raise SkipMessage("limited")

    def _starts(self, limit: TaskLimit, broker: dramatiq.Broker, message: Any) -> bool:
        """Whether a message may be processed now. Otherwise it is in the broker again."""
        retries = message.options.get("retries", 0)
        if message.options.get(_RESERVED) == retries:
            return True
        start = limit.start(self._limiter, message.actor_name, message.args, message.kwargs)
        if start.reserved and not start.delay:
            return True
        options = {_RESERVED: retries if start.reserved else None}
        # Rounded up: a reservation is not for use before its time.
        broker.enqueue(message.copy(options=options), delay=-int(-start.delay * 1000 // 1))
        return False
