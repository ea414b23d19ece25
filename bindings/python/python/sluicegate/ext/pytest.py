"""Fixtures for tests of code with limits. pytest finds them by itself.

    def test_third_mail_is_denied(sluicegate_limiter, sluicegate_clock):
        ...
        sluicegate_clock.advance(60)
"""

from __future__ import annotations

try:
    import pytest
except ImportError as error:
    raise ImportError("sluicegate.ext.pytest needs the package `pytest`: pip install pytest") from error

from .. import Limiter, ManualClock, aio


@pytest.fixture
def sluicegate_clock() -> ManualClock:
    """A clock that does not advance until it is set."""
    return ManualClock()


@pytest.fixture
def sluicegate_limiter(sluicegate_clock: ManualClock) -> Limiter:
    """A limiter in memory, which reads `sluicegate_clock`."""
    return Limiter.in_memory(clock=sluicegate_clock)


@pytest.fixture
def sluicegate_aio_limiter(sluicegate_limiter: Limiter) -> aio.Limiter:
    """The same limiter for asyncio: both have one state."""
    return aio.Limiter(sluicegate_limiter._native)
