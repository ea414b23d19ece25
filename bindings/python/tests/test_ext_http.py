"""What all middleware shares: addresses of clients, keys, rejections."""

import json

import pytest
from sluicegate import Limiter, OperationError
from sluicegate.ext._http import ClientAddress, Rejection, Rule, key_of


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
    headers, rejection = rule.check(limiter, {"policy": "fixed-window:10/1h", "user": "ada", "cost": 7})
    assert rejection is None
    assert headers == [("RateLimit-Policy", '"api";q=10;w=3600'), ("RateLimit", '"api";r=3;t=3600')]
    assert limiter.peek(b"3:api,3:ada,", "fixed-window:10/1h").remaining == 3
    _, rejection = rule.check(limiter, {"policy": "fixed-window:10/1h", "user": "ada", "cost": 4})
    assert rejection.status == 429
    assert json.loads(rejection.body)["violated-policies"] == ["api"]
    assert rule.check(limiter, {"policy": None, "user": "ada", "cost": 4}) == ([], None)


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
