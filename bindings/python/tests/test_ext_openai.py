"""Budgets of requests and tokens, with the client of OpenAI and a provider that answers here."""

import asyncio
import json

import httpx
import openai
import pytest
from conftest import start_redis
from sluicegate import Denied, Limiter, ManualClock, Policy, PolicyError, aio
from sluicegate.ext.openai import Budget, estimate, limit

REQUESTS, TOKENS = "fixed-window:3/1h", "fixed-window:10000/1h"
MESSAGES = [{"role": "user", "content": "hello"}]
# Their JSON has 52 bytes.
READ = 13


def provider(usage=25, status=200, delivered=None):
    """A provider that reports the same usage for each call."""

    def answer(request):
        body = json.loads(request.content)
        if status != 200:
            return httpx.Response(status, json={"error": {"message": "down"}})
        counts = {"prompt_tokens": usage - 5, "completion_tokens": 5, "total_tokens": usage}
        if request.url.path.endswith("/embeddings"):
            data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
            return httpx.Response(200, json={"object": "list", "data": data, "model": "m", "usage": counts})
        if request.url.path.endswith("/responses"):
            counts = {"input_tokens": usage - 5, "output_tokens": 5, "total_tokens": usage}
            response = {"id": "r", "object": "response", "created_at": 0, "model": "m", "output": [], "usage": counts}
            if not body.get("stream"):
                return httpx.Response(200, json=response)
            event = {"type": "response.completed", "sequence_number": 0, "response": response}
            return events(f"event: response.completed\ndata: {json.dumps(event)}\n\n")
        choice = {"index": 0, "finish_reason": "stop"}
        chat = {"id": "c", "object": "chat.completion", "created": 0, "model": "m"}
        if not body.get("stream"):
            message = {"role": "assistant", "content": "hi"}
            return httpx.Response(200, json={**chat, "choices": [{**choice, "message": message}], "usage": counts})
        chat["object"] = "chat.completion.chunk"
        parts = [{**chat, "choices": [{**choice, "delta": {"content": word}}]} for word in ("hi", " you")]
        if body.get("stream_options", {}).get("include_usage"):
            parts.append({**chat, "choices": [], "usage": counts})
        return events("".join(f"data: {json.dumps(part)}\n\n" for part in parts) + "data: [DONE]\n\n")

    return httpx.MockTransport(answer)


def events(text):
    return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, text=text)


def client(limiter, transport, **settings):
    budget = Budget(limiter, requests=REQUESTS, tokens=TOKENS, timeout=0, **settings)
    kind, http = (
        (openai.AsyncOpenAI, httpx.AsyncClient) if isinstance(limiter, aio.Limiter) else (openai.OpenAI, httpx.Client)
    )
    return limit(kind(api_key="key", max_retries=0, http_client=http(transport=transport)), budget)


def used(limiter):
    """Requests and tokens that are used or held."""
    policies = {"{openai}:requests": REQUESTS, "{openai}:tokens": TOKENS}
    return tuple(it.limit - it.remaining for it in (limiter.peek(*pair) for pair in policies.items()))


def test_calls_settle_with_the_usage_of_their_responses():
    limiter = Limiter.in_memory()
    calls = client(limiter, provider())
    assert calls.chat.completions.create(model="m", messages=MESSAGES).choices[0].message.content == "hi"
    assert used(limiter) == (1, 25)
    calls.responses.create(model="m", input="hello")
    assert used(limiter) == (2, 50)
    calls.embeddings.create(model="m", input="hello", encoding_format="float")
    assert used(limiter) == (3, 75)
    with pytest.raises(Denied) as denied:
        calls.chat.completions.create(model="m", messages=MESSAGES)
    assert denied.value.decision.key == 0
    assert used(limiter) == (3, 75)


def test_units_are_held_while_a_stream_is_read():
    limiter = Limiter.in_memory()
    calls = client(limiter, provider())
    stream = calls.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, max_tokens=100, stream_options={"include_usage": True}
    )
    assert next(stream).choices[0].delta.content == "hi"
    assert used(limiter) == (1, READ + 100)
    assert [part.choices[0].delta.content for part in stream if part.choices] == [" you"]
    assert used(limiter) == (1, 25)
    for _ in calls.responses.create(model="m", input="hello", stream=True):
        pass
    assert used(limiter) == (2, 50)


def test_stream_without_usage_has_used_what_was_held():
    limiter = Limiter.in_memory()
    calls = client(limiter, provider())
    with calls.chat.completions.create(model="m", messages=MESSAGES, stream=True, max_tokens=100) as stream:
        next(stream)
    assert used(limiter) == (1, READ + 100)
    assert limiter.hold("{openai}:tokens", TOKENS, 10_000 - READ - 100, ttl=1)


def test_call_that_fails_has_used_its_request_alone():
    limiter = Limiter.in_memory()
    calls = client(limiter, provider(status=500))
    with pytest.raises(openai.InternalServerError):
        calls.chat.completions.create(model="m", messages=MESSAGES)
    assert used(limiter) == (1, 0)


def test_estimate_holds_the_answers_that_a_request_asks_for():
    request = {"model": "m", "messages": MESSAGES}
    assert estimate(request, 1024) == READ + 1024
    assert estimate({**request, "max_completion_tokens": 7, "n": 3}, 1024) == READ + 21
    assert estimate({**request, "max_tokens": None}, 5) == READ + 5
    assert estimate({"input": "hello"}, 0) == 5


