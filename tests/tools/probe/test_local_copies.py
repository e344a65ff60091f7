"""The probe's local copies: what they hold, and what cannot be copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import rayingest as ri
from rayingest.api.dataset import Dataset
from rayingest.tools.probe import local_copies
from rayingest.tools.probe.local_copies import copy_first_shards, without_cache
from tests.support.streams import write_shards

HERE = {"rank": 0, "world_size": 1, "workers": 0}


def rows(dataset: Dataset) -> int:
    with dataset.batch(1).loader(**HERE) as loader:
        return sum(len(batch["__index__"]) for batch in loader)


def shards(folder: Path) -> Dataset:
    return ri.read_webdataset(write_shards(folder, [5, 6, 7], side=2)).select(json="json")


def photographs(folder: Path) -> Dataset:
    """Describe six images in two classes, in groups of one."""
    for number in range(6):
        (folder / str(number % 2)).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(folder / str(number % 2) / f"a {number}.png")
    return ri.read_images(folder, block_bytes=1)


def mixed(folder: Path) -> Dataset:
    number = shards(folder / "a").map(as_label)
    return ri.mix({"a": number, "b": photographs(folder / "b").map(as_label)}, until="all")


def as_label(sample: dict[str, Any]) -> dict[str, Any]:
    return {"label": 1}


@pytest.mark.parametrize(
    ("made", "whole", "least"),
    [(shards, 18, 5), (photographs, 6, 1), (mixed, 24, 6)],
    ids=["tar", "images", "mix"],
)
def test_copies_are_of_the_first_shards(tmp_path: Path, made: Any, whole: int, least: int) -> None:
    """All shards if there is room, else one of each source; afterwards the copies are gone."""
    data = without_cache(made(tmp_path))
    with copy_first_shards(data) as local:
        assert rows(local) == whole
    with copy_first_shards(data, 1) as local:
        assert rows(local) == least
    with pytest.raises(ri.IngestError):
        rows(local)


def test_which_samples_there_are_is_of_no_account(tmp_path: Path) -> None:
    """Copies hold the first shards, also if the description takes other samples."""
    with copy_first_shards(shards(tmp_path).skip(15).take(1), 1) as local:
        assert rows(local) == 5


def test_what_cannot_be_copied_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that is not files, and a first shard that is too large."""
    numbers = torch.utils.data.TensorDataset(torch.arange(8))
    with (
        pytest.raises(ri.ConfigError, match="does not consist of files that can be copied"),
        copy_first_shards(ri.from_torch(numbers)),
    ):
        pass
    monkeypatch.setattr(local_copies, "_LARGEST_BYTES", 100)
    with (
        pytest.raises(
            ri.ConfigError, match=r"the first shards have .* GiB; the limit for copies is"
        ),
        copy_first_shards(shards(tmp_path)),
    ):
        pass
