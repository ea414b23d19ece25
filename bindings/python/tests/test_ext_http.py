"""What all middleware shares: addresses of clients, keys, rejections."""

import email.utils
import json
import time

import pytest
from sluicegate import Limiter, OperationError, Policy
from sluicegate.ext._http import ClientAddress, Rejection, Rule, headers_of, key_of
from sluicegate.ext._pause import requested_pause


@pytest.mark.parametrize(
    ("hops", "lines", "network"),
    [
        (0, [b"8.8.8.8"], "10.0.0.1"),
        (1, [b"8.8.8.8, 192.0.2.7"], "192.0.2.7"),
        (2, [b"8.8.8.8, 192.0.2.7", b"10.0.0.2"], "192.0.2.7"),
        (1, [], "10.0.0.1"),
        (1, [b"8.8.8.8, unknown"], "10.0.0.1"),
        (1, [b"2001:db8::7"], "2001:db8::/64"),
        (1, [b"::ffff:192.0.2.7"], "192.0.2.7"),
    ],
)
def test_address_is_that_of_the_outermost_trusted_hop(hops, lines, network):
    assert ClientAddress(hops).of("10.0.0.1", lines) == network


def test_address_of_a_peer_that_is_none_is_missing():
    assert ClientAddress().of(None, []) is None
    assert ClientAddress().of("unix:", []) is None
    assert ClientAddress().of("fe80::7%eth0", []) == "fe80::/64"


def test_address_by_forwarded_and_prefixes():
    address = ClientAddress(1, header="Forwarded", v4_prefix=24)
    assert address.of("10.0.0.1", [b'for=8.8.8.8, for="192.0.2.7:80"']) == "192.0.2.0/24"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"header": "x-real-ip"}, "invalid header `x-real-ip`: expected `x-forwarded-for` or `forwarded`"),
        ({"trusted_hops": -1}, "invalid trusted_hops `-1`: expected 0 or more"),
        ({"v4_prefix": 33}, "invalid v4_prefix `33`: expected 0 to 32"),
        ({"v6_prefix": 129}, "invalid v6_prefix `129`: expected 0 to 128"),
    ],
)
def test_address_invalid_arguments_are_named(arguments, error):
    with pytest.raises(ValueError, match=error):
        ClientAddress(**arguments)


def test_key_is_that_of_the_tower_middleware():
    assert key_of("hello", "192.0.2.7") == b"5:hello,9:192.0.2.7,"
    assert key_of("hello", (None, "", b"\xff", "ü")) == b"5:hello,-,0:,1:\xff,2:\xc3\xbc,"


def test_rule_takes_by_key_and_cost_of_the_request():
    limiter = Limiter.in_memory()
    rule = Rule(lambda it: it["policy"], "api", lambda it: it["user"], lambda it: it["cost"])
    scope = {}
    assert rule.check(limiter, {"policy": "fixed-window:10/1h", "user": "ada", "cost": 7}, "api", scope) is None
    assert headers_of(scope) == [("RateLimit-Policy", '"api";q=10;w=3600'), ("RateLimit", '"api";r=3;t=3600')]
    assert limiter.peek(b"3:api,3:ada,", "fixed-window:10/1h").remaining == 3
    rejection = rule.check(limiter, {"policy": "fixed-window:10/1h", "user": "ada", "cost": 4}, "api", {})
    assert rejection.status == 429
    assert json.loads(rejection.body)["violated-policies"] == ["api"]
    scope = {}
    assert rule.check(limiter, {"policy": None, "user": "ada", "cost": 4}, "api", scope) is None
    assert headers_of(scope) == []


def test_rejection_without_a_decision_is_503():
    rejection = Rejection("api", None)
    assert (rejection.status, rejection.reason) == (503, "Service Unavailable")
    assert rejection.headers == [("Content-Type", "application/problem+json"), ("Cache-Control", "no-store")]
    assert json.loads(rejection.body)["status"] == 503


def test_key_of_a_text_that_is_not_unicode_is_none_of_another():
    assert key_of("hello", "\ud800") != key_of("hello", "?")


def test_rule_of_holds_alone_is_an_error_at_once():
    with pytest.raises(OperationError, match="concurrency"):
        Rule("concurrency:5/30s", "api", lambda it: it, 1)


def test_rule_invalid_policy_is_an_error_at_once():
    with pytest.raises(ValueError, match="invalid rate `x`"):
        Rule("gcra:x", "api", lambda it: it, 1)


def test_key_of_a_request_that_is_too_long_is_422_and_takes_nothing():
    limiter = Limiter.in_memory()
    rule = Rule(Policy("sliding-log:5/1m", on_error="allow"), "login", lambda it: it, 1)
    scope = {}
    rejection = rule.check(limiter, "k" * 70_000, "login", scope)
    assert (headers_of(scope), rejection.status, rejection.reason) == ([], 422, "Unprocessable Content")
    assert json.loads(rejection.body)["detail"] == "invalid key: expected 1 to 65536 bytes, found 70015"


@pytest.mark.parametrize(
    ("value", "pause"),
    [
        ("Fri, 31 Dec 9999 23:59:59 -0000", 250_000_000_000),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 250_000_000_000),
        ("Fri, 31 Dec 9999 23:59:59 -2300", 250_000_000_000),
        ("Fri, 31 Dec 99999 23:59:59 GMT", 0),
        ("Sat, 01 Jan 0001 00:00:00 +2300", 0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("tomorrow", 0),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/Los_Angeles"])
def test_retry_after_of_any_date_is_a_pause_or_none(value, pause, zone, monkeypatch):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert requested_pause(429, {"retry-after": value}) >= pause
        assert requested_pause(429, {"retry-after": value}) <= pause * 1.1
    finally:
        monkeypatch.undo()
        time.tzset()


def test_retry_after_without_an_offset_is_in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    try:
        soon = email.utils.formatdate(time.time() + 100)  # it ends with -0000
        assert 90 < requested_pause(429, {"retry-after": soon}) < 110
    finally:
        monkeypatch.undo()
        time.tzset()


def test_headers_of_several_decisions_are_those_of_the_tightest():
    local, scope = Limiter.in_memory(), {}
    for name, policy, named in [
        ("loose", "fixed-window:9/1h", '"loose";r=8;t=3600'),
        ("tight", "fixed-window:3/1h", '"tight";r=2;t=3600'),
        ("looser", "fixed-window:99/1h", '"tight";r=2;t=3600'),
    ]:
        assert Rule(policy, name, lambda it: it, 1).check(local, "ada", name, scope) is None
        assert dict(headers_of(scope))["RateLimit"] == named
    down = Rule(Policy("fixed-window:9/1h", on_error="allow"), "down", lambda it: it, 1)
    assert down.check(Limiter.connect("redis://127.0.0.1:1/"), "ada", "down", scope) is None
    assert dict(headers_of(scope))["RateLimit"] == '"tight";r=2;t=3600', "a decision without the store knows no usage"
