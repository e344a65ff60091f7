"""Check Grafana's panels, Ray's dashboard and `rayingest top` on a running job.

    python jobs/check_dashboards.py [--pictures docs]

Needs Debian's packages `prometheus` and `chromium`; takes about a minute. Prometheus scrapes a job
as infra/prometheus/prometheus.yml says, at this check's path and pace. Every query of
infra/grafana/rayingest.json must return data (an `or vector(0)` does not count), with the values of
the variables' own queries in their places. Ray's page of actors, opened in a headless Chromium, and
`rayingest top` must show the loader's decoders. Exits with status 1 if anything is missing.
`--pictures` writes all panels to panels.png in that folder, and the page of actors to
ray_actors.png.
"""

from __future__ import annotations

import argparse
import functools
import html
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

os.environ["RAY_metrics_report_interval_ms"] = "1000"  # noqa: SIM112 - read where Ray is imported

import ray
from slow_files import SlowFiles

import rayingest as ri
from rayingest.tools.probe import plots
from rayingest.tools.top import Board, scrape, table

ROOT = Path(__file__).parents[1]
DASHBOARD = ROOT / "infra/grafana/rayingest.json"
VARIABLES = {
    one["name"]: one["query"]["query"]
    for one in json.loads(DASHBOARD.read_text())["templating"]["list"]
    if one["type"] == "query"
}
OR_NOTHING = " or vector(0)"
"""What a panel shows where there is nothing; here there must be something."""
PROMETHEUS = ROOT / "infra/prometheus/prometheus.yml"
DISCOVERY = "/tmp/ray/prom_metrics_service_discovery.json"  # noqa: S108 - Ray's own
SECONDS = 60.0
SHOWN_SECONDS = 60
UNITS = {
    "percentunit": "part",
    "s": "s",
    "ops": "a second",
    "Bps": "bytes/s",
    "bytes": "bytes",
    "short": "how many",
}
"""Grafana's names, in words."""
CHROMIUM = (
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--virtual-time-budget=20000",
)


def main() -> int:
    """Run the checks; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pictures", type=Path, help="folder for pictures of the panels and of Ray's dashboard"
    )
    pictures = parser.parse_args().pictures
    lacking = [name for name in ("prometheus", "chromium") if shutil.which(name) is None]
    if lacking:
        print(f"{', '.join(lacking)} is not installed; apt-get install prometheus chromium")
        return 1
    folder = Path(tempfile.mkdtemp(prefix="ri-"))  # a short path: Ray puts sockets below it
    try:
        context = ray.init(
            "local",
            num_cpus=3,
            object_store_memory=200 << 20,
            include_dashboard=True,
            log_to_driver=False,
            _temp_dir=str(folder / "ray"),
        )
        begun = time.monotonic()
        with training(folder), prometheus(folder) as address:
            panels = check_panels(address)
            actors = check_actors(f"http://{context.dashboard_url}", folder)
            shown = check_top()
            if pictures is not None:
                time.sleep(max(0.0, begun + SHOWN_SECONDS - time.monotonic()))
                draw_panels(address, folder, pictures / "panels.png")
                picture(
                    f"http://{context.dashboard_url}/#/actors",
                    folder,
                    pictures / "ray_actors.png",
                    1600,
                    760,
                )
        return 0 if panels and actors and shown else 1
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


class UnsteadyFiles(SlowFiles):
    """Files whose server is busy now and then, so that reads are retried."""

    answers = 0

    def _answer(self, body: bool) -> None:
        UnsteadyFiles.answers += 1
        if UnsteadyFiles.answers % 10:
            super()._answer(body)
        else:
            self.send_error(503)


@contextmanager
def training(folder: Path) -> Iterator[None]:
    """Run a loop over a loader in a thread; its data comes from a web server and a disk cache."""
    for shard in range(4):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for i in range(60):
                info = tarfile.TarInfo(f"{shard}-{i}.txt")
                info.size = 1000
                tar.addfile(info, BytesIO(b"x" * 1000))
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(UnsteadyFiles, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    urls = f"http://127.0.0.1:{server.server_port}/0/{{0..3}}.tar"  # no delay
    cache = {"cache_dir": folder / "cache", "cache_bytes": 10 << 20}
    data = (
        ri.read_webdataset(urls, index=folder, block_bytes=4096, **cache)
        .map(work)
        .shuffle(seed=1)
        .batch(20)
    )
    stop = threading.Event()

    def loop() -> None:
        with data.loader(workers=2) as loader:
            while not stop.is_set():
                for _ in loader:
                    time.sleep(0.05 if time.monotonic() % 30 < 20 else 0.01)
                    if stop.is_set():
                        break

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        server.shutdown()


def work(sample: dict[str, Any]) -> dict[str, Any]:
    """Sleep 4 ms; stands for a decode."""
    time.sleep(0.004)
    return {"text": sample["txt"]}


@contextmanager
def prometheus(folder: Path) -> Iterator[str]:
    """Run a Prometheus that scrapes this cluster every second; yields its address."""
    config = (
        PROMETHEUS.read_text()
        .replace(DISCOVERY, str(folder / "ray" / Path(DISCOVERY).name))
        .replace("10s", "1s")
    )
    (folder / "prometheus.yml").write_text(config)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "tsdb",
        "web.listen-address": address,
    }
    command = ["prometheus", *(f"--{name}={value}" for name, value in options.items())]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait()


def check_panels(address: str) -> bool:
    """Print which queries return data; return whether all do."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    waiting = {
        (panel["title"], target["expr"].removesuffix(OR_NOTHING))
        for panel in panels
        for target in panel["targets"]
    }
    job = ray.get_runtime_context().get_job_id()
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and chosen(address, "job") != job:
        time.sleep(0.5)
    print(f"the dashboard's variable job: {chosen(address, 'job')}, expected {job}", flush=True)
    while waiting and time.monotonic() < deadline:
        for title, expression in sorted(waiting):
            values = query(address, expression)
            if values:
                waiting.remove((title, expression))
                print(f"panel {title}: {', '.join(values)}", flush=True)
        time.sleep(0.5)
    for title, expression in sorted(waiting):
        print(f"panel {title}: NO DATA from {expression}")
    return not waiting and chosen(address, "job") == job


