"""The image backend is chosen once, travels with the work, and stands in states."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rayingest as ri
from rayingest.api.dataset import Dataset
from rayingest.transforms.images import jpeg
from rayingest.transforms.images.jpeg import PILLOW, TURBO, choose_backend
from tests.support.streams import photographs


@pytest.fixture(params=["simplejpeg", "cykooz_resizer"])
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One library of the fast backend cannot be imported."""
    monkeypatch.setitem(sys.modules, request.param, None)
    jpeg._libraries.cache_clear()
    yield request.param
    jpeg._libraries.cache_clear()


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    return photographs(tmp_path)


def test_the_fast_backend_is_the_default_if_installed() -> None:
    """A named backend is taken; an unknown name is an error that lists them."""
    assert choose_backend(None) == TURBO
    assert [choose_backend(path) for path in (PILLOW, TURBO)] == [PILLOW, TURBO]
    with pytest.raises(
        ri.ConfigError, match=r"image_backend='fast': choose one of 'pillow', 'turbo'"
    ):
        choose_backend("fast")


def test_without_its_libraries_pillow_is_the_default(missing: str) -> None:
    """Named, the fast backend is an error that says what is missing and what to do."""
    assert choose_backend(None) == PILLOW
    with pytest.raises(
        ri.ConfigError,
        match=rf"{missing}.*pip install simplejpeg cykooz-resizer.*image_backend='pillow'",
    ):
        choose_backend(TURBO)


def test_a_worker_without_the_libraries_says_so(data: Dataset, missing: str) -> None:
    """No worker replaces the trainer's choice in silence."""
    jpeg._libraries.cache_clear()
    with pytest.MonkeyPatch.context() as there:
        there.delitem(sys.modules, missing)
        loader = data.loader(workers=0)
    jpeg._libraries.cache_clear()
    with (
        loader,
        pytest.raises(
            ri.ConfigError, match=f"lacks libraries for image_backend='turbo'.*{missing}"
        ),
    ):
        next(iter(loader))


def test_states_name_the_backend_and_resume_with_no_other(data: Dataset) -> None:
    """A loader of the other backend refuses the state, and says how to go on."""
    with data.loader(workers=0, image_backend=PILLOW) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = next(batches)["jpg"]
    assert state["image_backend"] == PILLOW
    with data.loader(workers=0) as loader:
        assert loader.state_dict()["image_backend"] == TURBO
        with pytest.raises(
            ri.StateError, match=r"make the loader with image_backend='pillow' to go on"
        ):
            loader.load_state_dict(state)
    with data.loader(workers=0, image_backend=PILLOW) as loader:
        loader.load_state_dict(state)
        np.testing.assert_array_equal(next(iter(loader))["jpg"], expected)
