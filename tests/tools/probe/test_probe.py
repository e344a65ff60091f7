"""The probe: its conclusions from figures, its report, and one short run."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import rayingest as ri
from rayingest.execute.cluster.pool import ActorHandle
from rayingest.monitor.diagnose import Diagnosis
from rayingest.tools.cli import app
from rayingest.tools.probe import probe
from rayingest.tools.probe.ablation import split
from rayingest.tools.probe.probe import Measured, NotMeasured, Point, knee
from rayingest.tools.probe.report import costs, page, recommendation, verdict
from tests.support.streams import write_shards
from tests.support.web import web

__all__ = ["web"]


def measured(rate: float, data: float = 0.01, share: float = 0.5, **point: Any) -> Measured:
    found = Diagnosis(
        "decode", share, "the loop waits <50%>", "workers=8 instead of 1", settings={"workers": 8}
    )
    return Measured(
        Point(**{"workers": 1, **point}), rate, data, 0.001, 0.02, 1.5, 1 << 20, 1 << 20, found
    )


def test_the_knee_is_the_least_that_is_nearly_the_best() -> None:
    """Fewest workers, then fewest batches ahead, within a few percent of the best rate."""
    points = [
        measured(100, workers=1),
        measured(196, workers=2, prefetch=4),
        measured(194, workers=2, prefetch=1),
        measured(200, workers=4),
    ]
    assert knee(points).point == Point(2, 1)


def test_the_split_is_what_runs_do_without() -> None:
    """Each cost is a difference of runs, and never negative."""
    parts = split([measured(1, 0.10), measured(1, 0.07), measured(1, 0.01)])
    assert parts == pytest.approx({"storage": 0.03, "decoding": 0.06, "the rest": 0.03})
    assert split([measured(1, 0.01), measured(1, 0.02), measured(1, 0.03)])["storage"] == 0


def test_without_a_run_its_cost_is_told_with_another() -> None:
    """The costs on both sides of a missing run are one entry; without runs there is none."""
    cold, lacks, made = measured(1, 0.10), NotMeasured(Point(1), "too large"), measured(1, 0.01)
    assert costs([cold, lacks, made]) == "storage and decoding 90.0 ms, the rest 30.0 ms"
    assert costs([cold, cold, lacks]) == "storage 0.0 ms, decoding and the rest 120.0 ms"
    assert costs([lacks]) == "not measured"


def test_the_verdict_is_plain() -> None:
    """It says whether the knee suffices, and else what would."""
    assert verdict([measured(9, share=0.01)], 5).startswith("suffices: ")
    assert "without steps (--step-ms)" in verdict([measured(9, share=0.99)], 0)
    assert verdict([measured(9)], 5).endswith("; workers=8 instead of 1 (measure with --workers 8)")
    assert "2 workers are not faster" in verdict([measured(9), measured(9, workers=2)], 5)


def test_nothing_is_measured_with_fewer_decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe waits for them, and says how many started if some do not."""
    monkeypatch.setattr(probe, "total_cpus", lambda: 4)
    monkeypatch.setattr(probe, "describe_cpus", lambda: "the cluster has 4 CPUs, 0 of them free")
    pool = SlowPool(workers=2, looks=3)
    assert probe.wait_for_decoders(pool, 60) == ""
    assert pool.looks == 0
    lack = probe.wait_for_decoders(SlowPool(workers=2, looks=99), 0.01)
    assert lack == "1 of 2 decoders started in 0.01 s; the cluster has 4 CPUs, 0 of them free"
    assert probe.wait_for_decoders(SlowPool(workers=5, looks=0), 60).endswith(
        "and the cluster has 4"
    )


class SlowPool(ri.Pool):
    """A pool whose second decoder starts after `looks` looks."""

    def __init__(self, workers: int, looks: int) -> None:
        super().__init__(workers)
        self.looks = looks

    def open(self, rank: int, world_size: int) -> None:
        """Start nothing."""

    @property
    def actors(self) -> list[ActorHandle]:
        self.looks -= 1
        return [
            ActorHandle(str(number), "decoder", None)
            for number in range(1 if self.looks > 0 else self.workers)
        ]


def test_the_report_is_one_page_that_needs_nothing_else() -> None:
    """The page is well formed, escaped and has its pictures; its YAML is valid."""
    points = [
        measured(100 * workers, workers=workers, prefetch=p, batch=64)
        for workers in (1, 2)
        for p in (1, 2)
    ]
    lacks = NotMeasured(Point(9), "<9> are too many")
    text = page("a & b", [*points, lacks], [points[0], lacks, points[1]], 10.0)
    body = text[text.index("<body>") : text.index("</html>")]
    root = ET.fromstring(body)
    assert len(root.findall(".//svg")) == 2
    assert len(root.findall(".//polyline")) == 2
    assert len(root.findall(".//tr")) == 4 + 6
    assert [cell.text for cell in root.findall(".//td[@colspan]")] == [
        "not measured: <9> are too many"
    ] * 2
    assert "http" not in text
    told = yaml.safe_load(recommendation(points, 10.0))
    assert told == {"batch": {"size": 64}, "loader": {"workers": 2, "prefetch": 1}}


def test_a_configuration_is_probed(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All runs of half a second: a report, a recommendation that loads, and reasons for what
    failed.
    """
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "data", [30, 30])
    (tmp_path / "c.yaml").write_text(
        "read: {format: webdataset, urls: data/*.tar, index: index.arrow}\nselect: {image: png}\n"
        "decode: {image: {RandomResizedCrop: 8}}\nshuffle: {seed: 3}\nbatch: {size: 8}\n"
    )
    command = [
        "probe",
        "c.yaml",
        "--seconds",
        "0.5",
        "--workers",
        "1,99",
        "--batch",
        "8,99",
        "--step-ms",
        "5",
    ]
    done = CliRunner().invoke(app, [*command, "--trace", "trace.json"])
    assert done.exit_code == 0, done.output
    told = done.stdout.splitlines()
    assert told[0].startswith("a batch: storage ")
    assert yaml.safe_load("\n".join(told[1:]))["loader"]["workers"] == 1
    report = (tmp_path / "probe.html").read_text()
    for why in (
        "99 decoders need 99 CPUs, and the cluster has 12",
        "less than one global batch",
    ):
        assert why in report
        assert why in done.stderr
    spans = [
        one
        for one in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        if one["ph"] == "X"
    ]
    assert {span["name"] for span in spans} == {
        "read",
        "decode",
        "transfer",
        "assemble",
        "wait",
        "step",
    }
    assert all(span["args"].keys() == {"rank", "epoch", "step"} for span in spans)


def test_a_mistake_in_an_option_is_told(tmp_path: Path) -> None:
    """The error says what would work."""
    done = CliRunner().invoke(app, ["probe", "c.yaml", "--workers", "1,x"])
    assert (done.exit_code, "--workers 1,x is not a list of whole numbers" in done.stderr) == (
        1,
        True,
    )


def test_a_file_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    """The error comes before the measurements."""
    done = CliRunner().invoke(
        app, ["probe", "c.yaml", "--trace", str(tmp_path / "none" / "t.json")]
    )
    assert (done.exit_code, "No such file or directory; name a file" in done.stderr) == (1, True)
