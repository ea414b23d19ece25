"""The transports for httpx and the adapter for requests: a third party's limit from many processes."""

import asyncio
import email.utils
import multiprocessing
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
import requests
from sluicegate import Denied, Limiter, ManualClock, Policy, SettingsError, aio
from sluicegate.ext._pause import requested_pause
from sluicegate.ext.httpx import AsyncPacedTransport, PacedTransport
from sluicegate.ext.requests import PacedAdapter

POLICY = "leaky-queue:10/1s"


class Time:
    """Time that passes by sleeping alone."""

    def __init__(self):
        self.clock, self.slept = ManualClock(), []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.clock.advance(seconds)

    async def sleep_async(self, seconds):
        self.sleep(seconds)

    def replace(self, paced):
        """Lets a transport or an adapter sleep by this time."""
        pace = paced._pace
        pace.sleep, pace.sleep_async, pace.clock = self.sleep, self.sleep_async, self.clock.now
        return paced


def answers(*responses):
    """A third party that answers so, and then with 200; and the requests that it has received."""
    received, left = [], list(responses)

    def answer(request):
        received.append(request)
        status, headers = left.pop(0) if left else (200, {})
        return httpx.Response(status, headers=headers)

    return httpx.MockTransport(answer), received


def client(clock, third_party, policy="gcra:1000/1s:burst=1000", **settings):
    limiter = Limiter.in_memory(clock=clock.clock)
    return httpx.Client(transport=clock.replace(PacedTransport(limiter, policy, transport=third_party, **settings)))


def test_denied_request_is_sent_again_after_the_pause():
    clock, (third_party, received) = Time(), answers((429, {"Retry-After": "7"}), (429, {"Retry-After": "2"}))
    response = client(clock, third_party).post("http://api/", content=b"body")
    assert (response.status_code, clock.slept) == (200, [7.0, 2.0])
    assert [request.content for request in received] == [b"body"] * 3


def test_pause_holds_for_all_that_share_the_limiter_and_the_host():
    clock, (third_party, _) = Time(), answers((503, {"Retry-After": "7"}))
    limiter = Limiter.in_memory(clock=clock.clock)
    one, other = (
        httpx.Client(transport=clock.replace(PacedTransport(limiter, POLICY, transport=third_party, retries=0)))
        for _ in range(2)
    )
    assert one.get("http://api/").status_code == 503
    assert other.get("http://elsewhere/").status_code == 200
    assert clock.slept == []
    assert other.get("http://api/").status_code == 200
    assert clock.slept == [7.0]


def test_pauses_of_several_do_not_add_up():
    clock, (third_party, _) = Time(), answers(*[(429, {"Retry-After": "5"})] * 3, (429, {"Retry-After": "8"}))
    transport = clock.replace(PacedTransport(Limiter.in_memory(clock=clock.clock), POLICY, transport=third_party))
    pace, headers = transport._pace, httpx.Headers({"Retry-After": "5"})
    for _ in range(3):
        pace.run(transport._limiter, pace.start_pause("api", 429, headers))
    pace.run(transport._limiter, pace.waits("api"))
    assert clock.slept == [5.0]
    for after in ("5", "8", "2"):
        pace.run(transport._limiter, pace.start_pause("api", 429, httpx.Headers({"Retry-After": after})))
    pace.run(transport._limiter, pace.waits("api"))
    assert clock.slept == [5.0, 8.0]


def test_request_queues_again_if_a_pause_began_while_it_waited():
    clock = Time()
    limiter = Limiter.in_memory(clock=clock.clock)
    transport = clock.replace(PacedTransport(limiter, POLICY, transport=answers()[0]))
    pace = transport._pace
    steps = pace.waits("api")
    assert next(steps)[0] == "peek"
    assert steps.send(limiter.peek(b"pause:api", "gcra:1000/1s:burst=1"))[0] == "wait"
    pace.run(limiter, pace.start_pause("api", 429, httpx.Headers({"Retry-After": "3"})))
    assert steps.send(limiter.take("api", POLICY))[0] == "peek"
    paused = limiter.peek(b"pause:api", "gcra:1000/1s:burst=1")
    assert steps.send(paused)[0] == "peek"
    assert steps.send(paused) == ("sleep", (3.0,))


@pytest.mark.parametrize(
    ("method", "status", "sent"), [("GET", 503, 3), ("POST", 503, 1), ("POST", 429, 3), ("GET", 500, 1), ("GET", 200, 1)]
)
def test_requests_are_sent_again_where_that_is_safe(method, status, sent):
    clock, (third_party, received) = Time(), answers(*[(status, {"Retry-After": "1"})] * 5)
    assert client(clock, third_party).request(method, "http://api/").status_code == status
    assert len(received) == sent


def test_body_that_cannot_be_sent_again_is_sent_once():
    clock, (third_party, received) = Time(), answers((429, {"Retry-After": "1"}))
    response = client(clock, third_party).post("http://api/", content=iter([b"once"]))
    assert (response.status_code, len(received)) == (429, 1)


def test_request_that_would_wait_too_long_is_a_timeout():
    clock, (third_party, received) = Time(), answers((429, {"Retry-After": "60"}))
    requests = client(clock, third_party, timeout=5)
    assert requests.get("http://api/").status_code == 429
    with pytest.raises(httpx.PoolTimeout) as timeout:
        requests.get("http://api/")
    assert isinstance(timeout.value.__cause__, Denied)
    assert (len(received), clock.slept) == (1, [])


