"""The Grafana dashboard uses metrics that exist; jobs/check_dashboards.py runs its queries."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rayingest.plan.figures.metrics import METRICS, TAGS

INFRA = Path(__file__).parents[2] / "infra"
EXPRESSIONS = [
    target["expr"]
    for panel in json.loads((INFRA / "grafana/rayingest.json").read_text())["panels"]
    for target in panel["targets"]
]
STAGES = {
    f"ray_{metric.name}" + ("" if metric.kind == "gauge" else "_total"): set(metric.stages.values())
    for metric in METRICS
}


def test_every_metric_stage_and_tag_of_a_panel_exists() -> None:
    """Also, every metric is on a panel.

    The exceptions name the jobs, are moments, or serve the diagnosis alone.
    """
    found = set()
    for expression in EXPRESSIONS:
        for name, selectors in re.findall(r"(ray_rayingest_\w+)\{([^}]*)\}", expression):
            found.add(name)
            tags = dict(re.findall(r'(\w+)=~?"([^"]*)"', selectors))
            assert tags.keys() <= set(TAGS), expression
            assert set(tags.get("stage", "").split("|")) - {""} <= STAGES[name], expression
    moments = {"ray_rayingest_look_timestamp_seconds", "ray_rayingest_current_step_seconds"}
    concluded_from = {"ray_rayingest_blocks_total", "ray_rayingest_cluster"}
    assert found | {"ray_rayingest_batches_total"} | moments | concluded_from == STAGES.keys()


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)
def test_prometheus_takes_its_configuration() -> None:
    """`promtool check config` accepts the file."""
    command = ["promtool", "check", "config", str(INFRA / "prometheus/prometheus.yml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
