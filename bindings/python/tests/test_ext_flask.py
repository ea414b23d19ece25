"""The extension for Flask."""

import flask
import pytest
from sluicegate import Limiter, PolicyError
from sluicegate.ext.flask import ClientAddress, RateLimit
from sluicegate.ext.wsgi import RateLimitMiddleware
from web import DOWN, INVALID, POLICY, is_allowed, is_denied, is_undecided, values


def client(configuration=None, **settings):
    app = flask.Flask("shop")
    app.config.update(configuration or {})
    limit = RateLimit(**settings)

    @app.get("/")
    def index():
        return "hello"

    @app.get("/login")
    @limit("fixed-window:1/1h", name="login")
    def login():
        return "hello"

    @app.get("/later")
    @limit("fixed-window:1/1h")
    async def later():
        return "hello"

    @app.get("/free")
    @limit.exempt
    def free():
        return "hello"

    limit.init_app(app)
    return app.test_client()


def test_views_are_limited_by_the_policy_of_all_or_by_their_own():
    limiter = Limiter.in_memory()
    requests = client(limiter=limiter, policy=POLICY)
    is_allowed(requests.get("/"), 1)
    is_allowed(requests.get("/"), 0)
    is_denied(requests.get("/"))
    login = requests.get("/login")
    assert (login.status_code, values(login, "RateLimit")) == (200, ['"login";r=0;t=3600'])
    assert requests.get("/login").status_code == 429
    later = requests.get("/later")
    name = "test_ext_flask.client.<locals>.later"
    assert (later.text, values(later, "RateLimit")) == ("hello", [f'"{name}";r=0;t=3600'])
    assert requests.get("/later").status_code == 429
    free = requests.get("/free")
    assert (free.status_code, values(free, "RateLimit")) == (200, [])
    assert limiter.peek(b"7:default,9:127.0.0.1,", POLICY).remaining == 0


def test_requests_in_one_context_have_headers_of_their_own():
    requests = client(policy=POLICY)
    with requests.application.app_context():
        is_allowed(requests.get("/"), 1)
        assert values(requests.get("/free"), "RateLimit") == []


def test_path_that_does_not_exist_is_limited():
    requests = client(policy=POLICY)
    assert [requests.get("/none").status_code for _ in range(3)] == [404, 404, 429]


def test_configuration_names_store_and_policy(redis_url):
    one, other = (client({"SLUICEGATE_URL": redis_url, "SLUICEGATE_POLICY": POLICY}, name="flask") for _ in range(2))
    is_allowed(one.get("/"), 1, "flask")
    is_allowed(other.get("/"), 0, "flask")
    is_denied(one.get("/"), "flask")


def test_invalid_policy_is_an_error_at_once():
    with pytest.raises(PolicyError, match="invalid rate `x`"):
        client(policy="gcra:x")


def test_clients_behind_proxies_cannot_forge_their_address():
    requests = client(policy=POLICY, key=ClientAddress(1))
    forged = [f"{number}.8.8.8, 192.0.2.7" for number in (1, 2, 3)]
    assert [requests.get("/", headers={"X-Forwarded-For": it}).status_code for it in forged] == [200, 200, 429]


def test_decorators_around_a_limited_view_keep_its_limit():
    import functools

    app, limit = flask.Flask("shop"), RateLimit(policy=POLICY)

    def logged(view):
        @functools.wraps(view)
        def wrapper():
            return view()

        return wrapper

    @app.get("/")
    @logged
    @limit("fixed-window:3/1h")
    def index():
        return "hello"

    limit.init_app(app)
    requests = app.test_client()
    assert [requests.get("/").status_code for _ in range(4)] == [200, 200, 200, 429]


def test_store_unavailable_is_503():
    is_undecided(client({"SLUICEGATE_URL": DOWN}, policy=POLICY).get("/"))
    assert client({"SLUICEGATE_URL": DOWN}, policy=lambda _: None).get("/").status_code == 200


def test_two_limits_of_a_view_have_counts_of_their_own():
    app, limiter = flask.Flask("shop"), Limiter.in_memory()
    limit = RateLimit(app, limiter=limiter)

    @app.get("/")
    @limit("fixed-window:4/1h")
    @limit("fixed-window:2/1h")
    def index():
        return "hello"

    requests = app.test_client()
    assert [requests.get("/").status_code for _ in range(3)] == [200, 200, 429]
    name = b"test_ext_flask.test_two_limits_of_a_view_have_counts_of_their_own.<locals>.index"
    for key, policy, left in [(name, "fixed-window:2/1h", 0), (name + b"#2", "fixed-window:4/1h", 1)]:
        assert limiter.peek(b"%d:%s,9:127.0.0.1," % (len(key), key), policy).remaining == left


def test_headers_of_several_limits_of_a_view_are_those_of_the_tightest():
    app = flask.Flask("shop")
    limit = RateLimit(app, limiter=Limiter.in_memory())
    app.get("/a", endpoint="a")(limit("fixed-window:2/1h", name="tight")(limit("fixed-window:9/1h", name="loose")(lambda: "a")))
    app.get("/b", endpoint="b")(limit("fixed-window:9/1h", name="out")(limit("fixed-window:2/1h", name="in")(lambda: "b")))
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, Limiter.in_memory(), "fixed-window:99/1h", name="all")
    requests = app.test_client()
    for path, tight in [("/a", "tight"), ("/b", "in")]:
        responses = [requests.get(path) for _ in range(3)]
        assert [it.status_code for it in responses] == [200, 200, 429]
        assert [values(it, "RateLimit") for it in responses] == [[f'"{tight}";r={left};t=3600'] for left in (1, 0, 0)]
        assert values(responses[0], "RateLimit-Policy") == [f'"{tight}";q=2;w=3600']


@pytest.mark.parametrize(("arguments", "text"), INVALID)
def test_argument_invalid_is_an_error_at_construction(arguments, text):
    with pytest.raises((TypeError, ValueError)) as error:
        RateLimit(**arguments)
    assert str(error.value) == text
    with pytest.raises((TypeError, ValueError)) as error:
        RateLimit()(**{"policy": POLICY, **arguments})
    assert str(error.value) == text


def test_key_of_another_type_is_named():
    requests = client(policy=POLICY, key=lambda request: 5)
    requests.application.testing = True
    with pytest.raises(TypeError, match="invalid key `5` of a request: expected a string, bytes, or a tuple of them"):
        requests.get("/")


def test_limit_without_a_policy_is_an_error_at_once():
    limit = RateLimit()
    with pytest.raises(TypeError, match="invalid policy `index`: expected a policy, or a function of the request"):

        @limit
        def index():
            return "hello"


def test_limit_without_a_policy_of_a_view_with_a_parameter_is_named():
    app = flask.Flask("shop")
    app.testing = True
    app.get("/<user>")(RateLimit(app)(lambda user: user))
    with pytest.raises(TypeError, match="missing policy of `@limit`: expected `@limit[(]policy[)]` before the view"):
        app.test_client().get("/ada")
