"""Budgets of LiteLLM: its real proxy and router, with a provider that answers here.

`SLUICEGATE_LITELLM_CALLS` is the number of calls of the long test.
"""

import asyncio
import json
import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

import httpx
import pytest
import yaml
from conftest import start_redis, until
from litellm_proxy import Provider, Proxy, configuration, message
from sluicegate import Limiter, ManualClock, SettingsError, aio

# Otherwise it asks a server for prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm  # noqa: E402
from sluicegate.ext import litellm as ext  # noqa: E402
from sluicegate.ext._ledger import estimate  # noqa: E402
from sluicegate.ext.litellm import Budgets, limit  # noqa: E402

CALLS = int(os.environ.get("SLUICEGATE_LITELLM_CALLS", "300"))
# A call takes longer the more there are.
AT_ONCE = 50 if CALLS < 1000 else 200
# Longer than a call takes on a busy machine.
TTL = 30 if CALLS < 1000 else 60
# Wide enough for every call.
WIDE = {"requests": "fixed-window:4000000/1d", "tokens": "fixed-window:400000000/1d", "money": "fixed-window:4000000000/1d"}
TIGHT = 2000
PRICES = {"large": {"input": 1.25, "output": 10}, "small": {"input": "0.1", "output": 1}}
MAX_TOKENS = 40
# One proxy and one store for all.
pytestmark = pytest.mark.xdist_group("litellm")
# LiteLLM keeps clients and a worker of the loop that it has seen first.
one_loop = pytest.mark.asyncio(loop_scope="module")


def money(model, read, written):
    price = {name: Fraction(str(value)) for name, value in PRICES[model].items()}
    return math.ceil(read * price["input"] + written * price["output"])


@pytest.fixture(scope="module")
def provider():
    provider = Provider()
    provider.start()
    yield provider
    provider.stop()


@pytest.fixture(scope="module")
def redis():
    server = start_redis()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def proxy(provider, redis, tmp_path_factory):
    settings = {
        # It decides on hundreds of holds at once, on a busy machine.
        "store": {"url": redis.url, "timeout": 20},
        "budgets": {**dict.fromkeys(("key", "user", "team", "model"), WIDE), "team:tight": {"tokens": f"fixed-window:{TIGHT}/1d"}},
        "prices": PRICES,
        "ttl": TTL,
    }
    proxy = Proxy(tmp_path_factory.mktemp("proxy"), configuration(provider, settings))
    proxy.start()
    yield proxy
    proxy.kill()


class Books:
    """What the store says of budgets."""

    def __init__(self, url):
        self._limiter = Limiter.connect(url, timeout=10)

    def used(self, scope, name, unit, policy=None):
        """Units that are used or held."""
        decision = self._limiter.peek(f"{{litellm}}:{scope}:{name}:{unit}", policy or WIDE[unit])
        return decision.limit - decision.remaining

    def held(self, scope, name, unit):
        """Units that are held, up to 65536."""
        return self.used(scope, name, unit, "concurrency:65536/1h")

    def wait_until_nothing_is_held(self, names):
        """Returns once no unit of any budget is held, which must be within the lifetime of a hold."""
        left = [(*name, unit) for name in names for unit in WIDE]

        def is_done():
            while left and self.held(*left[-1]) == 0:
                left.pop()
            return not left

        until(is_done, TTL + 5)


@pytest.fixture
def books(redis):
    return Books(redis.url)


