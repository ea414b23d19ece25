"""Stores of each kind: a cluster, sentinels, TLS, and a password."""

import asyncio
import shutil
import socket
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
from conftest import answers, free_port, start_redis, until
from sluicegate import Limiter, Policy, SettingsError, StoreError, StoreUnavailable, aio
from sluicegate.ext.limits import AsyncSluicegateStorage, SluicegateStorage

POLICY = "fixed-window:2/1h"


@contextmanager
def redis(*arguments, ping=b"+PONG", port=None):
    """A server with these arguments, and its port."""
    port = port or free_port()
    command = ["redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1", "--loglevel", "warning", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until(lambda: answers(socket.AF_INET, ("127.0.0.1", port), b"PING\r\n", ping))
        yield port
    finally:
        process.kill()
        process.wait()


def send_command(port, *words):
    """Sends a command, and returns the reply."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(" ".join(words).encode() + b"\r\n")
        return client.recv(65536)


async def decides(url, **settings):
    """Whether both kinds of limiters share a limit there."""
    settings.setdefault("timeout", 20)
    limiter, aio_limiter = Limiter.connect(url, **settings), aio.Limiter.connect(url, **settings)
    assert limiter.take("user7", POLICY).integers()[:3] == [1, 2, 1]
    assert (await aio_limiter.take("user7", POLICY)).integers()[:3] == [1, 2, 0]
    denied = limiter.take("user7", POLICY)
    assert (denied.allowed, denied.source) == (False, "store")
    limiter.close()
    await aio_limiter.close()


class Caller(threading.Thread):
    """Calls without a pause of 50 ms, until the block ends."""

    def __init__(self, call):
        super().__init__()
        self.call, self.ended, self.answer = call, threading.Event(), None

    def run(self):
        while not self.ended.wait(0.002):
            self.answer = self.call()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()


@pytest.mark.parametrize("on_error", ["allow", "deny", "local"])
def test_store_that_comes_back_is_noticed_by_a_busy_process(on_error):
    port, policy = free_port(), Policy("fixed-window:1000000/1h", on_error=on_error)
    with redis(port=port):
        limiter = Limiter.connect(f"redis://127.0.0.1:{port}/")
        assert limiter.take("user7", policy).source == "store"
    with Caller(lambda: limiter.take("user7", policy).source) as caller:
        until(lambda: caller.answer == "fallback")
        with redis(port=port):
            until(lambda: caller.answer == "store")


async def test_hold_is_renewed_while_a_lease_answers_calls(redis_url):
    # The calls of the other one do not drive what renews the hold.
    limiter, other = Limiter.connect(redis_url, timeout=20), aio.Limiter.connect(redis_url, timeout=20)
    leased, policy = Policy("gcra:1000000/1s:burst=1000000", lease=100_000), "concurrency:1/2400ms"
    with Caller(lambda: limiter.take("leased", leased)), limiter.hold("renewed", policy, renew=True) as hold:
        # In this time it would expire at least once.
        end = time.monotonic() + 5
        while time.monotonic() < end:
            assert not await other.peek("renewed", policy)
            await asyncio.sleep(0.05)
        assert hold.open


def commands(port):
    """The commands that the server has processed, with those that scripts have called."""
    reply = send_command(port, "INFO", "stats").decode()
    return int(reply.split("total_commands_processed:")[1].split()[0])


async def test_leases_decide_calls_of_asyncio_and_admit_the_limit_exactly():
    policy = Policy("gcra:2000/365d", lease=100)
    with redis() as port:
        limiters = [aio.Limiter.connect(f"redis://127.0.0.1:{port}/", timeout=20) for _ in range(2)]

        async def takes(limiter):
            return sum([(await limiter.take("leased", policy)).allowed for _ in range(600)])

        before = commands(port)
        # Each limiter asks for more than the limit. It is denied only after it has used all units of its leases.
        admitted = await asyncio.gather(*(takes(limiter) for limiter in limiters for _ in range(4)))
        sent = commands(port) - before
        leased = [limiter.counters()["lease"] for limiter in limiters]
        assert sum(admitted) == 2000
        assert all(leased) and 1500 < sum(leased) < 2000
        assert sent < 500, "each decision of a script is three commands"
        for limiter in limiters:
            await limiter.close()
        assert (await aio.Limiter.connect(f"redis://127.0.0.1:{port}/", timeout=20).peek("leased", policy)).remaining == 0


async def test_hold_that_ends_without_the_store_raises_what_its_body_raises():
    policy = Policy("concurrency:1/30s", on_error="allow")
    with ExitStack() as stack:
        port = stack.enter_context(redis())
        limiter, other = (it.connect(f"redis://127.0.0.1:{port}/", timeout=5) for it in (Limiter, aio.Limiter))
        settled = limiter.hold("settled", policy)
        async with other.hold("one", policy):
            with pytest.raises(KeyError, match="of the body"), limiter.hold("two", policy):
                stack.close()
                raise KeyError("of the body")
        with limiter.hold("of the fallback", policy) as hold:
            assert hold.decision.source == "fallback"
        # A caller that settles by itself learns that the store did not.
        with pytest.raises(StoreError):
            settled.settle()


async def test_cluster_decides(tmp_path):
    bus = free_port()
    arguments = ["--cluster-enabled", "yes", "--cluster-port", str(bus), "--dir", str(tmp_path)]
    with redis(*arguments) as port:
        assert send_command(port, "CLUSTER", "ADDSLOTSRANGE", "0", "16383").startswith(b"+OK")
        until(lambda: b"cluster_state:ok" in send_command(port, "CLUSTER", "INFO"))
        await decides(f"redis+cluster://127.0.0.1:{port}")


async def test_sentinels_lead_to_their_primary(tmp_path):
    port = free_port()
    server = start_redis()
    configuration = tmp_path / "sentinel.conf"
    configuration.write_text(f"port {port}\nbind 127.0.0.1\nsentinel monitor limits 127.0.0.1 {server.port} 1\n")
    process = subprocess.Popen(["redis-server", str(configuration), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        until(lambda: answers(socket.AF_INET, ("127.0.0.1", port), b"PING\r\n", b"+PONG"))
        await decides(f"redis+sentinel://127.0.0.1:{port}/limits")
    finally:
        process.kill()
        process.wait()
        server.stop()


@contextmanager
def redis_with_tls(tmp_path, auth_clients):
    """The port of a server with a certificate of an authority of its own, and the files: of the authority, and of the server."""
    openssl = shutil.which("openssl")
    assert openssl, "openssl is not installed"

    def run(*arguments):
        subprocess.run([openssl, *arguments], cwd=tmp_path, check=True, capture_output=True)

    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    run("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2")
    run("req", *curve, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
    run("x509", "-req", "-in", "server.csr", "-out", "server.pem", *signed)
    tls, ca = free_port(), str(tmp_path / "ca.pem")
    files = ["--tls-cert-file", str(tmp_path / "server.pem"), "--tls-key-file", str(tmp_path / "server.key")]
    arguments = ["--tls-port", str(tls), *files, "--tls-ca-cert-file", ca, "--tls-auth-clients", auth_clients]
    with redis(*arguments):
        yield tls, ca, files[1], files[3]


async def test_tls_with_an_authority_of_ones_own(tmp_path):
    with redis_with_tls(tmp_path, "no") as (tls, ca, _, _):
        await decides(f"rediss://127.0.0.1:{tls}/", tls_ca=ca)
        with pytest.raises(StoreUnavailable):
            Limiter.connect(f"rediss://127.0.0.1:{tls}/", timeout=20).charge("user7", POLICY)


async def test_storage_of_limits_resets_over_tls(tmp_path):
    with redis_with_tls(tmp_path, "yes") as (tls, ca, cert, key):
        url = f"sluicegate+valkeys://127.0.0.1:{tls}/"
        settings = {"tls_ca": ca, "tls_cert": cert, "tls_key": key, "timeout": 20, "connect_timeout": 20}
        storage = SluicegateStorage(url, **settings)
        assert storage.incr("user7", 60) == 1
        assert (storage.reset(), storage.get("user7")) == (1, 0)
        aio_storage = AsyncSluicegateStorage(f"async+{url}", **settings)
        assert await aio_storage.incr("user7", 60) == 1
        assert (await aio_storage.reset(), await aio_storage.get("user7")) == (1, 0)


def test_tls_certificate_without_its_key_is_invalid():
    for given, missing in [("tls_cert", "tls_key"), ("tls_key", "tls_cert")]:
        with pytest.raises(SettingsError, match=f"invalid {given} `client.pem`: expected {missing} beside it"):
            Limiter.connect("rediss://127.0.0.1/", **{given: "client.pem"})


@pytest.mark.parametrize("name", ["tls_ca", "tls_cert", "tls_key"])
def test_tls_settings_of_a_url_without_tls_are_invalid(name):
    with pytest.raises(SettingsError, match=f"invalid {name} `file.pem`: expected a URL with TLS such as `rediss://HOST`"):
        Limiter.connect("redis://127.0.0.1/", **{name: "file.pem"})


async def test_password_of_the_url_is_used():
    with redis("--requirepass", "secret", ping=b"-NOAUTH") as port:
        await decides(f"redis://:secret@127.0.0.1:{port}/")
        with pytest.raises(StoreUnavailable) as refused:
            Limiter.connect(f"redis://:wrong@127.0.0.1:{port}/", timeout=20).charge("user7", POLICY)
        assert "wrong@" not in str(refused.value)


def test_all_with_a_key_given_twice_names_the_binding_key_as_given(redis_url):
    narrow, wide = "concurrency:1/1h", "concurrency:5/1h"
    for limiter in [Limiter.in_memory(), Limiter.connect(redis_url, timeout=20)]:
        keys = [("{twice}a", wide), ("{twice}a", wide), ("{twice}b", narrow)]
        held = limiter.hold_all(keys)
        assert held.decision.key == 2 and held.decision.policy == narrow
        denied = limiter.hold_all(keys)
        assert not denied and denied.decision.key == 2
        taken = limiter.take_all([("{twice}c", "gcra:5/1h"), ("{twice}c", "gcra:5/1h"), ("{twice}d", "gcra:1/1h")])
        assert taken.key == 2 and taken.policy == "gcra:1/1h"
        assert held.settle()
