"""Storage far away: a web server that waits before each answer, in a process of its own, and shards
for it to serve.

Owns what a request costs and what lies there; who reads it, and how fast, is the business of
`bench_storage.py`.
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
    """Files of a folder by byte ranges; each answer is as many milliseconds late as the first part
    of its path says.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = (
        True  # else the body waits for the other side to have seen the head, up to 40 ms
    )

    def handle(self) -> None:
        """All requests of a connection; whoever asks may leave in the middle of an answer."""
        with suppress(ConnectionError):
            super().handle()

    def do_HEAD(self) -> None:
        """Size and etag."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """A range, or all."""
        self._answer(body=True)

    def log_message(self, *args: object) -> None:
        """Nothing."""

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
    """The address of a server of these files while it runs; behind it come the delay and a name:
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
    """A tar of samples of random bytes, under as many names, which are returned: it takes the room
    of one.
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
    """Serve the folder that is named until ended; prints the port."""
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(SlowFiles, directory=sys.argv[1])
    )
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