class Call:
    """One call of a client, and what it must be charged."""

    def __init__(self, number, plan, *, team, stream=False, read=5, written=9, model="large"):
        self.number, self.plan, self.model, self.stream = number, plan, model, stream
        self.key, self.user, self.team = f"k{number % 5}", f"u{number % 7}", team
        self.body = {"model": model, "messages": message(number, plan, read, written), "max_tokens": MAX_TOKENS, "stream": stream}
        most = estimate(self.body, 0)
        self.held = {"requests": 1, "tokens": most.total, "money": money(model, most.input, most.output)}
        self.exceeds = max(read + written - most.total, 0)
        self.status = self.retry_after = None

    @property
    def names(self):
        return [("key", self.key), ("user", self.user), ("team", self.team), ("model", self.model)]

    async def run(self, client, places):
        async with places:
            headers = {"Authorization": f"Bearer {self.key}.{self.user}.{self.team}"}
            try:
                async with client.stream("POST", "/v1/chat/completions", json=self.body, headers=headers) as response:
                    self.status, self.retry_after = response.status_code, response.headers.get("retry-after")
                    async for line in response.aiter_lines():
                        if "open" in self.plan and line.startswith("data: {"):
                            return
            except httpx.TransportError:
                self.status = self.status or 0

    def charged(self, provider):
        """What must be charged: as the provider counted, or as it was held where the outcome is unknown."""
        attempts = provider.of(self.number)
        found = Counter(requests=len(attempts))
        for attempt in attempts:
            if attempt.kind == "answer":
                group = attempt.model.removesuffix("-1")
                found += Counter(tokens=attempt.input + attempt.output, money=money(group, attempt.input, attempt.output))
            elif attempt.kind not in ("error", "refusal"):
                found += Counter(tokens=self.held["tokens"], money=self.held["money"])
        return found

    def counted(self, provider):
        """What the provider counted."""
        attempts = provider.of(self.number)
        found = Counter(requests=len(attempts))
        for it in attempts:
            found += Counter(tokens=it.input + it.output, money=money(it.model.removesuffix("-1"), it.input, it.output))
        return found


async def run_all(proxy, calls):
    places = asyncio.Semaphore(AT_ONCE)
    # A connection that the proxy closes because it is idle would be an error.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=proxy.url, timeout=120, limits=limits, trust_env=False) as client:
        await asyncio.gather(*(call.run(client, places) for call in calls))


KINDS = [
    (44, ["answer"], False),
    (25, ["answer"], True),
    (6, ["error", "answer"], False),
    (4, ["error", "error", "error", "answer"], False),
    (3, ["error"], False),
    (3, ["refusal", "answer"], True),
    (3, ["reset", "answer"], False),
    (3, ["reset"], False),
    (3, ["silent"], True),
    (3, ["cut"], True),
    (3, ["open"], True),
]


def calls_of(numbers, team="t"):
    for number in numbers:
        rng = random.Random(number)
        _, plan, stream = rng.choices(KINDS, [weight for weight, *_ in KINDS])[0]
        # One in ten uses more than it holds.
        written = rng.randint(60, 120) if rng.random() < 0.1 else rng.randint(1, MAX_TOKENS)
        model = rng.choice(["large", "small"])
        yield Call(number, plan, stream=stream, team=f"{team}{number % 3}", read=rng.randint(1, 40), written=written, model=model)


CALLER = """
import sys, httpx, threading
url, key, bodies = sys.argv[1], sys.argv[2], sys.argv[3:]

def call(body):
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with httpx.stream("POST", f"{url}/v1/chat/completions", content=body, headers=headers, timeout=120, trust_env=False) as response:
        for line in response.iter_lines():
            pass

for body in bodies:
    threading.Thread(target=call, args=(body,)).start()
"""


def kill_a_caller(proxy, provider, calls):
    """Makes the calls, whose streams stay open, in a process that is killed."""
    first = calls[0]
    bodies = [httpx.Request("POST", "/", json=call.body).content.decode() for call in calls]
    command = [sys.executable, "-c", CALLER, proxy.url, f"{first.key}.{first.user}.{first.team}", *bodies]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: provider.open >= {call.number for call in calls}, 120)
    process.kill()
    process.wait()


