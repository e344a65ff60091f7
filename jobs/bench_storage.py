"""Steady throughput from storage with a delay on every request, beside that from a local disk.

    python jobs/bench_storage.py --delay-ms 0 20 100

The same shards, description and workers: from local files, and from a web server of its own process that waits before
each answer. Default settings of the loader. Decoding sleeps, so that what is compared is the wait for storage, not how
many CPUs there are. Runs take turns; the figures are medians over the rounds.

Steady means: blocks arrive as fast as they are used. So the data are many times what a loader fetches in advance (all
shards are one file under many names, which costs neither disk nor memory), and the first `--skip` batches, more than
those in advance, are not timed. Beside each rate: what was read for it, the reads under way on average, how long the
loop waited for any, and the share of their time that the decoders were busy. On a machine with other work the last two
are what tells: it makes decoding itself slower in one turn than in another, but only late reads leave decoders idle.
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
    """Files of a folder by byte ranges; each answer is as many milliseconds late as the first part of its path says."""

    protocol_version = "HTTP/1.1"

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


def serve(folder: str) -> None:
    """Serve until ended; prints the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(SlowFiles, directory=folder))
    print(server.server_port, flush=True)
    server.serve_forever()


def write_shards(folder: Path, shards: int, samples: int, nbytes: int) -> None:
    """A tar of samples of random bytes, under as many names."""
    rng = np.random.default_rng(0)
    first = folder / "s-000.tar"
    with tarfile.open(first, "w") as tar:
        for i in range(samples):
            info = tarfile.TarInfo(f"{i:05d}.bin")
            info.size = nbytes
            tar.addfile(info, io.BytesIO(rng.bytes(nbytes)))
    for shard in range(1, shards):
        (folder / f"s-{shard:03d}.tar").hardlink_to(first)


class Slow:
    """Decodes by sleeping."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """The sample's size."""
        time.sleep(self.seconds)
        return {"size": len(sample["bin"])}


def rate(urls: str, index: Path, args: argparse.Namespace, pool: ri.Pool) -> tuple[float, dict[str, float]]:
    """Samples a second after the start, and what was read meanwhile."""
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
        begun, before = time.perf_counter(), loader.stats()
        for _ in range(args.batches):
            next(batches)
        took, after = time.perf_counter() - begun, loader.stats()
    figures = ("bytes_read", "read_seconds", "stall_read_seconds", "decode_seconds")
    spent = {name: (after[name] - before[name]) / took for name in figures}
    return args.batches * args.batch / took, spent


def main() -> None:
    """Measure and print rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-ms", type=int, nargs="+", default=[0, 20, 100])
    parser.add_argument("--decode-ms", type=float, default=4.0)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--samples", type=int, default=160, help="of a shard")
    parser.add_argument("--bytes", type=int, default=100_000, help="of a sample")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--skip", type=int, default=160)
    parser.add_argument("--batches", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "shards")
        folder.mkdir()
        write_shards(folder, args.shards, args.samples, args.bytes)
        server = subprocess.Popen([sys.executable, __file__, "--serve", folder], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            at = f"http://127.0.0.1:{int(server.stdout.readline())}"
            files = f"s-{{000..{args.shards - 1:03d}}}.tar"
            env = {"env_vars": {"PYTHONPATH": f"{ROOT}:{ROOT / 'jobs'}"}}
            ray.init("local", num_cpus=args.workers + 1, include_dashboard=False, log_to_driver=False, runtime_env=env)
            places = {"local": f"{folder}/{files}", **{f"{ms} ms": f"{at}/{ms}/{files}" for ms in args.delay_ms}}
            measure(places, Path(name), args)
        finally:
            server.kill()
            server.wait()


def measure(places: dict[str, str], indexes: Path, args: argparse.Namespace) -> None:
    """Take turns; prints a row a turn, and the medians. The first place is what the others are compared with."""
    ratios: dict[str, list[float]] = {}
    busy: dict[str, list[float]] = {}
    with ri.Pool(workers=args.workers) as pool:
        for number in range(args.rounds):
            rates = {}
            for place, urls in places.items():
                rates[place], spent = rate(urls, indexes / f"{place}.arrow", args, pool)
                ratio = rates[place] / rates["local"]
                ratios.setdefault(place, []).append(ratio)
                busy.setdefault(place, []).append(spent["decode_seconds"] / args.workers)
                print(
                    f"round {number}, {place:>7}: {rates[place]:4.0f}/s, ratio {ratio:.3f}, "
                    f"{spent['bytes_read'] / 1e6:.0f} MB/s, {spent['read_seconds']:.1f} reads under way, "
                    f"waits for reads {spent['stall_read_seconds']:.1%}, "
                    f"decoders busy {busy[place][-1]:.1%}",
                    flush=True,
                )
    for place, values in ratios.items():
        as_busy = statistics.median(far / near for far, near in zip(busy[place], busy["local"], strict=True))
        print(f"{place}: {statistics.median(values):.1%} of the local rate, decoders {as_busy:.1%} as busy")


if __name__ == "__main__":
    main()