async def test_coroutines_settle_with_the_usage_of_their_responses():
    limiter = aio.Limiter.in_memory()
    shared = Limiter(limiter._native)
    calls = client(limiter, provider())
    await calls.chat.completions.create(model="m", messages=MESSAGES)
    assert used(shared) == (1, 25)
    stream = await calls.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    assert [part.choices[0].delta.content async for part in stream if part.choices] == ["hi", " you"]
    assert used(shared) == (2, 50)
    async with await calls.chat.completions.create(model="m", messages=MESSAGES, stream=True, max_tokens=9) as stream:
        await anext(stream)
    assert used(shared) == (3, 50 + READ + 9)


async def test_call_that_is_cancelled_gives_its_tokens_back():
    limiter, started = aio.Limiter.in_memory(), asyncio.Event()

    async def never(_):
        started.set()
        await asyncio.Event().wait()

    calls = client(limiter, httpx.MockTransport(never))
    task = asyncio.create_task(calls.chat.completions.create(model="m", messages=MESSAGES))
    await started.wait()
    assert used(Limiter(limiter._native)) == (1, READ + 1024)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert used(Limiter(limiter._native)) == (1, 0)


def test_call_of_any_kind_within_a_budget():
    clock = ManualClock()
    limiter = Limiter.in_memory(clock=clock)
    budget = Budget(limiter, requests=REQUESTS, tokens=TOKENS, timeout=0, ttl=60)
    with budget.call(4000) as call:
        assert used(limiter) == (1, 4000)
        call.used(2310)
    assert used(limiter) == (1, 2310)
    with pytest.raises(ValueError, match="broken"), budget.call(4000):
        raise ValueError("broken")
    assert used(limiter) == (2, 2310)
    with pytest.raises(Denied), budget.call(9000):
        pass
    assert used(limiter) == (2, 2310)
    # A process that dies: its units count as used.
    budget.call(4000).__enter__()
    clock.advance(61)
    assert used(limiter) == (3, 6310)


def test_budget_with_a_concurrency_limit_holds_for_its_period():
    clock = ManualClock()
    limiter = Limiter.in_memory(clock=clock)
    requests = Policy(REQUESTS) & Policy.concurrency(2, ttl="30s") & Policy.concurrency(9, ttl="1h")
    budget = Budget(limiter, requests=requests, tokens=TOKENS, timeout=0)
    call, _ = budget.call(4000).__enter__(), budget.call(1000).__enter__()
    with pytest.raises(Denied):
        budget.call(1).__enter__()
    clock.advance(31)
    with budget.call(1) as other:
        other.used(1)
    call.__exit__(None)
    assert used(limiter)[1] == 5001, "they have expired, and count as used"


def test_processes_share_a_budget(redis_url):
    one, other = (client(Limiter.connect(redis_url), provider(), key="shared") for _ in range(2))
    for calls in (one, other, one):
        calls.chat.completions.create(model="m", messages=MESSAGES)
    with pytest.raises(Denied):
        other.chat.completions.create(model="m", messages=MESSAGES)


@pytest.mark.parametrize("stream", [False, True])
async def test_response_arrives_though_the_store_fails_during_the_call(stream):
    server = start_redis()
    limiter, aio_limiter = Limiter.connect(server.url, timeout=5), aio.Limiter.connect(server.url, timeout=5)
    one, other = (client(it, provider()) for it in (limiter, aio_limiter))
    # Both hold their units before the store ends.
    pending = await other.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    create, arguments = one.chat.completions.create, {"model": "m", "messages": MESSAGES, "stream": stream}
    transport = one._client._transport
    answer = transport.handler

    def stop_and_answer(request):
        server.stop()
        return answer(request)

    transport.handler = stop_and_answer
    response = create(**arguments)
    words = [part.choices[0].delta.content for part in response] if stream else [response.choices[0].message.content]
    assert words == (["hi", " you"] if stream else ["hi"])
    assert [part.choices[0].delta.content async for part in pending] == ["hi", " you"]


def test_keys_of_a_budget_are_in_one_slot_of_a_cluster():
    for key, expected in [("openai", "{openai}"), ("{team}:llm", "{team}:llm")]:
        budget = Budget(Limiter.in_memory(), requests=REQUESTS, tokens=TOKENS, key=key)
        with budget.call(100):
            assert budget.limiter.peek(f"{expected}:tokens", TOKENS).remaining == 9_900
            assert budget.limiter.peek(f"{expected}:requests", REQUESTS).remaining == 2


def test_invalid_arguments_are_named():
    with pytest.raises(PolicyError):
        Budget(Limiter.in_memory(), requests="gcra:x", tokens=TOKENS)
    with pytest.raises(TypeError, match="invalid client of type `int`"):
        limit(1, Budget(Limiter.in_memory(), requests=REQUESTS, tokens=TOKENS))


async def test_call_that_never_fits_names_its_cost_and_the_limit():
    text = "^denied: the cost of 10001 is more than the limit of 10000 ever admits$"
    with pytest.raises(Denied, match=text), Budget(Limiter.in_memory(), requests=REQUESTS, tokens=TOKENS).call(10_001):
        pytest.fail("it is denied")
    with pytest.raises(Denied, match=text):
        async with Budget(aio.Limiter.in_memory(), requests=REQUESTS, tokens=TOKENS).call(10_001):
            pytest.fail("it is denied")
