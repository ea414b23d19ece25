"""An application that answers with the paths that Python derives from a target, one per line."""

import posixpath
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from urllib.parse import unquote, urlsplit


def readings(target):
    # PATH_INFO of gunicorn.
    guarded = urlsplit("." + target).path[1:] if target.startswith("//") else urlsplit(target).path
    yield unquote(guarded)
    # Frameworks that split the target themselves.
    yield unquote(urlsplit(target).path)
    yield unquote(target.split("?")[0])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        target = self.raw_requestline.decode("latin-1").split(" ")[1]
        try:
            paths = list(readings(target))
        except ValueError:
            paths = []
        paths += ["/" + posixpath.normpath(path).lstrip("/") for path in paths if path]
        body = "\n".join(paths).encode("utf-8", "replace")
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128


# Not `HTTPServer`, which looks its own name up in the DNS.
server = Server(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