@one_loop
async def test_proxy_settles_what_the_provider_counts(proxy, provider, books):
    calls = list(calls_of(range(1, CALLS + 1)))
    # All of one key and user.
    killed = [Call(number, ["open"], stream=True, team="t0") for number in range(35_000_000, 35_000_350, 35)]
    names = {name for call in [*calls, *killed] for name in call.names}
    await asyncio.to_thread(books.wait_until_nothing_is_held, names)
    before = {(*name, unit): books.used(*name, unit) for name in names for unit in WIDE}
    start = time.monotonic()
    await run_all(proxy, calls)
    took = time.monotonic() - start
    await asyncio.to_thread(kill_a_caller, proxy, provider, killed)
    assert {call.status for call in calls} <= {200, 429, 500}, Counter(call.status for call in calls)

    calls += killed
    expected, counted = Counter(), Counter()
    for call in calls:
        for name in call.names:
            for unit, units in call.charged(provider).items():
                expected[(*name, unit)] += units
        counted += call.counted(provider)
    await asyncio.to_thread(books.wait_until_nothing_is_held, names)
    assert {name: books.used(*name) - before[name] for name in expected} == dict(expected)

    used = {unit: sum(units for name, units in expected.items() if name[0] == "team" and name[2] == unit) for unit in WIDE}
    print(f"figure: {len(calls)} calls, {AT_ONCE} at a time, in {took:.1f} s ({CALLS / took:.0f}/s); {sum(len(provider.of(it.number)) for it in calls)} attempts")
    print("figure: counted by the provider", dict(counted), "charged", used)


