"""Streams of a part of the data, and epochs of another length: on Ray, in this process, resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayingest as ri
from rayingest.api.dataset import Dataset
from tests.support.streams import augment, images, run

GLOBAL_BATCH = 12


def limited(shards: str, **options: Any) -> Dataset:
    """A dataset of 60 of the 250 samples."""

    def some(data: Dataset) -> Dataset:
        return data.skip(20).split(0.6, 0.4)[0].take(60)

    return images(shards, GLOBAL_BATCH, window=48, choose=some, **options)


@pytest.mark.parametrize("length", [{"samples": 40}, {"passes": 2}])
def test_every_step_can_be_resumed_elsewhere(
    shards: str, pool_of_1: ri.Pool, length: dict[str, int]
) -> None:
    """From the state before every step, on other ranks and on Ray, the rest of two epochs is the
    same.
    """
    data = limited(shards).epoch(**length)
    reference = run(data, epochs=2)[0]
    with data.loader(workers=0) as loader:
        states = [loader.state_dict(), *(loader.state_dict() for _ in loader)]
        steps = len(loader)
    assert len(reference) == 2 * steps
    assert run(data, 2, epochs=2, pool=pool_of_1)[0] == reference
    for step, state in enumerate(states):
        assert len(json.dumps(state)) < 1024
        passes = 1 if step == steps else 2
        assert run(data, (1, 2, 3, 4)[step % 4], state=state, epochs=passes)[0] == reference[step:]
    assert run(data, 3, state=states[2], epochs=2, pool=pool_of_1)[0] == reference[2:]


def length_of(sample: dict[str, Any]) -> int:
    """Return the length of the ragged field."""
    return int(1 + sample["json"]["i"] % 4)


def length_of_nothing(sample: dict[str, Any]) -> int:
    return 0


def bucketed(shards: str, length: Callable[[dict[str, Any]], int] = length_of) -> Dataset:
    """A dataset with four steps an epoch and two lanes."""
    data = ri.read_webdataset(shards, block_bytes=4096).length(length)
    data = data.decode(png=ri.images.RandomResizedCrop(8)).map(augment)
    return data.take(96).shuffle(seed=5, window=48, lanes=2).batch(24, bucketed=True)


def is_wanted(sample: dict[str, Any]) -> bool:
    """A user's filter."""
    return sample["json"]["i"] % 3 != 1


def test_filtered_streams_are_the_same_over_ray(
    shards: str, pool_of_1: ri.Pool, tmp_path: Path
) -> None:
    """Tasks and this process select the same samples; every step resumes on other ranks."""
    data = ri.read_webdataset(shards, block_bytes=8192, index=tmp_path)  # two tasks for each filter
    data = (
        data.where('json["i"] < 90')
        .filter(is_wanted)
        .decode(png=ri.images.RandomResizedCrop(8))
        .map(augment)
        .shuffle(seed=5, window=24)
        .batch(12)
    )
    over_ray = run(data, 2, pool=pool_of_1)[0]
    for kept in tmp_path.iterdir():
        kept.unlink()
    reference = run(data)[0]
    assert over_ray == reference
    assert {i for step in reference for i, _ in step} == {i for i in range(90) if i % 3 != 1}
    for step in range(1, len(reference)):
        state = run(data, steps=step)[1]
        assert run(data, (1, 2, 3, 4)[step % 4], state=state)[0] == reference[step:]


def break_off(sample: dict[str, Any]) -> bool:
    """A filter that raises what a task of Ray takes for Ctrl-C."""
    if sample["json"]["i"] == 99:
        raise KeyboardInterrupt("broken off")
    return True


def test_an_interrupt_in_a_filter_is_an_error_of_its_sample(
    shards: str, pool_of_1: ri.Pool
) -> None:
    """In a task as in the threads of this process."""
    data = ri.read_webdataset(shards, block_bytes=4096).filter(break_off).batch(12)
    with pytest.raises(
        ri.DataError, match=r"filter\(break_off\): KeyboardInterrupt: broken off"
    ) as caught:
        run(data, pool=pool_of_1)
    assert caught.value.sample == 99


def test_bucketed_streams_are_the_same_over_ray_and_resumed(
    shards: str, pool_of_1: ri.Pool
) -> None:
    """From the state before every step, on other ranks. A state of other lengths is refused."""
    data = bucketed(shards)
    reference = run(data, epochs=2)[0]
    assert run(data, 2, epochs=2, pool=pool_of_1)[0] == reference
    assert sorted(i for step in reference[:4] for i, _ in step) == list(range(96))
    with data.loader(workers=0) as loader:
        states = [loader.state_dict() for _ in loader]
    for step, state in enumerate(states[:-1], 1):
        assert run(data, (1, 2, 3, 4)[step % 4], state=state, epochs=2)[0] == reference[step:]
    with pytest.raises(ri.StateError, match="lengths"):
        run(bucketed(shards, length_of_nothing), state=states[0])


def test_parts_share_no_sample_and_keep_their_ordinals(shards: str) -> None:
    """Each sample is in exactly one part; `__index__` is its place in all of the data."""
    data = images(shards, 10, partial="short")
    seen = [i for part in data.split(0.5, 0.5) for step in run(part)[0] for i, _ in step]
    assert sorted(seen) == list(range(250))
    part = images(shards, 10, partial="short", choose=lambda data: data.skip(100).take(40))
    with part.loader(workers=0) as loader:
        for batch in loader:
            assert np.array_equal(batch["__index__"], batch["i"])
            assert set(batch["i"].tolist()) <= set(range(100, 140))


def test_epochs_of_a_fixed_length_go_on_where_they_ended(shards: str) -> None:
    """Ten batches of data are four epochs of two and a half batches, without a gap."""
    data = images(shards, 24)
    expected = run(data, epochs=2)[0]
    assert run(data.epoch(samples=24 * 4 + 5), epochs=5)[0] == expected
    assert run(data.epoch(passes=2), epochs=1)[0] == expected


def test_a_state_of_other_limits_is_refused(shards: str) -> None:
    """With what differs; also a state of all samples."""
    data = images(shards, 24)
    state = run(data, steps=2)[1]
    first = images(shards, 24, choose=lambda data: data.take(240))
    for other, said in ((first, "subset"), (data.epoch(passes=2), "epoch_steps")):
        with pytest.raises(ri.StateError, match=said):
            run(other, state=state)
        with pytest.raises(ri.StateError, match=said):
            run(data, state=run(other, steps=2)[1])
