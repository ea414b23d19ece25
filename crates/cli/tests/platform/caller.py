"""Callers with spans of OpenTelemetry's SDK: for each line of JSON on standard input, one request within a span.

    caller.py HTTP GRPC

A line names the protocol (`http`, `grpc`), whether the caller records its span (`sampled`), and the JSON body or the
values of the descriptors (`body`), joined by commas. The answer is a line with the identities of the caller's span, and the status.
"""

import json
import sys
import urllib.error
import urllib.request

import grpc
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider, sampling


def field(number, content):
    """A field of protobuf of wire type 2, shorter than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def rate_limit_request(values):
    """A RateLimitRequest in the domain `web`, with a descriptor of one entry for each value."""
    entries = [field(1, b"user") + field(2, value.encode()) for value in values.split(",")]
    return field(1, b"web") + b"".join(field(2, field(1, entry)) for entry in entries)


def http(headers, body):
    request = urllib.request.Request(f"http://{sys.argv[1]}/v1/take", body.encode(), headers)
    request.add_header("Content-Type", "application/json")
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code


def call(headers, body):
    with grpc.insecure_channel(sys.argv[2]) as channel:
        method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
        should_rate_limit = channel.unary_unary(method, request_serializer=rate_limit_request)
        # overall_code is the first field: 1 is OK, 2 is OVER_LIMIT.
        return should_rate_limit(body, metadata=list(headers.items()), timeout=30)[1]


for line in sys.stdin:
    order = json.loads(line)
    sampler = sampling.ALWAYS_ON if order["sampled"] else sampling.ALWAYS_OFF
    tracer = TracerProvider(sampler=sampler).get_tracer("caller")
    with tracer.start_as_current_span("caller") as span:
        headers = {}
        propagate.inject(headers)
        assert span.get_span_context().trace_flags.sampled == order["sampled"]
        status = {"http": http, "grpc": call}[order["protocol"]](headers, order["body"])
    context = span.get_span_context()
    identities = {"trace": trace.format_trace_id(context.trace_id), "span": trace.format_span_id(context.span_id)}
    print(json.dumps(identities | {"status": status}), flush=True)