@one_loop
async def test_proxy_that_is_killed_never_loses_what_was_used(proxy, provider, books):
    size = max(CALLS // 10, 100)
    calls = list(calls_of(range(40_000_000, 40_000_000 + size), team="killed"))
    calls += [Call(number, ["open"], stream=True, team="killed0", written=30) for number in range(41_000_000, 41_000_020)]
    names = {name for call in calls for name in call.names if name[0] == "team"}
    running = asyncio.create_task(run_all(proxy, calls))

    def quarter_is_answered():
        return sum(1 for call in calls if call.status) > size / 4

    await asyncio.to_thread(until, quarter_is_answered, 120)
    proxy.kill()
    await asyncio.to_thread(proxy.start)
    await running
    cut = sum(1 for call in calls if not call.status)
    later = list(calls_of(range(42_000_000, 42_000_000 + size), team="killed"))
    await run_all(proxy, later)

    names |= {name for call in later for name in call.names}
    await asyncio.to_thread(books.wait_until_nothing_is_held, names)
    for name in {name for name in names if name[0] == "team"}:
        for unit in WIDE:
            least = most = sum(call.charged(provider)[unit] for call in later if name in call.names)
            for call in calls:
                if name in call.names:
                    known, held = call.charged(provider)[unit], call.held[unit]
                    least += min(known, held) if provider.of(call.number) else 0
                    most += max(known, held)
            assert least <= books.used(*name, unit) <= most, (name, unit)
    print(f"figure: the proxy was killed with {cut} of {len(calls)} calls without a response")


@one_loop
async def test_budget_is_not_overspent_by_more_than_estimates_are_exceeded(proxy, provider, books):
    tight = f"fixed-window:{TIGHT}/1d"
    written = [MAX_TOKENS + 60 if number % 10 == 0 else 20 for number in range(AT_ONCE * 2)]
    calls = [Call(50_000_000 + number, ["answer"], team="tight", written=it) for number, it in enumerate(written)]
    await run_all(proxy, calls)
    denied = [call for call in calls if call.status == 429]
    assert {call.status for call in calls} == {200, 429}
    assert all(int(call.retry_after) > 86_000 for call in denied)
    assert not any(provider.of(call.number) for call in denied)
    until(lambda: books.held("team", "tight", "tokens") == 0)
    used = books.used("team", "tight", "tokens", f"{tight},fixed-window:1000000/1h")
    spent = sum(call.counted(provider)["tokens"] for call in calls)
    exceeded = sum(call.exceeds for call in calls if call.status == 200)
    assert TIGHT / 2 < spent <= TIGHT + exceeded
    assert used <= TIGHT
    print(f"figure: {len(calls)} calls at a budget of {TIGHT} tokens: {len(denied)} denied, {spent} spent, estimates exceeded by {exceeded}")


def post(proxy, call, **more):
    headers = {"Authorization": f"Bearer {call.key}.{call.user}.{call.team}"}
    return httpx.post(f"{proxy.url}/v1/chat/completions", json={**call.body, **more}, headers=headers, timeout=60, trust_env=False)


def test_denial_is_the_rate_limit_error_of_litellm(proxy, provider):
    call = Call(60_000_000, ["answer"], team="tight")
    response = post(proxy, call, max_tokens=TIGHT + 1)
    assert response.status_code == 429
    assert "retry-after" not in response.headers, "it never passes"
    error = response.json()["error"]
    assert error["code"] == "429"
    assert error["type"] == "throttling_error"
    cost = TIGHT + 1 + estimate(call.body, 0).input
    assert error["message"] == f"denied: the budget of team `tight` never admits {cost} tokens: its limit is {TIGHT}"
    assert not provider.of(call.number)
    assert post(proxy, call, model="unpriced").status_code == 400


@pytest.mark.parametrize("plan", [["open"], ["error", "open"], ["error", "error", "error", "open"], ["reset", "open"]])
def test_retries_and_fallbacks_hold_once(proxy, provider, books, plan):
    call = Call(61_000_000 + 10 * len(plan) + ("reset" in plan), plan, stream=True, team=f"once-{'-'.join(plan)}")
    headers = {"Authorization": f"Bearer {call.key}.{call.user}.{call.team}"}
    url = f"{proxy.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=call.body, headers=headers, timeout=60, trust_env=False) as response:
        for _ in response.iter_lines():
            break
        assert len(provider.of(call.number)) == len(plan)
        for unit in WIDE:
            assert books.held("team", call.team, unit) == call.held[unit]


def test_client_that_asks_for_no_usage_gets_none(proxy, provider):
    lines = post(proxy, Call(62_000_000, ["answer"], team="usage", stream=True)).text
    assert "[DONE]" in lines
    assert "usage" not in lines
    asked = Call(62_000_001, ["answer"], team="usage", stream=True)
    assert '"total_tokens":14' in post(proxy, asked, stream_options={"include_usage": True}).text


def test_calls_of_all_kinds_are_settled(proxy, provider, books):
    calls = {}

    def ask(path, number, body):
        plan = message(63_000_000 + number, ["answer"])[0]["content"]
        [calls[number]] = [Call(63_000_000 + number, ["answer"], team=f"kind{number}")]
        headers = {"Authorization": f"Bearer k.u.kind{number}"}
        body = {"model": "large", **body(plan)}
        response = httpx.post(f"{proxy.url}{path}", json=body, headers=headers, timeout=60, trust_env=False)
        assert response.status_code == 200, response.text
        books.wait_until_nothing_is_held([("team", f"kind{number}")])
        counted = calls[number].counted(provider)
        assert counted["requests"] == 1
        assert {unit: books.used("team", f"kind{number}", unit) for unit in WIDE} == dict(counted)

    ask("/v1/embeddings", 0, lambda plan: {"input": plan})
    ask("/v1/responses", 1, lambda plan: {"input": plan})
    ask("/v1/messages", 2, lambda plan: {"messages": [{"role": "user", "content": plan}], "max_tokens": 20})
    ask("/v1/messages", 3, lambda plan: {"messages": [{"role": "user", "content": plan}], "max_tokens": 20, "model": "small"})


def test_model_that_is_no_key_is_an_error_of_the_client(proxy):
    call = Call(64_000_000, ["answer"], team="model")
    headers = {"Authorization": "Bearer k.u.model", "Content-Type": "application/json"}
    for model in ("x" * 70_000, "\ud800"):
        body = json.dumps({**call.body, "model": model})
        response = httpx.post(f"{proxy.url}/v1/chat/completions", content=body, headers=headers, timeout=60, trust_env=False)
        assert response.status_code == 400, response.text


def test_proxy_does_not_start_with_invalid_settings(provider, redis, tmp_path):
    prices = {"large": {"input": "free", "output": 1}}
    config = configuration(provider, {"store": redis.url, "budgets": {"key": WIDE}, "prices": prices})
    proxy = Proxy(tmp_path, config)
    proxy.start(waits=False)
    assert proxy.process.wait(120) != 0
    assert "invalid prices.large.input `free`: expected dollars per million tokens, such as 1.25" in proxy.log()


# The settings, without a proxy.

GOOD = {"store": "redis://127.0.0.1:1/", "budgets": {"team": {"tokens": "token-bucket:1000/1m"}}}
MONEY = {"team": {"money": "fixed-window:1000/1d"}}


def configured(monkeypatch, settings):
    monkeypatch.setattr(litellm, "callback_settings", settings)
    monkeypatch.delitem(vars(ext), "callback", raising=False)
    return ext.callback


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"store": None}, "missing store of `callback_settings.sluicegate`: expected a URL such as `redis://127.0.0.1:6379/`"),
        ({"store": {"timeout": 1}}, "missing store of `callback_settings.sluicegate`: expected a URL such as"),
        ({"store": 6379}, "invalid store `6379`: expected a URL such as"),
        ({"store": "file:///x"}, "invalid store URL: unknown scheme `file`: expected redis://HOST"),
        ({"store": {"url": "redis://127.0.0.1/", "timout": 1}}, "unknown setting `timout`: did you mean `timeout`? (store of `callback_settings.sluicegate`)"),
        ({"store": {"url": "redis://127.0.0.1/", "timeout": "1"}}, "(store of `callback_settings.sluicegate`)"),
        ({"budgets": None}, "invalid budgets `{}`: expected a mapping such as `team: "),
        ({"budgets": {}}, "invalid budgets `{}`: expected a mapping"),
        ({"budgets": {"tema": {}}}, "unknown scope of budgets `tema`: did you mean `team`?"),
        ({"budgets": {"team": {}}}, "invalid budgets.team `{}`: expected a mapping"),
        ({"budgets": {"team": {"token": "x"}}}, "unknown unit of budgets.team `token`: did you mean `tokens`?"),
        ({"budgets": {"team": {"tokens": -5}}}, "invalid budgets.team.tokens `-5`: expected a policy such as `token-bucket:100000/1m`"),
        ({"budgets": {"team:a": {"tokens": "gcra:-5/1m"}}}, "invalid budgets.team:a.tokens `gcra:-5/1m`: invalid limit `-5`: expected"),
        ({"budgets": {"team": {"tokens": "leaky-queue:5/1m"}}}, "invalid budgets.team.tokens `leaky-queue:5/1m`: "),
        ({"budgets": MONEY}, "missing prices of budgets of money: expected `prices`, such as"),
        ({"prices": {"m": 3}}, "invalid prices.m `3`: expected `input` and `output` in dollars per million tokens"),
        ({"prices": {"m": {"input": 3}}}, "missing prices.m.output: expected dollars per million tokens, such as 1.25"),
        ({"prices": {"m": {"input": "free", "output": 1}}}, "invalid prices.m.input `free`: expected dollars per million tokens"),
        ({"prices": {"m": {"input": 1, "output": -2}}}, "invalid prices.m.output `-2`: expected dollars per million tokens"),
        ({"prices": {"m": {"input": 1, "output": True}}}, "invalid prices.m.output `True`: expected dollars per million tokens"),
        ({"prices": {"m": {"input": math.inf, "output": 1}}}, "invalid prices.m.input `inf`: expected dollars per million tokens"),
        ({"prices": {"m": {"input": 1, "output": 1, "out": 1}}}, "unknown member of prices.m `out`: did you mean `output`?"),
        ({"ttl": -1}, "invalid ttl `-1`: expected seconds from 0.001 to 86400"),
        ({"timeout": "5s"}, "invalid timeout `5s`: expected seconds, such as 5"),
        ({"answer": 1.5}, "invalid answer `1.5`: expected a number of tokens"),
        ({"on_error": "maybe"}, "maybe"),
        ({"tll": 5}, "unknown setting of `callback_settings.sluicegate` `tll`: did you mean `ttl`?"),
    ],
)
def test_invalid_settings_are_named(monkeypatch, changes, text):
    with pytest.raises(SettingsError) as error:
        configured(monkeypatch, {"sluicegate": {**GOOD, **changes}})
    assert text in str(error.value)


