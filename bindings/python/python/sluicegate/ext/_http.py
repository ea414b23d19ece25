"""The common part of the middleware of all web frameworks: keys, and responses."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar, Union

from .. import Decision, InvalidKey, Limiter, Policy, StoreError, _native, aio

R = TypeVar("R")
Part = Union[str, bytes, None]
Parts = Union[Part, tuple[Part, ...]]
PolicyOf = Union[Policy, str, None, Callable[[R], Union[Policy, str, None]]]
"""A policy, or a function of the request that returns one. None: no limit."""
KeyOf = Callable[[R], Parts]
"""A function of the request that returns the parts of its key. None: the request has no such part."""
CostOf = Union[int, Callable[[R], int]]
Headers = list[tuple[str, str]]


class ClientAddress:
    """The network of the client, as a key: the whole address of IPv4, or 64 bits of IPv6.

    `trusted_hops` is the number of proxies of yours. With 0, it is the address of the connection. With more, it is the address that
    the outermost of them saw: as many entries of the header are read, from its end, because clients choose the others.
    `header` is `"x-forwarded-for"` or `"forwarded"` (RFC 7239).
    """

    __slots__ = ("_forwarded", "_hops", "_prefixes", "header")

    def __init__(
        self, trusted_hops: int = 0, *, header: str = "x-forwarded-for", v4_prefix: int = 32, v6_prefix: int = 64
    ) -> None:
        if not isinstance(header, str) or header.lower() not in ("x-forwarded-for", "forwarded"):
            raise ValueError(f"invalid header `{header}`: expected `x-forwarded-for` or `forwarded`")
        for name, value, most in (("v4_prefix", v4_prefix, 32), ("v6_prefix", v6_prefix, 128)):
            if not isinstance(value, int) or not 0 <= value <= most:
                raise ValueError(f"invalid {name} `{value}`: expected 0 to {most}")
        if not isinstance(trusted_hops, int) or trusted_hops < 0:
            raise ValueError(f"invalid trusted_hops `{trusted_hops}`: expected 0 or more")
        self.header = header.lower()
        self._hops, self._forwarded = trusted_hops, self.header == "forwarded"
        self._prefixes = (v4_prefix, v6_prefix)

    def of(self, peer: str | None, lines: Sequence[bytes]) -> str | None:
        """The network of the client of `peer`, from all `lines` of the header."""
        trusted = lines if self._hops else ()
        return _native.client_network(list(trusted), self._hops, self._forwarded, peer, *self._prefixes)


def key_of(name: str, parts: Parts) -> bytes:
    """The key of a request in the store: the name and the parts as netstrings. No two combinations are equal, and a part that is
    missing equals no value. The Tower middleware makes the same keys."""
    key = _netstring(name)
    for part in parts if isinstance(parts, tuple) else (parts,):
        if part is not None and not isinstance(part, (str, bytes)):
            raise TypeError(f"invalid key `{part}` of a request: expected a string, bytes, or a tuple of them")
        key += b"-," if part is None else _netstring(part)
    return key


def _netstring(part: str | bytes) -> bytes:
    # No text is an error, not even one that is not Unicode.
    data = part.encode(errors="surrogatepass") if isinstance(part, str) else part
    return b"%d:%s," % (len(data), data)


def name_of(view: Callable[..., Any]) -> str:
    """The name of a function, which no other has: two limits of one name would share their usage."""
    # The decorator of a method of a class gets a bound method in a `partial`.
    owner = getattr(getattr(view, "func", view), "__self__", None)
    named = view if owner is None else type(owner)
    return f"{named.__module__}.{named.__qualname__}"


# Of a limited view: the name of the view, and how many limits it has. Decorators around it copy this.
_PLACE = "_sluicegate_place"


def named(view: Callable[..., Any], limited: Callable[..., Any], name: str | None) -> str:
    """The name of a limit of `view`, which makes `limited` of it: `name`, or that of the view, with `#2` behind it for the second limit
    of a view."""
    place, count = getattr(view, _PLACE, None) or (name_of(view), 0)
    setattr(limited, _PLACE, (place, count + 1))
    return name or numbered(place, count)


def numbered(name: str, count: int) -> str:
    """The name of a limit with `count` others before it in the same place: two with one name would share their usage."""
    return f"{name}#{count + 1}" if count else name


def _check_function(kind: str, value: object, expected: str) -> None:
    """Raises a `TypeError` unless a value is a function of the request."""
    fits = callable(value) and not isinstance(value, type)
    if fits and inspect.iscoroutinefunction(value):
        raise TypeError(f"invalid {kind} `{_shown(value)}`: expected {expected}, but not a coroutine function")
    if fits:
        with suppress(ValueError):  # Some functions of C have no signature.
            try:
                inspect.signature(value).bind(None)  # type: ignore[arg-type]
            except TypeError:
                fits = False
    if not fits:
        raise TypeError(f"invalid {kind} `{_shown(value)}`: expected {expected}")


def _shown(value: object) -> str:
    return str(getattr(value, "__name__", value))


def _usable(
    policy: PolicyOf[R], cost: CostOf[R]
) -> Union[Policy, None, Callable[[R], Union[Policy, str, None]]]:
    """The policy, read. An invalid one is an error here, not at the first request; so are one with holds alone, and an invalid cost."""
    read = Policy(policy) if isinstance(policy, str) else policy
    if read is not None and not isinstance(read, Policy):
        _check_function("policy", read, "a policy, or a function of the request")
    if not isinstance(cost, int):
        _check_function("cost", cost, "a number, or a function of the request")
    known = read if isinstance(read, Policy) else "gcra:1/1s"
    Limiter.in_memory(max_memory=1 << 20).take("key", known, cost if isinstance(cost, int) else 1)
    return read


_REASONS = {422: "Unprocessable Content", 429: "Too Many Requests", 503: "Service Unavailable"}


class Rejection:
    """The response to a request that does not pass: denied, without a decision, or with an invalid key."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, name: str, denied: Decision | InvalidKey | None) -> None:
        self.headers: Headers = [("Content-Type", "application/problem+json"), ("Cache-Control", "no-store")]
        fields = denied.headers(name) if isinstance(denied, Decision) else []
        if isinstance(denied, InvalidKey):
            problem = {"type": "about:blank", "title": _REASONS[422], "status": 422, "detail": str(denied)}
            self.status, self.body = 422, json.dumps(problem, separators=(",", ":"))
        # A denial without the store contains no usage.
        elif denied is None or denied.source == "fallback":
            self.status, self.body = 503, _native.unavailable_problem()
            fields = [field for field in fields if field[0] == "Retry-After"]
        else:
            self.status, self.body = 429, denied.problem(name)
        self.headers += fields

    @property
    def reason(self) -> str:
        """The reason phrase of the status."""
        return _REASONS[self.status]


