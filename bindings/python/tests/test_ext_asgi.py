"""The middleware for ASGI, with Starlette."""

import asyncio
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from conftest import answers, free_port, until
from sluicegate import Policy, aio
from sluicegate.ext.asgi import ClientAddress, RateLimitMiddleware
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect
from web import DOWN, INVALID, INVALID_RESULT, POLICY, is_allowed, is_denied, is_undecided, values


async def hello(_):
    return PlainTextResponse("hello")


async def stream(_):
    async def parts():
        yield b"hel"
        yield b"lo"

    return StreamingResponse(parts())


async def echo(websocket):
    await websocket.accept()
    await websocket.send_text("hello")
    await websocket.close()


ROUTES = [Route("/", hello), Route("/stream", stream), WebSocketRoute("/echo", echo)]


def client(limiter, policy=POLICY, peer="10.0.0.1", app=None, **settings):
    app = RateLimitMiddleware(app or Starlette(routes=ROUTES), limiter, policy, **settings)
    transport = httpx.ASGITransport(app, client=(peer, 5000))
    return httpx.AsyncClient(transport=transport, base_url="http://test")


async def test_requests_above_the_policy_are_denied():
    limiter = aio.Limiter.in_memory()
    requests = client(limiter, name="hello")
    is_allowed(await requests.get("/"), 1, "hello")
    streamed = await requests.get("/stream")
    is_allowed(streamed, 0, "hello")
    assert streamed.text == "hello"
    is_denied(await requests.get("/"), "hello")
    is_allowed(await client(limiter, name="hello", peer="10.0.0.2").get("/"), 1, "hello")
    assert (await limiter.peek(b"5:hello,8:10.0.0.1,", POLICY)).remaining == 0


async def test_clients_behind_proxies_cannot_forge_their_address():
    requests = client(aio.Limiter.in_memory(), key=ClientAddress(1))
    sent = [("x-forwarded-for", "192.0.2.7"), ("x-forwarded-for", "8.8.8.8, 192.0.2.7"), ("X-Forwarded-For", "1.1.1.1,192.0.2.7")]
    statuses = [(await requests.get("/", headers=[field])).status_code for field in sent]
    assert statuses == [200, 200, 429]
    is_allowed(await requests.get("/", headers=[("x-forwarded-for", "192.0.2.8")]), 1)


async def test_policy_key_and_cost_may_be_functions():
    requests = client(
        aio.Limiter.in_memory(),
        lambda scope: None if scope["path"] == "/stream" else POLICY,
        key=lambda scope: (scope["method"], scope["path"]),
        cost=lambda scope: int(scope["query_string"] or b"1"),
    )
    free = await requests.get("/stream")
    assert (free.status_code, values(free, "RateLimit")) == (200, [])
    is_allowed(await requests.get("/?2"), 0)
    is_denied(await requests.get("/"))
    is_allowed(await requests.get("/?0"), 0)


async def test_nested_middleware_writes_each_header_once():
    inner = RateLimitMiddleware(Starlette(routes=ROUTES), aio.Limiter.in_memory(), "gcra:9/1s", name="inner")
    is_allowed(await client(aio.Limiter.in_memory(), app=inner).get("/"), 1)


async def test_store_unavailable_answers_as_the_policy_says():
    limiter = aio.Limiter.connect(DOWN)
    is_undecided(await client(limiter).get("/"))
    is_undecided(await client(limiter, Policy(POLICY, on_error="fail")).get("/"))
    assert (await client(limiter, Policy(POLICY, on_error="allow")).get("/")).status_code == 200


async def test_limiter_is_shared_by_two_applications(redis_url):
    one, other = (client(aio.Limiter.connect(redis_url), name="shared") for _ in range(2))
    is_allowed(await one.get("/"), 1, "shared")
    is_allowed(await other.get("/"), 0, "shared")
    is_denied(await one.get("/"), "shared")


def test_websockets_are_limited_at_their_handshake():
    app = RateLimitMiddleware(Starlette(routes=ROUTES), aio.Limiter.in_memory(), "fixed-window:1/1h")
    requests = TestClient(app)
    with requests.websocket_connect("/echo") as socket:
        assert socket.receive_text() == "hello"
        assert dict(socket.extra_headers)[b"ratelimit"] == b'"default";r=0;t=3600'
    with pytest.raises(WebSocketDenialResponse) as denied, requests.websocket_connect("/echo"):
        pass
    assert denied.value.status_code == 429
    assert denied.value.headers["Retry-After"] == "3600"


