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


def values(response, field):
    headers = response.headers
    return headers.get_list(field) if hasattr(headers, "get_list") else headers.getlist(field)
