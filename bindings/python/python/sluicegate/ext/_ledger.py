"""What budgets of language models share: holds of several units at once, the tokens that a request may use, and those that a
response names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Generic, NamedTuple, TypeVar

from .. import Limiter, Policy, _native, aio
from .._policy import Span

AnyLimiter = TypeVar("AnyLimiter", Limiter, aio.Limiter)

# The most units that a hold or a settle of one key can have.
MAX_UNITS = 2**32 - 1
# Parts of a request that are read as tokens, and those that limit the tokens of its answer.
_INPUTS = ("functions", "input", "instructions", "messages", "prompt", "response_format", "system", "text", "tools")
_MOST = ("max_completion_tokens", "max_output_tokens", "max_tokens")
# The lifetime of a hold, unless a `concurrency` limit has a shorter one.
_TTL = timedelta(seconds=600)


class Usage(NamedTuple):
    """Tokens of a call: of its input, of its answer, and of both. Of the input, `cached` were read from the provider's cache."""

    input: int
    output: int
    total: int
    cached: int = 0


class Ledger(Generic[AnyLimiter]):
    """Holds of a limiter, whose keys have one hash tag: a cluster decides on several keys at once only if they do.

    A hold waits up to `timeout` for its units, and lasts for up to `ttl`: 600 seconds, or the shortest period of the
    `concurrency` limits of `policies` if that is shorter.
    """

    def __init__(
        self, limiter: AnyLimiter, policies: Iterable[Policy], *, key: str, timeout: Span, ttl: Span | None
    ) -> None:
        self.limiter: AnyLimiter = limiter
        if ttl is None:
            ttl = min(_TTL, *(_native.hold_ttl(policy) or _TTL for policy in policies))
        self.ttl: Span = ttl
        self._tagged = key if "{" in key else f"{{{key}}}"
        self._timeout = timeout

    def hold(self, units: Iterable[tuple[str, Policy, int]]) -> Any:
        """Holds units of all names, each under its policy, or of none: a hold of `limiter.hold_all`."""
        holds = [(f"{self._tagged}:{name}", policy, cost) for name, policy, cost in units]
        return self.limiter.hold_all(holds, ttl=self.ttl, timeout=self._timeout)


def estimate(request: Mapping[str, Any], answer: int) -> Usage:
    """The tokens that a request may use: a quarter of the bytes of its input, rounded up, and the most that its answers may have,
    which is `answer` for each if the request has no limit."""
    given = {name: request[name] for name in _INPUTS if request.get(name) is not None}
    read = -(-len(json.dumps(given, default=str, ensure_ascii=False).encode(errors="replace")) // 4)
    limits = (request[name] for name in _MOST if isinstance(request.get(name), int))
    answers = request.get("n")
    most = max(next(limits, answer), 0) * max(answers if isinstance(answers, int) else 1, 1)
    return Usage(min(read, MAX_UNITS), min(most, MAX_UNITS), min(read + most, MAX_UNITS))


def usage_of(response: Any) -> Usage | None:
    """The `usage` of a response, or of a part of a stream, if it has one with a number of tokens."""
    usage = _get(response, "usage") or _get(_get(response, "response"), "usage")
    read = _count(usage, "prompt_tokens", "input_tokens")
    written = _count(usage, "completion_tokens", "output_tokens")
    total = _count(usage, "total_tokens")
    if total is None:
        if read is None and written is None:
            return None
        total = (read or 0) + (written or 0)
    details = _get(usage, "prompt_tokens_details") or _get(usage, "input_tokens_details")
    return Usage(read or 0, written or 0, total, _count(details, "cached_tokens") or 0)


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _count(value: Any, *names: str) -> int | None:
    found = (_get(value, name) for name in names)
    return next((it for it in found if isinstance(it, int) and it >= 0), None)
