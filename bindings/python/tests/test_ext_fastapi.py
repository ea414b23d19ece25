"""The dependency for FastAPI."""

import json

import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi.testclient import TestClient
from sluicegate import Policy, aio
from sluicegate.ext.asgi import RateLimitMiddleware
from sluicegate.ext.fastapi import ClientAddress, RateLimit, install
from web import DOWN, INVALID, INVALID_RESULT, POLICY, is_allowed, is_denied, is_undecided, values


def client(limit, documents=True):
    app, router = FastAPI(), APIRouter(prefix="/router", dependencies=[Depends(limit)])
    if documents:
        install(app)

    @app.get("/limited", dependencies=[Depends(limit)])
    async def limited():
        return "hello"

    @app.get("/free")
    async def free():
        return "hello"

    @router.get("/limited")
    def in_router():
        return "hello"

    app.include_router(router)
    return TestClient(app, client=("10.0.0.1", 5000))


def test_routes_and_routers_are_limited():
    limiter = aio.Limiter.in_memory()
    requests = client(RateLimit(limiter, POLICY, name="hello"))
    is_allowed(requests.get("/limited"), 1, "hello")
    is_allowed(requests.get("/router/limited"), 0, "hello")
    is_denied(requests.get("/limited"), "hello")
    assert values(requests.get("/free"), "RateLimit") == []


async def test_key_in_the_store_is_that_of_the_tower_middleware():
    limiter = aio.Limiter.in_memory()
    client(RateLimit(limiter, POLICY, name="hello")).get("/limited")
    assert (await limiter.peek(b"5:hello,8:10.0.0.1,", POLICY)).remaining == 1


def test_denial_without_the_handler_is_an_http_exception():
    requests = client(RateLimit(aio.Limiter.in_memory(), POLICY, name="default", cost=3), documents=False)
    response = requests.get("/limited")
    assert (response.status_code, response.headers["content-type"]) == (429, "application/json")
    assert json.loads(response.text)["detail"]["title"] == "Too many requests"
    assert values(response, "RateLimit") == ['"default";r=2']


def test_key_and_cost_may_be_functions_of_the_request():
    limit = RateLimit(
        aio.Limiter.in_memory(),
        lambda request: POLICY if "user" in request.query_params else None,
        key=lambda request: request.query_params["user"],
        cost=lambda request: int(request.query_params.get("cost", 1)),
        name="default",
    )
    requests = client(limit)
    assert values(requests.get("/limited"), "RateLimit") == []
    is_allowed(requests.get("/limited?user=ada&cost=2"), 0)
    is_denied(requests.get("/limited?user=ada"))
    is_allowed(requests.get("/limited?user=eve"), 1)


def test_clients_behind_proxies_cannot_forge_their_address():
    requests = client(RateLimit(aio.Limiter.in_memory(), POLICY, key=ClientAddress(1)))
    forged = [f"{number}.8.8.8, 192.0.2.7" for number in (1, 2, 3)]
    statuses = [requests.get("/limited", headers={"X-Forwarded-For": it}).status_code for it in forged]
    assert statuses == [200, 200, 429]


def test_limiter_is_shared_by_two_applications(redis_url):
    one, other = (client(RateLimit(aio.Limiter.connect(redis_url, timeout=20), POLICY, name="fastapi")) for _ in range(2))
    is_allowed(one.get("/limited"), 1, "fastapi")
    is_allowed(other.get("/limited"), 0, "fastapi")
    is_denied(one.get("/limited"), "fastapi")


def test_store_unavailable_is_503():
    allowed = client(RateLimit(aio.Limiter.connect(DOWN), Policy(POLICY, on_error="allow")))
    assert allowed.get("/limited").status_code == 200
    is_undecided(client(RateLimit(aio.Limiter.connect(DOWN), POLICY)).get("/limited"))


def statuses(requests, method, path, count):
    return [requests.request(method, path).status_code for _ in range(count)]


