"""Limits for Django: middleware for all requests, and a decorator for views, both for WSGI and ASGI.

    # settings.py
    MIDDLEWARE = ["sluicegate.ext.django.RateLimitMiddleware", ...]
    SLUICEGATE = {"URL": "redis://127.0.0.1/", "POLICY": "gcra:100/1m", "TRUSTED_HOPS": 1}

    # views.py
    @ratelimit("sliding-log:5/1m", key=lambda request: str(request.user.pk))
    def login(request): ...

`SLUICEGATE` has `URL` (of `Limiter.connect`; otherwise the state is in this process), and what the middleware uses: `POLICY` (a text, or the
dotted path of a function of the request), `NAME`, `KEY` (the dotted path of a function of the request), or for the address of the
client `TRUSTED_HOPS` and `HEADER`.
"""

from __future__ import annotations

try:
    from asgiref.sync import iscoroutinefunction, markcoroutinefunction
    from django import conf
    from django.core.exceptions import ImproperlyConfigured
    from django.core.signals import setting_changed
    from django.http import HttpRequest, HttpResponse, HttpResponseBase
    from django.utils.module_loading import import_string
except ImportError as error:
    raise ImportError("sluicegate.ext.django needs the package `django`: pip install django") from error

import functools
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar, Union, cast

from .. import Error, Limiter, aio
from .._limiter import known
from ._http import ClientAddress, CostOf, KeyOf, PolicyOf, Rejection, Rule, headers_of, named
from .wsgi import client_of

_View = TypeVar("_View", bound=Callable[..., Any])
_NAMES = ("HEADER", "KEY", "NAME", "POLICY", "TRUSTED_HOPS", "URL")

__all__ = ["ClientAddress", "RateLimitMiddleware", "ratelimit"]


class _Settings:
    """The values of the setting `SLUICEGATE`."""

    def __init__(self, given: object) -> None:
        if not isinstance(given, dict):
            raise ImproperlyConfigured(f"invalid SLUICEGATE of type `{type(given).__name__}`: expected a dict")
        try:
            known("setting", given, _NAMES)
            url = given.get("URL")
            self.limiter = Limiter.connect(url) if url else Limiter.in_memory()
            self.aio_limiter = aio.Limiter.connect(url) if url else aio.Limiter(self.limiter._native)
            self.address = client_of_request(
                ClientAddress(given.get("TRUSTED_HOPS", 0), header=given.get("HEADER", "x-forwarded-for"))
            )
            self._given = given
            key = import_string(given["KEY"]) if "KEY" in given else self.address
            self.name = str(given.get("NAME", "default"))
            self.rule: Rule[HttpRequest] = Rule(self._policy(), self.name, key, 1)
        except (Error, ImportError, TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"invalid SLUICEGATE: {error}") from error

    def _policy(self) -> PolicyOf[HttpRequest]:
        policy = self._given.get("POLICY")
        # A policy has a colon, and a path has none.
        return import_string(policy) if isinstance(policy, str) and ":" not in policy else policy


@functools.cache
def _settings() -> _Settings:
    return _Settings(getattr(conf.settings, "SLUICEGATE", {}))


def _changed(*, setting: str, **_: Any) -> None:
    if setting == "SLUICEGATE":
        _settings.cache_clear()


# For `override_settings` in tests.
setting_changed.connect(_changed)


def client_of_request(address: ClientAddress) -> KeyOf[HttpRequest]:
    """The key of a request by the address of its client."""
    of_environ = client_of(address)
    return lambda request: of_environ(request.META)


class RateLimitMiddleware:
    """Limits all requests by the policy of the setting `SLUICEGATE`."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response, self._settings = get_response, _settings()
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Union[HttpResponseBase, Awaitable[HttpResponseBase]]:
        if self._is_async:
            return self._respond(request)
        settings = self._settings
        rejection = settings.rule.check(settings.limiter, request, settings.name, _scope_of(request))
        return _response(rejection) if rejection else _with_headers(self._get_response(request), request)

    async def _respond(self, request: HttpRequest) -> HttpResponseBase:
        settings = self._settings
        rejection = await settings.rule.check_async(settings.aio_limiter, request, settings.name, _scope_of(request))
        return _response(rejection) if rejection else _with_headers(await self._get_response(request), request)


def ratelimit(
    policy: PolicyOf[HttpRequest],
    *,
    name: str | None = None,
    key: KeyOf[HttpRequest] | ClientAddress | None = None,
    cost: CostOf[HttpRequest] = 1,
) -> Callable[[_View], _View]:
    """Limits a view, beside the policy of the middleware. `name` is that of the policy, otherwise module and name of the view or
    its class, with `#2` behind it for a second limit of the same view; `key` is by default the address of the client by `TRUSTED_HOPS`. For a class, use `method_decorator(ratelimit(...), name="dispatch")`."""

    def key_of(request: HttpRequest) -> Any:
        return _settings().address(request)

    of_request = client_of_request(key) if isinstance(key, ClientAddress) else key_of if key is None else key
    rule = Rule(policy, name, of_request, cost)

    def limited(view: _View) -> _View:
        if not callable(view):
            raise TypeError("missing policy of `@ratelimit`: expected `@ratelimit(policy)` before the view")
        # The `dispatch` of a class with asynchronous methods is a function that returns a coroutine.
        owner = getattr(getattr(view, "func", view), "__self__", None)
        is_async = iscoroutinefunction(view) or getattr(type(owner), "view_is_async", False)

        @functools.wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            rejection = rule.check(_settings().limiter, request, own, _scope_of(request))
            return _response(rejection) if rejection else _with_headers(view(request, *args, **kwargs), request)

        @functools.wraps(view)
        async def checked_async(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            rejection = await rule.check_async(_settings().aio_limiter, request, own, _scope_of(request))
            return _response(rejection) if rejection else _with_headers(await view(request, *args, **kwargs), request)

        result = checked_async if is_async else checked
        own = named(view, result, name)
        return cast(_View, result)

    return limited


def _response(rejection: Rejection) -> HttpResponse:
    return HttpResponse(rejection.body.encode(), status=rejection.status, headers=dict(rejection.headers))


def _scope_of(request: HttpRequest) -> MutableMapping[str, Any]:
    # Of ASGI, or the environment of WSGI: middleware around Django has the same.
    return cast("MutableMapping[str, Any]", getattr(request, "scope", request.META))


def _with_headers(response: HttpResponseBase, request: HttpRequest) -> HttpResponseBase:
    for name, value in headers_of(_scope_of(request)):
        response.headers[name] = value
    return response
