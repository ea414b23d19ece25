"""The limiter for code without asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, Union

from . import _native
from ._errors import Denied
from ._native import Decision, Hold, ManualClock
from ._policy import Policy, Span

Key = Union[str, bytes]
Keyed = Union[tuple[Key, Union[Policy, str]], tuple[Key, Union[Policy, str], int]]
_Limiter = TypeVar("_Limiter", bound="Limiter")


class Limiter:
    """Limits in this process (`in_memory`), or in a store that processes share (`connect`).

    A key is what is limited, such as `"login:user7"`. The usage of a key carries over from one policy to another. Threads may
    share a limiter, and a child process continues with the limiter of its parent: with its own copy of the state in memory, and
    with connections of its own to a store.

    >>> limiter = Limiter.in_memory()
    >>> decision = limiter.take("user7", "fixed-window:2/1h", cost=2)
    >>> bool(decision), decision.remaining
    (True, 0)
    >>> denied = limiter.take("user7", "fixed-window:2/1h")
    >>> denied.allowed, denied.retry_after.total_seconds() > 3599
    (False, True)
    """

    __slots__ = ("_native", "charge", "peek", "refund", "take", "__weakref__")

    def __init__(self, native: _native.Limiter) -> None:
        self._native = native
        # The calls of every request, without a frame of Python in between.
        self.take = native.take
        self.peek = native.peek
        self.charge = native.charge
        self.refund = native.refund

    @classmethod
    def in_memory(
        cls: type[_Limiter], *, max_memory: int = 1 << 30, clock: ManualClock | None = None
    ) -> _Limiter:
        """A limiter in this process, with up to `max_memory` bytes of state. When they are in use, new keys are denied."""
        return cls(_native.Limiter.in_memory(max_memory=max_memory, clock=clock))

    @classmethod
    def connect(cls: type[_Limiter], url: str, **settings: Any) -> _Limiter:
        """A limiter in the store at `url`: `redis://HOST`, `rediss://HOST` (TLS), `redis+cluster://HOST,HOST`,
        `redis+sentinel://HOST,HOST/NAME`, or `unix:///PATH` for a server on this host. It connects at the first call.

        `timeout` (0.5 s) is the longest time of a decision, `connect_timeout` that of a connection, `key_prefix` stands before
        each key, `max_denial_cache` (1 s) is how long a denial is repeated without the store, `tls_ca`, `tls_cert` and
        `tls_key` are paths of PEM files: the only authority to trust, and a certificate of this client with its key.
        """
        return cls(_native.Limiter.connect(url, **settings))

    def require(self, key: Key, policy: Policy | str, cost: int = 1) -> Decision:
        """Takes `cost` units, or raises `Denied`."""
        decision = self.take(key, policy, cost)
        if not decision:
            raise Denied(decision)
        return decision

    def reserve(self, key: Key, policy: Policy | str, cost: int = 1, *, max_wait: Span) -> Decision:
        """Takes `cost` units now, for use after `decision.delay`, which is at most `max_wait`."""
        return self._native.reserve(key, policy, cost, max_wait=max_wait)

    def wait(
        self, key: Key, policy: Policy | str, cost: int = 1, *, timeout: Span, jitter: Span | None = None
    ) -> Decision:
        """Blocks until `cost` units are taken, or returns a denial at once if that does not happen within `timeout`. Ctrl-C
        ends it."""
        return self._native.wait(key, policy, cost, timeout=timeout, jitter=jitter)

    def reset(self, key: Key) -> bool:
        """Forgets the usage of `key`. Whether it had any."""
        return self._native.reset(key)

    def take_many(self, takes: Iterable[Keyed]) -> list[Decision]:
        """Takes from several keys, each by itself, in one round trip."""
        return self._native.take_many([*takes])

    def take_all(self, takes: Iterable[Keyed]) -> Decision:
        """Takes from all keys or from none. `decision.key` is the index of the binding key."""
        return self._native.take_all([*takes])

    def hold(
        self,
        key: Key,
        policy: Policy | str,
        cost: int = 1,
        *,
        ttl: Span | None = None,
        id: Key | None = None,
        timeout: Span = 0,
        renew: bool = False,
    ) -> Hold:
        """Holds `cost` units until they are settled, or for `ttl`. Waits up to `timeout` until they are available.

        >>> limiter = Limiter.in_memory()
        >>> with limiter.hold("report", "concurrency:1/30s"):
        ...     bool(limiter.hold("report", "concurrency:1/30s"))
        False
        >>> bool(limiter.hold("report", "concurrency:1/30s"))
        True

        A `with` statement raises `Denied` if the units are not available. At its end, the hold is settled with as many units as
        were held; `concurrency` limits charge nothing. A settle that fails there is repeated in the background. `renew` prolongs the hold while it is open.

        `id` (1 to 64 bytes) names one hold of the key: if it is open, the hold is allowed and changes nothing, so that a repeated call
        holds once. A call that Ctrl-C ends while it waits holds nothing; with an `id`, it may leave the hold open until that
        expires, because another call may have the same id.
        """
        return self._native.hold([(key, policy, cost)], ttl=ttl, id=id, timeout=timeout, renew=renew)

    def hold_all(
        self,
        holds: Iterable[Keyed],
        *,
        ttl: Span | None = None,
        id: Key | None = None,
        timeout: Span = 0,
        renew: bool = False,
    ) -> Hold:
        """Holds units of all keys or of none. `settle` takes one number, or one for each key."""
        return self._native.hold([*holds], ttl=ttl, id=id, timeout=timeout, renew=renew)

    def counters(self) -> dict[str, int]:
        """Decisions by source, and other counts, of a store in another process."""
        return self._native.counters()

    def close(self) -> None:
        """Gives unused leased units back to the store."""
        self._native.close()

    def __enter__(self: _Limiter) -> _Limiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
