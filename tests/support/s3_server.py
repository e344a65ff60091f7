"""Run an S3 server in a process of its own: moto with only S3.

As a script, `python tests/support/s3_server.py` prints its port and serves until it is ended.
`credentials` are those that it accepts, as s3fs takes them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

KEY, SECRET = "AKIAEXAMPLEEXAMPLE00", "a-secret-that-may-not-be-stored"


class S3Server:
    """A running server; `options` are its storage options, `fs` is s3fs on it."""

    def __init__(self, port: int) -> None:
        import s3fs

        endpoint = f"http://127.0.0.1:{port}"
        self.options: dict[str, Any] = {"key": KEY, "secret": SECRET, "endpoint_url": endpoint}
        self.fs = s3fs.S3FileSystem(**self.options)

    def put(self, bucket: str, name: str, data: bytes) -> str:
        """Write an object, and its bucket if there is none; return its URL."""
        if not self.fs.exists(bucket):
            self.fs.mkdir(bucket)
        self.fs.pipe_file(f"{bucket}/{name}", data)
        return f"s3://{bucket}/{name}"


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A server that ends with the tests."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__))], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield S3Server(int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    import logging

    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, application, threaded=True)
    print(server.server_port, flush=True)
    server.serve_forever()
