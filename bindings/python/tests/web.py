"""The common comparisons of the tests of all frameworks."""

import json

POLICY = "fixed-window:2/1h"
# `t` is rounded up.
ALLOWED = {"RateLimit-Policy": '"{name}";q=2;w=3600', "RateLimit": '"{name}";r={left};t=3600'}
QUOTA = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
# Where nothing listens.
DOWN = "redis://127.0.0.1:1/"


def is_allowed(response, left, name="default"):
    """Whether a response is that of the service, with the headers of the decision, each once."""
    assert response.status_code == 200, response.text
    for field, value in ALLOWED.items():
        assert values(response, field) == [value.format(name=name, left=left)]
    assert values(response, "Retry-After") == []


def is_denied(response, name="default"):
    """Whether a response is a denial, with its headers, each once, and the problem document."""
    assert response.status_code == 429, response.text
    assert values(response, "RateLimit-Policy") == [ALLOWED["RateLimit-Policy"].format(name=name)]
    assert values(response, "RateLimit") == [ALLOWED["RateLimit"].format(name=name, left=0)]
    assert values(response, "Retry-After") == ["3600"]
    assert values(response, "Cache-Control") == ["no-store"]
    assert values(response, "Content-Type") == ["application/problem+json"]
    problem = json.loads(response.text)
    assert (problem["type"], problem["violated-policies"]) == (QUOTA, [name])


def is_undecided(response):
    """Whether a response reports that no decision was made."""
    assert response.status_code == 503, response.text
    assert values(response, "Content-Type") == ["application/problem+json"]
    assert values(response, "RateLimit") == []
    assert json.loads(response.text)["type"] == REDUCED


async def later(request):
    return "gcra:1/1s"


# Invalid arguments of a limit, and the error at its construction.
INVALID = [
    ({"policy": 5}, "invalid policy `5`: expected a policy, or a function of the request"),
    ({"policy": lambda: POLICY}, "invalid policy `<lambda>`: expected a policy, or a function of the request"),
    ({"policy": later}, "invalid policy `later`: expected a policy, or a function of the request, but not a coroutine function"),
    ({"key": "ip"}, "invalid key `ip`: expected a function of the request, or ClientAddress"),
    ({"key": ""}, "invalid key ``: expected a function of the request, or ClientAddress"),
    ({"key": type(None)}, "invalid key `NoneType`: expected a function of the request, or ClientAddress"),
    ({"cost": "x"}, "invalid cost `x`: expected a number, or a function of the request"),
    ({"cost": None}, "invalid cost `None`: expected a number, or a function of the request"),
    ({"cost": -1}, "invalid number of units `-1`: expected 0 to 4294967295"),
    ({"name": 5}, "invalid name `5`: expected a string"),
]
INVALID_RESULT = "invalid key `5` of a request: expected a string, bytes, or a tuple of them"


def values(response, field):
    headers = response.headers
    return headers.get_list(field) if hasattr(headers, "get_list") else headers.getlist(field)
