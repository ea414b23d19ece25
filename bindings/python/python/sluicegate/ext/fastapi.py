"""Limits of routes in FastAPI, as a dependency:

    hello_limit = RateLimit(aio.Limiter.in_memory(), "gcra:30/1m:burst=16")

    @app.get("/hello", dependencies=[Depends(hello_limit)])

`sluicegate.ext.asgi.RateLimitMiddleware` limits a whole application.
"""

from __future__ import annotations

try:
    from fastapi import FastAPI, HTTPException, Request, Response
    from fastapi.responses import Response as PlainResponse
except ImportError as error:
    raise ImportError("sluicegate.ext.fastapi needs the package `fastapi`: pip install fastapi") from error

import json

from .. import aio
from ._http import ClientAddress, CostOf, KeyOf, PolicyOf, Rejection, Rule, headers_of
from ._kind import of_kind
from .asgi import Scope, client_of, mount_of

__all__ = ["ClientAddress", "RateLimit", "RateLimited", "install"]


class RateLimited(HTTPException):
    """A request does not pass: status 429, or 503 without a decision. `detail` is the problem document (RFC 9457)."""

    def __init__(self, rejection: Rejection) -> None:
        # The handler of FastAPI sets the media type of its own body.
        headers = {name: value for name, value in rejection.headers if name != "Content-Type"}
        super().__init__(rejection.status, detail=json.loads(rejection.body), headers=headers)
        self.rejection = rejection


class RateLimit:
    """A dependency that limits requests. Its parameters are those of `sluicegate.ext.asgi.RateLimitMiddleware`, with functions of
    the request. Without a `name`, it is that of the route, such as `POST /login`: each route has a count of its own. Routes that shall share
    one have the same `name`. The headers of the decision are set on responses that FastAPI makes from the value of a route."""

    def __init__(
        self,
        limiter: aio.Limiter,
        policy: PolicyOf[Request],
        *,
        name: str | None = None,
        key: KeyOf[Request] | ClientAddress | None = None,
        cost: CostOf[Request] = 1,
    ) -> None:
        if key is None or isinstance(key, ClientAddress):
            of_scope = client_of(key or ClientAddress())
            key = lambda request: of_scope(request.scope)  # noqa: E731
        self._limiter, self._rule = of_kind(limiter, aio.Limiter), Rule(policy, name, key, cost)

    async def __call__(self, request: Request, response: Response) -> None:
        """Decides on a request, and raises `RateLimited` if it does not pass."""
        name = self._rule.name_in(request.scope, _name_of(request.scope))
        rejection = await self._rule.check_async(self._limiter, request, name, request.scope)
        if rejection is not None:
            raise RateLimited(rejection)
        for name, value in headers_of(request.scope):
            response.headers[name] = value


def _name_of(scope: Scope) -> str:
    route = scope.get("route")
    methods = ",".join(sorted(getattr(route, "methods", None) or [scope["method"]]))
    return f"{methods} {mount_of(scope)}{getattr(route, 'path_format', '')}"


def install(app: FastAPI) -> None:
    """Makes `app` respond to rejected requests with the problem document, instead of FastAPI's own form around it."""

    async def handle(_: Request, error: Exception) -> Response:
        assert isinstance(error, RateLimited)
        rejection = error.rejection
        return PlainResponse(rejection.body, rejection.status, dict(rejection.headers))

    app.add_exception_handler(RateLimited, handle)