def test_routes_without_a_name_do_not_share_a_count():
    limiter = aio.Limiter.in_memory()
    app, router = FastAPI(), APIRouter(prefix="/router")
    once = [Depends(RateLimit(limiter, "sliding-log:1/1h"))]
    shared = RateLimit(limiter, "sliding-log:1/1h")
    app.get("/a", dependencies=once)(lambda: "a")
    app.post("/a", dependencies=[Depends(RateLimit(limiter, "sliding-log:1/1h"))])(lambda: "a")
    app.get("/b", dependencies=[Depends(RateLimit(limiter, "sliding-log:100/1h"))])(lambda: "b")
    app.get("/c", dependencies=[Depends(shared)])(lambda: "c")
    router.get("/c", dependencies=[Depends(shared)])(lambda: "c")
    app.get("/users/{user}", dependencies=[Depends(shared)])(lambda user: user)
    for number in (1, 2):
        inner = FastAPI()
        inner.get("/a", dependencies=[Depends(shared)])(lambda: "a")
        app.mount(f"/inner{number}", inner)
    app.include_router(router)
    requests = TestClient(app, client=("10.0.0.1", 5000))
    assert statuses(requests, "GET", "/b", 6) == [200] * 6
    for method, path in [("GET", "/a"), ("POST", "/a"), ("GET", "/c"), ("GET", "/router/c"), ("GET", "/inner1/a"), ("GET", "/inner2/a")]:
        assert statuses(requests, method, path, 2) == [200, 429], path
    assert requests.get("/users/ada").status_code == 200
    assert requests.get("/users/eve").status_code == 429, "the name is that of the route, not of the path"
    named = requests.get("/b").headers["RateLimit"]
    assert named.startswith('"GET /b";r=93'), named


def test_two_limits_of_a_route_have_counts_of_their_own():
    limiter, app = aio.Limiter.in_memory(), FastAPI()
    both = [Depends(RateLimit(limiter, "fixed-window:2/1h")), Depends(RateLimit(limiter, "fixed-window:4/1h"))]
    app.get("/a", dependencies=both)(lambda: "a")
    requests = TestClient(app, client=("10.0.0.1", 5000))
    assert statuses(requests, "GET", "/a", 3) == [200, 200, 429]
    names = json.loads(requests.get("/a").text)["detail"]["violated-policies"]
    assert names == ["GET /a"]


def test_key_of_a_client_that_is_too_long_is_422():
    limit = RateLimit(aio.Limiter.connect(DOWN), Policy(POLICY, on_error="allow"), key=lambda request: request.headers["x-user"] * 70_000)
    requests = client(limit)
    response = requests.get("/limited", headers={"x-user": "k"})
    assert (response.status_code, response.headers["content-type"]) == (422, "application/problem+json")
    assert "invalid key: expected 1 to 65536 bytes" in json.loads(response.text)["detail"]


def test_headers_of_several_limits_of_a_route_are_those_of_the_tightest():
    limiter = aio.Limiter.in_memory()
    for path, policies in [("/a", ["2/1h", "9/1h"]), ("/b", ["9/1h", "2/1h"])]:
        app = FastAPI()
        both = [Depends(RateLimit(limiter, f"fixed-window:{policy}")) for policy in policies]
        app.get(path, dependencies=both)(lambda: "a")
        app.add_middleware(RateLimitMiddleware, limiter=limiter, policy="fixed-window:99/1h", name="all")
        requests = TestClient(app, client=("10.0.0.1", 5000))
        tight = f"GET {path}" if path == "/a" else f"GET {path}#2"
        responses = [requests.get(path) for _ in range(3)]
        assert [it.status_code for it in responses] == [200, 200, 429]
        assert [values(it, "RateLimit") for it in responses] == [[f'"{tight}";r={left};t=3600'] for left in (1, 0, 0)]
        assert values(responses[0], "RateLimit-Policy") == [f'"{tight}";q=2;w=3600']
        assert [values(it, "Retry-After") for it in responses] == [[], [], ["3600"]]


@pytest.mark.parametrize(("arguments", "text"), INVALID)
def test_argument_invalid_is_an_error_at_construction(arguments, text):
    with pytest.raises((TypeError, ValueError)) as error:
        RateLimit(aio.Limiter.in_memory(), **{"policy": POLICY, **arguments})
    assert str(error.value) == text


def test_key_of_another_type_is_named():
    with pytest.raises(TypeError, match=INVALID_RESULT):
        client(RateLimit(aio.Limiter.in_memory(), POLICY, key=lambda request: 5)).get("/limited")