def test_settings_that_are_missing_are_named(monkeypatch):
    with pytest.raises(SettingsError, match="^missing `callback_settings.sluicegate` in config.yaml: expected `store` and `budgets`$"):
        configured(monkeypatch, {})
    assert isinstance(configured(monkeypatch, {"sluicegate": GOOD}), Budgets)


def test_settings_of_the_document_are_valid(monkeypatch):
    page = (Path(__file__).resolve().parents[3] / "docs/token-budgets.md").read_text()
    config = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    budgets = configured(monkeypatch, config["callback_settings"])
    budgets.check_models(["gpt-5", "claude-haiku"])
    assert config["litellm_settings"]["callbacks"] == f"{ext.__name__}.callback"


def test_model_without_a_price_is_named():
    prices = {"large": {"input": 1, "output": 2}, "gpt-*": {"input": 1, "output": 2}}
    budgets = Budgets(aio.Limiter.in_memory(), MONEY, prices=prices)
    budgets.check_models(["large", "gpt-5"])
    with pytest.raises(SettingsError, match="^missing price of model `small`: expected `small: {input: 1.25, output: 10}` in `prices`$"):
        budgets.check_models(["large", "small"])
    Budgets(aio.Limiter.in_memory(), GOOD["budgets"]).check_models(["small"])