def chosen(address: str, variable: str) -> str:
    """Return all values of a dashboard's variable as Grafana joins them, or ""."""
    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", VARIABLES[variable])
    assert found, VARIABLES[variable]
    return "|".join(get(address, f"label/{found[2]}/values", {"match[]": found[1]}) or ())


def ask(address: str, what: str, expression: str, **how: float) -> list[dict[str, Any]]:
    """Return Prometheus' answer to a query, [] before it has started."""
    for variable in VARIABLES:
        expression = expression.replace(f"${variable}", chosen(address, variable))
    given = get(address, what, {"query": expression.replace("$__rate_interval", "10s"), **how})
    return list(given["result"]) if given else []


def get(address: str, what: str, asked: dict[str, Any]) -> Any:
    """Return the data of Prometheus' API, None before it has started."""
    try:
        with urllib.request.urlopen(  # noqa: S310
            f"{address}/api/v1/{what}?{urllib.parse.urlencode(asked)}", timeout=5
        ) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def query(address: str, expression: str) -> list[str]:
    """Return `labels value` of each series, [] without one or with a value that is no number."""
    result = ask(address, "query", expression)
    series = [(" ".join(one["metric"].values()), float(one["value"][1])) for one in result]
    return (
        []
        if any(math.isnan(value) for _, value in series)
        else [f"{name} {value:.3g}" for name, value in series]
    )


def draw_panels(address: str, folder: Path, path: Path) -> None:
    """Draw all panels over the last minute."""
    now = time.time()
    drawn = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        named: dict[str, list[tuple[float, float]]] = {}
        for target in panel["targets"]:
            for one in ask(
                address, "query_range", target["expr"], start=now - SHOWN_SECONDS, end=now, step=1
            ):
                name = target["legendFormat"]
                for label, value in one["metric"].items():
                    name = name.replace(f"{{{{{label}}}}}", value)
                points = [(float(at) - now, float(value)) for at, value in one["values"]]
                if (
                    one["metric"] or "{{" not in name
                ):  # a nothing that is drawn where there is nothing else
                    named[name] = [(at, value) for at, value in points if not math.isnan(value)]
        unit = UNITS[panel["fieldConfig"]["defaults"]["unit"]]
        picture_of = plots.lines(
            named, {at: str(at) for at in range(-SHOWN_SECONDS, 1, 15)}, f"{unit}, over seconds"
        )
        drawn.append(f"<figure><h3>{html.escape(panel['title'])}</h3>{picture_of}</figure>")
    style = (
        "body{max-width:none;display:grid;grid-template-columns:1fr 1fr}"
        "figure{margin:0}h3{margin:0}"
    )
    page = folder / "panels.html"
    page.write_text(plots.page("Panels", drawn, style))
    picture(page.as_uri(), folder, path, 1360, 2000)


def picture(url: str, folder: Path, path: Path, width: int, height: int) -> None:
    """Take a picture of a page with headless Chromium."""
    command = [*CHROMIUM, f"--user-data-dir={folder / 'chromium'}", "--hide-scrollbars"]
    command += [f"--window-size={width},{height}", f"--screenshot={path.absolute()}", url]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    print(f"picture {path}", flush=True)


def check_top() -> bool:
    """Return whether `rayingest top` shows the loader."""
    board = Board()
    board.update(scrape(ray.nodes()))
    time.sleep(5)
    lines = table(board.update(scrape(ray.nodes())))
    print("\n".join(lines))
    return len(lines) == 3


def check_actors(dashboard: str, folder: Path) -> bool:
    """Return whether Ray's dashboard shows the reader and the decoders by name, alive."""
    names = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
    ours = sorted(name for name in names if name.startswith("rayingest:") and "decoder" in name)
    command = [
        *CHROMIUM,
        f"--user-data-dir={folder / 'chromium'}",
        "--dump-dom",
        f"{dashboard}/#/actors",
    ]
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        page = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=120
        ).stdout
        if ours and all(name in page for name in ours):
            print(f"Ray's dashboard shows {', '.join(ours)}, ALIVE: {page.count('ALIVE') > 0}")
            return "ALIVE" in page
    print(f"Ray's dashboard at {dashboard} does not show {', '.join(ours)}")
    return False


if __name__ == "__main__":
    sys.exit(main())
