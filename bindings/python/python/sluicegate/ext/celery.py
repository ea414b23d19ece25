"""Limits of Celery tasks, which are delayed instead of denied:

    limiter = Limiter.connect("redis://127.0.0.1/")

    @app.task(base=limited(limiter, "leaky-queue:30/1m", key=lambda user: f"mail:{user}"))
    def send_mail(user): ...

A task that may not run yet goes back to the broker with a countdown, and keeps the worker free. It does not use up `max_retries`. Tasks that the
program calls directly, or eagerly, are not limited. As for all countdowns of Celery with a Redis broker, `max_wait` must be less than
`visibility_timeout`.
"""

from __future__ import annotations

try:
    import celery
    from celery.exceptions import Retry
except ImportError as error:
    raise ImportError("sluicegate.ext.celery needs the package `celery`: pip install celery") from error

from typing import Any

from .. import Limiter, Policy
from .._policy import Span
from ._kind import of_kind
from ._tasks import CostOf, KeyOf, TaskLimit

__all__ = ["limited"]

# The header of a task with reserved units: the number of retries at that time, because a retry needs units of its own.
_RESERVED = "sluicegate_reserved"


def limited(
    limiter: Limiter,
    policy: Policy | str,
    *,
    key: KeyOf | None = None,
    cost: CostOf = 1,
    max_wait: Span = 1800,
    base: type[celery.Task] = celery.Task,
) -> type[celery.Task]:
    """The base class of a limited task. `key` is a text or bytes, or a function of the task's arguments; otherwise it is the name of
    the task. A task that would have to wait longer than `max_wait` tries again later. One that can never pass fails with `Denied`.
    """
    of_kind(limiter, Limiter)
    limit = TaskLimit(policy, key, cost, max_wait)

    class LimitedTask(base):  # type: ignore[misc]
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            request = self.request
            headers = request.headers or {}
            ready = request.called_directly or request.is_eager or headers.get(_RESERVED) == request.retries
            if not ready:
                self._limit(args, kwargs)
            return super().__call__(*args, **kwargs)

        def _limit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            start = limit.start(limiter, str(self.name), args, kwargs)
            if start.reserved and not start.delay:
                return
            request = self.request
            headers = {**(request.headers or {}), _RESERVED: request.retries if start.reserved else None}
            signature: Any = self.signature_from_request(
                request, countdown=start.delay, retries=request.retries, headers=headers
            )
            signature.apply_async()
            raise Retry("limited", when=start.delay)

    return LimitedTask
