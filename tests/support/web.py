"""A web server with byte ranges and etags, like an object store; it records its requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class WebServer:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.failures: list[int] = []
        self.down = 0  # the status of every answer, where not 0
        self.delay = 0.0  # seconds until each answer
        self.requests: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def log_message(self, *args: object) -> None:
                pass

            def answer(self, body: bool) -> None:
                outer.requests.append(f"{self.command} {self.path}")
                time.sleep(outer.delay)
                data = outer.files.get(self.path.partition("?")[0])
                status = (
                    outer.failures.pop(0)
                    if outer.failures and body
                    else 200
                    if data is not None
                    else 404
                )
                status = outer.down or status
                data = data if status == 200 and data is not None else b""
                etag = f'"{hash(data)}"'
                span = self.headers.get("Range")
                if span and status == 200:
                    first, last = span.removeprefix("bytes=").split("-")
                    data, status = data[int(first) : int(last) + 1], 206
                self.send_response(status)
                self.send_header("ETag", etag)
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if body:
                    self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self.thread.start()


@pytest.fixture
def web() -> Iterator[WebServer]:
    server = WebServer()
    yield server
    server.server.shutdown()
    server.server.server_close()
