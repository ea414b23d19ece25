"""LiteLLM's proxy in a process, and a provider with the interface of OpenAI that answers as a test says."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import yaml
from conftest import free_port, until

AUTH = '''
from litellm.proxy._types import UserAPIKeyAuth

async def auth(request, api_key):
    key, user, team = api_key.split(".")
    return UserAPIKeyAuth(api_key=key, user_id=user or None, team_id=team or None)
'''


@dataclass
class Attempt:
    """What the provider has counted of one request: its number, its model, what became of it, and its tokens."""

    call: int
    model: str
    kind: str
    input: int = 0
    output: int = 0


@dataclass
class Provider:
    """Answers each request as the content of its message says: `{"call": 7, "plan": ["error", "answer"], "input": 5, "output": 9}`, whose
    attempts are the items of the plan, one after the other:

    answer   with its usage, as a stream if that is asked for
    silent   a stream without usage
    error    status 500
    refusal  status 429
    reset    the connection is closed before an answer
    cut      a stream that ends in the middle, and has used its output
    open     a stream that does not end before its client leaves, and has used its output
    """

    attempts: list[Attempt] = field(default_factory=list)
    requests: list[dict] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    port: int = 0
    _loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        started = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve(started)), daemon=True).start()
        assert started.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)

    def of(self, call: int) -> list[Attempt]:
        return [it for it in self.attempts if it.call == call]

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._seen: dict[int, int] = {}
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await self._ended.wait()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().lower().split("\r\n")
                if not lines[0].startswith("post "):
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
                request = json.loads(await reader.readexactly(length))
                if not await self._answer(lines[0].split()[1], request, reader, writer):
                    break
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, request: dict, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self.requests.append(request)
        content = request.get("messages") or request["input"]
        while not isinstance(content, str):
            content = content[-1] if isinstance(content, list) else content.get("content") or content["text"]
        plan = json.loads(content)
        number = self._seen.get(plan["call"], 0)
        self._seen[plan["call"]] = number + 1
        kind = plan["plan"][min(number, len(plan["plan"]) - 1)]
        attempt = Attempt(plan["call"], request["model"], kind)
        self.attempts.append(attempt)
        if kind in ("error", "refusal"):
            body = json.dumps({"error": {"message": kind, "type": kind, "code": None, "param": None}}).encode()
            status = "500 Internal Server Error" if kind == "error" else "429 Too Many Requests"
            writer.write(b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body))
            return True
        attempt.input, attempt.output = plan["input"], plan["output"]
        if kind == "reset":
            return False
        usage = {"prompt_tokens": plan["input"], "completion_tokens": plan["output"], "total_tokens": plan["input"] + plan["output"]}
        chat = {"id": f"c{plan['call']}", "created": 1_700_000_000, "model": request["model"]}
        if not request.get("stream"):
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
            answer = {**chat, "object": "chat.completion", "choices": [choice], "usage": usage}
            if path.endswith("/embeddings"):
                answer = {"object": "list", "model": "m", "usage": usage, "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}]}
            elif path.endswith("/responses"):
                usage = {"input_tokens": plan["input"], "output_tokens": plan["output"], "total_tokens": plan["input"] + plan["output"]}
                answer = {"id": "r", "object": "response", "created_at": 0, "status": "completed", "model": "m", "output": [], "usage": usage}
            body = json.dumps(answer).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            return True
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        chat["object"] = "chat.completion.chunk"

        def part(choices: list[dict], **more: object) -> None:
            text = b"data: " + json.dumps({**chat, "choices": choices, **more}).encode() + b"\n\n"
            writer.write(b"%x\r\n%b\r\n" % (len(text), text))

        part([{"index": 0, "delta": {"role": "assistant", "content": "hi"}, "finish_reason": None}])
        part([{"index": 0, "delta": {"content": " you"}, "finish_reason": None}])
        if kind == "cut":
            await writer.drain()
            return False
        if kind == "open":
            await writer.drain()
            self.open.add(plan["call"])
            await reader.read()
            self.open.discard(plan["call"])
            return False
        part([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        if kind != "silent" and (request.get("stream_options") or {}).get("include_usage"):
            part([], usage=usage)
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        return True


@dataclass
class Proxy:
    """The proxy with one configuration, which can be killed and started again."""

    folder: Path
    config: dict
    port: int = 0
    process: subprocess.Popen | None = None

    def start(self, *, waits: bool = True) -> None:
        self.port = self.port or free_port()
        (self.folder / "budget_auth.py").write_text(AUTH)
        (self.folder / "config.yaml").write_text(yaml.safe_dump(self.config, sort_keys=False))
        command = [sys.executable, "-c", "from litellm import run_server; run_server()", "--config", "config.yaml"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--telemetry", "False"]
        # Without a table of models from elsewhere, and without waits between attempts.
        environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "INITIAL_RETRY_DELAY": "0.01", "MAX_RETRY_DELAY": "0.02", "JITTER": "0.01"}
        environment |= {**os.environ, "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION", "NO_PROXY": "*"}
        with (self.folder / "proxy.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env=environment)
        if waits:
            until(self._is_ready, 120)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log()[-4000:]
        try:
            return httpx.get(f"{self.url}/health/liveliness", timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return (self.folder / "proxy.log").read_text(errors="replace")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def configuration(provider: Provider, settings: dict | None, models: tuple[str, ...] = ("large", "small")) -> dict:
    deployments = [
        {
            "model_name": model,
            "litellm_params": {"model": f"openai/{model}-1", "api_base": f"http://127.0.0.1:{provider.port}/v1", "api_key": "k"},
        }
        for model in models
    ]
    config = {
        "model_list": deployments,
        "litellm_settings": {"callbacks": "sluicegate.ext.litellm.callback"},
        "router_settings": {"num_retries": 2, "retry_after": 0, "fallbacks": [{"large": ["small"]}], "disable_cooldowns": True},
        "general_settings": {"custom_auth": "budget_auth.auth", "master_key": f"sk-{secrets.token_hex(32)}"},
    }
    if settings is not None:
        config["callback_settings"] = {"sluicegate": settings}
    return config


def message(call: int, plan: list[str], read: int = 5, written: int = 9) -> list[dict]:
    return [{"role": "user", "content": json.dumps({"call": call, "plan": plan, "input": read, "output": written})}]
