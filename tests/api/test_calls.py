"""Calls that other libraries read in another way: an error with the right call, or the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import rayingest as ri


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("calls") / "rows.jsonl"
    file.write_text("".join(json.dumps({"x": i}) + "\n" for i in range(8)))
    return str(file)


DATA = ri.read_json("/nowhere/*.jsonl")
"""Reading it would fail: calls are refused before that."""


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: DATA.shuffle(1000),
            "write shuffle(seed=1000) or shuffle(window=1000) or shuffle(lanes=1000)",
        ),
        (lambda: DATA.epoch(1000), "write epoch(samples=1000) or epoch(passes=1000)"),
        (lambda: DATA.batch(8, "pad"), "write batch(..., partial='pad')"),
        (lambda: DATA.batch(8, True), "batch(..., True): the value needs the name of its option"),
        (lambda: DATA.weighted("a", 3), "write weighted(..., samples=3)"),
        (lambda: DATA.batch(8).loader(4), "loader(4): the value needs the name of its option"),
        (lambda: ri.Pool(2, 30), "write Pool(..., start_timeout=30)"),
        (lambda: ri.read_json("a", {"key": "hunter2"}), "write read_json(..., storage_options={"),
        (lambda: DATA.decode(int), "a field needs a name, as in decode(image=int)"),
        (lambda: DATA.select({"image": "jpg"}), "write select(**{...})"),
        (lambda: DATA.select("jpg"), "a field needs a name, as in select(image='jpg')"),
    ],
)
def test_a_value_without_the_name_of_its_option_is_refused(call: Any, words: str) -> None:
    """The error has the calls that the value could be meant for, and no credentials."""
    with pytest.raises(ri.ConfigError, match=re.escape(words)) as caught:
        call()
    assert "hunter2" not in str(caught.value)


def test_a_list_of_transforms_is_a_chain_as_in_a_configuration(tmp_path: Path) -> None:
    """`decode(image=[a, b])` gives the batches of `Compose(a, b)`, random numbers included."""
    for i in range(4):
        pixels = np.random.default_rng(i).integers(0, 255, (12, 16, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    steps = [ri.images.RandomResizedCrop(8), ri.images.RandomHorizontalFlip()]
    batches = []
    for decoder in (steps, tuple(steps), ri.images.Compose(*steps)):
        data = ri.read_images(str(tmp_path)).select(image="image").decode(image=decoder).batch(4)
        with data.loader(workers=0) as loader:
            batches.append(next(iter(loader))["image"].numpy())
    assert batches[0].shape == (4, 8, 8, 3)
    np.testing.assert_array_equal(batches[0], batches[2])
    np.testing.assert_array_equal(batches[1], batches[2])


@pytest.mark.parametrize("wrong", [[], [int, ri.images.Resize(8)], "Resize"])
def test_another_list_is_no_decoder(wrong: Any) -> None:
    """Only transforms can be chained in a list."""
    with pytest.raises(ri.ConfigError, match=r"^image=.*a list of transforms of ri\.images"):
        DATA.decode(image=wrong)


def twice(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": sample["x"] * 2}


def add_one(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": sample["x"] + 1}


def add_one_to_all(columns: dict[str, Any]) -> dict[str, Any]:
    return {"x": [x + 1 for x in columns["x"]]}


def test_a_list_of_functions_is_one_stage_for_each(rows: str) -> None:
    """`map` and `map_batches` take the lists that a configuration has."""
    data = ri.read_json(rows).map([twice, add_one]).map_batches([add_one_to_all, add_one_to_all])
    with data.batch(8).loader(workers=0) as loader:
        assert next(iter(loader))["x"].tolist() == [2 * x + 3 for x in range(8)]
    with pytest.raises(ri.ConfigError, match=r"^fn=\[\]: a function"):
        DATA.map([])


def test_map_after_batch_names_both_ways(rows: str) -> None:
    """In other libraries it is called with batches; here the error says how to get either."""
    with pytest.raises(ri.ConfigError) as caught:
        ri.read_json(rows).batch(4).map(twice)
    assert "call .map before .batch, or use batch(collate=fn)" in str(caught.value)


def test_a_second_shuffle_does_not_replace_the_first() -> None:
    """The error comes at the second call."""
    with pytest.raises(ri.ConfigError, match="shuffle is called twice"):
        DATA.shuffle(seed=1).shuffle(window=8)
