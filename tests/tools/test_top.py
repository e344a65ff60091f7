"""From exported metrics back to figures, and the table of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import ray
from typer.testing import CliRunner

from rayingest.execute.cluster.metrics import _values
from rayingest.monitor.diagnose import diagnose
from rayingest.plan.figures.metrics import METRICS, NODES, Snapshot, take_snapshot
from rayingest.tools import top
from rayingest.tools.cli import app
from tests.support.diagnosis_cases import CASES

JOB = 'Component="core_worker",JobId="01000000",loader="0"'


def exported(scale: float, *, closed: bool = False) -> str:
    """Return the exports of two nodes of a job of two ranks, the second of which waits, read `5 *
    scale` s after 1970.
    """
    lines = ["# HELP ray_rayingest_seconds_total Seconds", 'ray_other{JobId="01000000"} 5']
    for rank, waits in (("0", 0.0), ("1", 1.0)):
        tags = f'{JOB},rank="{rank}"'
        for node in ("a", "b"):
            lines.append(
                f'ray_rayingest_seconds_total{{{tags},node="{node}",stage="decode"}} {2 * scale}'
            )
            lines.append(
                f'ray_rayingest_samples_total{{{tags},node="{node}",stage="decode"}} {50 * scale}'
            )
        here = f'{tags},node="a"'
        lines.append(f'ray_rayingest_seconds_total{{{here},stage="step"}} {scale}')
        lines.append(f'ray_rayingest_seconds_total{{{here},stage="wait"}} {waits * scale}')
        lines.append(f'ray_rayingest_stall_seconds_total{{{here},stage="decode"}} {waits * scale}')
        lines.append(f'ray_rayingest_samples_total{{{here},stage="assemble"}} {100 * scale}')
        lines.append(f'ray_rayingest_batches_total{{{here},stage="step"}} {4 * scale}')
        lines.append(f'ray_rayingest_workers{{{here},stage="decode"}} 2.0')
        lines.append(
            f'ray_rayingest_look_timestamp_seconds{{{here},stage="look"}} '
            f"{0 if closed else 5 * scale}"
        )
    return "\n".join(lines)


def board_of(*texts: str, seconds: float = 10.0) -> dict[top.Key, Snapshot]:
    """Return the snapshots after these exports, `seconds` apart."""
    now = 0.0
    board = top.Board(lambda: now)
    for text in texts:
        seen = board.update(text)
        now += seconds
    return seen


def test_figures_come_back_from_what_is_exported() -> None:
    """Figures of nodes are summed, and kept by node; counters are differences, gauges values."""
    seen = board_of(exported(1), exported(3))
    one = seen["01000000", "1", "0"]
    assert (one["decode_seconds"], one["samples"], one["decoders"], one["wait_seconds"]) == (
        8,
        200,
        2,
        2,
    )
    assert one.nodes["b"] == {"decode_seconds": 4, "samples_decoded": 100}


def test_rates_are_of_the_time_between_looks() -> None:
    """However often the exports are read, and whether or not they have changed."""
    texts = [exported(1), exported(1), exported(3), exported(3), exported(3)]
    for number in (3, 4, 5):
        seen = board_of(*texts[:number], seconds=1.0)
        assert {one.seconds for one in seen.values()} == {10.0}
        assert {one["samples"] for one in seen.values()} == {200}


def test_loaders_that_are_closed_are_gone() -> None:
    """At once if they were closed, or after a while without news if their process ended."""
    assert board_of(exported(1), exported(3), exported(3, closed=True)) == {}
    ended = "\n".join(line for line in exported(3).splitlines() if "timestamp" not in line)
    for left in (ended, exported(3)):
        assert len(board_of(exported(1), exported(3), left)) == 2
        assert board_of(exported(1), exported(3), *6 * [left]) == {}
    assert board_of(ended, ended) == {}


def test_every_exported_series_has_its_figure() -> None:
    """Every metric comes back, except durations, which the table does not show."""
    assert len(top._FIGURES) == sum(
        len(metric.stages) for metric in METRICS if metric.kind != "durations"
    )


def test_the_table_names_the_slow_rank() -> None:
    """A line for each loader, and the advice for the job."""
    lines = top.table(board_of(exported(1), exported(3)))
    assert " ".join(lines[1].split()) == "01000000 0 0 20.0 0.8 0% 0/0 MiB r0 d0 b0 2 consumer"
    assert lines[2].split()[-1] == "decode"
    assert lines[3].startswith(
        "job 01000000, loader 0: slow rank: rank 1 waits 50% of its time, the others 0%"
    )
    assert top.table({})[0].startswith("no loader runs")


def test_loaders_of_one_rank_are_no_ranks() -> None:
    """A rank is compared with the same loader of other ranks, not with its own other loaders."""
    waits, fine = CASES["decoding"][0], CASES["no wait"][0]
    lines = top.table({("1", "0", "0"): waits, ("1", "0", "1"): fine})
    assert [line.split(":")[:2] for line in lines[3:]] == [
        ["job 1, loader 0", " decode"],
        ["job 1, loader 1", " consumer"],
    ]
    two = {("1", rank, loader): fine for rank in "01" for loader in "01"}
    lines = top.table({**two, ("1", "1", "1"): waits})
    assert lines[5].startswith("job 1, loader 0: consumer")
    assert lines[6].startswith("job 1, loader 1: slow rank: rank 1 waits")


@pytest.mark.parametrize("case", CASES)
def test_what_is_exported_says_the_same_as_stats(case: str) -> None:
    """Whatever the bottleneck, the metrics carry every figure that the diagnosis reads."""
    asked: set[str] = set()

    class Asked(dict[str, float]):
        def get(self, figure: str, default: Any = None) -> Any:
            asked.add(figure)
            return super().get(figure, default)

    made_up = CASES[case][0]
    figures = {**made_up.figures, NODES: made_up.nodes}
    for name in {
        name for parts in made_up.nodes.values() for name in parts
    }:  # a total is the sum of its parts
        figures[name] = sum(parts[name] for parts in made_up.nodes.values())
    text = "\n".join(
        f"ray_{metric.name}{'_total' if metric.kind == 'counter' else ''}"
        f'{{JobId="1",loader="0",rank="0",node="{series.node}",stage="{series.stage}"}} {value}'
        for metric in METRICS
        for series, value in _values(metric, figures, "here")
    )
    (seen,) = top.parse(text).values() if text else (top.Seen(),)
    there = take_snapshot({}, seen.figures, made_up.seconds)
    said = diagnose(replace(made_up, figures=Asked(figures)))
    assert diagnose(there) == said
    assert asked <= {figure for metric in METRICS for figure in metric.stages}


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nonsense", " is not HOST:PORT; give the address of a cluster's head"),
        ("ray://127.0.0.1:10001", " is not HOST:PORT; give the address of a cluster's head"),
        ("127.0.0.1:99999", " is not HOST:PORT; give the address of a cluster's head"),
        ("127.0.0.1:1", ": no Ray cluster responds there within 5 s: failed to connect"),
    ],
)
def test_an_address_that_is_none_is_named(
    address: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line. `--address` takes precedence over RAY_ADDRESS."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    done = CliRunner().invoke(app, ["top", "--address", address])
    assert done.exit_code == 1
    assert f"address={address}{said}" in done.output
    assert "RAY_ADDRESS=nowhere is not HOST:PORT" in CliRunner().invoke(app, ["top"]).output


def test_top_shows_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """`top` prints the table of the connected cluster, as often as asked."""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", list)
    texts = iter([exported(1), exported(3)])
    monkeypatch.setattr(top, "scrape", lambda nodes: next(texts))
    done = CliRunner().invoke(app, ["top", "--every", "0.5", "--times", "1"])
    assert done.exit_code == 0, done.output
    assert "slow rank" in done.stdout
