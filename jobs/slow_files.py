"""Serve files from a slow web server in a process of its own, and write shards for it.

Owns the delay of each request, and the files. The callers measure.
"""

from __future__ import annotations

import functools
import io
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np


class SlowFiles(SimpleHTTPRequestHandler):
    """Files of a folder by byte range. The path's first part is the delay of an answer in ms."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = (
        True  # else the body waits for the other side to have seen the head, up to 40 ms
    )

    def handle(self) -> None:
        """Handle all requests of a connection; clients may leave in the middle of an answer."""
        with suppress(ConnectionError):
            super().handle()

    def do_HEAD(self) -> None:
        """Answer with size and etag."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """Answer with a range, or the whole file."""
        self._answer(body=True)

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def _answer(self, body: bool) -> None:
        delay, _, name = self.path.lstrip("/").partition("/")
        time.sleep(float(delay) / 1e3)
        path = Path(self.translate_path(name))
        if not path.is_file():
            self.send_error(404)
            return
        size = path.stat().st_size
        begin, end, span = 0, size, self.headers.get("Range")
        if span:
            first, last = span.removeprefix("bytes=").split("-")
            begin, end = int(first), min(size, int(last) + 1) if last else size
        self.send_response(206 if span else 200)
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}-{size}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - begin))
        if span:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.end_headers()
        if body:
            with path.open("rb") as file:
                self.connection.sendfile(file, begin, end - begin)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Run a server of these files; yields its address, to which `/DELAY/NAME` is added:
    `/100/a.tar`.
    """
    process = subprocess.Popen(
        [sys.executable, __file__, folder], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


def write_shards(folder: Path, shards: int, samples: int, nbytes: int) -> list[str]:
    """Write one tar of random samples under `shards` names, which take the disk space of one.

    Returns the names.
    """
    rng = np.random.default_rng(0)
    names = [f"s-{shard:03d}.tar" for shard in range(shards)]
    first = folder / names[0]
    with tarfile.open(first, "w") as tar:
        for i in range(samples):
            info = tarfile.TarInfo(f"{i:05d}.bin")
            info.size = nbytes
            tar.addfile(info, io.BytesIO(rng.bytes(nbytes)))
    for name in names[1:]:
        (folder / name).hardlink_to(first)
    return names


def main() -> None:
    """Serve the folder in the first argument; print the port."""
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(SlowFiles, directory=sys.argv[1])
    )
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
