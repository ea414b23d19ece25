from asyncio import Future
from collections.abc import Sequence
from datetime import timedelta
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Union, final

from typing_extensions import Self

_Span = Union[float, int, timedelta]
_Key = Union[str, bytes]
_Keyed = Union[tuple[_Key, Union[Policy, str]], tuple[_Key, Union[Policy, str], int]]

class Policy:
    def __new__(cls, text: str, *, on_error: str | None = None, lease: int = 0) -> Self: ...
    def __and__(self, other: Policy) -> Self: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    @property
    def on_error(self) -> str | None:
        """The answer while the store is unavailable, if it is set."""
    @property
    def lease(self) -> int:
        """The most units that are taken from the store at once."""
    def explain(self) -> str:
        """Describes the policy in words."""

@final
class Decision:
    """The answer to a request. It is true if the request is allowed."""

    def __bool__(self) -> bool: ...
    @property
    def allowed(self) -> bool:
        """Whether the request is allowed."""
    @property
    def limit(self) -> int:
        """Units that the binding limit admits at once."""
    @property
    def remaining(self) -> int:
        """Requests of cost 1 that would pass now."""
    @property
    def retry_after(self) -> timedelta | None:
        """The time after which the request passes; `None` if it is allowed, or never passes."""
    @property
    def never(self) -> bool:
        """Whether the request never passes, because its cost is more than the policy admits."""
    @property
    def reset_after(self) -> timedelta:
        """The time until nothing is in use, under all limits of the policy. `headers` has that of the binding limit."""
    @property
    def delay(self) -> timedelta:
        """The time after which the units that were taken are for use: of a reservation, or in a queue."""
    @property
    def binding(self) -> int:
        """Index of the binding limit of the policy, from 0."""
    @property
    def key(self) -> int | None:
        """For a decision on several keys: index of the binding key, from 0. Otherwise `None`."""
    @property
    def source(self) -> Literal["store", "cache", "lease", "fallback"]:
        """What decided."""
    @property
    def policy(self) -> str:
        """The text of the policy."""
    def integers(self) -> list[int]:
        """The seven integers of the protocols: allowed, limit, remaining, retry after (-1: never), reset after, delay, binding;
        times in microseconds."""
    def headers(self, name: str = "default") -> list[tuple[str, str]]:
        """Headers for a response: `RateLimit-Policy`, `RateLimit`, and `Retry-After` if denied."""
    def problem(self, name: str = "default") -> str:
        """The problem document (RFC 9457) of a denial, as JSON: the body of a response with status 429."""

@final
class ManualClock:
    """A clock that does not advance until it is set.

    `now`: seconds since the Unix epoch, as of `time.time()`.
    """

    def __new__(cls, now: float = 1_700_000_000.0) -> ManualClock: ...
    def advance(self, by: _Span) -> None:
        """Moves the clock forward, by seconds or a `timedelta`."""
    def set(self, now: float) -> None:
        """Sets the clock to seconds since the Unix epoch."""
    def now(self) -> float:
        """Seconds since the Unix epoch."""
    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""
    def set_us(self, now: int) -> None:
        """Sets the clock to microseconds since the Unix epoch."""

@final
class Hold:
    """Units of one key or of several, which are held until they are settled or expire; or the denial of a hold. It is true if
    the units are held."""

    def __bool__(self) -> bool: ...
    @property
    def decision(self) -> Decision:
        """The decision on the hold."""
    @property
    def id(self) -> bytes:
        """The id of the hold; empty once it is settled."""
    @property
    def open(self) -> bool:
        """Whether units are still held, as far as this process has seen."""
    def settle(self, used: int | Sequence[int] | None = None) -> Decision:
        """Ends the hold, and charges the units used: a number, one for each key, or as many as were held. The decision
        is a denial if the hold has expired, or was settled before: then nothing more is charged."""
    def renew(self) -> Decision:
        """Prolongs the hold by its lifetime from now on. The decision is a denial if it is not open: it has expired, or was
        settled."""
    def check(self) -> None:
        """Raises `Denied` if the hold was denied."""
    def cancel(self) -> None: ...
    def start_settle(
        self, bridge: Bridge, future: Future[Any], used: int | Sequence[int] | None
    ) -> int | Decision: ...
    def start_renew(self, bridge: Bridge, future: Future[Any]) -> int | Decision: ...
    def __enter__(self) -> Hold: ...
    def __exit__(
        self,
        class_: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]: ...

@final
class Bridge:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def fileno(self) -> int: ...
    def drain(self) -> None: ...
    def abort(self, call: int) -> None: ...
    def abort_all(self) -> None: ...

