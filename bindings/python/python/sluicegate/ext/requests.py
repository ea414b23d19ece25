"""Requests of `requests` that obey a third party's limit, from any number of processes:

    session.mount("https://", PacedAdapter(Limiter.connect("redis://127.0.0.1/"), "leaky-queue:30/1m"))

It does what `sluicegate.ext.httpx` does. A request that would wait longer than `timeout` raises `requests.exceptions.ConnectTimeout`,
caused by `sluicegate.Denied`; without a decision of the store, `requests.exceptions.ConnectionError`.
"""

from __future__ import annotations

try:
    import requests
    import requests.adapters
except ImportError as error:
    raise ImportError("sluicegate.ext.requests needs the package `requests`: pip install requests") from error

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from .. import Denied, Limiter, Policy, StoreError
from .._limiter import Key
from ._kind import of_kind
from ._paced import Pace

__all__ = ["PacedAdapter"]


def _host(request: requests.PreparedRequest) -> str:
    return urlsplit(request.url or "").hostname or ""


class PacedAdapter(requests.adapters.HTTPAdapter):
    """An adapter for `Session.mount`. Other settings are those of `HTTPAdapter`."""

    def __init__(
        self,
        limiter: Limiter,
        policy: Policy | str,
        *,
        key: Callable[[requests.PreparedRequest], Key] = _host,
        timeout: float = 30.0,
        retries: int = 2,
        max_pause: float = 3600.0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self._limiter, self._key = of_kind(limiter, Limiter), key
        self._pace = Pace(policy, timeout, retries, max_pause)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        key, sent, pace = self._key(request), 0, self._pace
        replays = _replays(request)
        response: requests.Response | None = None
        while True:
            try:
                pace.run(self._limiter, pace.waits(key))
            except Denied as denied:
                if response is not None:
                    return response
                raise requests.exceptions.ConnectTimeout(str(denied), request=request) from denied
            except StoreError as error:
                raise requests.exceptions.ConnectionError(str(error), request=request) from error
            response, sent = super().send(request, *args, **kwargs), sent + 1
            pace.run(self._limiter, pace.start_pause(key, response.status_code, response.headers))
            if not (replays and pace.again(request.method or "", response.status_code, sent)):
                return response
            # The body is read, so that its connection is free for others in the meantime.
            response.content


def _replays(request: requests.PreparedRequest) -> bool:
    """Whether the body can be sent again."""
    return request.body is None or isinstance(request.body, (bytes, str))
