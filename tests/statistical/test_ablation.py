"""The probe's ablation finds a planted bottleneck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rayingest as ri
from rayingest.tools.probe.ablation import run_ablation, split
from rayingest.tools.probe.probe import Point, Trial
from tests.support.streams import number, slow, write_shards
from tests.support.web import WebServer, web

__all__ = ["web"]

pytestmark = pytest.mark.statistical


@pytest.mark.parametrize("short", ["storage", "decode"])
def test_ablation_tells_storage_from_decoding(
    short: str, cluster: Any, tmp_path: Path, web: WebServer
) -> None:
    """With requests of 0.3 s storage costs most, with 5 ms of decoding a sample, decoding."""
    write_shards(tmp_path, [60, 60], side=2)
    for path in tmp_path.glob("*.tar"):
        web.files[f"/{path.name}"] = path.read_bytes()
    urls = (
        [f"{web.url}{name}" for name in sorted(web.files)]
        if short == "storage"
        else str(tmp_path / "*.tar")
    )
    data = (
        ri.read_webdataset(urls, block_bytes=2048)
        .select(json="json")
        .map(slow if short == "decode" else number)
    )
    data = data.shuffle(seed=1, window=20).batch(20)
    with data.loader(workers=0):
        web.delay = 0.3 if short == "storage" else 0.0
    options = {
        "rank": 0,
        "world_size": 1,
        "max_bytes": 60_000,
    }  # which cannot keep what was read, nor read far ahead
    parts = split(list(run_ablation(data, Point(1), Trial(1.0, 0.005, options, timeout=60.0))))
    assert parts["storage"] + parts["decoding"] > parts["the rest"], parts
    assert (parts["storage"] > 3 * parts["decoding"]) == (short == "storage"), parts
    assert (parts["decoding"] > 3 * parts["storage"]) == (short == "decode"), parts
