"""The middleware and the decorator for Django, on its handlers for WSGI and ASGI."""

import asyncio

import django
import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

settings.configure(
    ROOT_URLCONF=__name__, SECRET_KEY="test", ALLOWED_HOSTS=["*"], MIDDLEWARE=["sluicegate.ext.django.RateLimitMiddleware"]
)
django.setup()

from sluicegate import Policy, PolicyError  # noqa: E402
from sluicegate.ext.django import ratelimit  # noqa: E402
from web import DOWN, INVALID, INVALID_RESULT, POLICY, is_allowed, is_denied, is_undecided, values  # noqa: E402


def hello(request):
    return HttpResponse("hello")


async def hello_async(request):
    return HttpResponse("hello")


@ratelimit("fixed-window:1/1h", key=lambda request: request.GET["user"])
def login(request):
    return HttpResponse("hello")


@ratelimit("fixed-window:1/1h", cost=lambda request: 1)
async def login_async(request):
    return HttpResponse("hello")


@method_decorator(ratelimit("fixed-window:1/1h", name="class"), name="dispatch")
class Class(View):
    def get(self, request):
        return HttpResponse("hello")


@method_decorator(ratelimit("fixed-window:1/1h"), name="dispatch")
class Unnamed(View):
    def get(self, request):
        return HttpResponse("hello")


@method_decorator([ratelimit("fixed-window:1/1h"), ratelimit("fixed-window:9/1h")], name="dispatch")
class Twice(View):
    def get(self, request):
        return HttpResponse("hello")


@method_decorator([ratelimit("fixed-window:1/1h"), ratelimit("fixed-window:9/1h")], name="dispatch")
class Again(View):
    def get(self, request):
        return HttpResponse("hello")


@ratelimit("fixed-window:2/1h", name="tight")
@ratelimit("fixed-window:9/1h", name="loose")
def outer_tight(request):
    return HttpResponse("hello")


@ratelimit("fixed-window:9/1h", name="loose")
@ratelimit("fixed-window:2/1h", name="tight")
async def inner_tight(request):
    return HttpResponse("hello")


@method_decorator(ratelimit("fixed-window:1/1h"), name="dispatch")
class Async(View):
    async def get(self, request):
        return HttpResponse("hello")


urlpatterns = [
    path("unnamed", Unnamed.as_view()),
    path("twice", Twice.as_view()),
    path("again", Again.as_view()),
    path("outer_tight", outer_tight),
    path("inner_tight", inner_tight),
    path("async_class", Async.as_view()),
    path("", hello),
    path("async", hello_async),
    path("login", login),
    path("login_async", login_async),
    path("class", Class.as_view()),
]


def policy_of(request):
    return None if request.path == "/async" else POLICY


def lenient(request):
    return Policy(POLICY, on_error="allow")


def user_of(request):
    return request.GET.get("user")


class Listed:
    """A response whose headers are read as in other frameworks."""

    def __init__(self, response):
        self.status_code, self.text = response.status_code, response.content.decode()
        self.headers = self
        self._headers = response.headers

    def getlist(self, name):
        return [value for field, value in self._headers.items() if field.lower() == name.lower()]


def get(target, **headers):
    return Listed(Client(headers=headers).get(target))


async def get_async(target, **headers):
    return Listed(await AsyncClient(headers=headers).get(target))


@override_settings(SLUICEGATE={"POLICY": POLICY, "NAME": "hello"})
def test_middleware_limits_requests():
    is_allowed(get("/"), 1, "hello")
    is_allowed(get("/async"), 0, "hello")
    is_denied(get("/"), "hello")


async def test_middleware_limits_requests_on_an_event_loop():
    with override_settings(SLUICEGATE={"POLICY": POLICY, "NAME": "hello"}):
        is_allowed(await get_async("/"), 1, "hello")
        is_allowed(await get_async("/async"), 0, "hello")
        is_denied(await get_async("/"), "hello")


@override_settings(SLUICEGATE={"POLICY": "test_ext_django.policy_of", "KEY": "test_ext_django.user_of"})
def test_policy_and_key_may_be_functions_by_their_path():
    assert values(get("/async"), "RateLimit") == []
    assert [get(f"/?user={user}").status_code for user in ("ada", "ada", "eve", "ada", "eve")] == [200, 200, 200, 429, 200]


@override_settings(SLUICEGATE={"POLICY": POLICY, "TRUSTED_HOPS": 1})
def test_clients_behind_proxies_cannot_forge_their_address():
    forged = [f"{number}.8.8.8, 192.0.2.7" for number in (1, 2, 3)]
    assert [get("/", **{"X-Forwarded-For": it}).status_code for it in forged] == [200, 200, 429]


@override_settings(SLUICEGATE={})
def test_views_are_limited_by_the_decorator():
    limited = get("/login?user=ada")
    assert (limited.status_code, values(limited, "RateLimit")) == (200, ['"test_ext_django.login";r=0;t=3600'])
    assert get("/login?user=ada").status_code == 429
    assert get("/login?user=eve").status_code == 200
    assert [get("/class").status_code for _ in range(2)] == [200, 429]
    unnamed = get("/unnamed")
    assert (unnamed.status_code, values(unnamed, "RateLimit")) == (200, ['"test_ext_django.Unnamed";r=0;t=3600'])


