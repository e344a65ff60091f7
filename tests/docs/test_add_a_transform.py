"""The transforms of docs/add_a_transform.md work as the page says: by `.decode`, and in a
configuration.
"""

from __future__ import annotations

import io
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

import rayingest as ri
from rayingest.api.config import load_config
from rayingest.api.data import description_of
from rayingest.api.dataset import Dataset
from rayingest.errors import DataError

PAGE = Path(__file__).parents[2] / "docs/add_a_transform.md"
POINTS = np.arange(6 * 12, dtype="<f4").reshape(6, 4, 3)


def image(number: int) -> Image.Image:
    coarse = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((80, 60))


def write_shard(path: Path, points: list[bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for number, data in enumerate(points):
            png = io.BytesIO()
            image(number).save(png, "PNG")
            for suffix, value in (("png", png.getvalue()), ("bin", data)):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(value)
                tar.addfile(member, io.BytesIO(value))


def blocks(language: str) -> list[str]:
    """The page's code blocks in one language."""
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", PAGE.read_text())


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names that the page's code defines, run in a folder with its module and a shard."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module, use = blocks("python")
    Path("my_transforms.py").write_text(module)
    (configuration,) = blocks("yaml")
    Path("scans.yaml").write_text(configuration)
    write_shard(Path("scans.tar"), [points.tobytes() for points in POINTS])
    names: dict[str, Any] = {"ri": ri}
    exec(compile(use, PAGE.name, "exec"), names)
    yield names
    del sys.modules["my_transforms"]


def batches(data: Dataset) -> list[dict[str, Any]]:
    with data.loader(workers=0) as loader:
        return [{name: np.asarray(column) for name, column in batch.items()} for batch in loader]


def test_they_work_by_decode(page: dict[str, Any]) -> None:
    """Images are solarized or not, as their own random numbers say; points are those written."""
    found = batches(page["scans"])
    pixels = np.concatenate([batch["image"] for batch in found])
    for number, row in enumerate(pixels):
        resized = image(number).resize((32, 32), Image.Resampling.BILINEAR)
        either = (resized, ImageOps.solarize(resized, 128))
        assert any(np.array_equal(row, one) for one in either)
    points = np.concatenate([batch["points"] for batch in found])
    assert points.dtype == np.float32
    np.testing.assert_array_equal(points, POINTS)


def test_a_configuration_gives_the_same_batches(page: dict[str, Any]) -> None:
    """Names in YAML are the classes of the page's module."""
    for one, other in zip(
        batches(page["scans"]), batches(load_config("scans.yaml").dataset()), strict=True
    ):
        assert one.keys() == other.keys()
        for name, column in one.items():
            np.testing.assert_array_equal(column, other[name])


def test_a_transform_without_arguments_needs_no_mapping_in_a_configuration(
    page: dict[str, Any],
) -> None:
    """Its class is set up with its defaults, alone and in a list."""
    text = Path("scans.yaml").read_text()
    solarize = page["RandomSolarize"]()
    for spec, expected in (
        ("my_transforms:RandomSolarize", solarize),
        ("[Decode, my_transforms:RandomSolarize]", ri.images.Compose(ri.images.Decode(), solarize)),
    ):
        Path("plain.yaml").write_text(re.sub(r"  image: .*", f"  image: {spec}", text))
        (_, decode, *_) = description_of(load_config("plain.yaml").dataset()).stages
        assert decode.functions["image"] == expected


def test_their_samples_do_not_depend_on_the_batches(page: dict[str, Any]) -> None:
    """Random numbers are the sample's own, and epochs have others."""
    by_two, by_six = (batches(page["scans"].batch(size)) for size in (2, 6))
    together = np.concatenate([batch["image"] for batch in by_two])
    np.testing.assert_array_equal(together, by_six[0]["image"])
    with page["scans"].batch(6).loader(workers=0) as loader:
        first, second = (np.asarray(next(iter(loader))["image"]) for _ in range(2))
    assert not np.array_equal(first, second)


def test_data_that_a_decoder_cannot_take_is_named(page: dict[str, Any]) -> None:
    """The error names the sample and the decoder's own line."""
    write_shard(Path("scans.tar"), [bytes(48), bytes(47)])
    with pytest.raises(
        DataError, match=r"decode of 'points': ValueError.*my_transforms\.py"
    ) as caught:
        batches(page["scans"])
    assert (caught.value.sample, caught.value.key) == (1, "1")
