"""Requests of httpx that obey a third party's limit, from any number of processes:

    transport = PacedTransport(Limiter.connect("redis://127.0.0.1/"), "leaky-queue:30/1m")
    client = httpx.Client(transport=transport)

Each request waits in the queue of its key, which is the host unless `key` says otherwise. A response with status 429 or 503 and `Retry-After`, or
with `RateLimit` or `X-RateLimit-*` fields that leave nothing, makes a pause of up to `max_pause` seconds for all processes. Afterwards
requests leave at the pace of the policy again. A 429, and a 503 to an idempotent request, is sent again up to `retries` times
in the same way; then, or if that would take longer than `timeout`, the response is returned as it is. A request that would wait longer than
`timeout` before it is first sent raises `httpx.PoolTimeout`, caused by `sluicegate.Denied`. While the store makes no decision, requests fail with `httpx.ConnectError` at once,
unless the policy's `on_error` is `"allow"` or `"local"`.
"""

from __future__ import annotations

try:
    import httpx
except ImportError as error:
    raise ImportError("sluicegate.ext.httpx needs the package `httpx`: pip install httpx") from error

from collections.abc import Callable

from .. import Denied, Limiter, Policy, StoreError, aio
from .._limiter import Key
from ._kind import of_kind
from ._paced import Pace

__all__ = ["AsyncPacedTransport", "PacedTransport"]


def _host(request: httpx.Request) -> str:
    return request.url.host


class PacedTransport(httpx.BaseTransport):
    """A transport for `httpx.Client`, in front of `transport`."""

    def __init__(
        self,
        limiter: Limiter,
        policy: Policy | str,
        *,
        key: Callable[[httpx.Request], Key] = _host,
        timeout: float = 30.0,
        retries: int = 2,
        max_pause: float = 3600.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._limiter, self._key = of_kind(limiter, Limiter), key
        self._pace = Pace(policy, timeout, retries, max_pause)
        self._transport = transport or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        key, sent, pace = self._key(request), 0, self._pace
        replays = _replays(request)
        response: httpx.Response | None = None
        while True:
            try:
                pace.run(self._limiter, pace.waits(key))
            except Denied as denied:
                if response is not None:
                    return response
                raise httpx.PoolTimeout(str(denied), request=request) from denied
            except StoreError as error:
                raise httpx.ConnectError(str(error), request=request) from error
            response, sent = self._transport.handle_request(request), sent + 1
            pace.run(self._limiter, pace.start_pause(key, response.status_code, response.headers))
            if not (replays and pace.again(request.method, response.status_code, sent)):
                return response
            # The body is read, so that its connection is free for others in the meantime.
            response.read()

    def close(self) -> None:
        self._transport.close()


class AsyncPacedTransport(httpx.AsyncBaseTransport):
    """A transport for `httpx.AsyncClient`, in front of `transport`."""

    def __init__(
        self,
        limiter: aio.Limiter,
        policy: Policy | str,
        *,
        key: Callable[[httpx.Request], Key] = _host,
        timeout: float = 30.0,
        retries: int = 2,
        max_pause: float = 3600.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._limiter, self._key = of_kind(limiter, aio.Limiter), key
        self._pace = Pace(policy, timeout, retries, max_pause)
        self._transport = transport or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        key, sent, pace = self._key(request), 0, self._pace
        replays = _replays(request)
        response: httpx.Response | None = None
        while True:
            try:
                await pace.run_async(self._limiter, pace.waits(key))
            except Denied as denied:
                if response is not None:
                    return response
                raise httpx.PoolTimeout(str(denied), request=request) from denied
            except StoreError as error:
                raise httpx.ConnectError(str(error), request=request) from error
            response, sent = await self._transport.handle_async_request(request), sent + 1
            await pace.run_async(self._limiter, pace.start_pause(key, response.status_code, response.headers))
            if not (replays and pace.again(request.method, response.status_code, sent)):
                return response
            # The body is read, so that its connection is free for others in the meantime.
            await response.aread()

    async def aclose(self) -> None:
        await self._transport.aclose()


def _replays(request: httpx.Request) -> bool:
    """Whether the body can be sent again."""
    return isinstance(request.stream, httpx.ByteStream)