@final
class PendingCall:
    def start(self, bridge: Bridge, future: Future[Any]) -> int: ...

@final
class Limiter:
    @staticmethod
    def in_memory(*, max_memory: int = ..., clock: ManualClock | None = None) -> Limiter: ...
    @staticmethod
    def connect(
        url: str,
        *,
        timeout: _Span | None = None,
        connect_timeout: _Span | None = None,
        key_prefix: str = "",
        max_denial_cache: _Span | None = None,
        tls_ca: str | PathLike[str] | None = None,
        tls_cert: str | PathLike[str] | None = None,
        tls_key: str | PathLike[str] | None = None,
        use_module: bool = True,
        clock: ManualClock | None = None,
        tasks: bool = False,
    ) -> Limiter: ...
    @property
    def is_local(self) -> bool: ...
    def take(self, key: _Key, policy: Policy | str, cost: int = 1) -> Decision:
        """Takes `cost` units, all or none."""
    def peek(self, key: _Key, policy: Policy | str, cost: int = 1) -> Decision:
        """Returns what `take` would return, and changes nothing."""
    def charge(self, key: _Key, policy: Policy | str, cost: int = 1) -> Decision:
        """Takes `cost` units whether or not they fit, for a cost that is known only afterwards."""
    def refund(self, key: _Key, policy: Policy | str, cost: int = 1) -> Decision:
        """Gives back up to `cost` of the units in use."""
    def reserve(
        self, key: _Key, policy: Policy | str, cost: int = 1, *, max_wait: _Span
    ) -> Decision: ...
    def wait(
        self,
        key: _Key,
        policy: Policy | str,
        cost: int = 1,
        *,
        timeout: _Span,
        jitter: _Span | None = None,
    ) -> Decision: ...
    def reset(self, key: _Key) -> bool: ...
    def take_many(self, takes: Sequence[_Keyed]) -> list[Decision]: ...
    def take_all(self, takes: Sequence[_Keyed]) -> Decision: ...
    def hold(
        self,
        holds: Sequence[_Keyed],
        *,
        id: _Key | None = None,
        ttl: _Span | None = None,
        timeout: _Span | None = None,
        renew: bool = False,
    ) -> Hold: ...
    def start_apply(
        self,
        bridge: Bridge,
        future: Future[Any],
        operation: str,
        key: _Key,
        policy: Policy | str,
        cost: int,
        max_wait: _Span | None,
    ) -> int | Decision: ...
    def poll_wait(
        self, key: _Key, policy: Policy | str, cost: int, timeout: _Span, jitter: _Span | None
    ) -> Decision | PendingCall: ...
    def poll_hold(
        self,
        holds: Sequence[_Keyed],
        id: _Key | None,
        ttl: _Span | None,
        timeout: _Span | None,
        renew: bool,
    ) -> Hold | PendingCall: ...
    def start_wait(
        self,
        bridge: Bridge,
        future: Future[Any],
        key: _Key,
        policy: Policy | str,
        cost: int,
        timeout: _Span,
        jitter: _Span | None,
    ) -> int | Decision: ...
    def start_reset(self, bridge: Bridge, future: Future[Any], key: _Key) -> int: ...
    def start_take_many(
        self, bridge: Bridge, future: Future[Any], takes: Sequence[_Keyed]
    ) -> int | list[Decision]: ...
    def start_take_all(
        self, bridge: Bridge, future: Future[Any], takes: Sequence[_Keyed]
    ) -> int | Decision: ...
    def start_hold(
        self,
        bridge: Bridge,
        future: Future[Any],
        holds: Sequence[_Keyed],
        id: _Key | None,
        ttl: _Span | None,
        timeout: _Span | None,
        renew: bool,
    ) -> int | Hold: ...
    def counters(self) -> dict[str, int]: ...
    def close(self) -> None: ...

def hold_ttl(policy: Policy) -> timedelta | None: ...
def limit_text(name: str, limit: int, per: str | _Span, options: list[str]) -> str: ...
def client_network(
    lines: Sequence[bytes], trusted_hops: int, forwarded: bool, peer: str | None, v4_prefix: int, v6_prefix: int
) -> str | None: ...
def unavailable_problem() -> str: ...
def usage(limiter: Limiter, key: _Key) -> tuple[int, int, int, int, tuple[int, int] | None] | None: ...
def window(limiter: Limiter, key: _Key, policy: Policy | str) -> tuple[int, int | None]: ...
def keys(limiter: Limiter) -> int: ...
def delete_matching(limiter: Limiter, pattern: str) -> int | None: ...