def test_limiter_of_the_other_kind_is_an_error():
    with pytest.raises(TypeError, match="invalid limiter of type `sluicegate.Limiter`: expected sluicegate.aio.Limiter$"):
        Budgets(Limiter.in_memory(), GOOD["budgets"])


# The router, without the proxy.

@pytest.fixture
def routed(provider):
    """A router, its limiter, and the clock of that."""
    clock = ManualClock()
    limiter = aio.Limiter.in_memory(clock=clock)
    settings = {"user": {"requests": "fixed-window:4/1h", "tokens": "fixed-window:1000/1h", "money": "fixed-window:90000/1h"}}
    budgets = Budgets(limiter, settings, prices=PRICES, ttl=TTL)
    router = litellm.Router(configuration(provider, None)["model_list"], num_retries=1, retry_after=0, disable_cooldowns=True)
    return limit(router, budgets), Limiter(limiter._native), clock


def used_by(limiter, user):
    policies = {"requests": "fixed-window:4/1h", "tokens": "fixed-window:1000/1h", "money": "fixed-window:90000/1h"}
    found = (limiter.peek(f"{{litellm}}:user:{user}:{unit}", policy) for unit, policy in policies.items())
    return tuple(it.limit - it.remaining for it in found)


async def eventually(is_true):
    async def ask():
        while not is_true():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(ask(), 20)


@one_loop
async def test_router_settles_and_denies(routed):
    router, limiter, _ = routed
    await router.acompletion("large", message(70_000_000, ["answer"]), user="ada", max_tokens=20)
    await eventually(lambda: used_by(limiter, "ada") == (1, 14, money("large", 5, 9)))
    await router.acompletion(model="small", messages=message(70_000_001, ["error", "answer"]), user="ada", max_tokens=20)
    both = money("large", 5, 9) + money("small", 5, 9)
    await eventually(lambda: used_by(limiter, "ada") == (3, 28, both))
    with pytest.raises(litellm.InternalServerError):
        await router.acompletion(model="small", messages=message(70_000_002, ["error"]), user="ada", max_tokens=20)
    await eventually(lambda: used_by(limiter, "ada") == (4, 28, both))
    with pytest.raises(litellm.RateLimitError) as denied:
        await router.acompletion(model="small", messages=message(70_000_003, ["answer"]), user="ada", max_tokens=20)
    assert "denied: the budget of user `ada` has not enough left for a request: retry after" in str(denied.value)
    assert 0 < int(denied.value.response.headers["retry-after"]) <= 3600