# In the scope or environment of a request: the decisions on it, with their names.
_DECISIONS = "sluicegate.decisions"


def headers_of(request: MutableMapping[str, Any]) -> Headers:
    """The headers of the response to a request with this scope or environment. Of several limits, as of those of one policy, they
    speak of the one that denies, otherwise of the one with the fewest units remaining."""
    decisions: Iterable[tuple[str, Decision]] = request.get(_DECISIONS, {}).values()
    binding = min(decisions, key=lambda it: _tightness(it[1]), default=None)
    # A rejection has its own `Retry-After`.
    return [field for field in binding[1].headers(binding[0]) if field[0] != "Retry-After"] if binding else []


def _tightness(decision: Decision) -> tuple[bool, bool, int]:
    # A decision without the store knows no usage.
    return decision.allowed, decision.source == "fallback", decision.remaining


class Rule(Generic[R]):
    """How requests are limited. A rule without a name is named after the place where it limits a request."""

    __slots__ = ("_cost", "_key", "_policy", "name")

    def __init__(self, policy: PolicyOf[R], name: str | None, key: KeyOf[R], cost: CostOf[R]) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"invalid name `{name}`: expected a string")
        self._policy = _usable(policy, cost)
        _check_function("key", key, "a function of the request, or ClientAddress")
        self._key, self._cost, self.name = key, cost, name

    def name_in(self, request: MutableMapping[str, Any], place: str) -> str:
        """The name of the rule for a request with this scope or environment. Without a name, it is that of the place, with `#2` behind it
        for the second rule that limits the request there."""
        if self.name is not None:
            return self.name
        rules: list[object] = request.setdefault("sluicegate.rules", {}).setdefault(place, [])
        if self not in rules:
            rules.append(self)
        return numbered(place, rules.index(self))

    def check(self, limiter: Limiter, request: R, name: str, scope: MutableMapping[str, Any]) -> Rejection | None:
        """Decides on a request with this scope or environment: the response to it, if it does not pass. Otherwise, its response has
        the headers of `headers_of`."""
        arguments = self._arguments(name, request)
        if arguments is None:
            return None
        try:
            return self._outcome(name, scope, limiter.take(*arguments))
        except InvalidKey as error:
            return Rejection(name, error)
        except StoreError:
            return Rejection(name, None)

    async def check_async(
        self, limiter: aio.Limiter, request: R, name: str, scope: MutableMapping[str, Any]
    ) -> Rejection | None:
        """The same on an event loop."""
        arguments = self._arguments(name, request)
        if arguments is None:
            return None
        try:
            return self._outcome(name, scope, await limiter.take(*arguments))
        except InvalidKey as error:
            return Rejection(name, error)
        except StoreError:
            return Rejection(name, None)

    def _outcome(self, name: str, scope: MutableMapping[str, Any], decision: Decision) -> Rejection | None:
        # A denial without the store contains no usage.
        if decision or decision.source != "fallback":
            scope.setdefault(_DECISIONS, {})[self, name] = (name, decision)
        return None if decision else Rejection(name, decision)

    def _arguments(self, name: str, request: R) -> tuple[bytes, Policy | str, int] | None:
        policy = self._policy if self._policy is None or isinstance(self._policy, Policy) else self._policy(request)
        if policy is None:
            return None
        cost = self._cost if isinstance(self._cost, int) else self._cost(request)
        return key_of(name, self._key(request)), policy, cost
