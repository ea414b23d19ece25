"""Budgets of requests and tokens a minute, for clients of OpenAI and of services with the same interface:

    budget = Budget(Limiter.connect("redis://127.0.0.1/"), requests="gcra:500/1m", tokens="token-bucket:200000/1m")
    client = limit(openai.OpenAI(), budget)

Each call holds one request and as many tokens as it may use, of both budgets or of none, and waits for them. At its end, the hold is settled
with the tokens that the response names. So processes that share a store never exceed the budget together, and one that dies blocks
its units for `ttl` at most.

`limit` covers `chat.completions.create`, `responses.create` and `embeddings.create` of a client, with and without `stream=True`. For other calls, use
`budget.call`.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar, Union, overload

from .. import Decision, Denied, Hold, Limiter, Policy, StoreError, aio
from .._policy import Span
from . import _ledger
from ._ledger import AnyLimiter, Ledger

__all__ = ["AsyncCall", "Budget", "Call", "estimate", "limit"]

_Client = TypeVar("_Client")
# Where calls are, and whether they have an answer of tokens.
_RESOURCES = ((("chat", "completions"), True), (("responses",), True), (("embeddings",), False))


class Budget(Generic[AnyLimiter]):
    """Requests and tokens that all users of a key may use. `requests` and `tokens` are policies; joined by `&`, each may have
    several limits, such as a `concurrency`. Budgets of one `key` share their units. A call waits up to `timeout` for its units, and holds them for up to `ttl`: 600 seconds,
    or the shortest period of the `concurrency` limits if that is shorter. `answer` is the number of tokens to hold for an answer whose request names no maximum.
    """

    def __init__(
        self,
        limiter: AnyLimiter,
        *,
        requests: Union[Policy, str],
        tokens: Union[Policy, str],
        key: str = "openai",
        timeout: Span = 60,
        ttl: Span | None = None,
        answer: int = 1024,
    ) -> None:
        self.limiter: AnyLimiter = limiter
        self.answer = answer
        # An invalid text is an error here, not at the first call.
        self._requests, self._tokens = (Policy(it) if isinstance(it, str) else it for it in (requests, tokens))
        self._ledger: Ledger[AnyLimiter] = Ledger(limiter, (self._requests, self._tokens), key=key, timeout=timeout, ttl=ttl)

    @overload
    def hold(self: Budget[Limiter], tokens: int) -> Hold: ...
    @overload
    def hold(self: Budget[aio.Limiter], tokens: int) -> Awaitable[aio.Hold]: ...
    def hold(self, tokens: int) -> Any:
        """Holds one request and its tokens: a hold of `limiter.hold_all`."""
        return self._ledger.hold([("requests", self._requests, 1), ("tokens", self._tokens, tokens)])

    @overload
    def call(self: Budget[Limiter], tokens: int) -> Call: ...
    @overload
    def call(self: Budget[aio.Limiter], tokens: int) -> AsyncCall: ...
    def call(self, tokens: int) -> Call | AsyncCall:
        """A call that uses up to `tokens` tokens: a `Call` for a `with` statement; with a limiter for asyncio, an `AsyncCall` for
        `async with`.

        >>> budget = Budget(Limiter.in_memory(), requests="gcra:500/1m", tokens="token-bucket:200000/1m")
        >>> with budget.call(tokens=4000) as call:
        ...     call.used(2310)  # what the response says
        """
        return AsyncCall(self, tokens) if isinstance(self.limiter, aio.Limiter) else Call(self, tokens)


class _Tokens:
    """The tokens of a call."""

    def __init__(self, budget: Budget[Any], tokens: int) -> None:
        # Its holds are of either kind.
        self._budget: Any = budget
        self.tokens = tokens
        self._used: int | None = None

    def used(self, tokens: int) -> None:
        """Says how many tokens the call has used: otherwise as many as were held, or none if it ends by an exception."""
        self._used = tokens

    def used_by(self, response: Any) -> None:
        """Says it by the `usage` of a response, or of a part of a stream, if it has one."""
        usage = _ledger.usage_of(response)
        if usage is not None:
            self._used = usage.total

    def _denied(self, decision: Decision) -> Denied:
        return Denied(decision, self.tokens if decision.key else 1)

    def _units(self, failed: bool) -> list[int]:
        unknown = 0 if failed else self.tokens
        return [1, unknown if self._used is None else self._used]


class Call(_Tokens):
    """A call within a budget. Entering it raises `Denied` if its units are not available in time."""

    _hold: Hold | None = None

    def __enter__(self) -> Call:
        hold: Hold = self._budget.hold(self.tokens)
        if not hold:
            raise self._denied(hold.decision)
        self._hold = hold
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            # The call has ended, and the settle is repeated in the background.
            with suppress(StoreError):
                hold.settle(self._units(kind is not None))


class AsyncCall(_Tokens):
    """The same for asyncio."""

    _hold: aio.Hold | None = None

    async def __aenter__(self) -> AsyncCall:
        hold: aio.Hold = await self._budget.hold(self.tokens)
        if not hold:
            raise self._denied(hold.decision)
        self._hold = hold
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            with suppress(StoreError):
                await hold.settle(self._units(kind is not None))


def estimate(request: dict[str, Any], answer: int) -> int:
    """The tokens that a request may use: a quarter of the bytes of its input, rounded up, and the most that its answers may have,
    which is `answer` for each if the request has no limit."""
    return _ledger.estimate(request, answer).total


def limit(client: _Client, budget: Budget[Any]) -> _Client:
    """Limits the calls of a client, and returns it. Copies of it, as of `with_options`, are not limited. A client for asyncio needs
    a budget with a `sluicegate.aio.Limiter`."""
    wrap = _asynchronous if isinstance(budget.limiter, aio.Limiter) else _synchronous
    found = False
    for path, answers in _RESOURCES:
        resource: Any = client
        for name in path:
            resource = getattr(resource, name, None)
        if resource is not None:
            resource.create = wrap(resource.create, budget, budget.answer if answers else 0)
            found = True
    if not found:
        raise TypeError(f"invalid client of type `{type(client).__name__}`: expected one as `openai.OpenAI`")
    return client


def _synchronous(create: Callable[..., Any], budget: Budget[Any], answer: int) -> Callable[..., Any]:
    @functools.wraps(create)
    def call(*args: Any, **request: Any) -> Any:
        limited = Call(budget, estimate(request, answer)).__enter__()
        try:
            response = create(*args, **request)
        except BaseException as error:
            limited.__exit__(type(error))
            raise
        if request.get("stream"):
            return _Stream(response, limited)
        limited.used_by(response)
        limited.__exit__(None)
        return response

    return call


def _asynchronous(create: Callable[..., Any], budget: Budget[Any], answer: int) -> Callable[..., Any]:
    @functools.wraps(create)
    async def call(*args: Any, **request: Any) -> Any:
        limited = await AsyncCall(budget, estimate(request, answer)).__aenter__()
        try:
            response = await create(*args, **request)
        except BaseException as error:
            await limited.__aexit__(type(error))
            raise
        if request.get("stream"):
            return _AsyncStream(response, limited)
        limited.used_by(response)
        await limited.__aexit__(None)
        return response

    return call


class _Stream:
    """A stream that settles its call when it ends, or is closed. Without a usage in it, the units held are charged."""

    def __init__(self, stream: Any, call: Call) -> None:
        self._stream, self._call = stream, call
        self._parts = self._settled()

    def _settled(self) -> Iterator[Any]:
        try:
            for part in self._stream:
                self._call.used_by(part)
                yield part
        finally:
            self._call.__exit__(None)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._parts)

    def close(self) -> None:
        """Closes the response."""
        self._stream.close()
        self._call.__exit__(None)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _AsyncStream:
    """The same for asyncio."""

    def __init__(self, stream: Any, call: AsyncCall) -> None:
        self._stream, self._call = stream, call
        self._parts = self._settled()

    async def _settled(self) -> AsyncIterator[Any]:
        try:
            async for part in self._stream:
                self._call.used_by(part)
                yield part
        finally:
            await self._call.__aexit__(None)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._parts)

    async def close(self) -> None:
        """Closes the response."""
        await self._stream.close()
        await self._call.__aexit__(None)

    async def __aenter__(self) -> _AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
