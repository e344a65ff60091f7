"""What a probe found, as one HTML page that needs nothing else, and as YAML to paste into a configuration.

Owns the words; measures nothing, and leaves the drawing to `plots`.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import yaml

from rayingest.observe import plots
from rayingest.observe.probe import Measured, knee, split

_HEADS = "workers|prefetch|pinned|batch|samples/s|data ms|copy ms|step ms|CPUs|memory MiB|/dev/shm MiB|bottleneck"

_RUNS = ("cold: the data as it lies there", "cached: copies of its first shards, local", "synthetic: one batch, again")


def recommendation(measured: Sequence[Measured]) -> str:
    """The section `loader` of a configuration, as YAML: the least setting that gives nearly the best rate."""
    best = knee(measured)
    options: dict[str, Any] = {"workers": best.point.workers, "prefetch": best.point.prefetch}
    if best.point.pin_memory is not None:
        options["pin_memory"] = best.point.pin_memory
    section: dict[str, Any] = {"loader": options}
    if best.point.batch is not None:
        section = {"batch": {"size": best.point.batch}, **section}
    why = f"# {best.samples_per_second:,.0f} samples/s; {best.diagnosis}\n"
    return why + yaml.safe_dump(section, sort_keys=False)


def page(title: str, measured: Sequence[Measured], runs: Sequence[Measured], step_ms: float) -> str:
    """The whole report; `runs` are the cold, the cached and the synthetic one."""
    best = knee(measured)
    told = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>Steps of {step_ms:g} ms stand for a model. The knee, the least that gives nearly the best rate: "
        f"<b>{best.point.workers} worker(s)</b>, {best.samples_per_second:,.0f} samples/s. "
        f"{html.escape(str(best.diagnosis))}.</p>",
        "<h2>Samples per second</h2>",
        _curves(measured),
        "<h2>What a batch costs at the knee</h2>",
        plots.bar(asdict(split(*runs)), lambda one: f"{1e3 * one:.1f} ms"),
        _runs(runs),
        "<h2>All points</h2>",
        _table(measured, best),
        "<h2>To paste</h2>",
        f"<pre>{html.escape(recommendation(measured))}</pre>",
    ]
    return plots.page(title, told)


def _runs(runs: Sequence[Measured]) -> str:
    """What the bar is made of."""
    rows = ["<tr><th>run</th><th>data ms</th><th>step ms</th><th>samples/s</th></tr>"]
    for name, run in zip(_RUNS, runs, strict=True):
        times = (f"{1e3 * seconds:.1f}" for seconds in (run.data_seconds, run.step_seconds))
        cells = (name, *times, f"{run.samples_per_second:,.0f}")
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<table>{''.join(rows)}</table>"


def _table(measured: Sequence[Measured], best: Measured) -> str:
    heads = _HEADS.split("|")
    rows = ["<tr>" + "".join(f"<th>{name}</th>" for name in heads) + "</tr>"]
    for one in measured:
        point = one.point
        cells = [
            f"{point.workers}",
            f"{point.prefetch}",
            "default" if point.pin_memory is None else str(point.pin_memory).lower(),
            "own" if point.batch is None else f"{point.batch}",
            f"{one.samples_per_second:,.0f}",
            *(f"{1e3 * seconds:.1f}" for seconds in (one.data_seconds, one.copy_seconds, one.step_seconds)),
            f"{one.cpu:.1f}",
            *(f"{nbytes / 2**20:,.0f}" for nbytes in (one.memory_bytes, one.shared_bytes)),
            one.diagnosis.bottleneck,
        ]
        mark = ' class="knee"' if one is best else ""
        rows.append(f"<tr{mark}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table>{''.join(rows)}</table>"


def _curves(measured: Sequence[Measured]) -> str:
    """Rates over workers, a line for each of the other settings."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for one in measured:
        point = one.point
        name = f"prefetch {point.prefetch}"
        name += "" if point.pin_memory is None else ", pinned" if point.pin_memory else ", not pinned"
        name += "" if point.batch is None else f", batch {point.batch}"
        curves.setdefault(name, []).append((point.workers, one.samples_per_second))
    workers = sorted({one.point.workers for one in measured})
    return plots.lines(curves, {0.0: "0", **{number: str(number) for number in workers}}, "workers", dots=True)
