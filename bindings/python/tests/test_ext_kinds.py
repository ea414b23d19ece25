"""Each module refuses the limiter of the other kind at once."""

import pytest
from sluicegate import Limiter, aio
from sluicegate.ext import arq, asgi, celery, dramatiq, fastapi, flask, httpx, requests, wsgi

POLICY = "gcra:1/1s"


@pytest.mark.parametrize(
    "make",
    [
        lambda limiter: wsgi.RateLimitMiddleware(None, limiter, POLICY),
        lambda limiter: flask.RateLimit(limiter=limiter, policy=POLICY),
        lambda limiter: celery.limited(limiter, POLICY),
        dramatiq.RateLimit,
        lambda limiter: requests.PacedAdapter(limiter, POLICY),
        lambda limiter: httpx.PacedTransport(limiter, POLICY),
    ],
)
def test_modules_that_block_need_a_limiter_that_blocks(make):
    make(Limiter.in_memory())
    with pytest.raises(TypeError, match="invalid limiter of type `sluicegate.aio.Limiter`: expected sluicegate.Limiter$"):
        make(aio.Limiter.in_memory())


@pytest.mark.parametrize(
    "make",
    [
        lambda limiter: asgi.RateLimitMiddleware(None, limiter, POLICY),
        lambda limiter: fastapi.RateLimit(limiter, POLICY),
        lambda limiter: arq.limited(limiter, POLICY),
        lambda limiter: httpx.AsyncPacedTransport(limiter, POLICY),
    ],
)
def test_modules_for_asyncio_need_its_limiter(make):
    make(aio.Limiter.in_memory())
    with pytest.raises(TypeError, match="invalid limiter of type `sluicegate.Limiter`: expected sluicegate.aio.Limiter$"):
        make(Limiter.in_memory())
