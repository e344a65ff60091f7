"""The command `rayingest`: check a configuration, index, inspect, verify and pack data.

Owns what is printed. An error of this package is one line on stderr and exit status 1; `--debug`
shows its traceback.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from rayingest import __version__
from rayingest.api.config import load_config
from rayingest.api.data import description_of
from rayingest.build.compatibility import Feature, check_complete
from rayingest.build.mixed_planner import MixtureScanResult
from rayingest.build.mixture import MixedSources
from rayingest.build.one_source import OneSource, ScanResult
from rayingest.errors import IngestError
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.subset import subset_mark
from rayingest.storage.redact import redact
from rayingest.tools.cli import inspect as inspection
from rayingest.tools.cli.source import one_source, open_source, sources_of
from rayingest.tools.probe.commands import add_commands
from rayingest.util.progress import Bar

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML configuration.")]
Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="A YAML configuration; with --format a path, glob or URL."
    ),
]
FormatName = Annotated[
    str | None, typer.Option("--format", help="Format of the data, for example webdataset.")
]
Given = Annotated[
    list[str] | None,
    typer.Option(
        "--option", help="An option of the format, for example lists=[tokens]; repeatable."
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
OnRay = Annotated[
    bool,
    typer.Option(
        "--on-ray", help="Index with Ray tasks: on the cluster at RAY_ADDRESS, or a local one."
    ),
]
WorldSize = Annotated[int, typer.Option(min=1, help="Number of ranks that share a step.")]

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command line."""
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
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Deterministic, resumable data ingestion for PyTorch training."""


@app.command()
def check(
    config: ConfigPath, world_size: WorldSize = 1, on_ray: OnRay = False, debug: Debug = False
) -> None:
    """Show what a configuration yields: the data, the order, the first batch of rank 0."""
    with _report_errors(debug):
        loaded = load_config(config)
        dataset = loaded.dataset()
        description = cast("OneSource | MixedSources", description_of(dataset))
        check_complete([*description.features, Feature.LOADER])
        scan = _scan_result(description, on_ray)
        planner = description.build_planner(scan, 0, world_size, uneven=True)
        _print_rows({**_data_rows(scan), **_order_rows(planner)})
        options = {
            **loaded.loader_options(),
            "workers": 0,
            "device": "cpu",
            "pin_memory": False,
            "prefetch": 0,
        }
        with dataset.loader(rank=0, world_size=world_size, **options) as loader:
            for batch in loader:
                columns = [f"{name:<{_WIDTH}}{_shape(value)}" for name, value in batch.items()]
                _print_rows({"first batch": columns})
                break


@app.command()
def index(
    source: Source,
    format_name: FormatName = None,
    option: Given = None,
    on_ray: OnRay = False,
    debug: Debug = False,
) -> None:
    """Index the data, unless the cached index is up to date."""
    with _report_errors(debug):
        for dataset in sources_of(open_source(source, format_name, option)):
            cached = dataset.source.index_cache().load() is not None
            scan = _scan_result(dataset, on_ray)
            _print_rows(
                {**_data_rows(scan), "state": ["cached, up to date" if cached else "built"]}
            )


@app.command()
def inspect(
    source: Source,
    format_name: FormatName = None,
    option: Given = None,
    samples: Annotated[int, typer.Option(min=1, help="Number of samples to show.")] = 16,
    sheet: Annotated[Path | None, typer.Option(help="PNG file to write with their images.")] = None,
    debug: Debug = False,
) -> None:
    """Show the data: shards, counts, sizes, fields, and a contact sheet of images."""
    with _report_errors(debug):
        # All the data, also the samples that the configuration leaves out.
        dataset = replace(one_source(source, format_name, option), limits=(), lengths=None)
        scan = _scan_result(dataset, on_ray=False)
        _print_rows(_data_rows(scan))
        heads = f"{'bytes':>15} {'blocks':>9} {'samples':>12}"
        _print_rows({"shards": [heads, *inspection.shards(scan.manifest)]})
        found = inspection.first_samples(dataset, scan.manifest, samples)
        fields = inspection.describe_fields(found).items()
        _print_rows({"fields": [f"{name:<{_WIDTH}}{words}" for name, words in fields]})
        if sheet is not None:
            field = inspection.write_contact_sheet(found, sheet)
            _print_rows({"images": [f"{field!r} of {len(found)} samples in {sheet}"]})


@app.command()
def verify(
    source: Source, format_name: FormatName = None, option: Given = None, debug: Debug = False
) -> None:
    """Read and decode everything; print a line for each fault. Exit status 1 if there is one."""
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
            counts = (
                f"{verification.samples:,} samples in {verification.shards:,} shards, "
                f"{verification.bad:,} bad"
            )
            _print_rows({"verified": [counts]})
            bad += verification.bad
        if bad:
            raise typer.Exit(1)


@app.command()
def pack(
    source: Source,
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="An empty folder, or URL, for the shards.")
    ],
    format_name: FormatName = None,
    option: Given = None,
    to: Annotated[
        str, typer.Option(help="Format of the shards: webdataset or parquet.")
    ] = "webdataset",
    shard_bytes: Annotated[
        int, typer.Option(min=1, help="Bytes of samples in a shard, as they are read.")
    ] = 256 << 20,
    resize: Annotated[
        int | None,
        typer.Option(min=1, help="Shrink larger images until their shorter side has N pixels."),
    ] = None,
    decode_images: Annotated[
        bool, typer.Option("--decode-images", help="Decode images and write arrays.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Rewrite the data as shards of equal size, with Ray Data. Resumes if called again."""
    from rayingest.tools.cli.pack import Packing, sections_without_use
    from rayingest.tools.cli.parts import Layout

    with _report_errors(debug):
        dataset = one_source(source, format_name, option)
        unused = sections_without_use(dataset, None if format_name else load_config(source))
        scan = _scan_result(dataset, on_ray=True)
        packing = Packing(dataset, scan, folder, Layout(to, shard_bytes, resize, decode_images))
        written = samples = 0
        with Bar(total=len(packing.shards), desc="packing", unit="shard", disable=None) as bar:
            for done in packing.run():
                written, samples = written + done.is_new, samples + done.samples
                bar.update()
        before = (
            f", {len(packing.shards) - written:,} of them written before"
            if written < len(packing.shards)
            else ""
        )
        done_rows = {
            "packed": [f"{samples:,} samples in {len(packing.shards):,} shards in {folder}{before}"]
        }
        if unused:
            done_rows["not used"] = [
                f"{', '.join(unused)}: each sample is written once, in the order of the data"
            ]
        _print_rows(done_rows)


