"""Rate limits that are exact to the microsecond.

In this process:

>>> from sluicegate import Limiter, Policy
>>> limiter = Limiter.in_memory()
>>> policy = Policy.gcra(2, per="1m")
>>> [bool(limiter.take("user7", policy)) for _ in range(3)]
[True, True, False]

Shared by processes: `Limiter.connect("redis://127.0.0.1/")`. The port may be that of Redis, Valkey or a Sluicegate server. With asyncio: `sluicegate.aio.Limiter`.
"""

from ._errors import (
    CorruptState,
    Denied,
    Error,
    InvalidKey,
    OperationError,
    PolicyError,
    SettingsError,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
)
from ._limiter import Limiter
from ._native import Decision, Hold, ManualClock
from ._policy import Policy
from ._limited import limited

__all__ = [
    "CorruptState",
    "Decision",
    "Denied",
    "Error",
    "Hold",
    "InvalidKey",
    "Limiter",
    "ManualClock",
    "OperationError",
    "Policy",
    "PolicyError",
    "SettingsError",
    "StoreError",
    "StoreTimeout",
    "StoreUnavailable",
    "limited",
]
