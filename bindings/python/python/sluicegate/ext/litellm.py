"""Budgets of requests, tokens and money for LiteLLM, its proxy and its router. In `config.yaml` of the proxy:

    litellm_settings:
      callbacks: sluicegate.ext.litellm.callback

    callback_settings:
      sluicegate:
        store: redis://127.0.0.1:6379/
        budgets:
          key: {requests: "gcra:60/1m", tokens: "token-bucket:100000/1m"}
          team: {money: "fixed-window:50000000/1d"}
          model: {tokens: "token-bucket:2000000/1m"}
        prices:
          gpt-5: {input: 1.25, output: 10}

Before a call, a request, the tokens and the money that it may use are held under every budget of its key, user, team and model, or under none:
then the client gets LiteLLM's rate limit error, with `Retry-After`. Afterwards the hold is settled with what the provider reports, also at the end of a stream.
Money is in millionths of a dollar, by `prices` in dollars per million tokens.

A call is held once, whatever the router retries, and each attempt is settled as one request. An attempt that the provider answered with an error has used
no tokens. If the outcome is unknown, because a stream was cut, a client has gone, or the process has died, the hold stays open until it expires (`ttl`),
and then counts as used. An attempt without an outcome, of a call that succeeded later, has used what was held. A response without a usage has, too.

For a router without the proxy: `limit(router, Budgets(aio.Limiter.connect(...), ...))`.
"""

from __future__ import annotations

try:
    import httpx
    import litellm
    from litellm import exceptions
    from litellm.integrations.custom_logger import CustomLogger
except ImportError as error:
    raise ImportError("sluicegate.ext.litellm needs the package `litellm`: pip install litellm") from error

import asyncio
import fnmatch
import functools
import math
import sys
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, TypeVar, Union

from .. import Decision, Error, InvalidKey, Limiter, Policy, SettingsError, StoreError, aio
from .._limiter import known
from .._policy import Span
from ._kind import of_kind
from ._ledger import MAX_UNITS, Ledger, Usage, estimate, usage_of

__all__ = ["Budgets", "limit"]

_Router = TypeVar("_Router")

_SCOPES = ("key", "user", "team", "model")
_UNITS = ("requests", "tokens", "money")
_SETTINGS = ("answer", "budgets", "key", "on_error", "prices", "store", "timeout", "ttl")
# Calls with tokens, by LiteLLM's names of their kinds, and whether they have an answer of tokens.
_CALLS = {
    "acompletion": True,
    "anthropic_messages": True,
    "aresponses": True,
    "atext_completion": True,
    "aembedding": False,
}
# The methods of a router that make such calls, with their arguments that may have no name.
_METHODS = {
    "acompletion": ("model", "messages"),
    "aembedding": ("model", "input"),
    "aresponses": (),
    "atext_completion": ("model", "prompt"),
}
# The name, in the metadata of a call, of the token that finds its hold.
_TOKEN = "sluicegate_call"
_METADATA = ("litellm_metadata", "metadata")
# The most keys that a store decides on at once.
_MAX_KEYS = 8


class _Price(NamedTuple):
    """Millionths of a dollar per token, which are dollars per million tokens."""

    input: Decimal
    output: Decimal
    cached: Decimal

    def cost(self, usage: Usage) -> int:
        """The price of a call in millionths of a dollar, rounded up."""
        cached = min(usage.cached, usage.input)
        exact = (usage.input - cached) * self.input + cached * self.cached + usage.output * self.output
        return min(math.ceil(exact), MAX_UNITS)


@dataclass
class _Call:
    """A call that holds units: how many of each unit, and which of them each hold has."""

    kind: str
    model: str
    units: dict[str, int]
    holds: list[tuple[aio.Hold, list[str]]] = field(default_factory=list)
    expiry: asyncio.TimerHandle | None = None
    # Attempts of the router, and those of them that the provider answered with an error.
    attempts: int = 0
    failed: int = 0
    stream: Any = None