def _scan_result(dataset: OneSource | MixedSources, on_ray: bool) -> ScanResult:
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


def _data_rows(scan: ScanResult) -> dict[str, list[str]]:
    manifest = scan.manifest
    if isinstance(scan, MixtureScanResult):
        each = [
            f"{name:<{_WIDTH}}{of.subset.num_samples:>14,} samples"
            for name, of in scan.parts.items()
        ]
        return {"sources": each, "fingerprint": [manifest.fingerprint]}
    subset = f"{scan.subset.num_samples:,} samples: {subset_mark(scan.limits)}"
    return {
        "data": [
            f"{manifest.num_samples:,} samples in {len(manifest.paths):,} shards under "
            f"{redact(manifest.root)}"
        ],
        "blocks": [f"{manifest.num_blocks:,}, {manifest.total_bytes:,} bytes of samples in memory"],
        "fingerprint": [manifest.fingerprint],
        "index": [redact(scan.index)],
        **({"subset": [subset]} if scan.limits else {}),
    }


def _order_rows(planner: Planner) -> dict[str, list[str]]:
    kind, reads = planner.kind, planner.reads_per_block()
    return {
        "order": [f"{kind.name}, version {kind.version}: {planner.describe()}"],
        "steps": [planner.describe_steps()],
        "reads": [f"{reads:.2f} per block and epoch on {planner.world_size} rank(s)"],
    }


_WIDTH = 14


def _print_rows(rows: Mapping[str, list[str]]) -> None:
    for name, lines in rows.items():
        for number, line in enumerate(lines):
            typer.echo(f"{'' if number else name:<{_WIDTH}}{line}")


def _shape(value: Any) -> str:
    if isinstance(value, list):
        return f"list of {len(value)} {type(value[0]).__name__ if value else 'nothing'}"
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