@one_loop
async def test_router_settles_streams_that_end(routed):
    router, limiter, clock = routed
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 20}
    stream = await router.acompletion(model="large", messages=message(71_000_000, ["answer"]), user="ada", **options)
    assert used_by(limiter, "ada")[1] > 20
    async for _ in stream:
        pass
    await eventually(lambda: used_by(limiter, "ada") == (1, 14, money("large", 5, 9)))
    # One that its reader leaves is charged when its hold expires.
    messages = message(71_000_001, ["open"])
    stream = await router.acompletion(model="large", messages=messages, user="ada", **options)
    async for _ in stream:
        break
    await stream.aclose()
    held = estimate({"messages": messages, "max_tokens": 20}, 0)
    assert limiter.peek("{litellm}:user:ada:tokens", "concurrency:65536/1h").remaining == 65_536 - held.total
    clock.advance(TTL + 1)
    assert limiter.peek("{litellm}:user:ada:tokens", "concurrency:65536/1h").remaining == 65_536
    assert used_by(limiter, "ada")[:2] == (2, 14 + held.total)


@one_loop
async def test_budgets_of_more_keys_than_one_step_has_are_held_all_or_none(provider):
    limiter = aio.Limiter.in_memory()
    scopes = ("key", "user", "team", "model")
    budgets = {**dict.fromkeys(scopes, WIDE), "model:small": {**WIDE, "money": "fixed-window:1/1d"}}
    router = limit(litellm.Router(configuration(provider, None)["model_list"]), Budgets(limiter, budgets, prices=PRICES))
    metadata = {"user_api_key_hash": "k", "user_api_key_team_id": "t"}
    request = {"messages": message(72_000_000, ["answer"]), "user": "ada", "metadata": metadata, "max_tokens": 20}
    with pytest.raises(litellm.RateLimitError, match="micro-dollars"):
        await router.acompletion(model="small", **request)
    peek = Limiter(limiter._native).peek
    names = {"key": "k", "user": "ada", "team": "t", "model": "small"}
    for scope, name in names.items():
        assert peek(f"{{litellm}}:{scope}:{name}:tokens", WIDE["tokens"]).remaining == 400_000_000
    await router.acompletion(model="large", **request)
    await eventually(lambda: all(peek(f"{{litellm}}:{it}:{names[it]}:tokens", WIDE["tokens"]).remaining == 400_000_000 - 14 for it in scopes[:3]))


@one_loop
async def test_store_that_is_unavailable_denies_with_503(provider):
    limiter = aio.Limiter.connect("redis://127.0.0.1:1/", timeout=0.2)
    router = limit(litellm.Router(configuration(provider, None)["model_list"]), Budgets(limiter, {"model": WIDE}, prices=PRICES))
    with pytest.raises(litellm.ServiceUnavailableError, match="the store of the budgets is unavailable"):
        await router.acompletion(model="large", messages=message(73_000_000, ["answer"]))


@one_loop
async def test_calls_of_other_kinds_are_settled(routed, provider):
    router, limiter, _ = routed
    [text] = message(74_000_000, ["answer"], written=0)
    await router.aembedding("large", text["content"], user="ada")
    await eventually(lambda: used_by(limiter, "ada") == (1, 5, money("large", 5, 0)))
    [text] = message(74_000_001, ["answer"])
    await router.aresponses(model="large", input=text["content"], user="ada", metadata={"of": "the request"}, max_output_tokens=20)
    await eventually(lambda: used_by(limiter, "ada") == (2, 19, money("large", 5, 0) + money("large", 5, 9)))
    assert provider.requests[-1]["metadata"] == {"of": "the request"}


@one_loop
async def test_answer_of_a_cache_has_used_nothing(routed, provider, monkeypatch):
    router, limiter, _ = routed
    monkeypatch.setattr(litellm, "cache", litellm.Cache(type="local"))
    request = {"model": "large", "messages": message(75_000_000, ["answer"]), "user": "ada", "caching": True, "max_tokens": 20}
    await router.acompletion(**request)
    once = 1, 14, money("large", 5, 9)
    await eventually(lambda: used_by(limiter, "ada") == once)
    await router.acompletion(**request)
    await eventually(lambda: used_by(limiter, "ada") == once)
    assert len(provider.of(75_000_000)) == 1


def test_router_of_another_kind_is_an_error():
    with pytest.raises(TypeError, match="invalid router of type `int`: expected a `litellm.Router`"):
        limit(1, Budgets(aio.Limiter.in_memory(), GOOD["budgets"]))
