"""Checks what is looked at from outside, on a running job: panels for Grafana, Ray's dashboard, `top`.

    python jobs/check_dashboards.py

Needs Debian's packages `prometheus` and `chromium`. Prometheus scrapes a job as infra/prometheus/prometheus.yml says,
but at the path and pace of this check, and every query of infra/grafana/rayingest.json must give data; a headless
Chromium opens the actors' page of Ray's dashboard, and must show the loader's decoders. So must `rayingest top`. About
a minute; exit status 1 where something is missing.
"""

from __future__ import annotations

import json
import math
import os
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
from io import BytesIO
from pathlib import Path
from typing import Any

os.environ["RAY_metrics_report_interval_ms"] = "1000"  # noqa: SIM112 - read where Ray is imported

import ray

import rayingest as ri
from rayingest.observe.top import parse, scrape, snapshots, table

ROOT = Path(__file__).parents[1]
DASHBOARD = ROOT / "infra/grafana/rayingest.json"
PROMETHEUS = ROOT / "infra/prometheus/prometheus.yml"
DISCOVERY = "/tmp/ray/prom_metrics_service_discovery.json"  # noqa: S108 - Ray's own
SECONDS = 60.0


def main() -> int:
    """Run the checks; returns the exit status."""
    lacking = [name for name in ("prometheus", "chromium") if shutil.which(name) is None]
    if lacking:
        print(f"not checked: {', '.join(lacking)} is not installed (apt-get install prometheus chromium)")
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
        with training(folder), prometheus(folder) as address:
            panels = check_panels(address)
            actors = check_actors(f"http://{context.dashboard_url}", folder)
            shown = check_top()
        return 0 if panels and actors and shown else 1
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def training(folder: Path) -> Iterator[None]:
    """A loop over a loader, beside us."""
    for shard in range(4):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for i in range(60):
                info = tarfile.TarInfo(f"{shard}-{i}.txt")
                info.size = 1000
                tar.addfile(info, BytesIO(b"x" * 1000))
    data = ri.read_webdataset(str(folder / "*.tar"), index=folder, block_bytes=4096).map(work).shuffle(1).batch(20)
    stop = threading.Event()

    def loop() -> None:
        with data.loader(workers=2) as loader:
            while not stop.is_set():
                for _ in loader:
                    time.sleep(0.05)
                    if stop.is_set():
                        break

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def work(sample: dict[str, Any]) -> dict[str, Any]:
    """A decode of 4 ms."""
    time.sleep(0.004)
    return {"text": sample["txt"]}


@contextmanager
def prometheus(folder: Path) -> Iterator[str]:
    """A Prometheus that scrapes this cluster every second; gives its address."""
    config = PROMETHEUS.read_text().replace(DISCOVERY, str(folder / "ray" / Path(DISCOVERY).name)).replace("10s", "1s")
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
    """Whether the queries of all panels give data; says which do."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    waiting = {(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]}
    deadline = time.monotonic() + SECONDS
    while waiting and time.monotonic() < deadline:
        for title, expression in sorted(waiting):
            values = query(address, expression)
            if values:
                waiting.remove((title, expression))
                print(f"panel {title}: {', '.join(values)}", flush=True)
        time.sleep(0.5)
    for title, expression in sorted(waiting):
        print(f"panel {title}: NO DATA from {expression}")
    return not waiting


def query(address: str, expression: str) -> list[str]:
    """`labels value` of each series, [] where there is none or a value is no number yet."""
    for variable in ("job", "rank", "loader"):
        expression = expression.replace(f"${variable}", ".+")
    asked = urllib.parse.urlencode({"query": expression.replace("$__rate_interval", "10s")})
    try:
        with urllib.request.urlopen(f"{address}/api/v1/query?{asked}", timeout=5) as answer:  # noqa: S310
            result = json.load(answer)["data"]["result"]
    except OSError:  # it has not started yet
        return []
    series = [(" ".join(one["metric"].values()), float(one["value"][1])) for one in result]
    return [] if any(math.isnan(value) for _, value in series) else [f"{name} {value:.3g}" for name, value in series]


def check_top() -> bool:
    """Whether `rayingest top` shows the loader."""
    before = parse(scrape(ray.nodes()))
    time.sleep(5)
    lines = table(snapshots(before, parse(scrape(ray.nodes())), 5))
    print("\n".join(lines))
    return len(lines) == 3


def check_actors(dashboard: str, folder: Path) -> bool:
    """Whether Ray's dashboard shows our reader and decoders by name, alive."""
    names = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
    ours = sorted(name for name in names if name.startswith("rayingest:") and "decoder" in name)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    command += [f"--user-data-dir={folder / 'chromium'}", "--dump-dom", f"{dashboard}/#/actors"]
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        page = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120).stdout
        if ours and all(name in page for name in ours):
            print(f"Ray's dashboard shows {', '.join(ours)}, ALIVE: {page.count('ALIVE') > 0}")
            return "ALIVE" in page
    print(f"Ray's dashboard at {dashboard} does not show {', '.join(ours)}")
    return False


if __name__ == "__main__":
    sys.exit(main())
