"""Define the commands `rayingest probe` and `rayingest top`: their options and their output."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from rayingest.api.config import load_config
from rayingest.errors import ConfigError
from rayingest.util.progress import Bar

ReportErrors = Callable[[bool], AbstractContextManager[None]]
"""Given `--debug`, a context that prints an error of this package as one line."""

_ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML configuration.")]
_Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def add_commands(app: typer.Typer, report_errors: ReportErrors) -> None:
    """Add the commands to the command line."""

    @app.command()
    def probe(
        config: _ConfigPath,
        seconds: Annotated[
            float, typer.Option(min=0.5, help="Seconds that each point is measured.")
        ] = 5.0,
        step_ms: Annotated[
            float, typer.Option(min=0.0, help="Milliseconds that a step of your model takes.")
        ] = 0.0,
        workers: Annotated[
            str,
            typer.Option(
                help="Numbers of workers, for example 1,2,4; default: up to the cluster's CPUs."
            ),
        ] = "",
        prefetch: Annotated[str, typer.Option(help="Batches ahead, for example 1,2,4.")] = "2",
        batch: Annotated[
            str, typer.Option(help="Global batch sizes; default: the configuration's.")
        ] = "",
        pin: Annotated[
            str, typer.Option(help="default, on, off, or several, for example on,off.")
        ] = "default",
        report: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("probe.html"),
        trace: Annotated[
            Path | None, typer.Option(help="File to write with a Chrome trace of the cold run.")
        ] = None,
        debug: _Debug = False,
    ) -> None:
        """Measure a pipeline without a model: which settings suffice, what the data costs."""
        with report_errors(debug):
            axes = {
                "workers": _numbers("workers", workers) if workers else [],
                "prefetch": _numbers("prefetch", prefetch),
                "batch": _numbers("batch", batch) if batch else [None],
                "pin": [_pin(word) for word in pin.split(",")],
            }
            _probe(config, seconds, step_ms, axes, report, trace)

    @app.command()
    def top(
        address: Annotated[
            str,
            typer.Option(
                metavar="HOST:PORT",
                help="Address of the cluster; default: RAY_ADDRESS, or a local one.",
            ),
        ] = "",
        every: Annotated[
            float,
            typer.Option(
                min=0.5, help="Seconds between two tables; Ray exports new figures every 10 s."
            ),
        ] = 10.0,
        times: Annotated[
            int, typer.Option(min=0, help="Number of tables; 0: until interrupted.")
        ] = 0,
        debug: _Debug = False,
    ) -> None:
        """Show the loaders that run on a cluster: rates, waits, queues, bottlenecks."""
        with report_errors(debug):
            _top(address, every, times)


def _top(address: str, every: float, times: int) -> None:
    import ray

    from rayingest.execute.cluster.connection import connect_to_running
    from rayingest.tools.top import Board, scrape, table

    connect_to_running(address or None)
    board = Board()
    board.update(scrape(ray.nodes()))
    for number in itertools.count(1):
        time.sleep(every)
        lines = table(board.update(scrape(ray.nodes())))
        if sys.stdout.isatty():
            typer.echo("\x1b[2J\x1b[H", nl=False)  # clear the screen
        typer.echo("\n".join(lines))
        if number == times:
            return


def _probe(
    config: Path,
    seconds: float,
    step_ms: float,
    axes: dict[str, list[Any]],
    report: Path,
    trace: Path | None,
) -> None:
    from rayingest.execute.cluster.connection import connect
    from rayingest.execute.cluster.resources import total_cpus
    from rayingest.monitor.trace import Trace
    from rayingest.tools.probe import probe
    from rayingest.tools.probe.ablation import RUNS, run_ablation
    from rayingest.tools.probe.report import costs, page, recommendation

    _check_writable("report", report)
    if trace is not None:
        _check_writable("trace", trace)
    loaded = load_config(config)
    dataset, options = loaded.dataset(), loaded.loader_options()
    options = {
        name: options[name]
        for name in options
        if name not in {"workers", "prefetch", "pin_memory", "epochs"}
    }
    options |= {"rank": 0, "world_size": 1}
    trial = probe.Trial(seconds, step_ms / 1e3, options, timeout=options.get("start_timeout", 60.0))
    connect(trial.timeout)
    axes["workers"] = axes["workers"] or _powers_up_to(total_cpus())
    points = [
        probe.Point(*each)
        for each in itertools.product(*(axes[n] for n in ("workers", "prefetch", "pin", "batch")))
    ]
    results: list[probe.Result] = []
    runs: list[probe.Result] = []
    with Bar(total=len(points) + len(RUNS), desc="probing", unit="point") as bar:

        def keep(kept: list[probe.Result], one: probe.Result, what: str) -> None:
            """Add a result and rewrite the report, which then survives an interruption."""
            kept.append(one)
            if isinstance(one, probe.NotMeasured):
                bar.write(f"{what} not measured: {one.why}", file=sys.stderr)
            else:
                bar.set_postfix_str(f"{what}: {one.samples_per_second:,.0f} samples/s")
            bar.update()
            if probe.only_measured(results):
                report.write_text(page(f"Probe of {config}", results, runs, step_ms))

        for one in probe.sweep(dataset, points, trial):
            keep(results, one, str(one.point))
        if not probe.only_measured(results):
            raise ConfigError(
                f"none of {len(points)} point(s) could be measured; the reasons are above"
            )
        best = probe.knee(results).point
        spans = None if trace is None else Trace(0)
        for name, run in zip(RUNS, run_ablation(dataset, best, trial, spans), strict=True):
            keep(runs, run, f"the {name} run")
            if spans is not None and trace is not None and name == "cold":
                spans.write(trace)
    typer.echo(f"a batch: {costs(runs)}")
    typer.echo(recommendation(results, step_ms), nl=False)
    typer.echo(f"# full report: {report}")


def _check_writable(name: str, path: Path) -> None:
    """Raise ConfigError before the work for a file that cannot be written after it."""
    was_there = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(
            f"--{name} {path}: {error.strerror}; name a file that can be written"
        ) from error
    if not was_there:
        path.unlink()


def _numbers(name: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise ConfigError(
            f"--{name} {text} is not a list of whole numbers above 0; for example 1,2,4"
        )
    return numbers


def _pin(word: str) -> bool | None:
    words = {"default": None, "on": True, "off": False}
    if word not in words:
        raise ConfigError(f"--pin {word} is not one of {', '.join(words)}")
    return words[word]


def _powers_up_to(cpus: int) -> list[int]:
    return [*(n for n in (1, 2, 4, 8, 16, 32, 64) if n < cpus), max(1, cpus)]
