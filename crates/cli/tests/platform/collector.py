"""A collector of OTLP over HTTP that prints each span as a line of JSON, decoded by OpenTelemetry's own types.

    collector.py PORT

A port of 0 picks a free one. The first line is the port. A line has the bytes of the request too, so that a test can
search all of what was sent.
"""

import http.server
import json
import sys

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status


def value(any_value):
    return getattr(any_value, any_value.WhichOneof("value"))


def attributes(pairs):
    found = {pair.key: value(pair.value) for pair in pairs}
    # OTLP demands that names are unique.
    assert len(found) == len(pairs), pairs
    return found


class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/v1/traces", self.path
        assert self.headers["Content-Type"] == "application/x-protobuf"
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = attributes(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    self.print(span, resource)
        print(json.dumps({"bytes": body.decode("latin-1")}), flush=True)
        reply = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def print(self, span, resource):
        line = {
            "trace": span.trace_id.hex(),
            "span": span.span_id.hex(),
            "parent": span.parent_span_id.hex(),
            "state": span.trace_state,
            "name": span.name,
            "kind": Span.SpanKind.Name(span.kind),
            "status": Status.StatusCode.Name(span.status.code),
            "nanoseconds": span.end_time_unix_nano - span.start_time_unix_nano,
            "events": [{"name": it.name, "attributes": attributes(it.attributes)} for it in span.events],
            "attributes": attributes(span.attributes),
            "resource": resource,
        }
        print(json.dumps(line), flush=True)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Collector)
print(server.server_port, flush=True)
server.serve_forever()
