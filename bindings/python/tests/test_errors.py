"""Bad input of each kind is an exception of the documented hierarchy, and never a panic."""

import copy
import inspect
import json
import math
import pickle
import pydoc
from datetime import timedelta

import pytest
import sluicegate
from conftest import free_port, start_redis
from sluicegate import (
    CorruptState,
    Denied,
    Error,
    InvalidKey,
    Limiter,
    ManualClock,
    OperationError,
    Policy,
    PolicyError,
    SettingsError,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    aio,
)
from sluicegate.ext._tasks import TaskLimit

POLICY = Policy.gcra(10, per="1m")
LOCAL = Limiter.in_memory()


class Odd:
    """Its text is an error."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


COSTS = [-1, 1 << 32, 1 << 200, 1.0, math.nan, "1", None, b"1", [], Odd()]
SPANS = [-1, math.nan, math.inf, -math.inf, 1e300, "1", None, [], timedelta(seconds=-1), Odd()]
KEYS = [None, 1, 1.5, [], bytearray(b"a"), memoryview(b"a"), "\ud800", Odd()]
POLICIES = ["", "gcra", "gcra:0/1s", "gcra:1/0s", "\ud800", "gcra:1/1s,", ",".join(["gcra:1/1s"] * 9), None, 1, b"gcra:1/1s", Odd()]
EXPECTED = (Error, ValueError, TypeError)
CALLS = ["take", "peek", "charge", "refund", "require"]


@pytest.mark.parametrize("cost", COSTS, ids=lambda it: type(it).__name__)
def test_cost_invalid_is_an_exception(cost):
    for call in CALLS:
        with pytest.raises(EXPECTED):
            getattr(LOCAL, call)("key", POLICY, cost)
    with pytest.raises(EXPECTED):
        LOCAL.take_many([("key", POLICY, cost)])
    with pytest.raises(EXPECTED):
        LOCAL.take_all([("key", POLICY, cost)])
    with pytest.raises(EXPECTED):
        LOCAL.hold("key", POLICY, cost, ttl=1)
    assert LOCAL.peek("key", POLICY).remaining == 10


@pytest.mark.parametrize("key", KEYS, ids=lambda it: type(it).__name__)
def test_key_invalid_is_an_exception(key):
    for call in CALLS:
        with pytest.raises(EXPECTED):
            getattr(LOCAL, call)(key, POLICY)
    with pytest.raises(EXPECTED):
        LOCAL.reset(key)
    with pytest.raises(EXPECTED):
        LOCAL.take_all([(key, POLICY)])
    if key is not None:
        with pytest.raises(EXPECTED):
            LOCAL.hold("key", POLICY, ttl=1, id=key)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda it: type(it).__name__)
def test_policy_invalid_is_an_exception(policy):
    for call in CALLS:
        with pytest.raises(EXPECTED):
            getattr(LOCAL, call)("key", policy)
    with pytest.raises(EXPECTED):
        Policy(policy)


@pytest.mark.parametrize("span", SPANS, ids=lambda it: type(it).__name__)
def test_span_invalid_is_an_exception(span):
    with pytest.raises(EXPECTED):
        LOCAL.wait("key", POLICY, timeout=span)
    with pytest.raises(EXPECTED):
        LOCAL.reserve("key", POLICY, max_wait=span)
    with pytest.raises(EXPECTED):
        ManualClock().advance(span)
    if span is not None:
        with pytest.raises(EXPECTED):
            LOCAL.hold("key", POLICY, ttl=span)
        with pytest.raises(EXPECTED):
            Limiter.connect("redis://127.0.0.1/", timeout=span)
    if not isinstance(span, str):
        with pytest.raises(EXPECTED):
            Policy.gcra(1, per=span)


def test_spans_of_any_kind_are_equal():
    for per in ["90s", 90, 90.0, timedelta(minutes=1, seconds=30)]:
        assert str(Policy.gcra(3, per=per)) == "gcra:3/90s"
    clock = ManualClock(1000)
    clock.advance(0.1)
    clock.advance(timedelta(milliseconds=900))
    assert clock.now() == 1001 and clock.now_us() == 1_001_000_000


def test_key_long_or_binary_is_a_key():
    for key in [b"\x00\xff" * 100, "ä" * 32_768, b"k" * 65_536, "k"]:
        assert LOCAL.take(key, POLICY).remaining == 9
    assert LOCAL.take("ü", POLICY).remaining == 9
    assert LOCAL.take("ü".encode(), POLICY).remaining == 8, "a text is its UTF-8"


KEYED_CALLS = {
    "take": lambda limiter, key: limiter.take(key, ALLOWING),
    "peek": lambda limiter, key: limiter.peek(key, ALLOWING),
    "charge": lambda limiter, key: limiter.charge(key, ALLOWING),
    "refund": lambda limiter, key: limiter.refund(key, ALLOWING),
    "require": lambda limiter, key: limiter.require(key, ALLOWING),
    "reserve": lambda limiter, key: limiter.reserve(key, ALLOWING, max_wait=1),
    "wait": lambda limiter, key: limiter.wait(key, ALLOWING, timeout=1),
    "reset": lambda limiter, key: limiter.reset(key),
    "take_many": lambda limiter, key: limiter.take_many([("first", ALLOWING), (key, ALLOWING)]),
    "take_all": lambda limiter, key: limiter.take_all([("first", ALLOWING), (key, ALLOWING, 2)]),
    "hold": lambda limiter, key: limiter.hold(key, ALLOWING, ttl=30),
    "hold_all": lambda limiter, key: limiter.hold_all([("first", ALLOWING), (key, ALLOWING)], ttl=30, timeout=1),
}
ALLOWING = Policy("gcra:1/1h", on_error="allow")
# Key prefixes, keys, and the length that the error names.
LENGTHS = [("", "", 0), ("", "k" * 65_537, 65_537), ("", "ä" * 40_000, 80_000), ("app:", b"", 0), ("app:", b"k" * 65_533, 65_537)]


@pytest.mark.parametrize("call", KEYED_CALLS)
@pytest.mark.parametrize("prefix, key, length", LENGTHS, ids=[f"{prefix}{length}" for prefix, _, length in LENGTHS])
async def test_key_empty_or_too_long_is_an_error_before_anything_is_sent(call, prefix, key, length, redis_url):
    url = f"redis://127.0.0.1:{free_port()}/"
    limiters = [Limiter.connect(url, key_prefix=prefix), aio.Limiter.connect(url, key_prefix=prefix)]
    if not prefix:
        limiters += [Limiter.in_memory(), aio.Limiter.in_memory()]
    for limiter in limiters:
        # Nothing listens there: a call that was sent would be a fallback decision.
        with pytest.raises(InvalidKey, match=f"^invalid key: expected 1 to 65536 bytes, found {length}( with its prefix)?$"):
            result = KEYED_CALLS[call](limiter, key)
            if isinstance(limiter, aio.Limiter):
                await result
        assert not any(limiter.counters().values()), "no decision was made"


def test_key_of_greatest_length_with_its_prefix_is_taken(redis_url, unix_server):
    for url in [redis_url, unix_server]:
        limiter = Limiter.connect(url, key_prefix="app:", timeout=20)
        key = b"k" * 65_532
        assert [bool(limiter.take(key, ALLOWING)) for _ in range(2)] == [True, False]


def test_hierarchy_is_as_documented():
    assert issubclass(PolicyError, ValueError) and issubclass(OperationError, ValueError)
    assert issubclass(SettingsError, ValueError)
    assert issubclass(StoreUnavailable, ConnectionError) and issubclass(StoreTimeout, TimeoutError)
    for error in [StoreUnavailable, StoreTimeout, CorruptState]:
        assert issubclass(error, StoreError)
    for name in sluicegate.__all__:
        kind = getattr(sluicegate, name)
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert issubclass(kind, Error)


def test_messages_are_those_of_the_library():
    with pytest.raises(PolicyError, match="invalid period `0s`: expected 1ms to 366d"):
        LOCAL.take("key", "gcra:30/0s")
    with pytest.raises(OperationError, match="reserve needs every limit to be gcra"):
        LOCAL.reserve("key", "fixed-window:1/1s", max_wait=1)
    with pytest.raises(SettingsError, match="unknown scheme `http`"):
        Limiter.connect("http://127.0.0.1/")
    with pytest.raises(Denied, match="retry after 0:0") as denied:
        for _ in range(20):
            LOCAL.require("denied", POLICY)
    assert denied.value.decision.retry_after > timedelta()


def test_store_unavailable_answers_by_on_error_or_raises():
    limiter = Limiter.connect(f"redis://127.0.0.1:{free_port()}/", timeout=0.2, connect_timeout=0.2)
    for on_error, allowed in [(None, False), ("deny", False), ("allow", True), ("local", True), ("local=1/2", True)]:
        decision = limiter.take("key", Policy("gcra:10/1m", on_error=on_error))
        assert (decision.allowed, decision.source) == (allowed, "fallback"), on_error
    with pytest.raises(StoreUnavailable):
        limiter.take("key", Policy("gcra:10/1m", on_error="fail"))
    for call in [lambda: limiter.charge("key", POLICY), lambda: limiter.reset("key")]:
        with pytest.raises(StoreUnavailable):
            call()


def test_state_of_another_program_is_an_exception():
    server = start_redis()
    try:
        import redis

        redis.Redis(port=server.port).lpush("list", "x")
        with pytest.raises(CorruptState, match="WRONGTYPE"):
            Limiter.connect(server.url, timeout=20).take("list", POLICY)
    finally:
        server.stop()


async def test_errors_of_asyncio_are_the_same(redis_url):
    for limiter in [aio.Limiter.in_memory(), aio.Limiter.connect(redis_url, timeout=20)]:
        for cost in COSTS:
            with pytest.raises(EXPECTED):
                await limiter.take("key", POLICY, cost)
        for key in KEYS:
            with pytest.raises(EXPECTED):
                await limiter.take(key, POLICY)
        with pytest.raises(OperationError):
            await limiter.reserve("key", "fixed-window:1/1s", max_wait=1)
        with pytest.raises(Denied):
            await limiter.require("key", POLICY, 11)
        with pytest.raises(OperationError):
            await limiter.hold("key", POLICY)
        with pytest.raises(Denied):
            async with limiter.hold("key", "concurrency:1/1s", 2):
                pytest.fail("it is denied")


def test_policies_are_values():
    policy = Policy("gcra:10/1m", on_error="local=1/4", lease=8)
    for other in [pickle.loads(pickle.dumps(policy)), copy.copy(policy), copy.deepcopy(policy)]:
        assert other == policy and hash(other) == hash(policy)
        assert (other.on_error, other.lease) == ("local=1/4", 8)
    assert policy != Policy("gcra:10/1m") and policy != "gcra:10/1m"
    assert str(Policy("gcra:60/60s")) == str(Policy("gcra:60/1m"))


def test_policies_joined_keep_the_settings_of_both():
    plain, other = Policy("gcra:10/1s"), Policy("gcra:30/1m", on_error="allow")
    for joined in [plain & other, other & plain, other & other]:
        assert joined.on_error == "allow"
    assert (plain & plain).on_error is None
    with pytest.raises(PolicyError, match="invalid on_error `deny` beside `allow`: expected one value"):
        other & Policy("gcra:10/1s", on_error="deny")
    leased = Policy("gcra:10/1s", lease=8)
    for left, right in [(plain, leased), (leased, plain)]:
        assert (left & right).lease == 8
    with pytest.raises(SettingsError, match="for a lease: `leaky-queue:1/1s` cannot have one"):
        leased & Policy("leaky-queue:1/1s")


def test_decision_is_complete():
    clock = ManualClock()
    limiter = Limiter.in_memory(clock=clock)
    policy = Policy.gcra(2, per=60)
    first = limiter.take("key", policy)
    assert first and first.allowed and not first.never and first.retry_after is None
    assert (first.limit, first.remaining, first.reset_after) == (2, 1, timedelta(seconds=30))
    limiter.take("key", policy)
    denied = limiter.take("key", policy)
    assert not denied and denied.retry_after == timedelta(seconds=30) and denied.source == "store"
    assert dict(denied.headers())["Retry-After"] == "30"
    assert limiter.take("key", policy, 3).never and limiter.take("key", policy, 3).retry_after is None
    clock.advance(30)
    assert limiter.take("key", policy)
    assert limiter.reserve("key", policy, max_wait=60).delay == timedelta(seconds=30)
    assert limiter.reset("key") and not limiter.reset("key")
    with pytest.raises(AttributeError):
        first.allowed = False


def test_headers_speak_of_the_binding_limit():
    limiter, policy = Limiter.in_memory(clock=ManualClock()), "fixed-window:5/1m,fixed-window:100000/365d"
    first, *_, denied = [limiter.take("key", policy) for _ in range(6)]
    declared = ("RateLimit-Policy", '"api-1";q=5;w=60, "api-2";q=100000;w=31536000')
    assert first.headers("api") == [declared, ("RateLimit", '"api-1";r=4')]
    assert denied.headers("api") == [declared, ("RateLimit", '"api-1";r=0;t=60'), ("Retry-After", "60")]
    assert json.loads(denied.problem("api"))["violated-policies"] == ["api-1"]
    assert denied.reset_after == timedelta(days=365), "of all limits"


def test_unix_socket_of_a_server_decides(unix_server):
    limiter = Limiter.connect(unix_server, timeout=20)
    assert [bool(limiter.take("unix", "fixed-window:2/1h")) for _ in range(3)] == [True, True, False]
    assert limiter.charge("unix", "fixed-window:2/1h").remaining == 0
    assert limiter.reserve("unix-gcra", "gcra:1/1s", max_wait=5)
    assert limiter.reset("unix")
    assert [it.remaining for it in limiter.take_many([("u1", "gcra:3/1h"), ("u2", "gcra:4/1h")])] == [2, 3]


def test_unix_socket_of_a_server_takes_all_or_none(unix_server):
    limiter = Limiter.connect(unix_server, timeout=20)
    both = [("{a}1", "gcra:3/1h"), ("{a}2", "gcra:4/1h", 9)]
    assert limiter.take_all(both).key == 1
    assert limiter.peek("{a}1", "gcra:3/1h").remaining == 3
    assert limiter.take_all([("{a}1", "gcra:3/1h"), ("{a}2", "gcra:4/1h", 2)]).remaining == 2


def test_unix_socket_of_a_server_holds(unix_server):
    limiter = Limiter.connect(unix_server, timeout=20)
    with limiter.hold("unix-hold", "concurrency:1/30s") as hold:
        assert hold.renew() and not limiter.hold("unix-hold", "concurrency:1/30s")
    assert limiter.hold("unix-hold", "concurrency:1/30s").settle()
    tokens = [("{b}1", "token-bucket:100/1h", 10), ("{b}2", "concurrency:3/30s", 1)]
    assert limiter.hold_all(tokens, ttl=30).settle([4, 0])
    assert limiter.peek("{b}1", "token-bucket:100/1h").remaining == 96


def test_hold_wait_count_all_records_one_denial():
    limiter, policy = Limiter.in_memory(), "concurrency:5/1h,sliding-log:12/1h:count=all"
    with limiter.hold("k", policy, 5):
        assert not limiter.hold("k", policy, 5, timeout=0.2)
    assert limiter.peek("k", policy, 0).remaining == 2, "12, without those of two requests"


def test_denials_and_policies_are_pickled():
    limiter, policy = Limiter.in_memory(clock=ManualClock()), Policy("gcra:1/1m", on_error="local=1/4", lease=2)
    read = pickle.loads(pickle.dumps(policy))
    assert (type(read), read, read.on_error, read.lease) == (Policy, policy, "local=1/4", 2)
    limiter.require("user7", policy)
    with pytest.raises(Denied) as denied:
        limiter.require("user7", policy)
    read = pickle.loads(pickle.dumps(denied.value))
    assert str(read) == str(denied.value) == "denied: retry after 0:01:00"
    decision = read.decision
    assert decision.integers() == denied.value.decision.integers()
    assert (decision.policy, decision.source, decision.key) == ("gcra:1/1m", "store", None)
    assert decision.headers() == denied.value.decision.headers()


@pytest.mark.parametrize("kind, name", [(Limiter, "sluicegate.Limiter"), (aio.Limiter, "sluicegate.aio.Limiter")])
def test_limiter_called_directly_names_what_to_write(kind, name):
    with pytest.raises(TypeError, match=rf"{name}.*: use Limiter.in_memory\(\) or Limiter.connect\(url\)$"):
        kind()
    with pytest.raises(TypeError, match=rf"{name}.*: use Limiter.connect\(url\)$"):
        kind("redis://127.0.0.1/")
    with pytest.raises(TypeError, match="with `Policy`: use Limiter.in_memory"):
        kind(POLICY)


@pytest.mark.parametrize("kind", [Limiter, aio.Limiter])
def test_setting_unknown_names_the_nearest(kind):
    with pytest.raises(TypeError, match="^unknown setting `timout`: did you mean `timeout`[?]$"):
        kind.connect("redis://127.0.0.1/", timout=1)
    with pytest.raises(TypeError, match="^unknown setting `prefix`: did you mean `key_prefix`[?]$"):
        kind.connect("redis://127.0.0.1/", prefix="app:")
    with pytest.raises(TypeError, match="^unknown setting `x`: expected one of clock, connect_timeout, "):
        kind.connect("redis://127.0.0.1/", x=1)
    with pytest.raises(TypeError, match="^unknown setting `tasks`: "):
        kind.connect("redis://127.0.0.1/", tasks=True)


def test_call_on_several_keys_with_another_value_names_the_form():
    form = r"expected a list of \(key, policy\) or \(key, policy, cost\)$"
    for call in [LOCAL.take_all, LOCAL.take_many, LOCAL.hold_all]:
        for value in [("a", "gcra:1/1s"), "ab", 7, [("a",)], [("a", "gcra:1/1s", 1, 1)], [7], [b"ab"]]:
            with pytest.raises((TypeError, ValueError), match=form if value != [b"ab"] else "invalid"):
                call(value)


def test_every_public_method_and_property_has_a_docstring():
    for kind in [Limiter, aio.Limiter, aio.Hold, sluicegate.Hold, sluicegate.Decision, Policy, ManualClock]:
        for name, member in inspect.getmembers(kind):
            if not name.startswith("_"):
                assert inspect.getdoc(member), f"{kind.__name__}.{name}"
    for name in ["take", "peek", "charge", "refund"]:
        text = pydoc.plaintext.document(getattr(Limiter, name))
        assert "(self, key: 'Key', policy: 'Policy | str', cost: 'int' = 1)" in text, text


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: LOCAL.hold("k", "concurrency:1/30s", ttl=60), "invalid ttl `60`: expected 0.001 to 30 seconds"),
        (lambda: LOCAL.hold_all([("k", "concurrency:1/30s"), ("l", "gcra:1/1s")], ttl=60), "invalid ttl `60`: expected 0.001 to 30 seconds"),
        (lambda: LOCAL.hold("k", "gcra:1/1s", ttl=0), "invalid ttl `0`: expected 0.001 to 86400 seconds"),
        (lambda: LOCAL.hold("k", "gcra:1/1s"), "missing ttl: expected seconds or a timedelta; only a policy with `concurrency` has a default"),
        (lambda: Limiter.connect("redis://127.0.0.1/", timeout=0), "invalid timeout `0`: expected seconds from 0.001 on"),
        (lambda: Limiter.connect("redis://127.0.0.1/", connect_timeout=0), "invalid connect_timeout `0`: expected seconds from 0.001 on"),
        (lambda: LOCAL.take("gcra:1/1s", "user7"), "invalid policy `user7`: the key `gcra:1/1s` looks like a policy; expected the key first, then the policy"),
        (lambda: LOCAL.take_all([(POLICY, "user7")]), "invalid policy `user7`: the key `gcra:10/1m` looks like a policy; expected the key first, then the policy"),
        (lambda: LOCAL.require("k", "gcra:1/1s", 7), "denied: the cost of 7 is more than the limit of 1 ever admits"),
    ],
)
def test_error_has_the_names_and_units_of_the_call(call, text):
    with pytest.raises((Error, ValueError)) as error:
        call()
    assert str(error.value) == text


URL = "redis://127.0.0.1:1/"
IN_URL = "expected it in the URL, such as `redis://USERNAME:PASSWORD@HOST:PORT/DB`"


@pytest.mark.parametrize("kind", [Limiter, aio.Limiter])
@pytest.mark.parametrize(
    "call, text",
    [
        (lambda kind: kind.connect(URL, use_module="no"), "invalid use_module of type `str`: expected True or False"),
        (lambda kind: kind.connect(URL, key_prefix=5), "invalid key_prefix of type `int`: expected a string"),
        (lambda kind: kind.connect(URL, clock=1), "invalid clock of type `int`: expected a ManualClock"),
        (lambda kind: kind.connect(URL, tls_ca=5), "invalid tls_ca of type `int`: expected a path"),
        (lambda kind: kind.connect(5), "invalid url of type `int`: expected a string"),
        (lambda kind: kind.connect(URL, password="x"), f"unknown setting `password`: {IN_URL}"),
        (lambda kind: kind.connect(URL, db=1), f"unknown setting `db`: {IN_URL}"),
        (lambda kind: kind.connect(URL, ssl=True), "unknown setting `ssl`: expected it in the URL, such as `rediss://HOST`"),
        (lambda kind: kind.connect(URL, socket_timeout=1), "unknown setting `socket_timeout`: did you mean `timeout`?"),
        (lambda kind: kind.connect(URL, ssl_keyfile="x"), "unknown setting `ssl_keyfile`: did you mean `tls_key`?"),
        (lambda kind: kind.in_memory(clock=1), "invalid clock of type `int`: expected a ManualClock"),
        (lambda kind: kind.in_memory(max_memory="1GB"), "invalid max_memory of type `str`: expected a number of bytes"),
        (lambda kind: kind.in_memory(max_memory=-1), "invalid max_memory `-1`: expected a number of bytes"),
    ],
)
def test_setting_of_another_kind_is_named(kind, call, text):
    with pytest.raises((TypeError, SettingsError)) as error:
        call(kind)
    assert str(error.value) == text


@pytest.mark.parametrize(
    "call",
    [lambda: Policy("gcra:0/1m"), lambda: Policy.gcra(0, per=60), lambda: Policy.from_limits("0/minute")],
)
def test_limit_of_zero_advises_nothing_that_is_not_in_python(call):
    with pytest.raises(PolicyError, match="^invalid limit `0`: expected 1 to 4294967295$"):
        call()


@pytest.mark.parametrize("count", [0, 9, 400])
async def test_call_on_no_keys_or_too_many_is_an_operation_error(redis_url, count):
    keys = [(f"key{number}", "gcra:1/1s") for number in range(count)]
    for limiter in [LOCAL, aio.Limiter.in_memory(), Limiter.connect(redis_url), aio.Limiter.connect(redis_url)]:
        for name, call in [("takes", limiter.take_all), ("holds", limiter.hold_all)]:
            with pytest.raises(OperationError, match=f"^invalid number of {name} `{count}`: expected 1 to 8$"):
                found = call(keys)
                if name == "takes":
                    await found


def test_attribute_of_a_call_without_await_names_await():
    limiter = aio.Limiter.in_memory()
    with pytest.raises(AttributeError, match="^invalid use of `Limiter.take` without `await`: await it$"):
        _ = limiter.take("key", POLICY).allowed
    with pytest.raises(AttributeError, match="^invalid use of `Limiter.hold` without `await`: await it$"):
        _ = limiter.hold("key", "concurrency:1/30s").decision
    call = limiter.take("key", POLICY)
    with pytest.raises(AttributeError, match="has no attribute 'x'$"):
        _ = call.x
    call.close()


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"policy": 5}, "invalid policy of type `int`: expected a Policy or its text"),
        ({"key": 5}, "invalid key of type `int`: expected str or bytes, or a function of the arguments"),
        ({"cost": "x"}, "invalid cost of type `str`: expected a number, or a function of the arguments"),
    ],
)
def test_limited_argument_invalid_is_an_error_at_once(arguments, text):
    with pytest.raises(TypeError) as error:
        sluicegate.limited(LOCAL, **{"policy": POLICY, "key": "k", **arguments})
    assert str(error.value) == text


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: Policy(5), "invalid policy of type `int`: expected a string"),
        (lambda: Policy("gcra:1/1s", on_error=5), "invalid on_error of type `int`: expected a string"),
        (lambda: Policy("gcra:1/1s", lease="x"), "invalid lease of type `str`: expected a number of units"),
        (lambda: Policy.from_limits(5), "invalid limits of type `int`: expected a string"),
        (lambda: LOCAL.hold("k", POLICY, ttl=1, renew="no"), "invalid renew of type `str`: expected True or False"),
        (lambda: LOCAL.hold_all([("k", POLICY)], ttl=1, renew=1), "invalid renew of type `int`: expected True or False"),
        (lambda: aio.Limiter.in_memory().hold("k", POLICY, renew="no"), "invalid renew of type `str`: expected True or False"),
        (lambda: TaskLimit(5, None, 1, 1), "invalid policy of type `int`: expected a Policy or its text"),
        (lambda: TaskLimit(POLICY, 5, 1, 1), "invalid key of type `int`: expected str or bytes, or a function of the arguments"),
        (lambda: TaskLimit(POLICY, None, "x", 1), "invalid cost of type `str`: expected a number, or a function of the arguments"),
    ],
)
def test_argument_of_another_type_is_named(call, text):
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value) == text
