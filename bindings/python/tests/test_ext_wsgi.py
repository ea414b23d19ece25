"""The middleware for WSGI, with Werkzeug's client and gunicorn."""

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from conftest import answers, free_port, until
from sluicegate import Limiter, Policy
from sluicegate.ext.wsgi import ClientAddress, RateLimitMiddleware
from web import DOWN, INVALID, INVALID_RESULT, POLICY, is_allowed, is_denied, is_undecided, values
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client, EnvironBuilder


def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


def client(limiter, policy=POLICY, app=hello, **settings):
    return Client(RateLimitMiddleware(app, limiter, policy, **settings))


def test_requests_above_the_policy_are_denied():
    limiter = Limiter.in_memory()
    requests = client(limiter, name="hello")
    is_allowed(requests.get("/", environ_base={"REMOTE_ADDR": "10.0.0.1"}), 1, "hello")
    is_allowed(requests.get("/", environ_base={"REMOTE_ADDR": "10.0.0.1"}), 0, "hello")
    is_denied(requests.get("/", environ_base={"REMOTE_ADDR": "10.0.0.1"}), "hello")
    is_allowed(requests.get("/", environ_base={"REMOTE_ADDR": "10.0.0.2"}), 1, "hello")
    assert limiter.peek(b"5:hello,8:10.0.0.1,", POLICY).remaining == 0


def test_nested_middleware_writes_each_header_once():
    inner = RateLimitMiddleware(hello, Limiter.in_memory(), "gcra:9/1s", name="inner")
    is_allowed(client(Limiter.in_memory(), app=inner).get("/"), 1)


@pytest.mark.parametrize(
    ("address", "name", "form"),
    [
        (ClientAddress(1), "X-Forwarded-For", "{}"),
        (ClientAddress(1, header="forwarded"), "Forwarded", "for={}"),
    ],
)
def test_clients_behind_proxies_cannot_forge_their_address(address, name, form):
    requests = client(Limiter.in_memory(), key=address)
    statuses = []
    for forged in ("1.1.1.1", "8.8.8.8", "9.9.9.9"):
        value = f"{form.format(forged)}, {form.format('192.0.2.7')}"
        statuses.append(requests.get("/", headers={name: value}).status_code)
    assert statuses == [200, 200, 429]


def test_policy_key_and_cost_may_be_functions():
    requests = client(
        Limiter.in_memory(),
        lambda environ: None if environ["PATH_INFO"] == "/free" else POLICY,
        key=lambda environ: environ.get("HTTP_X_USER"),
        cost=lambda environ: int(environ["QUERY_STRING"] or "1"),
    )
    assert "RateLimit" not in requests.get("/free").headers
    is_allowed(requests.get("/?2", headers={"X-User": "ada"}), 0)
    is_denied(requests.get("/", headers={"X-User": "ada"}))
    is_allowed(requests.get("/"), 1)


def test_response_started_again_after_an_error_is_sent_and_closed():
    closed = []

    class Body:
        def __iter__(self):
            yield b"part"

        def close(self):
            closed.append(True)

    def fails(environ, start_response):
        start_response("200 OK", [])
        try:
            raise ValueError("too late")
        except ValueError:
            start_response("200 Mended", [("X-Mended", "yes")], sys.exc_info())
        return Body()

    started = []
    environ = EnvironBuilder().get_environ()
    body = RateLimitMiddleware(fails, Limiter.in_memory(), POLICY)(environ, lambda *arguments: started.append(arguments))
    assert [arguments[0] for arguments in started] == ["200 OK", "200 Mended"]
    _, headers, exc_info = started[1]
    assert exc_info[0] is ValueError
    assert [name for name, _ in headers] == ["X-Mended", "RateLimit-Policy", "RateLimit"]
    assert list(body) == [b"part"]
    body.close()
    assert closed == [True]


def test_store_unavailable_answers_as_the_policy_says():
    limiter = Limiter.connect(DOWN)
    is_undecided(client(limiter).get("/"))
    is_undecided(client(limiter, Policy(POLICY, on_error="fail")).get("/"))
    assert client(limiter, Policy(POLICY, on_error="allow")).get("/").status_code == 200


GUNICORN = """
import os
from sluicegate import Limiter
from sluicegate.ext.wsgi import RateLimitMiddleware
def hello(environ, start_response):
    start_response("200 OK", [("X-Worker", str(os.getpid()))])
    return [b"hello"]
# Of the parent: each worker connects by itself.
limiter = Limiter.connect(os.environ["REDIS_URL"])
assert limiter.take("preloaded", "gcra:1/1h")
app = RateLimitMiddleware(hello, limiter, "fixed-window:60/1h", name="gunicorn")
"""


def test_gunicorn_workers_pass_exactly_the_limit(redis_url, tmp_path):
    (tmp_path / "served.py").write_text(GUNICORN)
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--bind", f"127.0.0.1:{port}", "served:app"]
    environment = {**os.environ, "REDIS_URL": redis_url}
    process = subprocess.Popen([*command, "--log-level", "warning"], cwd=tmp_path, env=environment)
    workers = set()
    try:
        until(lambda: answers(socket.AF_INET, ("127.0.0.1", port), b"x\r\n\r\n", b"HTTP/1.1 400"))

        def get(_):
            # A connection for each request, so that both workers serve some.
            response = httpx.get(f"http://127.0.0.1:{port}/")
            if response.status_code == 200:
                workers.add(response.headers["X-Worker"])
            return response.status_code

        with ThreadPoolExecutor(8) as threads:
            statuses = list(threads.map(get, range(200)))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    assert sorted(statuses) == [200] * 60 + [429] * 140
    assert len(workers) == 2


def test_limits_without_a_name_have_counts_of_their_own():
    limiter = Limiter.in_memory()
    inner = RateLimitMiddleware(hello, limiter, "fixed-window:2/1h")
    requests = client(limiter, "fixed-window:4/1h", app=inner)
    assert [requests.get("/").status_code for _ in range(3)] == [200, 200, 429]
    limited = RateLimitMiddleware(hello, limiter, "fixed-window:1/1h")
    requests = Client(DispatcherMiddleware(hello, {"/a": limited, "/b": limited}))
    assert [requests.get(path).status_code for path in ["/a/", "/b/", "/a/x", "/b/"]] == [200, 200, 429, 429]


@pytest.mark.parametrize("policies", [("2/1h", "9/1h"), ("9/1h", "2/1h")])
def test_headers_of_nested_limits_are_those_of_the_tightest(policies):
    limiter = Limiter.in_memory()
    inner = RateLimitMiddleware(hello, limiter, f"fixed-window:{policies[1]}", name=policies[1])
    requests = client(limiter, f"fixed-window:{policies[0]}", app=inner, name=policies[0])
    responses = [requests.get("/") for _ in range(3)]
    assert [it.status_code for it in responses] == [200, 200, 429]
    assert [values(it, "RateLimit") for it in responses] == [[f'"2/1h";r={left};t=3600'] for left in (1, 0, 0)]
    assert values(responses[2], "RateLimit-Policy") == ['"2/1h";q=2;w=3600']


@pytest.mark.parametrize(("arguments", "text"), INVALID)
def test_argument_invalid_is_an_error_at_construction(arguments, text):
    with pytest.raises((TypeError, ValueError)) as error:
        RateLimitMiddleware(hello, Limiter.in_memory(), **{"policy": POLICY, **arguments})
    assert str(error.value) == text


def test_key_of_another_type_is_named():
    with pytest.raises(TypeError, match=INVALID_RESULT):
        client(Limiter.in_memory(), key=lambda environ: ("a", 5)).get("/")
