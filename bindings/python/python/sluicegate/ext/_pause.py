"""Pauses that a third party requests, shared by all processes; and their length.

A pause is the usage of the key `pause:KEY` under `gcra:1000/1s`: a unit is a millisecond. Of several that see the same response, one
makes the pause: it takes what is missing, and fits only once.
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Mapping
from datetime import timedelta, timezone

from .. import Policy
from .._limiter import Key

RETRIED = (429, 503)
# Methods that a server may receive twice (RFC 9110).
IDEMPOTENT = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PUT", "TRACE"))


def key_of_pause(key: Key) -> bytes:
    """The key of the pauses of a key."""
    return b"pause:" + (key.encode() if isinstance(key, str) else key)


def policy_of(millis: int, on_error: str | None) -> Policy:
    """The policy under which a pause of up to this many milliseconds fits."""
    return Policy(f"gcra:1000/1s:burst={max(millis, 1)}", on_error=on_error)


def missing(pause: float, open_for: timedelta) -> tuple[int, int]:
    """The milliseconds of a pause, and how many of them an open one lacks."""
    millis = max(round(pause * 1000), 0)
    return millis, millis - round(open_for.total_seconds() * 1000)


def requested_pause(status: int, headers: Mapping[str, str]) -> float:
    """How many seconds to pause after a response: by `Retry-After`, `RateLimit` or `X-RateLimit-*`; 0 without them."""
    if status in RETRIED:
        after = _retry_after(headers.get("retry-after", ""))
        if after is not None:
            return after
    spans = [_field(headers.get("ratelimit", "")), _older(headers)]
    return max(span for span in (*spans, 0.0) if span is not None)


def _retry_after(value: str) -> float | None:
    value = value.strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,3})?", value):
        return float(value)
    try:
        date = email.utils.parsedate_to_datetime(value)
        # Without an offset, or with `-0000`, it is in UTC.
        at = (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()
    except (OverflowError, TypeError, ValueError):
        return None
    return max(at - time.time(), 0.0)


def _field(value: str) -> float | None:
    """The longest `t` of the items of `RateLimit` without remaining units."""
    items = (dict(re.findall(r";\s*([a-z]+)=(\d{1,9})", item)) for item in value.split(","))
    spans = [float(item["t"]) for item in items if item.get("r") == "0" and "t" in item]
    return max(spans, default=None)


def _older(headers: Mapping[str, str]) -> float | None:
    """The span of `X-RateLimit-Reset`, which some count from the epoch, if nothing remains."""
    reset = headers.get("x-ratelimit-reset", "").strip()
    if headers.get("x-ratelimit-remaining", "").strip() != "0" or not re.fullmatch(r"\d{1,12}(\.\d+)?", reset):
        return None
    seconds = float(reset)
    return max(seconds - time.time(), 0.0) if seconds > 1_000_000_000 else seconds


def retries(method: str, status: int) -> bool:
    """Whether a request may be sent again: the server has not processed one that it answered with 429."""
    return status == 429 or (status == 503 and method.upper() in IDEMPOTENT)