class _Refusal(Exception):
    """Units that are not available: a status, a text, and after how many seconds to retry."""

    def __init__(self, status: int, text: str, retry_after: int | None = None) -> None:
        super().__init__(text)
        self.status, self.retry_after = status, retry_after

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}


class Budgets(CustomLogger):  # type: ignore[misc]
    """What each key, user, team and model may use: a callback for LiteLLM.

    `budgets` has policies for `requests`, `tokens` and `money` (millionths of a dollar) of each scope, such as
    `{"team": {"tokens": "token-bucket:100000/1m"}}`. Those of `"team:research"` replace them for that one. `prices` has the dollars
    per million tokens of each model, or of a pattern such as `gpt-*`: `{"gpt-5": {"input": 1.25, "output": 10, "cached": 0.125}}`.

    A call waits up to `timeout` seconds for its units, and holds them for up to `ttl`: 600 seconds, or the shortest period of the
    `concurrency` limits if that is shorter. Choose a `ttl` above the longest call. `answer` is the number of tokens to hold for an answer whose request names no
    maximum. `key` is the beginning of all keys in the store. `on_error` is that of the policies. Raises `SettingsError` for a value that is invalid.
    """

    def __init__(
        self,
        limiter: aio.Limiter,
        budgets: Mapping[str, Mapping[str, Union[Policy, str]]],
        *,
        prices: Mapping[str, Mapping[str, Union[float, str]]] | None = None,
        key: str = "litellm",
        timeout: Span = 0,
        ttl: Span | None = None,
        answer: int = 1024,
        on_error: str | None = None,
    ) -> None:
        super().__init__()
        # LiteLLM ignores a second callback of a class if their public attributes are equal.
        self.id = uuid.uuid4().hex
        _check("key", key, isinstance(key, str) and key != "", "a string")
        _check("answer", answer, _is_number(answer) and isinstance(answer, int) and answer >= 0, "a number of tokens")
        _check("timeout", timeout, _is_span(timeout, 0), "seconds, such as 5")
        _check("ttl", ttl, ttl is None or _is_span(ttl, 0.001), "seconds from 0.001 to 86400")
        self._budgets = _budgets(budgets, on_error)
        self._prices = _prices(prices)
        self._has_money = any("money" in units for units in self._budgets.values())
        if self._has_money and not self._prices:
            raise SettingsError("missing prices of budgets of money: expected `prices`, such as `gpt-5: {input: 1.25, output: 10}`")
        policies = [policy for units in self._budgets.values() for policy in units.values()]
        self._ledger = Ledger(of_kind(limiter, aio.Limiter), policies, key=key, timeout=timeout, ttl=ttl)
        self._answer = answer
        self._calls: dict[str, _Call] = {}
        # What the store would refuse at the first call.
        for scope, units in self._budgets.items():
            for unit, policy in units.items():
                try:
                    Limiter.in_memory().hold("key", policy, ttl=self._ledger.ttl)
                except (Error, ValueError) as error:
                    raise SettingsError(f"invalid budgets.{scope}.{unit} `{policy}`: {error}") from None

    def check_models(self, models: Iterable[str]) -> None:
        """Raises `SettingsError` if there are budgets of money, and a model without a price."""
        for model in models:
            if self._has_money and self._price(model) is None:
                raise SettingsError(f"missing price of model `{model}`: expected `{model}: {{input: 1.25, output: 10}}` in `prices`")

    # The proxy, around a call.

    async def async_pre_call_hook(self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str) -> None:
        """Holds the units of a call, or denies it."""
        from fastapi import HTTPException
        from litellm.proxy.common_utils.proxy_rate_limit_error import ProxyRateLimitError

        if call_type not in _CALLS:
            return
        ids = {
            "key": user_api_key_dict.api_key,
            "user": user_api_key_dict.user_id,
            "team": user_api_key_dict.team_id,
        }
        try:
            token = await self._open(call_type, data, ids)
        except _Refusal as refusal:
            if refusal.status == 429:
                raise ProxyRateLimitError(str(refusal), refusal.headers, model=str(data.get("model"))) from refusal
            raise HTTPException(refusal.status, str(refusal), refusal.headers) from refusal
        # The other one may be a part of the request to the provider.
        name = _METADATA[0] if isinstance(data.get(_METADATA[0]), dict) else _METADATA[1]
        data[name] = {**(data.get(name) or {}), _TOKEN: token}

    async def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: Any, response: Any, request_data: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        """Notes the stream of a call, which has what the provider reported."""
        call = self._call(request_data)
        if call is not None:
            call.stream = response
        async for part in response:
            yield part

    async def async_post_call_failure_hook(
        self,
        request_data: dict[str, Any],
        original_exception: Exception,
        user_api_key_dict: Any,
        traceback_str: str | None = None,
    ) -> None:
        """Ends the call, unless an attempt has an unknown outcome."""
        await self._fail(_token(request_data))

    # Around each attempt of the router.

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> None:
        """Counts the attempt."""
        call = self._call(kwargs)
        # LiteLLM makes some kinds of calls by another kind, which is no further attempt.
        if call is not None and call.kind == getattr(call_type, "value", call_type):
            call.attempts += 1

    async def async_post_call_failure_deployment_hook(
        self, request_data: Mapping[str, Any], exception: Exception, call_type: Any, fallback_depth: int | None = None
    ) -> None:
        """Counts the attempt as failed, if the provider answered or was not reached."""
        call = self._call(request_data)
        if call is not None and call.kind == getattr(call_type, "value", call_type) and _has_no_usage(exception):
            call.failed += 1

    async def async_log_success_event(self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Settles the call with what the provider reports."""
        parameters = kwargs.get("litellm_params") or {}
        token = _token(parameters)
        call = self._calls.get(token or "")
        if call is None:
            return
        metadata: dict[str, Any] = {}
        for name in _METADATA:
            metadata.update(parameters.get(name) or {})
        chunks = getattr(call.stream, "chunks", None)
        has_ended = isinstance(chunks, list) and any(_finish_reason(chunk) for chunk in chunks)
        # LiteLLM reports the part of a stream that a client has left as if it were all.
        if metadata.get("client_disconnected") and not has_ended:
            return
        if kwargs.get("cache_hit"):
            call.attempts -= 1
            return await self._settle(token, Usage(0, 0, 0), call.model, call.attempts - call.failed)
        usage = usage_of(response_obj)
        # Where the provider reports no usage, LiteLLM estimates one.
        if isinstance(chunks, list) and not any(usage_of(chunk) for chunk in chunks):
            usage = None
        unknown = call.attempts - call.failed - (usage is not None)
        await self._settle(token, usage or Usage(0, 0, 0), metadata.get("model_group"), unknown)

    # The ledger.

    async def _open(self, kind: str, request: Mapping[str, Any], ids: dict[str, Any]) -> str:
        """Holds the units of a call, and returns its token."""
        model = request.get("model")
        model = model if isinstance(model, str) else ""
        most = estimate(request, self._answer)
        if not _CALLS[kind]:
            most = Usage(most.input, 0, most.input)
        units = {"requests": 1, "tokens": most.total}
        if self._has_money:
            price = self._price(model)
            if price is None:
                raise _Refusal(400, f"missing price of model `{model}`: expected an entry of `prices` in the settings of the proxy")
            units["money"] = price.cost(most)
        call = _Call(kind, model, units)
        named = list(self._named({**ids, "model": model}))
        try:
            for first in range(0, len(named), _MAX_KEYS):
                await self._hold(call, named[first : first + _MAX_KEYS])
        except BaseException:
            for hold, names in call.holds:
                with suppress(StoreError):
                    await hold.settle([0] * len(names))
            raise
        token = uuid.uuid4().hex
        self._calls[token] = call
        ttl = self._ledger.ttl
        seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
        # A hold that is dropped is settled: it stays until it has expired in the store.
        call.expiry = asyncio.get_running_loop().call_later(seconds + 1, self._calls.pop, token, None)
        return token

    async def _hold(self, call: _Call, named: list[tuple[str, str, str, Policy]]) -> None:
        try:
            hold: aio.Hold = await self._ledger.hold((f"{scope}:{name}:{unit}", policy, call.units[unit]) for scope, name, unit, policy in named)
        except (InvalidKey, UnicodeError) as error:
            raise _Refusal(400, str(error)) from error
        except Error as error:
            raise _Refusal(503, f"the store of the budgets is unavailable: {error}") from error
        if not hold:
            scope, name, unit, _ = named[hold.decision.key or 0]
            raise _refusal(hold.decision, scope, name, unit, call.units[unit])
        call.holds.append((hold, [unit for _, _, unit, _ in named]))

    def _named(self, ids: Mapping[str, Any]) -> Iterable[tuple[str, str, str, Policy]]:
        """Scope, name, unit and policy of each budget of a call."""
        for scope in _SCOPES:
            name = ids.get(scope)
            if isinstance(name, str) and name:
                units = self._budgets.get(f"{scope}:{name}", self._budgets.get(scope, {}))
                for unit, policy in units.items():
                    yield scope, name, unit, policy

    def _call(self, data: Mapping[str, Any]) -> _Call | None:
        return self._calls.get(_token(data) or "")

    async def _fail(self, token: str | None) -> None:
        """Ends a call that has failed. If one attempt has an unknown outcome, its hold is that of this attempt."""
        call = self._calls.get(token or "")
        if call is not None:
            unknown = call.attempts - call.failed
            if unknown != 1:
                await self._settle(token, Usage(0, 0, 0), call.model, unknown)

    async def _settle(self, token: str | None, usage: Usage, model: Any, unknown: int) -> None:
        """Ends a call: charges its attempts, what was reported, and for each attempt with an unknown outcome what was held."""
        call = self._calls.pop(token or "", None)
        if call is None:
            return
        if call.expiry is not None:
            call.expiry.cancel()
        used = {"requests": call.attempts, "tokens": usage.total}
        if self._has_money:
            # A fallback may have another price.
            price = (self._price(model) if isinstance(model, str) else None) or self._price(call.model)
            used["money"] = 0 if price is None else price.cost(usage)
        for unit in ("tokens", "money"):
            if unit in used:
                used[unit] = min(used[unit] + max(unknown, 0) * call.units[unit], MAX_UNITS)
        for hold, names in call.holds:
            # The store repeats a settle that fails.
            with suppress(StoreError):
                await hold.settle([used[unit] for unit in names])

    def _price(self, model: str) -> _Price | None:
        if model in self._prices:
            return self._prices[model]
        return next((price for pattern, price in self._prices.items() if fnmatch.fnmatchcase(model, pattern)), None)


def limit(router: _Router, budgets: Budgets) -> _Router:
    """Limits the calls of a `litellm.Router` without the proxy, and returns it: `acompletion`, `atext_completion`, `aresponses` and
    `aembedding`. Other methods are not limited. Their user is `user` of the request; key and team are `user_api_key_hash` and
    `user_api_key_team_id` of its `metadata` (`litellm_metadata` of `aresponses`), as the proxy names them. A denial raises `litellm.RateLimitError`.
    """
    found = [name for name in _METHODS if callable(getattr(router, name, None))]
    if not found:
        raise TypeError(f"invalid router of type `{type(router).__name__}`: expected a `litellm.Router`")
    for name in found:
        setattr(router, name, _limited(getattr(router, name), budgets, name))
    if budgets not in litellm.callbacks:
        litellm.callbacks.append(budgets)
    return router


def _limited(method: Callable[..., Awaitable[Any]], budgets: Budgets, kind: str) -> Callable[..., Awaitable[Any]]:
    # The metadata of a response is a part of the request to the provider.
    name = _METADATA[0] if kind == "aresponses" else _METADATA[1]

    @functools.wraps(method)
    async def call(*args: Any, **request: Any) -> Any:
        given = {**dict(zip(_METHODS[kind], args)), **request}
        metadata = given.get(name) or {}
        ids = {
            "key": metadata.get("user_api_key_hash"),
            "user": given.get("user") or metadata.get("user_api_key_user_id"),
            "team": metadata.get("user_api_key_team_id"),
        }
        try:
            token = await budgets._open(kind, given, ids)
        except _Refusal as refusal:
            raise _error(refusal, str(given.get("model"))) from refusal
        request[name] = {**metadata, _TOKEN: token}
        try:
            response = await method(*args, **request)
        except Exception:
            await budgets._fail(token)
            raise
        held = budgets._calls.get(token)
        if held is not None and request.get("stream"):
            held.stream = response
        return response

    return call


def _error(refusal: _Refusal, model: str) -> Exception:
    """The exception of LiteLLM for a refusal."""
    request = httpx.Request("POST", "https://sluicegate.invalid/")
    response = httpx.Response(refusal.status, headers=refusal.headers, request=request)
    kinds = {429: exceptions.RateLimitError, 503: exceptions.ServiceUnavailableError}
    kind = kinds.get(refusal.status, exceptions.BadRequestError)
    error: Exception = kind(str(refusal), llm_provider="sluicegate", model=model, response=response)
    return error


def _refusal(decision: Decision, scope: str, name: str, unit: str, cost: int) -> _Refusal:
    # A fallback has not decided on what is used.
    if decision.source == "fallback":
        return _Refusal(503, "the store of the budgets is unavailable")
    whose = "this key" if scope == "key" else f"{scope} `{name}`"
    units = "a request" if unit == "requests" else f"{cost} {'micro-dollars' if unit == 'money' else unit}"
    if decision.never:
        return _Refusal(429, f"denied: the budget of {whose} never admits {units}: its limit is {decision.limit}")
    wait = math.ceil(decision.retry_after.total_seconds()) if decision.retry_after else 1
    return _Refusal(429, f"denied: the budget of {whose} has not enough left for {units}: retry after {wait} s", max(wait, 1))


def _token(data: Mapping[str, Any]) -> str | None:
    for name in _METADATA:
        metadata = data.get(name)
        token = metadata.get(_TOKEN) if isinstance(metadata, Mapping) else None
        if isinstance(token, str):
            return token
    return None


def _has_no_usage(exception: BaseException) -> bool:
    """Whether the provider has answered with an error, or was not reached."""
    known_errors = not isinstance(exception, (exceptions.Timeout, exceptions.APIConnectionError))
    cause: BaseException | None = exception
    while cause is not None:
        if isinstance(cause, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)):
            return True
        if isinstance(cause, (httpx.TransportError, ConnectionError, TimeoutError)):
            return False
        cause = cause.__cause__ or cause.__context__
    return known_errors


def _finish_reason(chunk: Any) -> bool:
    return any(getattr(choice, "finish_reason", None) for choice in getattr(chunk, "choices", None) or ())


# Settings.


def _check(name: str, value: object, is_valid: bool, expected: str) -> None:
    if not is_valid:
        raise SettingsError(f"invalid {name} `{value}`: expected {expected}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_span(value: object, least: float) -> bool:
    if isinstance(value, timedelta):
        return least <= value.total_seconds() <= 86_400
    return isinstance(value, (int, float)) and _is_number(value) and least <= value <= 86_400


def _known(kind: str, given: Iterable[Any], names: Iterable[str]) -> None:
    try:
        known(kind, map(str, given), names)
    except TypeError as error:
        raise SettingsError(str(error)) from None


def _budgets(given: object, on_error: str | None) -> dict[str, dict[str, Policy]]:
    expected = "a mapping such as `team: {tokens: \"token-bucket:100000/1m\"}`"
    _check("budgets", given, isinstance(given, Mapping) and len(given) > 0, expected)
    found: dict[str, dict[str, Policy]] = {}
    for scope, units in given.items() if isinstance(given, Mapping) else ():
        _known("scope of budgets", [str(scope).partition(":")[0]], _SCOPES)
        is_valid = isinstance(units, Mapping) and len(units) > 0
        _check(f"budgets.{scope}", units, is_valid, "a mapping such as `{tokens: \"token-bucket:100000/1m\"}`")
        _known(f"unit of budgets.{scope}", units, _UNITS)
        found[str(scope)] = {unit: _policy(f"budgets.{scope}.{unit}", units[unit], on_error) for unit in _UNITS if unit in units}
    return found


def _policy(name: str, given: object, on_error: str | None) -> Policy:
    if isinstance(given, Policy):
        return given
    if not isinstance(given, str):
        raise SettingsError(f"invalid {name} `{given}`: expected a policy such as `token-bucket:100000/1m`")
    try:
        return Policy(given, on_error=on_error)
    except Error as error:
        raise SettingsError(f"invalid {name} `{given}`: {error}") from None


def _prices(given: object) -> dict[str, _Price]:
    _check("prices", given, given is None or isinstance(given, Mapping), "a mapping such as `gpt-5: {input: 1.25, output: 10}`")
    found: dict[str, _Price] = {}
    for model, price in given.items() if isinstance(given, Mapping) else ():
        name = f"prices.{model}"
        _check(name, price, isinstance(price, Mapping), "`input` and `output` in dollars per million tokens")
        _known(f"member of {name}", price, _Price._fields)
        read = _dollars(f"{name}.input", price.get("input"))
        cached = _dollars(f"{name}.cached", price["cached"]) if "cached" in price else read
        found[str(model)] = _Price(read, _dollars(f"{name}.output", price.get("output")), cached)
    return found


def _dollars(name: str, given: object) -> Decimal:
    expected = "dollars per million tokens, such as 1.25"
    if given is None:
        raise SettingsError(f"missing {name}: expected {expected}")
    try:
        # The text of a float is the number that was written.
        dollars = Decimal("nan" if isinstance(given, bool) else str(given))
    except InvalidOperation:
        dollars = Decimal("nan")
    if not dollars.is_finite() or dollars < 0 or dollars > MAX_UNITS:
        raise SettingsError(f"invalid {name} `{given}`: expected {expected}")
    return dollars


def _store(given: object, where: str) -> aio.Limiter:
    """The limiter of a URL, or of a mapping with `url` and settings of `Limiter.connect`."""
    # A call of a model takes seconds: it may wait for a store that is slow.
    settings: dict[str, Any] = {"timeout": 5}
    settings.update(given if isinstance(given, Mapping) else {"url": given})
    url = settings.pop("url", None)
    expected = "a URL such as `redis://127.0.0.1:6379/`"
    if url is None:
        raise SettingsError(f"missing store of {where}: expected {expected}")
    _check("store", url, isinstance(url, str), expected)
    try:
        return aio.Limiter.connect(url, **settings)
    except (Error, TypeError, ValueError) as error:
        raise SettingsError(f"{error} (store of {where})") from None


def _configured() -> Budgets:
    """The callback of `callback_settings.sluicegate` in `config.yaml`."""
    settings = litellm.callback_settings.get("sluicegate")
    where = "`callback_settings.sluicegate`"
    if settings is None:
        raise SettingsError(f"missing {where} in config.yaml: expected `store` and `budgets`")
    _check(where, settings, isinstance(settings, Mapping), "a mapping with `store` and `budgets`")
    _known(f"setting of {where}", settings, _SETTINGS)
    options = {name: value for name, value in settings.items() if name not in ("budgets", "store")}
    callback = Budgets(_store(settings.get("store"), where), settings.get("budgets") or {}, **options)
    # Imported by the proxy itself.
    server = sys.modules.get("litellm.proxy.proxy_server")
    if server is not None:
        models = server.proxy_config.get_config_state().get("model_list") or ()
        callback.check_models(model["model_name"] for model in models)
    return callback


def __getattr__(name: str) -> Any:
    if name == "callback":
        # The proxy asks for it when it has read its settings.
        found = globals()[name] = _configured()
        return found
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
