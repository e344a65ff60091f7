"""Write a probe's results: one self-contained HTML page, and YAML to paste into a configuration.

Owns the words; `plots` draws.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import yaml

from rayingest.monitor.diagnose import WAIT_SHARE
from rayingest.tools.probe import plots
from rayingest.tools.probe.ablation import RUNS, split
from rayingest.tools.probe.probe import Measured, NotMeasured, Point, Result, knee, only_measured

_HEADS = (
    "workers|prefetch|pinned|batch|samples/s|data ms|copy ms|step ms|CPUs|memory MiB|store MiB"
    "|bottleneck"
)
_NOTE = (
    "CPUs: how many this process and its workers kept busy. Memory: their private memory, store: "
    "the loader's use of the object store, both at their peak."
)
_RUNS = dict(
    zip(
        RUNS,
        ("the data where it is", "local copies of its first shards", "one batch, repeated"),
        strict=True,
    )
)


def verdict(results: Sequence[Result], step_ms: float) -> str:
    """Say whether the knee suffices, and if not, what would."""
    best = knee(results)
    found, workers = best.diagnosis, best.point.workers
    if not step_ms:
        return (
            "without steps (--step-ms) the loop only waits, so no setting suffices: "
            f"{found.evidence}"
        )
    if found.share < WAIT_SHARE:
        return f"suffices: {found.evidence}"
    falls_short = f"no measured point suffices; here {found.evidence}"
    most = max(one.point.workers for one in only_measured(results))
    if found.bottleneck == "decode" and most > workers:
        return (
            f"{falls_short}, and {most} workers are not faster: use faster CPUs, or do less work "
            "for each sample"
        )
    wanted = found.settings.get("workers")
    return f"{falls_short}; {found.advice}" + (
        f" (measure with --workers {wanted})" if wanted else ""
    )


def recommendation(results: Sequence[Result], step_ms: float) -> str:
    """Return the knee as YAML: the section `loader` of a configuration, and `batch` if measured."""
    best = knee(results)
    options: dict[str, Any] = {"workers": best.point.workers, "prefetch": best.point.prefetch}
    if best.point.pin_memory is not None:
        options["pin_memory"] = best.point.pin_memory
    section: dict[str, Any] = {"loader": options}
    if best.point.batch is not None:
        section = {"batch": {"size": best.point.batch}, **section}
    why = f"# {best.samples_per_second:,.0f} samples/s; {verdict(results, step_ms)}\n"
    return why + yaml.safe_dump(section, sort_keys=False)


def costs(runs: Sequence[Result]) -> str:
    """Say what a batch costs."""
    return (
        ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in split(runs).items())
        or "not measured"
    )


def page(title: str, results: Sequence[Result], runs: Sequence[Result], step_ms: float) -> str:
    """Return the whole report; `runs` are the cold, cached and synthetic runs that are done."""
    best = knee(results)
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>Steps of {step_ms:g} ms stand for a model. The knee is the smallest setting near the "
        "best rate: "
        f"<b>{best.point.workers} worker(s)</b>, {best.samples_per_second:,.0f} samples/s; "
        f"{html.escape(verdict(results, step_ms))}.</p>",
        "<h2>Samples per second</h2>",
        _curves(only_measured(results)),
        "<h2>What a batch costs at the knee</h2>",
        plots.bar(split(runs), lambda one: f"{1e3 * one:.1f} ms"),
        _runs(runs),
        "<h2>All points</h2>",
        _table(results, best),
        f"<p>{_NOTE}</p>",
        "<h2>To paste</h2>",
        f"<pre>{html.escape(recommendation(results, step_ms))}</pre>",
    ]
    return plots.page(title, parts)


def _runs(runs: Sequence[Result]) -> str:
    """Return the table of the runs that the bar shows."""
    rows = ["<tr><th>run</th><th>data ms</th><th>step ms</th><th>samples/s</th></tr>"]
    for (name, what), run in zip(_RUNS.items(), runs, strict=False):
        first = f"<td>{name}: {what}</td>"
        if isinstance(run, NotMeasured):
            rows.append(f"<tr>{first}{_why(run, 3)}</tr>")
        else:
            times = (f"{1e3 * seconds:.1f}" for seconds in (run.data_seconds, run.step_seconds))
            rows.append(f"<tr>{first}{_cells([*times, f'{run.samples_per_second:,.0f}'])}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _table(results: Sequence[Result], best: Measured) -> str:
    heads = _HEADS.split("|")
    rows = ["<tr>" + "".join(f"<th>{name}</th>" for name in heads) + "</tr>"]
    for one in results:
        point = _settings(one.point)
        if isinstance(one, NotMeasured):
            rows.append(f"<tr>{_cells(point)}{_why(one, len(heads) - len(point))}</tr>")
            continue
        cells = [
            *point,
            f"{one.samples_per_second:,.0f}",
            *(
                f"{1e3 * seconds:.1f}"
                for seconds in (one.data_seconds, one.copy_seconds, one.step_seconds)
            ),
            f"{one.cpu:.2f}",
            *(f"{nbytes / 2**20:,.0f}" for nbytes in (one.memory_bytes, one.store_bytes)),
            one.diagnosis.bottleneck,
        ]
        mark = ' class="knee"' if one is best else ""
        rows.append(f"<tr{mark}>{_cells(cells)}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _settings(point: Point) -> list[str]:
    return [
        f"{point.workers}",
        f"{point.prefetch}",
        "default" if point.pin_memory is None else str(point.pin_memory).lower(),
        "own" if point.batch is None else f"{point.batch}",
    ]


def _cells(texts: Sequence[str]) -> str:
    return "".join(f"<td>{html.escape(text)}</td>" for text in texts)


def _why(one: NotMeasured, columns: int) -> str:
    return f'<td colspan="{columns}">not measured: {html.escape(one.why)}</td>'


def _curves(measured: Sequence[Measured]) -> str:
    """Draw rates over workers, a line for each combination of the other settings."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for one in measured:
        point = one.point
        name = f"prefetch {point.prefetch}"
        name += (
            "" if point.pin_memory is None else ", pinned" if point.pin_memory else ", not pinned"
        )
        name += "" if point.batch is None else f", batch {point.batch}"
        curves.setdefault(name, []).append((point.workers, one.samples_per_second))
    workers = sorted({one.point.workers for one in measured})
    return plots.lines(
        curves, {0.0: "0", **{number: str(number) for number in workers}}, "workers", dots=True
    )
