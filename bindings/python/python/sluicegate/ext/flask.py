"""Limits for Flask:

    limit = RateLimit(app, policy="gcra:100/1m")

    @app.get("/login")
    @limit("sliding-log:5/1m", name="login")
    def login(): ...
"""

from __future__ import annotations

try:
    import flask
except ImportError as error:
    raise ImportError("sluicegate.ext.flask needs the package `flask`: pip install flask") from error

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from .. import Limiter
from ._http import ClientAddress, CostOf, KeyOf, PolicyOf, Rejection, Rule, headers_of, named
from ._kind import of_kind
from .wsgi import client_of

_View = TypeVar("_View", bound=Callable[..., Any])

# Of a view that the policy of all views does not limit. Decorators around it copy the mark.
_MARK = "_sluicegate_limited"

__all__ = ["ClientAddress", "RateLimit"]


class RateLimit:
    """The extension. `policy` limits all views that have no limit of their own. Without `limiter` and `policy`, they are those of
    the configuration: `SLUICEGATE_URL` (of `Limiter.connect`; otherwise the state is in this process) and `SLUICEGATE_POLICY`.
    The other parameters are those of `sluicegate.ext.asgi.RateLimitMiddleware`, with functions of `flask.request`.
    """

    def __init__(
        self,
        app: flask.Flask | None = None,
        *,
        limiter: Limiter | None = None,
        policy: PolicyOf[flask.Request] = None,
        name: str | None = None,
        key: KeyOf[flask.Request] | ClientAddress | None = None,
        cost: CostOf[flask.Request] = 1,
    ) -> None:
        self._limiter = limiter and of_kind(limiter, Limiter)
        self._key = _key(ClientAddress() if key is None else key)
        self._name, self._cost = name, cost
        self._rule = Rule(policy, name, self._key, cost)
        self._has_policy = policy is not None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Limits the views of `app`."""
        url = app.config.get("SLUICEGATE_URL")
        limiter = self._limiter or (Limiter.connect(url) if url else Limiter.in_memory())
        configured = app.config.get("SLUICEGATE_POLICY")
        rule = self._rule if self._has_policy else Rule(configured, self._name, self._key, self._cost)
        app.extensions["sluicegate"] = limiter

        def before() -> flask.Response | None:
            view = app.view_functions.get(flask.request.endpoint or "")
            if getattr(view, _MARK, False):
                return None
            return self._check(rule, limiter, rule.name_in(flask.request.environ, "default"))

        app.before_request(before)
        app.after_request(_add_headers)

    def __call__(
        self,
        policy: PolicyOf[flask.Request],
        *,
        name: str | None = None,
        key: KeyOf[flask.Request] | ClientAddress | None = None,
        cost: CostOf[flask.Request] = 1,
    ) -> Callable[[_View], _View]:
        """Limits a view, instead of the policy of all views. Its name is module and name of the view, unless `name` is given; that
        of a second limit of the same view has `#2` behind it."""
        rule = Rule(policy, name, self._key if key is None else _key(key), cost)

        def limited(view: _View | None = None, /, **_: Any) -> _View:
            # Without a policy, Flask calls this as the view.
            if view is None:
                raise TypeError("missing policy of `@limit`: expected `@limit(policy)` before the view")

            @functools.wraps(view)
            def checked(*args: Any, **kwargs: Any) -> Any:
                rejected = self._check(rule, flask.current_app.extensions["sluicegate"], own)
                return flask.current_app.ensure_sync(view)(*args, **kwargs) if rejected is None else rejected

            own = named(view, checked, name)
            setattr(checked, _MARK, True)
            return checked  # type: ignore[return-value]

        return limited

    def exempt(self, view: _View) -> _View:
        """Exempts a view from the policy of all views."""
        setattr(view, _MARK, True)
        return view

    @staticmethod
    def _check(rule: Rule[flask.Request], limiter: Limiter, name: str) -> flask.Response | None:
        # Not in `flask.g`, which several requests may share.
        rejection = rule.check(limiter, flask.request, name, flask.request.environ)
        return None if rejection is None else _response(rejection)


def _key(key: KeyOf[flask.Request] | ClientAddress) -> KeyOf[flask.Request]:
    if not isinstance(key, ClientAddress):
        return key
    of_environ = client_of(key)
    return lambda request: of_environ(request.environ)


def _response(rejection: Rejection) -> flask.Response:
    return flask.Response(rejection.body, rejection.status, rejection.headers)


def _add_headers(response: flask.Response) -> flask.Response:
    for name, value in headers_of(flask.request.environ):
        # Those of a rejection stay.
        if response.status_code not in (429, 503) or name not in response.headers:
            response.headers[name] = value
    return response
