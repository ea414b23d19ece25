"""The limiter for code without asyncio."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypedDict, TypeVar, Union

from . import _native
from ._errors import Denied, OperationError, SettingsError
from ._native import Decision, Hold, ManualClock
from ._policy import Policy, Span

Key = Union[str, bytes]
Keyed = Union[tuple[Key, Union[Policy, str]], tuple[Key, Union[Policy, str], int]]
MAX_KEYS = 8
"""The most keys of one decision."""
_Limiter = TypeVar("_Limiter", bound="Limiter")
_Any = TypeVar("_Any")

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Settings(TypedDict, total=False):
    """Settings of `Limiter.connect`."""

    timeout: Span
    """The longest time of a decision: 0.5 seconds unless it is set."""
    connect_timeout: Span
    """The longest time until a connection is open."""
    key_prefix: str
    """The prefix of each key in the store."""
    max_denial_cache: Span
    """How long a denial is repeated without the store, at most: 1 second unless it is set."""
    tls_ca: Union[str, os.PathLike[str]]
    """Path of a PEM file with the only authority to trust."""
    tls_cert: Union[str, os.PathLike[str]]
    """Path of a PEM file with the certificate of this client."""
    tls_key: Union[str, os.PathLike[str]]
    """Path of a PEM file with the key of that certificate."""
    use_module: bool
    """Whether to use the Sluicegate module of the store, if it has it."""
    clock: ManualClock
    """A clock instead of that of the store: for tests."""


def known(kind: str, given: Iterable[str], names: Iterable[str]) -> None:
    """Raises a `TypeError` if a given name is none of `names`."""
    names = sorted(names)
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            advice = f"did you mean `{close[0]}`?" if close else f"expected one of {', '.join(names)}"
            raise TypeError(f"unknown {kind} `{name}`: {advice}")


# Settings of the packages `redis` and `coredis` that mean the same.
SAME = {
    "socket_timeout": "timeout",
    "stream_timeout": "timeout",
    "socket_connect_timeout": "connect_timeout",
    "ssl_ca_certs": "tls_ca",
    "ssl_certfile": "tls_cert",
    "ssl_keyfile": "tls_key",
}
# Settings of those packages that are parts of the URL here, as in this one.
_PARTS = {
    "ssl": "rediss://HOST",
    "service_name": "redis+sentinel://HOST/NAME",
    **dict.fromkeys(("db", "host", "password", "port", "username"), "redis://USERNAME:PASSWORD@HOST:PORT/DB"),
}
_PATH = ((str, bytes, os.PathLike, type(None)), "a path")
_KINDS: dict[str, tuple[Union[type, tuple[type, ...]], str]] = {
    "clock": ((ManualClock, type(None)), "a ManualClock"),
    "key_prefix": (str, "a string"),
    "max_memory": (int, "a number of bytes"),
    "renew": (bool, "True or False"),
    "tls_ca": _PATH,
    "tls_cert": _PATH,
    "tls_key": _PATH,
    "url": (str, "a string"),
    "use_module": (bool, "True or False"),
}


def check_settings(settings: Mapping[str, object]) -> None:
    """Raises a `TypeError` that names a setting of `connect` that is unknown, or has another type."""
    for name in settings:
        if name in _PARTS:
            raise TypeError(f"unknown setting `{name}`: expected it in the URL, such as `{_PARTS[name]}`")
        if name in SAME:
            raise TypeError(f"unknown setting `{name}`: did you mean `{SAME[name]}`?")
    known("setting", settings, Settings.__annotations__)
    check_types(**settings)


def check_types(**given: object) -> None:
    """Raises a `TypeError` that names a value of another type. The native module names those of times."""
    for name, value in given.items():
        kind, expected = _KINDS.get(name, (object, ""))
        if not isinstance(value, kind):
            raise TypeError(f"invalid {name} of type `{type(value).__name__}`: expected {expected}")


def memory_of(max_memory: int, clock: ManualClock | None) -> _native.Limiter:
    """The state of a limiter in this process."""
    check_types(max_memory=max_memory, clock=clock)
    if max_memory < 0:
        raise SettingsError(f"invalid max_memory `{max_memory}`: expected a number of bytes")
    return _native.Limiter.in_memory(max_memory=max_memory, clock=clock)


def some(name: str, keyed: Iterable[Keyed]) -> list[Keyed]:
    """The keys of a call on one or more at once."""
    keys = list_of(name, keyed)
    if not 1 <= len(keys) <= MAX_KEYS:
        raise OperationError(f"invalid number of {name} `{len(keys)}`: expected 1 to {MAX_KEYS}")
    return keys


def list_of(name: str, keyed: Iterable[Keyed]) -> list[Keyed]:
    """The keys of a call on several."""
    if isinstance(keyed, (str, bytes)) or not isinstance(keyed, Iterable):
        expected = "expected a list of (key, policy) or (key, policy, cost)"
        raise TypeError(f"invalid {name} of type `{type(keyed).__name__}`: {expected}")
    return [*keyed]


def check_native(cls: type[object], given: tuple[object, ...]) -> None:
    """Raises a `TypeError` that says how to make a limiter, if it is not made of another one."""
    name = f"{cls.__module__.removesuffix('._limiter')}.{cls.__qualname__}"
    if not given:
        raise TypeError(f"missing state of `{name}`: use {cls.__name__}.in_memory() or {cls.__name__}.connect(url)")
    if isinstance(given[0], (str, bytes)):
        raise TypeError(f"invalid call of `{name}` with a text: use {cls.__name__}.connect(url)")
    if not isinstance(given[0], _native.Limiter):
        found = type(given[0]).__qualname__
        raise TypeError(f"invalid call of `{name}` with `{found}`: use {cls.__name__}.in_memory() or {cls.__name__}.connect(url)")


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

    def __new__(cls: type[_Any], *given: object, **_: object) -> _Any:
        check_native(cls, given)
        return object.__new__(cls)

    def __init__(self, native: _native.Limiter) -> None:
        self._native = native
        # The calls of every request, without a frame of Python in between. The methods below document them.
        self.take = native.take  # type: ignore[method-assign]
        self.peek = native.peek  # type: ignore[method-assign]
        self.charge = native.charge  # type: ignore[method-assign]
        self.refund = native.refund  # type: ignore[method-assign]

    @classmethod
    def in_memory(
        cls: type[_Limiter], *, max_memory: int = 1 << 30, clock: ManualClock | None = None
    ) -> _Limiter:
        """A limiter in this process, with up to `max_memory` bytes of state. When they are in use, new keys are denied."""
        return cls(memory_of(max_memory, clock))

    @classmethod
    def connect(cls: type[_Limiter], url: str, **settings: Unpack[Settings]) -> _Limiter:
        """A limiter in the store at `url`: `redis://HOST`, `rediss://HOST` (TLS), `redis+cluster://HOST,HOST`,
        `redis+sentinel://HOST,HOST/NAME`, or `unix:///PATH`. The server is Redis, Valkey or `sluicegate serve` (port 6380). It connects
        at the first call.

        `timeout` (0.5 s) is the longest time of a decision, `connect_timeout` that of a connection, `key_prefix` stands before
        each key, `max_denial_cache` (1 s) is how long a denial is repeated without the store, `tls_ca`, `tls_cert` and
        `tls_key` are paths of PEM files: the only authority to trust, and a certificate of this client with its key.
        """
        check_types(url=url)
        check_settings(settings)
        return cls(_native.Limiter.connect(url, **settings))

    def take(self, key: Key, policy: Policy | str, cost: int = 1) -> Decision:
        """Takes `cost` units, all or none."""
        return self._native.take(key, policy, cost)

    def peek(self, key: Key, policy: Policy | str, cost: int = 1) -> Decision:
        """Returns what `take` would return, and changes nothing."""
        return self._native.peek(key, policy, cost)

    def charge(self, key: Key, policy: Policy | str, cost: int = 1) -> Decision:
        """Takes `cost` units whether or not they fit, for a cost that is known only afterwards."""
        return self._native.charge(key, policy, cost)

    def refund(self, key: Key, policy: Policy | str, cost: int = 1) -> Decision:
        """Gives back up to `cost` of the units in use."""
        return self._native.refund(key, policy, cost)

    def require(self, key: Key, policy: Policy | str, cost: int = 1) -> Decision:
        """Takes `cost` units, or raises `Denied`."""
        decision = self.take(key, policy, cost)
        if not decision:
            raise Denied(decision, cost)
        return decision

    def reserve(self, key: Key, policy: Policy | str, cost: int = 1, *, max_wait: Span) -> Decision:
        """Takes `cost` units now, for use after `decision.delay`, which is at most `max_wait`."""
        return self._native.reserve(key, policy, cost, max_wait=max_wait)

    def wait(
        self, key: Key, policy: Policy | str, cost: int = 1, *, timeout: Span, jitter: Span | None = None
    ) -> Decision:
        """Blocks until `cost` units are taken, or returns a denial at once if that does not happen within `timeout`. Ctrl-C
        ends it, and gives the units back that it has reserved."""
        return self._native.wait(key, policy, cost, timeout=timeout, jitter=jitter)

    def reset(self, key: Key) -> bool:
        """Forgets the usage of `key`. Whether it had any."""
        return self._native.reset(key)

    def take_many(self, takes: Iterable[Keyed]) -> list[Decision]:
        """Takes from several keys, each by itself, in one round trip."""
        return self._native.take_many(list_of("takes", takes))

    def take_all(self, takes: Iterable[Keyed]) -> Decision:
        """Takes from all keys or from none. `decision.key` is the index of the binding key."""
        return self._native.take_all(some("takes", takes))

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
        check_types(renew=renew)
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
        check_types(renew=renew)
        return self._native.hold(some("holds", holds), ttl=ttl, id=id, timeout=timeout, renew=renew)

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
