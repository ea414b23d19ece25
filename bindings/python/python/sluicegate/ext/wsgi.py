"""Middleware for WSGI: Flask, Bottle, Django, or any other application.

    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, Limiter.in_memory(), "gcra:100/1m")
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .. import Limiter
from ._http import ClientAddress, CostOf, Headers, KeyOf, PolicyOf, Rule, headers_of
from ._kind import of_kind

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["ClientAddress", "RateLimitMiddleware"]


def client_of(address: ClientAddress) -> KeyOf[WSGIEnvironment]:
    """The key of a request by the address of its client."""
    name = "HTTP_" + address.header.upper().replace("-", "_")

    def key(environ: WSGIEnvironment) -> str | None:
        line = environ.get(name)
        return address.of(environ.get("REMOTE_ADDR"), [line.encode("latin-1")] if line else [])

    return key


class RateLimitMiddleware:
    """Limits the requests of an application. Its parameters are those of `sluicegate.ext.asgi.RateLimitMiddleware`, with functions
    of the environment. Without a `name`, that of an application below a path (`SCRIPT_NAME`) is its path."""

    def __init__(
        self,
        app: WSGIApplication,
        limiter: Limiter,
        policy: PolicyOf[WSGIEnvironment],
        *,
        name: str | None = None,
        key: KeyOf[WSGIEnvironment] | ClientAddress | None = None,
        cost: CostOf[WSGIEnvironment] = 1,
    ) -> None:
        if key is None or isinstance(key, ClientAddress):
            key = client_of(key or ClientAddress())
        self._app, self._limiter = app, of_kind(limiter, Limiter)
        self._rule = Rule(policy, name, key, cost)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        name = self._rule.name_in(environ, environ.get("SCRIPT_NAME") or "default")
        rejection = self._rule.check(self._limiter, environ, name, environ)
        if rejection is not None:
            body = rejection.body.encode()
            headers = [*rejection.headers, ("Content-Length", str(len(body)))]
            start_response(f"{rejection.status} {rejection.reason}", headers)
            return [body]

        def start_with_headers(status: str, headers: Headers, exc_info: Any = None) -> Any:
            return start_response(status, with_headers(headers, headers_of(environ)), exc_info)

        return self._app(environ, start_with_headers)


def with_headers(headers: Headers, fields: Headers) -> Headers:
    """The headers of a response, and those of decisions, which replace others of the same name."""
    ours = {name.lower() for name, _ in fields}
    return [(name, value) for name, value in headers if name.lower() not in ours] + fields
