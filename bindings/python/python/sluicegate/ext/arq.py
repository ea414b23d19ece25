"""Limits of arq jobs, which are delayed instead of denied:

    limiter = aio.Limiter.connect("redis://127.0.0.1/")

    @limited(limiter, "leaky-queue:30/1m", key=lambda user: f"mail:{user}")
    async def send_mail(ctx, user): ...

A job that may not run yet is deferred, and keeps the worker free. It does not use up `max_tries`. One that can never pass fails with
`sluicegate.Denied`.
"""

from __future__ import annotations

try:
    from arq import Retry
    from arq.constants import retry_key_prefix
except ImportError as error:
    raise ImportError("sluicegate.ext.arq needs the package `arq`: pip install arq") from error

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from .. import Policy, aio
from .._policy import Span
from ._kind import of_kind
from ._tasks import CostOf, KeyOf, TaskLimit

__all__ = ["limited"]

_Job = Callable[..., Awaitable[Any]]
# Prefix of the id of a job with reserved units, in the Redis of arq; and how long that is kept after its time, in
# milliseconds.
_RESERVED, _KEPT = "sluicegate:reserved:", 86_400_000


def limited(
    limiter: aio.Limiter, policy: Policy | str, *, key: KeyOf | None = None, cost: CostOf = 1, max_wait: Span = 3600
) -> Callable[[_Job], _Job]:
    """Limits a job. `key` is a text or bytes, or a function of the job's arguments; otherwise it is module and name of the function. A job
    that would have to wait longer than `max_wait` tries again later."""

    of_kind(limiter, aio.Limiter)

    def decorate(job: _Job) -> _Job:
        limit, name = TaskLimit(policy, key, cost, max_wait), f"{job.__module__}.{job.__qualname__}"

        @functools.wraps(job)
        async def run(ctx: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            redis, reserved = ctx["redis"], _RESERVED + ctx["job_id"]
            if not await redis.delete(reserved):
                start = await limit.start_async(limiter, name, args, kwargs)
                if start.delay or not start.reserved:
                    if start.reserved:
                        await redis.set(reserved, b"", px=int(start.delay * 1000) + _KEPT)
                    # The next start counts this one again.
                    await redis.decr(retry_key_prefix + ctx["job_id"])
                    raise Retry(start.delay)
            return await job(ctx, *args, **kwargs)

        return run

    return decorate
