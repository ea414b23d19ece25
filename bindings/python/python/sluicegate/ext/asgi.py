"""Middleware for ASGI: Starlette, Quart, Django, or any other application.

    app = RateLimitMiddleware(app, limiter=aio.Limiter.in_memory(), policy="gcra:100/1m")
    app.add_middleware(RateLimitMiddleware, limiter=..., policy=...)  # with Starlette and FastAPI
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from .. import aio
from ._http import ClientAddress, CostOf, Headers, KeyOf, PolicyOf, Rejection, Rule, headers_of
from ._kind import of_kind

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

__all__ = ["ClientAddress", "RateLimitMiddleware"]


def client_of(address: ClientAddress) -> KeyOf[Scope]:
    """The key of a request by the address of its client."""
    name = address.header.encode()

    def key(scope: Scope) -> str | None:
        client = scope.get("client")
        lines = [value for field, value in scope["headers"] if field == name]
        return address.of(client[0] if client else None, lines)

    return key


def mount_of(scope: Scope) -> str:
    """The path under which Starlette has mounted the application of a scope, with `{name}` for each parameter in it."""
    root = str(scope.get("root_path", ""))
    mount = root.removeprefix(str(scope.get("app_root_path", root)))
    names = {str(value): f"{{{name}}}" for name, value in scope.get("path_params", {}).items()}
    return "/".join(names.get(part, part) for part in mount.split("/"))


class RateLimitMiddleware:
    """Limits the requests of an application, and the handshakes of its WebSockets.

    `policy` is a policy, or a function of the scope that returns one; None means no limit. `key` says what is limited: the
    address of the client, or a function of the scope that returns a text, bytes, or a tuple of them. `name` is that of the policy in
    keys and headers: `default` unless it is given, or the path of an application that Starlette has mounted. A denial gets status 429, a request without a decision 503, and a WebSocket is closed.
    """

    def __init__(
        self,
        app: App,
        limiter: aio.Limiter,
        policy: PolicyOf[Scope],
        *,
        name: str | None = None,
        key: KeyOf[Scope] | ClientAddress | None = None,
        cost: CostOf[Scope] = 1,
    ) -> None:
        if key is None or isinstance(key, ClientAddress):
            key = client_of(key or ClientAddress())
        self._app, self._limiter = app, of_kind(limiter, aio.Limiter)
        self._rule = Rule(policy, name, key, cost)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        name = self._rule.name_in(scope, mount_of(scope) or "default")
        rejection = await self._rule.check_async(self._limiter, scope, name, scope)
        if rejection is not None:
            return await reject(rejection, scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept"):
                message["headers"] = with_headers(message.get("headers", ()), headers_of(scope))
            await send(message)

        await self._app(scope, receive, send_with_headers)


def with_headers(headers: Iterable[tuple[bytes, bytes]], fields: Headers) -> list[tuple[bytes, bytes]]:
    """The headers of a response, and those of decisions, which replace others of the same name."""
    ours = {name.lower().encode(): value.encode() for name, value in fields}
    return [(name, value) for name, value in headers if name.lower() not in ours] + [*ours.items()]


async def reject(rejection: Rejection, scope: Scope, receive: Receive, send: Send) -> None:
    """Responds to a request that does not pass."""
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await receive()
        # Before it is accepted, servers answer this with status 403.
        return await send({"type": "websocket.close", "code": 1013 if rejection.status == 503 else 1008})
    prefix = "websocket.http" if scope["type"] == "websocket" else "http"
    body = rejection.body.encode()
    headers = with_headers([(b"content-length", b"%d" % len(body))], rejection.headers)
    await send({"type": f"{prefix}.response.start", "status": rejection.status, "headers": headers})
    await send({"type": f"{prefix}.response.body", "body": body})
