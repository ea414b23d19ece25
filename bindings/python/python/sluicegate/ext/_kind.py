"""Which of the two limiters a module needs."""

from __future__ import annotations

from typing import TypeVar

from .. import Limiter, aio

_Kind = TypeVar("_Kind", Limiter, aio.Limiter)


def of_kind(limiter: _Kind, kind: type[_Kind]) -> _Kind:
    """The limiter. The other kind is an error at once, not at the first request."""
    if not isinstance(limiter, kind):
        given, expected = (f"{it.__module__.removesuffix('._limiter')}.{it.__qualname__}" for it in (type(limiter), kind))
        raise TypeError(f"invalid limiter of type `{given}`: expected {expected}")
    return limiter
