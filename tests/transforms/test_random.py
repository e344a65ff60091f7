"""Random numbers belong to the sample, whichever samples are decoded with it."""

from __future__ import annotations

import functools
import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rayingest.plan.order.randomness import generator
from rayingest.transforms import images
from rayingest.transforms.collate import assemble
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.stages import Decode, Map, MapBatches, Select
from tests.support.transform_cases import jpeg, noisy, noisy_x, run, run_pipeline, shard

RANDOM = [
    Select({"image": "jpg", "label": "cls"}),
    Decode({"image": images.Compose(images.RandomResizedCrop(16), images.RandomHorizontalFlip())}),
    Map(noisy),
    MapBatches(lambda columns, rng: {**columns, "more": [r.random() for r in rng]}),
    Decode({"label": lambda value, rng: value + rng.integers(1_000)}),
]


def test_random_functions_draw_from_their_own_generator_per_sample():
    """Keys are (seed, epoch, source, ordinal, stage); only random functions count as stages."""
    columns = run(RANDOM, shard(), shard(4), epoch=3, seed=11, source=2)
    for row, i in enumerate(range(100, 108)):
        rng = [generator(11, 3, 2, i, stage) for stage in range(4)]
        crop = RANDOM[1].functions["image"](jpeg(row), rng[0])
        np.testing.assert_array_equal(columns["image"][row], crop)
        np.testing.assert_array_equal(columns["noise"][row], rng[1].random(3))
        assert columns["more"][row] == rng[2].random()
        assert columns["label"][row] == row + rng[3].integers(1_000)


def test_epochs_seeds_sources_and_samples_differ():
    """Each of them changes the random numbers; a second run does not."""
    base = {"epoch": 0, "seed": 1, "source": 0}
    noise = [
        run([Map(noisy)], shard(), **{**base, **change})["noise"]
        for change in ({}, {"epoch": 1}, {"seed": 2}, {"source": 1})
    ]
    assert len({row.tobytes() for array in noise for row in array}) == 16
    np.testing.assert_array_equal(run([Map(noisy)], shard(), **base)["noise"], noise[0])


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(8)), cuts=st.lists(st.integers(0, 8), max_size=3))
def test_results_do_not_depend_on_the_grouping_of_rows(order, cuts):
    """Any pieces in any order, put together, give the same batch bit for bit."""
    tables = [shard(), shard(4)]
    pipeline = Pipeline(tuple(RANDOM), 5)
    whole = run_pipeline(pipeline, *tables)
    edges = [0, *sorted(cuts), 8]
    parts = []
    for begin, end in itertools.pairwise(edges):
        rows = np.array(order[begin:end], np.int64)
        parts.append((rows, run_pipeline(pipeline, *tables, rows=rows)))
    together = assemble(parts, 8, np.empty)
    assert together.keys() == whole.keys()
    for name in whole:
        assert together[name].dtype == whole[name].dtype
        np.testing.assert_array_equal(together[name], whole[name])


def test_random_numbers_are_asked_for_in_any_of_the_usual_ways():
    """A parameter `rng`, or a second one without default, gets a generator; no other does."""

    def keyword_only(sample, *, rng):
        return {"x": rng.random()}

    def with_default(sample, rng=None):
        return {"x": rng.random()}

    def positional(sample, numbers):
        return {"x": numbers.random()}

    class Caller:
        def __call__(self, sample, rng):
            return {"x": rng.random()}

    ways = [
        keyword_only,
        with_default,
        positional,
        Caller,
        Caller(),
        functools.partial(noisy_x, scale=1),
    ]
    results = [run([Map(way)], shard(n=1))["x"].item() for way in ways]
    assert set(results) == {generator(1, 0, 0, 100, 0).random()}
    assert run([Map(lambda sample, scale=3: {"x": scale})], shard(n=1))["x"].item() == 3
