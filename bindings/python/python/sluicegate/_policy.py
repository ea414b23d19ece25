"""Policies by calls instead of text."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Union

from . import _native
from ._errors import PolicyError

if TYPE_CHECKING:
    from typing_extensions import Self

Span = Union[float, int, timedelta]
Per = Union[str, float, int, timedelta]

_LIMITS = {
    "fixed-window": "fixed-window",
    "moving-window": "sliding-log",
    "sliding-window-counter": "sliding-counter",
}
_SECONDS = {
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": 86_400,
    "month": 30 * 86_400,
    "year": 360 * 86_400,
}
# Of the core, for rules files.
_ADVICE = "; to block all requests, use a rule with `block: true`"
_LIMIT = re.compile(
    r"\s*(\d+)\s*(?:/|\s*per\s*)\s*(\d+)?\s*(second|minute|hour|day|month|year)s?\s*", re.IGNORECASE
)


class Policy(_native.Policy):
    """One to eight limits, which are decided together.

    >>> str(Policy.gcra(30, per="1m", burst=16))
    'gcra:30/1m:burst=16'
    >>> both = Policy("gcra:10/1s") & Policy.fixed_window(500, per="1d")
    >>> str(both)
    'gcra:10/1s,fixed-window:500/1d'

    `on_error` is the answer while the store is unavailable: `"deny"` (the default), `"allow"`, `"local"` or
    `"local=1/4"` (this process decides, with that share of the policy), or `"fail"`, which raises `StoreUnavailable`.
    `lease` is the number of units of a busy key that are taken from the store at once, at most. Of policies joined by `&`, one may set
    `on_error`, or both the same, and none a lease.
    """

    __slots__ = ()

    def __new__(cls, text: str, *, on_error: str | None = None, lease: int = 0) -> Self:
        if not isinstance(text, str):
            raise TypeError(f"invalid policy of type `{type(text).__name__}`: expected a string")
        if on_error is not None and not isinstance(on_error, str):
            raise TypeError(f"invalid on_error of type `{type(on_error).__name__}`: expected a string")
        if not isinstance(lease, int):
            raise TypeError(f"invalid lease of type `{type(lease).__name__}`: expected a number of units")
        try:
            return super().__new__(cls, text, on_error=on_error, lease=lease)
        except PolicyError as error:
            raise PolicyError(str(error).removesuffix(_ADVICE)) from None

    @classmethod
    def _of(cls, name: str, limit: int, per: Per, **options: object) -> Policy:
        words = []
        for option, value in options.items():
            if value is True:
                words.append(option)
            elif value is not None and value is not False:
                words.append(f"{option}={value}")
        try:
            text = _native.limit_text(name, limit, per, words)
        except PolicyError as error:
            raise PolicyError(str(error).removesuffix(_ADVICE)) from None
        return cls(text)

    @classmethod
    def gcra(cls, limit: int, per: Per, *, burst: int | None = None, borrow: bool = False) -> Policy:
        """`limit` units per `per`, evenly spaced, and `burst` at once after idling."""
        return cls._of("gcra", limit, per, burst=burst, borrow=borrow)

    @classmethod
    def token_bucket(
        cls,
        limit: int,
        per: Per,
        *,
        burst: int | None = None,
        refill: Literal["continuous", "interval"] = "continuous",
        borrow: bool = False,
    ) -> Policy:
        """A bucket of `burst` tokens, refilled by `limit` per `per`: continuously, or all at the end of each interval."""
        interval = None if refill == "continuous" else refill
        return cls._of("token-bucket", limit, per, burst=burst, refill=interval, borrow=borrow)

    @classmethod
    def leaky_bucket(
        cls, limit: int, per: Per, *, capacity: int | None = None, borrow: bool = False
    ) -> Policy:
        """A bucket of `capacity` units that leaks `limit` per `per`: a meter, which delays no request."""
        return cls._of("leaky-bucket", limit, per, capacity=capacity, borrow=borrow)

    @classmethod
    def leaky_queue(cls, limit: int, per: Per, *, capacity: int | None = None) -> Policy:
        """A queue of `capacity` units that lets `limit` go per `per`, evenly spaced: for `wait` and `reserve`."""
        return cls._of("leaky-queue", limit, per, capacity=capacity)

    @classmethod
    def fixed_window(
        cls,
        limit: int,
        per: Per,
        *,
        align: Literal["first", "clock"] = "first",
        tz: str | None = None,
        count_all: bool = False,
    ) -> Policy:
        """`limit` units in each window of `per`, which begins with the first request, or with the clock. A `per` of
        `"day"`, `"week"`, `"month"` or `"year"` is that of the calendar, in the time zone `tz`."""
        clock = None if align == "first" else align
        count = "all" if count_all else None
        return cls._of("fixed-window", limit, per, align=clock, tz=tz, count=count)

    @classmethod
    def sliding_log(cls, limit: int, per: Per, *, count_all: bool = False) -> Policy:
        """`limit` units in any interval of `per`, exactly: each request is recorded."""
        return cls._of("sliding-log", limit, per, count="all" if count_all else None)

    @classmethod
    def sliding_counter(cls, limit: int, per: Per, *, count_all: bool = False) -> Policy:
        """About `limit` units in any interval of `per`, from the counts of two windows."""
        return cls._of("sliding-counter", limit, per, count="all" if count_all else None)

    @classmethod
    def concurrency(cls, limit: int, ttl: Per) -> Policy:
        """`limit` units held at one time (`Limiter.hold`), each for at most `ttl` unless it is renewed."""
        return cls._of("concurrency", limit, ttl)

    @classmethod
    def from_limits(
        cls,
        text: str,
        strategy: Literal["fixed-window", "moving-window", "sliding-window-counter"] = "fixed-window",
    ) -> Policy:
        """The policy of a text in the notation of flask-limiter and limits: `"5/minute"`, `"100 per 2 hours; 5/second"`.

        `strategy` is one of theirs: `"fixed-window"` is the default, as in Flask-Limiter. As there, a month has 30 days and a year 360.

        >>> str(Policy.from_limits("5/minute;100 per hour"))
        'fixed-window:5/1m,fixed-window:100/1h'
        >>> str(Policy.from_limits("5/minute", strategy="moving-window"))
        'sliding-log:5/1m'
        """
        if not isinstance(text, str):
            raise TypeError(f"invalid limits of type `{type(text).__name__}`: expected a string")
        name = _LIMITS.get(strategy) if isinstance(strategy, str) else None
        if name is None:
            raise PolicyError(f"invalid strategy `{strategy}`: expected {', '.join(_LIMITS)}")
        limits = []
        for part in re.split(r"[,;|]", text):
            match = _LIMIT.fullmatch(part)
            if match is None:
                raise PolicyError(f"invalid limit `{part.strip()}`: expected a limit such as `5/minute` or `5 per 2 hours`")
            seconds = int(match[2] or 1) * _SECONDS[match[3].lower()]
            limits.append(f"{name}:{match[1]}/{seconds}s")
        return cls(",".join(limits))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (str(self), self.on_error, self.lease)


def _restored(text: str, on_error: str | None, lease: int) -> Policy:
    return Policy(text, on_error=on_error, lease=lease)