async def test_asynchronous_views_are_limited_by_the_decorator():
    with override_settings(SLUICEGATE={}):
        assert [(await get_async("/login_async")).status_code for _ in range(2)] == [200, 429]
        limited = await get_async("/async_class")
        assert (limited.status_code, values(limited, "RateLimit")) == (200, ['"test_ext_django.Async";r=0;t=3600'])
        assert (await get_async("/async_class")).status_code == 429


async def test_asynchronous_class_does_not_block_the_event_loop(monkeypatch):
    # Not callable: a decision that blocks fails.
    monkeypatch.setattr("sluicegate.ext.django.Rule.check", None)
    with override_settings(SLUICEGATE={}):
        assert [(await get_async("/async_class")).status_code for _ in range(2)] == [200, 429]


@override_settings(SLUICEGATE={})
def test_policy_of_a_class_is_read_once(monkeypatch):
    with pytest.raises(PolicyError):
        ratelimit("gcra")
    assert get("/class").status_code == 200
    monkeypatch.setattr("sluicegate.ext.django.Rule", None)
    assert get("/class").status_code == 429


@override_settings(SLUICEGATE={})
def test_asynchronous_class_is_limited_without_an_event_loop():
    assert [get("/async_class").status_code for _ in range(2)] == [200, 429]


@override_settings(SLUICEGATE={"URL": DOWN, "POLICY": POLICY})
def test_store_unavailable_is_503():
    is_undecided(get("/"))


async def test_projects_share_a_store(redis_url):
    for left in (1, 0):
        # Each with connections of its own.
        with override_settings(SLUICEGATE={"URL": redis_url, "POLICY": POLICY, "NAME": "django"}):
            is_allowed(await get_async("/"), left, "django")
    with override_settings(SLUICEGATE={"URL": redis_url, "POLICY": POLICY, "NAME": "django"}):
        is_denied(get("/"), "django")


@override_settings(SLUICEGATE={"URL": DOWN, "POLICY": "test_ext_django.lenient"})
def test_store_unavailable_allows_if_the_policy_says_so():
    assert get("/").status_code == 200


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"POLICY": "gcra:x"}, "invalid SLUICEGATE: "),
        ({"URL": "http://x"}, "invalid SLUICEGATE: "),
        ({"POLICYS": "x"}, "invalid SLUICEGATE: unknown setting `POLICYS`: did you mean `POLICY`[?]"),
        ({"KEY": "no.such.path"}, "invalid SLUICEGATE: "),
        ({"POLICY": 5}, "invalid SLUICEGATE: invalid policy `5`: expected a policy, or a function of the request"),
        ({"KEY": "os.sep"}, "invalid SLUICEGATE: invalid key `/`: expected a function of the request, or ClientAddress"),
        ({"TRUSTED_HOPS": "one"}, "invalid trusted_hops `one`: expected 0 or more"),
        ({"TRUSTED_HOPS": -1}, "invalid trusted_hops `-1`: expected 0 or more"),
        ("gcra:1/1s", "invalid SLUICEGATE of type `str`: expected a dict"),
    ],
)
def test_invalid_settings_are_named(given, error):
    with override_settings(SLUICEGATE=given), pytest.raises(ImproperlyConfigured, match=error):
        get("/")


def test_two_limits_of_a_class_have_counts_of_their_own():
    with override_settings(SLUICEGATE={}):
        requests = Client()
        for place in ["/twice", "/again"]:
            assert [requests.get(place).status_code for _ in range(2)] == [200, 429]
            violated = requests.get(place).json()["violated-policies"]
            assert violated == [f"test_ext_django.{place[1:].capitalize()}#2"], "the inner limit comes first"


@pytest.mark.parametrize("view", ["/outer_tight", "/inner_tight"])
async def test_headers_of_several_limits_are_those_of_the_tightest(view):
    for policy, named in [("fixed-window:99/1h", '"tight";r=1'), ("fixed-window:1/1h", '"all";r=0')]:
        with override_settings(SLUICEGATE={"POLICY": policy, "NAME": "all"}):
            assert values(await get_async(view), "RateLimit") == [f"{named};t=3600"]
        with override_settings(SLUICEGATE={"POLICY": policy, "NAME": "all"}):
            assert values(await asyncio.to_thread(get, view), "RateLimit") == [f"{named};t=3600"]


def test_headers_of_a_denied_view_are_those_of_its_limit():
    with override_settings(SLUICEGATE={"POLICY": "fixed-window:99/1h", "NAME": "all"}):
        left = [values(get("/outer_tight"), "RateLimit") for _ in range(3)]
    assert left == [[f'"tight";r={it};t=3600'] for it in (1, 0, 0)]


@pytest.mark.parametrize(("arguments", "text"), INVALID)
def test_argument_invalid_is_an_error_at_construction(arguments, text):
    with pytest.raises((TypeError, ValueError)) as error:
        ratelimit(**{"policy": POLICY, **arguments})
    assert str(error.value) == text


def test_key_of_another_type_is_named():
    with pytest.raises(TypeError, match=INVALID_RESULT):
        ratelimit(POLICY, key=lambda request: 5)(hello)(HttpRequest())


@override_settings(SLUICEGATE={})
def test_limit_without_a_policy_is_named():
    with pytest.raises(TypeError, match="invalid policy `hello_async`: .*, but not a coroutine function$"):
        ratelimit(hello_async)
    with pytest.raises(TypeError, match="missing policy of `@ratelimit`: expected `@ratelimit[(]policy[)]` before the view"):
        ratelimit(hello)(HttpRequest())
