"""The tables of the pages about formats and decoding say what the code does."""

from __future__ import annotations

import re

import pytest

import rayingest as ri
from rayingest.api.data import description_of
from rayingest.api.readers import READERS
from rayingest.formats import get_format
from rayingest.plan.figures.metrics import LOOKED_AT, METRICS
from rayingest.transforms import decoders
from rayingest.transforms.images.pixels import MAX_PIXELS
from tests.docs.pages import ROOT
from tests.test_house import FLOORS


def test_the_table_of_extensions_is_the_codes() -> None:
    """docs/decoding.md names every extension that has a decoder, and those that are refused."""
    page = (ROOT / "docs/decoding.md").read_text()
    text = page.partition("## Transforms")[0]
    table = re.findall(r"(?m)^\| ((?:`\w+` ?)+) \| (.+?) \|$", text)
    meanings = {
        extension: meaning
        for names, meaning in table
        for extension in re.findall(r"`(\w+)`", names)
    }
    for extension, meaning in meanings.items():
        decoder = decoders.decoder_for(extension)
        assert decoder is not None, extension
        if meaning.startswith("refused"):
            with pytest.raises(ri.ConfigError):
                decoder(b"")
    assert meanings.keys() == decoders._DECODERS.keys() | set(decoders._PICKLED)
    assert f"{MAX_PIXELS:,}" in text


def test_the_table_of_formats_is_the_codes() -> None:
    """docs/formats.md has a row for every reader, with the ends of names that a folder's files
    have.
    """
    lines = (ROOT / "docs/formats.md").read_text().partition("## Cost")[0].splitlines()
    rows = {
        line.split("`")[1].removeprefix("read_"): line
        for line in lines
        if line.startswith("| `read_")
    }
    assert rows.keys() == READERS.keys()
    for name, reader in READERS.items():
        named = re.findall(r"`(\S+)`", rows[name].split("|")[2])
        for suffix in filter(
            None, get_format(description_of(reader("x")).source.format_name).suffixes
        ):
            parts = {f".{part}" for part in suffix[1:].split(".")}
            assert suffix.lstrip("/") in named or parts <= set(named), (name, suffix)


def test_the_table_of_metrics_is_the_codes() -> None:
    """docs/observing.md has a row for every metric, with its figures and the values of its tag."""
    lines = (ROOT / "docs/observing.md").read_text().splitlines()
    rows = [line.split("|")[1:4] for line in lines if "| `rayingest_" in line]
    table = {
        re.findall(r"rayingest_\w+", metric)[0]: (figures, tags) for figures, metric, tags in rows
    }
    names = {
        f"{metric.name}_total" if metric.kind != "gauge" else metric.name: metric
        for metric in METRICS
    }
    assert table.keys() == names.keys()
    for name, metric in names.items():
        figures, tags = table[name]
        assert set(re.findall(r"\w+", tags)) == set(metric.stages.values()), name
        shown = figures.replace("<cause>", "workers")
        for figure in set(metric.stages) - {LOOKED_AT}:
            assert figure in shown or "<cause>" in figures, figure


def test_the_table_of_floors_is_the_houses() -> None:
    """docs/architecture.md gives every package the floor that its imports are held to."""
    text = (ROOT / "docs/architecture.md").read_text()
    floors = {
        name.rstrip("/").removesuffix(".py").replace("/", "."): int(floor)
        for floor, rooms in re.findall(r"(?m)^\| (\d+) \| ([^|]+) \|", text)
        for name in re.findall(r"`([\w/]+(?:\.py)?)`", rooms)
    }
    expected = {name: floor for name, floor in FLOORS.items() if name not in ("__init__", "plan")}
    assert floors == expected
