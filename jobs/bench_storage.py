"""Steady throughput from storage with a delay on every request, beside that from a local disk.

    python jobs/bench_storage.py --delay-ms 100

The same shards, description and workers twice: from local files, and from a web server of its own process that waits
before each answer. Default settings of the loader. Decoding sleeps, so that what is compared is the wait for storage,
not how many CPUs there are. Runs take turns; the figure is the median ratio of the rounds. In a turn the first `--skip`
batches are not timed: they are the start.
"""

from __future__ import annotations

import argparse
import functools
import io
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import ray

import rayingest as ri

ROOT = Path(__file__).resolve().parents[1]


class SlowFiles(SimpleHTTPRequestHandler):
    """Files of a folder by byte ranges, each answer `delay` seconds late."""

    protocol_version = "HTTP/1.1"
    delay = 0.0

    def do_HEAD(self) -> None:
        """Size and etag."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """A range, or all."""
        self._answer(body=True)

    def log_message(self, *args: object) -> None:
        """Nothing."""

    def _answer(self, body: bool) -> None:
        time.sleep(self.delay)
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        size = path.stat().st_size
        begin, end, span = 0, size, self.headers.get("Range")
        if span:
            first, last = span.removeprefix("bytes=").split("-")
            begin, end = int(first), min(size, int(last) + 1)
        self.send_response(206 if span else 200)
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}-{size}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if body:
            with path.open("rb") as file:
                file.seek(begin)
                self.wfile.write(file.read(end - begin))


def serve(folder: str, delay: float) -> None:
    """Serve until ended; prints the port."""
    SlowFiles.delay = delay
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(SlowFiles, directory=folder))
    print(server.server_port, flush=True)
    server.serve_forever()


def write_shards(folder: Path, shards: int, samples: int, nbytes: int) -> None:
    """Tars of samples of random bytes."""
    rng = np.random.default_rng(0)
    for shard in range(shards):
        with tarfile.open(folder / f"s-{shard:03d}.tar", "w") as tar:
            for i in range(samples):
                info = tarfile.TarInfo(f"{shard}-{i:05d}.bin")
                info.size = nbytes
                tar.addfile(info, io.BytesIO(rng.bytes(nbytes)))


class Slow:
    """Decodes by sleeping."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """The sample's size."""
        time.sleep(self.seconds)
        return {"size": len(sample["bin"])}


def rate(urls: str, index: Path, args: argparse.Namespace, pool: ri.Pool) -> tuple[float, dict[str, Any]]:
    """Samples a second after the start, and the loader's counters."""
    data = (
        ri.read_webdataset(urls, index=index)
        .map(Slow(args.decode_ms / 1e3))
        .shuffle(seed=1, window=args.window)
        .batch(args.batch)
    )
    with data.loader(pool=pool) as loader:
        batches = (batch for _ in range(10**6) for batch in loader)
        for _ in range(args.skip):
            next(batches)
        begun = time.perf_counter()
        for _ in range(args.batches):
            next(batches)
        return args.batches * args.batch / (time.perf_counter() - begun), loader.stats()


def main() -> None:
    """Measure and print a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-ms", type=float, default=100.0)
    parser.add_argument("--decode-ms", type=float, default=4.0)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--shards", type=int, default=24)
    parser.add_argument("--samples", type=int, default=400, help="of a shard")
    parser.add_argument("--bytes", type=int, default=20_000, help="of a sample")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--window", type=int, default=1024, help="small, so that blocks are read all the time")
    parser.add_argument("--skip", type=int, default=20)
    parser.add_argument("--batches", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.delay_ms / 1e3)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "shards")
        folder.mkdir()
        write_shards(folder, args.shards, args.samples, args.bytes)
        command = [sys.executable, __file__, "--serve", str(folder), "--delay-ms", str(args.delay_ms)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline())
            env = {"env_vars": {"PYTHONPATH": f"{ROOT}:{ROOT / 'jobs'}"}}
            ray.init("local", num_cpus=args.workers + 1, include_dashboard=False, log_to_driver=False, runtime_env=env)
            far = f"http://127.0.0.1:{port}/s-{{000..{args.shards - 1:03d}}}.tar"
            ratios = []
            with ri.Pool(workers=args.workers) as pool:
                for number in range(args.rounds):
                    near, _ = rate(f"{folder}/*.tar", Path(name, "near.arrow"), args, pool)
                    late, stats = rate(far, Path(name, "far.arrow"), args, pool)
                    ratios.append(late / near)
                    print(f"round {number}: local {near:.0f}/s, far {late:.0f}/s, ratio {late / near:.3f}", flush=True)
                    print({name: value for name, value in stats.items() if "read" in name or "retries" in name})
            print(f"{args.delay_ms:g} ms a request: {statistics.median(ratios):.1%} of the local rate")
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    main()
