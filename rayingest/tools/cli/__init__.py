"""The command line: checks a configuration against its data, makes indexes, shows and verifies data, takes more in.

Owns what is printed. Errors of ours are told in a line or two on stderr, with exit status 1; `--debug` shows where they
come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rayingest import __version__
from rayingest.api.config import load_config
from rayingest.api.dataset import Dataset
from rayingest.build.mixed_planner import MixtureScanResult
from rayingest.build.scan import ScanResult
from rayingest.build.summary import reads_per_block
from rayingest.errors import IngestError
from rayingest.plan.order.mixed import MixedPlanner
from rayingest.plan.order.packed import GroupedPlanner
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.state import order_version
from rayingest.plan.order.subset import view_mark
from rayingest.plan.order.weighted import WeightedPlanner
from rayingest.storage.redact import redact
from rayingest.tools.cli import inspect as inspection
from rayingest.tools.cli.source import open_source, sources_of
from rayingest.tools.probe.commands import add_commands
from rayingest.util.progress import Bar

ConfigPath = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A YAML file in the API's own words.")
]
Source = Annotated[
    str, typer.Argument(metavar="SOURCE", help="A YAML file, or with --format a path, glob or URL.")
]
FormatName = Annotated[
    str | None, typer.Option("--format", help="Of the data, as in `webdataset`.")
]
Given = Annotated[
    list[str] | None,
    typer.Option("--option", help="Of the format, as in `lists=[tokens]`; repeatable."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")]
OnRay = Annotated[
    bool,
    typer.Option("--on-ray", help="Index by tasks on Ray: on the cluster at RAY_ADDRESS, or here."),
]
WorldSize = Annotated[int, typer.Option(min=1, help="Ranks that share a step.")]

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def main() -> None:
    """The entry point `rayingest`."""
    app()


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"rayingest {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    """Deterministic, resumable data ingestion for PyTorch training."""


@app.command()
def check(
    config: ConfigPath, world_size: WorldSize = 1, on_ray: OnRay = False, debug: Debug = False
) -> None:
    """Say what a configuration gives: the data, the order, and the first batch of rank 0."""
    with _report_errors(debug):
        loaded = load_config(config)
        dataset = loaded.dataset()
        known = _scan_result(dataset, on_ray)
        planner = dataset.planner(known, 0, world_size, uneven=True)
        beside = bool(known.limits) or known.lengths is not None or not planner.calendar.is_plain
        kinds = (
            isinstance(planner, kind) for kind in (GroupedPlanner, MixedPlanner, WeightedPlanner)
        )
        version = order_version(beside, *kinds)
        _print_rows({**_data_rows(known), **_order_rows(planner, version, world_size)})
        options = {
            **loaded.loader_options(),
            "workers": 0,
            "device": "cpu",
            "pin_memory": False,
            "prefetch": 0,
        }
        with dataset.loader(rank=0, world_size=world_size, **options) as loader:
            for batch in loader:
                _print_rows(
                    {
                        "first batch": [
                            f"{name:<{_WIDTH}}{_shape(value)}" for name, value in batch.items()
                        ]
                    }
                )
                break


@app.command()
def index(
    source: Source,
    format_name: FormatName = None,
    option: Given = None,
    on_ray: OnRay = False,
    debug: Debug = False,
) -> None:
    """Make the index of the data, unless the kept one still holds: sizes and marks of all shards."""
    with _report_errors(debug):
        for dataset in sources_of(open_source(source, format_name, option)):
            kept = dataset.index_cache().load() is not None
            known = _scan_result(dataset, on_ray)
            _print_rows(
                {**_data_rows(known), "state": ["kept, and still holds" if kept else "made now"]}
            )


@app.command()
def inspect(
    source: Source,
    format_name: FormatName = None,
    option: Given = None,
    samples: Annotated[int, typer.Option(min=1, help="How many to look at.")] = 16,
    sheet: Annotated[
        Path | None, typer.Option(help="Where to write a PNG with pictures of them.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Show what data there are: shards, counts, sizes, fields and what is in them, and a sheet of pictures."""
    with _report_errors(debug):
        dataset = replace(
            open_source(source, format_name, option), limits=(), lengths=None
        )  # all there is, whatever is taken of it
        known = _scan_result(dataset, on_ray=False)
        _print_rows(_data_rows(known))
        _print_rows(
            {
                "shards": [
                    f"{'bytes':>15} {'blocks':>9} {'samples':>12}",
                    *inspection.shards(known.manifest),
                ]
            }
        )
        found = inspection.first_samples(dataset, known.manifest, samples)
        _print_rows(
            {
                "fields": [
                    f"{name:<{_WIDTH}}{words}"
                    for name, words in inspection.describe_fields(found).items()
                ]
            }
        )
        if sheet is not None:
            _print_rows(
                {
                    "pictures": [
                        f"{inspection.contact_sheet(found, sheet)!r} of {len(found)} samples in {sheet}"
                    ]
                }
            )