async def test_websocket_of_a_server_without_responses_is_closed():
    app = RateLimitMiddleware(Starlette(), aio.Limiter.in_memory(), "fixed-window:1/1h", cost=2)
    sent = []
    connect = asyncio.Queue()
    connect.put_nowait({"type": "websocket.connect"})

    async def send(message):
        sent.append(message)

    await app({"type": "websocket", "headers": [], "path": "/"}, connect.get, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_lifespan_passes():
    started = []

    async def lifespan(scope, receive, send):
        started.append(scope["type"])

    app = RateLimitMiddleware(lifespan, aio.Limiter.in_memory(), POLICY)
    asyncio.run(app({"type": "lifespan"}, None, None))
    assert started == ["lifespan"]


UVICORN = """
import sys, uvicorn
from sluicegate import aio
from sluicegate.ext.asgi import RateLimitMiddleware
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})
app = RateLimitMiddleware(app, aio.Limiter.connect(sys.argv[1]), "fixed-window:30/1h", name="uvicorn")
uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", lifespan="off")
"""


def test_uvicorn_passes_exactly_the_limit(redis_url):
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", UVICORN, redis_url, str(port)])
    try:
        until(lambda: answers(socket.AF_INET, ("127.0.0.1", port), b"x\r\n\r\n", b"HTTP/1.1 400"))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as requests, ThreadPoolExecutor(8) as threads:
            statuses = [it.status_code for it in threads.map(lambda _: requests.get("/"), range(100))]
    finally:
        process.kill()
        process.wait()
    assert sorted(statuses) == [200] * 30 + [429] * 70


async def test_two_limits_without_a_name_have_counts_of_their_own():
    limiter = aio.Limiter.in_memory()
    inner = RateLimitMiddleware(Starlette(routes=ROUTES), limiter, "fixed-window:2/1h")
    requests = client(limiter, "fixed-window:4/1h", app=inner)
    assert [(await requests.get("/")).status_code for _ in range(3)] == [200, 200, 429]
    assert (await limiter.peek(b"7:default,8:10.0.0.1,", "fixed-window:4/1h")).remaining == 1
    assert (await limiter.peek(b"9:default#2,8:10.0.0.1,", "fixed-window:2/1h")).remaining == 0


async def test_mounted_applications_without_a_name_have_counts_of_their_own():
    limiter = aio.Limiter.in_memory()
    limited = RateLimitMiddleware(Starlette(routes=ROUTES), limiter, "fixed-window:1/1h")
    mounts = [Mount(path, app=limited) for path in ("/a", "/b", "/of/{user}")]
    transport = httpx.ASGITransport(Starlette(routes=mounts), client=("10.0.0.1", 5000))
    requests = httpx.AsyncClient(transport=transport, base_url="http://test")
    paths = ["/a/", "/b/", "/of/ada/", "/a/", "/b/", "/of/eve/"]
    assert [(await requests.get(path)).status_code for path in paths] == [200] * 3 + [429] * 3


@pytest.mark.parametrize("policies", [("2/1h", "9/1h"), ("9/1h", "2/1h")])
async def test_headers_of_nested_limits_are_those_of_the_tightest(policies):
    limiter = aio.Limiter.in_memory()
    inner = RateLimitMiddleware(Starlette(routes=ROUTES), limiter, f"fixed-window:{policies[1]}", name=policies[1])
    requests = client(limiter, f"fixed-window:{policies[0]}", app=inner, name=policies[0])
    responses = [await requests.get("/") for _ in range(3)]
    assert [it.status_code for it in responses] == [200, 200, 429]
    assert [values(it, "RateLimit") for it in responses] == [[f'"2/1h";r={left};t=3600'] for left in (1, 0, 0)]
    assert values(responses[2], "RateLimit-Policy") == ['"2/1h";q=2;w=3600']


@pytest.mark.parametrize(("arguments", "text"), INVALID)
def test_argument_invalid_is_an_error_at_construction(arguments, text):
    with pytest.raises((TypeError, ValueError)) as error:
        RateLimitMiddleware(Starlette(), aio.Limiter.in_memory(), **{"policy": POLICY, **arguments})
    assert str(error.value) == text


async def test_key_of_another_type_is_named():
    with pytest.raises(TypeError, match=INVALID_RESULT):
        await client(aio.Limiter.in_memory(), key=lambda scope: 5).get("/")
