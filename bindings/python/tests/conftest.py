"""What tests share: servers of Redis, a server of Sluicegate, histories with the oracle's answers."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


RESERVED: list[socket.socket] = []


def free_port() -> int:
    """A port on which nothing listens, reserved until the process ends for the server that asks for it by number."""
    reserved = socket.socket()
    # Two sockets can share a port if both allow it and neither listens yet.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    RESERVED.append(reserved)
    return reserved.getsockname()[1]


def until(asks, deadline: float = 30) -> None:
    """Asks until the answer is true."""
    end = time.monotonic() + deadline
    while not asks():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.01)


@dataclass
class Server:
    process: subprocess.Popen
    url: str
    port: int

    def stop(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


def answers(family: int, address, request: bytes, expected: bytes) -> bool:
    try:
        with socket.socket(family) as client:
            client.settimeout(1)
            client.connect(address)
            client.sendall(request)
            return client.recv(100).startswith(expected)
    except OSError:
        return False


def start_redis() -> Server:
    port = free_port()
    program = shutil.which("redis-server")
    assert program, "redis-server is not installed; `cargo xtask test` installs it"
    command = [program, "--port", str(port), "--save", "", "--bind", "127.0.0.1", "--loglevel", "warning"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until(lambda: answers(socket.AF_INET, ("127.0.0.1", port), b"PING\r\n", b"+PONG"))
    return Server(process, f"redis://127.0.0.1:{port}/", port)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    server = start_redis()
    yield server
    server.stop()


@pytest.fixture
def redis_url(redis_server: Server) -> str:
    return redis_server.url


@pytest.fixture(scope="session")
def server_urls(tmp_path_factory) -> Iterator[dict[str, str]]:
    """A server of Sluicegate: its URLs, by scheme."""
    program = os.environ.get("SLUICEGATE_PROGRAM") or ROOT / "target/debug/sluicegate"
    path = tmp_path_factory.mktemp("server") / "sluicegate.sock"
    port = free_port()
    command = [str(program), "serve", "--listen", f"127.0.0.1:{port}", "--http", "off", "--grpc", "off", "--unix", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: answers(socket.AF_UNIX, str(path), b"PING\r\n", b"+PONG"))
    yield {"redis": f"redis://127.0.0.1:{port}/", "unix": f"unix://{path}"}
    process.kill()
    process.wait()


@pytest.fixture(scope="session")
def unix_server(server_urls: dict[str, str]) -> str:
    """A server of Sluicegate on a Unix socket."""
    return server_urls["unix"]


@dataclass
class Step:
    history: int
    now: int
    policy: str
    operation: str
    cost: int
    wait: int
    answer: list[int] | None
    id: bytes = b""


@pytest.fixture(scope="session")
def histories() -> list[list[Step]]:
    """Random histories, with the answers of the oracle."""
    count = os.environ.get("SLUICEGATE_HISTORIES", "300")
    found = _steps("7000000", count)
    assert len(found) == int(count)
    return found


@pytest.fixture(scope="session")
def traces() -> list[list[Step]]:
    """The traces that all stores must pass."""
    found = _steps("traces")
    assert len(found) > 50
    return found


@pytest.fixture(scope="session")
def hold_histories() -> list[list[Step]]:
    """Random histories with holds, with the answers of the oracle."""
    return _steps("holds", "8000000", os.environ.get("SLUICEGATE_HISTORIES", "300"))


def _steps(*arguments: str) -> list[list[Step]]:
    command = ["cargo", "run", "--quiet", "--locked", "-p", "sluicegate-conformance", "--example", "histories", "--", *arguments]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found: dict[int, list[Step]] = {}
    for line in text.splitlines():
        history, now, policy, operation, cost, wait, answer, *id = line.split("\t")
        integers = None if answer == "error" else [int(number) for number in answer.split()]
        step = Step(int(history), int(now), policy, operation, int(cost), int(wait), integers, bytes.fromhex(*id or [""]))
        found.setdefault(step.history, []).append(step)
    return list(found.values())