@app.command()
def verify(
    source: Source, format_name: FormatName = None, option: Given = None, debug: Debug = False
) -> None:
    """Read and decode everything; a line for each bad sample, shard or block, and exit status 1 if there is any."""
    with _report_errors(debug):
        bad = 0
        for dataset in sources_of(open_source(source, format_name, option)):
            verification = inspection.Verification(dataset)
            with Bar(
                total=len(verification.listing), desc="verifying", unit="shard", disable=None
            ) as bar:
                for fault in verification.faults(lambda done: bar.update(done - bar.n)):
                    bar.clear()
                    typer.echo(str(fault))
            counts = f"{verification.samples:,} samples in {verification.shards:,} shards, {verification.bad:,} bad"
            _print_rows({"verified": [counts]})
            bad += verification.bad
        if bad:
            raise typer.Exit(1)


@app.command()
def pack(
    source: Source,
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Where the shards are to be: an empty folder.")
    ],
    format_name: FormatName = None,
    option: Given = None,
    to: Annotated[str, typer.Option(help="webdataset or parquet.")] = "webdataset",
    shard_bytes: Annotated[int, typer.Option(min=1, help="Of samples, as they are read.")] = 256
    << 20,
    resize: Annotated[
        int | None, typer.Option(min=1, help="Shorter side that larger images get.")
    ] = None,
    decode_images: Annotated[
        bool, typer.Option("--decode-images", help="Write images as arrays.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Write the data anew as shards of one size, on Ray Data; called again, it goes on where it ended."""
    from rayingest.tools.cli.pack import Packing
    from rayingest.tools.cli.parts import Layout

    with _report_errors(debug):
        dataset = open_source(source, format_name, option)
        known = _scan_result(dataset, on_ray=True)
        packing = Packing(dataset, known, folder, Layout(to, shard_bytes, resize, decode_images))
        made = samples = 0
        with Bar(total=len(packing.shards), desc="packing", unit="shard", disable=None) as bar:
            for done in packing.run():
                made, samples = made + done.made, samples + done.samples
                bar.update()
        there = (
            f", {len(packing.shards) - made:,} of them there before"
            if made < len(packing.shards)
            else ""
        )
        _print_rows(
            {
                "packed": [
                    f"{samples:,} samples in {len(packing.shards):,} shards in {folder}{there}"
                ]
            }
        )


def _scan_result(dataset: Dataset, on_ray: bool) -> ScanResult:
    if on_ray:
        from rayingest.execute.cluster.connection import connect

        connect(60.0)
    return dataset.scan(0, on_ray, shown=True)


@contextmanager
def _report_errors(debug: bool) -> Iterator[None]:
    try:
        yield
    except IngestError as error:
        if debug:
            raise
        typer.echo(f"rayingest: {error}", err=True)
        raise typer.Exit(1) from None


add_commands(app, _report_errors)


def _data_rows(known: ScanResult) -> dict[str, list[str]]:
    manifest = known.manifest
    if isinstance(known, MixtureScanResult):
        each = [
            f"{name:<{_WIDTH}}{of.view.num_samples:>14,} samples"
            for name, of in known.parts.items()
        ]
        return {"sources": each, "fingerprint": [manifest.fingerprint]}
    taken = f"{known.view.num_samples:,} samples: {view_mark(known.limits)}"
    return {
        "data": [
            f"{manifest.num_samples:,} samples in {len(manifest.paths):,} shards under {redact(manifest.root)}"
        ],
        "blocks": [f"{manifest.num_blocks:,}, {manifest.total_bytes:,} bytes of samples in memory"],
        "fingerprint": [manifest.fingerprint],
        "index": [redact(known.index)],
        **({"taken": [taken]} if known.limits else {}),
    }


def _order_rows(planner: Planner, version: int, world_size: int) -> dict[str, list[str]]:
    order, how = planner.order, "file order"
    if order.seed is not None:
        window = f"{order.window_samples:,} samples ({order.window_steps:,} steps)"
        how = f"seed {order.seed}, windows of {window}, {order.lanes} lane(s)"
    left = f", {order.tail:,} samples left out" if order.partial == "drop" and order.tail else ""
    steps = f"{planner.steps_in(0):,} an epoch, of {order.batch:,} samples; partial {order.partial}{left}"
    if isinstance(planner, MixedPlanner):
        how += f" of {len(planner.sources)} sources: {planner.order}"
    if isinstance(planner, GroupedPlanner):
        how += f", {planner.order.grouping}"
        steps = (
            f"{planner.steps_in(0):,} in the first epoch, of {order.batch:,} {planner.what}, {planner.filled(0):.1%} "
            f"filled; partial {order.partial}"
        )
    return {
        "order": [f"version {version}, {how}"],
        "steps": [steps],
        "reads": [
            f"{reads_per_block(planner, world_size):.2f} per block and epoch on {world_size} rank(s)"
        ],
    }


_WIDTH = 14


def _print_rows(rows: Mapping[str, list[str]]) -> None:
    for name, lines in rows.items():
        for number, line in enumerate(lines):
            typer.echo(f"{'' if number else name:<{_WIDTH}}{line}")


def _shape(value: Any) -> str:
    if isinstance(value, list):
        return f"list of {type(value[0]).__name__ if value else 'nothing'}, {len(value)} long"
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