def test_pause_is_at_most_max_pause():
    clock, (third_party, _) = Time(), answers((429, {"Retry-After": "999999999"}))
    assert client(clock, third_party, max_pause=3, timeout=10).get("http://api/").status_code == 200
    assert clock.slept == [3.0]


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, {"retry-after": "7"}, 7),
        (429, {"retry-after": "1.5"}, 1.5),
        (200, {"retry-after": "7"}, 0),
        (429, {"retry-after": "-7"}, 0),
        (429, {"retry-after": "soon"}, 0),
        (429, {"retry-after": "9" * 400}, 0),
        (429, {"retry-after": email.utils.formatdate(0, usegmt=True)}, 0),
        (200, {"ratelimit": '"a";r=0;t=5'}, 5),
        (200, {"ratelimit": '"a";r=1;t=5, "b";r=0;t=3'}, 3),
        (200, {"ratelimit": '"a";r=0'}, 0),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "9"}, 9),
        (200, {"x-ratelimit-remaining": "1", "x-ratelimit-reset": "9"}, 0),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "6m0s"}, 0),
        (429, {}, 0),
    ],
)
def test_pause_is_what_the_response_asks_for(status, headers, seconds):
    assert requested_pause(status, headers) == seconds


def test_points_in_time_become_spans():
    date = email.utils.formatdate(time.time() + 60, usegmt=True)
    assert 50 < requested_pause(503, {"retry-after": date}) <= 60
    assert 50 < requested_pause(200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(time.time() + 60))}) <= 60


async def test_coroutines_are_paced_and_paused():
    clock, (third_party, received) = Time(), answers((429, {"Retry-After": "7"}), (503, {"Retry-After": "2"}))
    limiter = aio.Limiter.in_memory(clock=clock.clock)
    transport = clock.replace(AsyncPacedTransport(limiter, "gcra:1000/1s:burst=1000", transport=third_party))
    async with httpx.AsyncClient(transport=transport) as requests:
        assert (await requests.get("http://api/")).status_code == 200
    assert (clock.slept, len(received)) == ([7.0, 2.0], 3)


@pytest.mark.parametrize("on_error", [None, "deny", "fail"])
async def test_store_unavailable_is_an_error_of_the_library(on_error):
    policy = Policy(POLICY, on_error=on_error)
    down, aio_down = Limiter.connect("redis://127.0.0.1:1/"), aio.Limiter.connect("redis://127.0.0.1:1/")
    start = time.monotonic()
    with pytest.raises(httpx.ConnectError):
        httpx.Client(transport=PacedTransport(down, policy, transport=answers()[0])).get("http://api/")
    with pytest.raises(httpx.ConnectError):
        transport = AsyncPacedTransport(aio_down, policy, transport=answers()[0])
        await httpx.AsyncClient(transport=transport).get("http://api/")
    session = requests.Session()
    session.mount("http://", PacedAdapter(down, policy))
    with pytest.raises(requests.exceptions.ConnectionError) as error:
        session.get("http://127.0.0.1:1/")
    assert not isinstance(error.value, requests.exceptions.ConnectTimeout)
    assert time.monotonic() - start < 25, "they wait for a place in the queue"


@pytest.mark.parametrize("on_error", ["allow", "local", "local=1/2"])
def test_store_unavailable_on_error_allows_requests(on_error):
    down = Limiter.connect("redis://127.0.0.1:1/")
    transport = PacedTransport(down, Policy(POLICY, on_error=on_error), transport=answers()[0])
    assert httpx.Client(transport=transport).get("http://api/").status_code == 200


@pytest.mark.parametrize("setting", [{"timeout": -1}, {"retries": -1}, {"max_pause": 90_000}])
def test_invalid_settings_are_named(setting):
    name, value = next(iter(setting.items()))
    with pytest.raises(ValueError, match=f"invalid {name} `{value}`: expected 0 to "):
        PacedTransport(Limiter.in_memory(), POLICY, **setting)


class ThirdParty(ThreadingHTTPServer):
    """A server that admits 20 requests in each second of its clock, and answers others with 429."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock, self.admitted, self.denied, self.windows = threading.Lock(), [], 0, Counter()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        with self.server.lock:
            window = int(time.monotonic())
            self.server.windows[window] += 1
            admits = self.server.windows[window] <= 20
            if admits:
                self.server.admitted.append(self.path)
            else:
                self.server.denied += 1
        self.send_response(200 if admits else 429)
        if not admits:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def worker(number, url, redis_url, policy):
    session = requests.Session()
    session.mount("http://", PacedAdapter(Limiter.connect(redis_url, timeout=20, connect_timeout=20), policy, timeout=60, retries=10))
    for call in range(10):
        assert session.get(f"{url}/{number}/{call}").status_code == 200


@pytest.mark.parametrize(("policy", "most_denied"), [("leaky-queue:15/1s", 0), ("gcra:1000/1s:burst=1000", None)])
def test_processes_obey_the_limit_of_a_third_party(policy, most_denied, redis_url):
    third_party = ThirdParty()
    url = f"http://127.0.0.1:{third_party.server_port}"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=worker, args=(number, url, f"{redis_url}", policy)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    third_party.shutdown()
    assert [process.exitcode for process in processes] == [0] * 4
    assert sorted(third_party.admitted) == sorted(f"/{number}/{call}" for number in range(4) for call in range(10))
    if most_denied is not None:
        assert third_party.denied <= most_denied
